"""Nearest texts among a million vectors: `bert-tf ask`'s exact search beside FAISS.

    python benchmarks/search_index.py [--texts 1000000] [--sides exact faiss_exact]

Vectors are random, of length 1, around a thousand centres. Each side is a process of its own, and
they take turns, a question each; medians. "Made" is what an index needs beyond the vectors. "Found"
is the share of the five nearest vectors that a side returns.

- exact: `SearchIndex.nearest`, vectors mapped from the disk.
- faiss_exact: `IndexFlatIP`, vectors in memory.
- faiss_hnsw: `IndexHNSWFlat` with 32 links, approximate.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peers import add_option, peer_python  # benchmarks/peers.py
from turns import answer, take_turns, timed  # benchmarks/turns.py

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SIDES = ("exact", "faiss_exact", "faiss_hnsw")
COUNT, QUESTIONS, ROWS = 5, 64, 50_000
Search = Callable[[np.ndarray], set[float]]  # a question's highest scores


def write(folder: Path, texts: int, width: int) -> None:
    """Writes vectors.npy and questions.npy."""
    random = np.random.default_rng(1)
    centres = random.standard_normal((1000, width), np.float32)

    def some(number: int) -> np.ndarray:
        around = centres[random.integers(len(centres), size=number)]
        made = around + random.standard_normal((number, width), np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    path = folder / "vectors.npy"
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (texts, width))
    for start in range(0, texts, ROWS):
        vectors[start : start + ROWS] = some(min(ROWS, texts - start))
    vectors.flush()
    np.save(folder / "questions.npy", some(QUESTIONS))


def _exact(folder: Path, vectors: np.ndarray) -> Callable[[], Search]:
    from bert_tf.commands.search_index import SearchIndex

    def made() -> Search:
        index = SearchIndex(folder, "", vectors, ['{"text": "", "source": ""}'] * len(vectors))
        return lambda question: {found.score for found in index.nearest(question, COUNT)}

    return made


def _faiss(name: str, vectors: np.ndarray) -> Callable[[], Search]:
    import faiss

    def made() -> Search:
        width = vectors.shape[1]
        if name == "faiss_exact":
            index = faiss.IndexFlatIP(width)
        else:
            index = faiss.IndexHNSWFlat(width, 32, faiss.METRIC_INNER_PRODUCT)
        index.add(np.ascontiguousarray(vectors))
        return lambda question: set(index.search(question[None], COUNT)[0][0].tolist())

    return made


def side(name: str, folder: Path) -> None:
    """Answers the question of each number with times, seconds to make, and the share found."""
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    questions = np.load(folder / "questions.npy")
    make = _exact(folder, vectors) if name == "exact" else _faiss(name, vectors)
    start = time.perf_counter()
    search = make()
    made = time.perf_counter() - start

    def reply(line: str) -> list[float]:
        question = questions[int(line) % QUESTIONS]
        spent = timed(lambda: search(question))
        least = np.partition(vectors @ question, -COUNT)[-COUNT] - 1e-5  # rounding
        return [*spent, made, sum(score >= least for score in search(question)) / COUNT]

    answer(reply)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--output", type=Path, help="JSON file of the results")
    add_option(parser)
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        side(options.side[0], Path(options.side[1]))
        return
    peers = peer_python(options.peers)
    with tempfile.TemporaryDirectory() as work:
        write(Path(work), options.texts, options.width)
        commands = {
            name: [sys.executable if name == "exact" else peers, __file__, "--side", name, work]
            for name in options.sides
        }
        left_out: set[str] = set()
        found = take_turns(commands, options.turns, [str(i) for i in range(8)], left_out=left_out)
    results = {}
    for name, times in found.items():
        clock, processor, made, share = np.median(times.reshape(-1, 4), axis=0)
        results[name] = {"ms": 1e3 * clock, "cpu_ms": 1e3 * processor, "made": made, "found": share}
        print(
            f"{name:12} {1e3 * clock:8.1f} ms  {1e3 * processor:8.1f} ms of processors  "
            f"made in {made:7.1f} s  found {share:.0%}"
        )
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Speed of our tokenizer and of the Rust `tokenizers`, on the same lines and vocabulary.

    python benchmarks/tokenizer.py --lines 100000

Both start from text in memory in batches of 1,000 lines, use the same number of threads and run in
turns; medians are printed. Ours runs in a tf.data pipeline, theirs in `encode_batch` (with offsets,
the usual call) and `encode_batch_fast` (without).
"""

import argparse
import ast
import gzip
import os
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH = 1000
CORPUS = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpus"


def corpus_lines(corpus: Path | None) -> Iterator[str]:
    """Lines with text: from a text file or folder (.txt, .txt.gz), or from docstrings.

    Args:
        corpus: a file or folder; None for the docstrings of Python's standard library.
    """
    if corpus is None:
        for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError):
                continue  # written to test the compiler
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    lines = (ast.get_docstring(node) or "").splitlines()
                    yield from (line for line in lines if line.strip())
        return
    paths = [corpus] if corpus.is_file() else sorted(corpus.rglob("*.txt*"))
    for path in paths:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in file if line.strip())


def seconds(run: Callable[[], None]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS if CORPUS.exists() else None)
    parser.add_argument("--vocab", type=Path, help="vocab.txt; by default learned from the lines")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--pairs", type=int, default=7)
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)

    import tensorflow as tf
    from tokenizers import BertWordPieceTokenizer

    from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary

    # A book is thousands of lines in one style, so sample evenly.
    lines = list(corpus_lines(arguments.corpus))
    step = max(1, len(lines) // arguments.lines)
    lines = lines[::step][: arguments.lines]
    lines = lines[: len(lines) // BATCH * BATCH]
    if not lines:
        parser.error(f"--corpus and --lines have to give {BATCH:,} lines with text, or more")
    megabytes = sum(len(line.encode()) for line in lines) / 1e6
    batched = tf.reshape(tf.constant(lines), [-1, BATCH])
    data = tf.data.Dataset.from_tensor_slices(batched)

    with tempfile.TemporaryDirectory() as folder:
        if arguments.vocab is None:
            tokenizer = BertTokenizer(learn_vocabulary(count_words(data), 30_522))
        else:
            tokenizer = BertTokenizer(arguments.vocab)
        tokenizer.save(folder)
        rust = BertWordPieceTokenizer(str(Path(folder) / "vocab.txt"), lowercase=True)

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = arguments.threads
    pipelines = {
        name: data.map(function, num_parallel_calls=arguments.threads)
        .prefetch(2)
        .with_options(options)
        for name, function in (
            ("bert-tf", tokenizer.tokenize),
            ("bert-tf with offsets", tokenizer.tokenize_with_offsets),
        )
    }
    python_batches = [lines[i : i + BATCH] for i in range(0, len(lines), BATCH)]

    def run_pipeline(name: str) -> Callable[[], None]:
        def run() -> None:
            for _ in pipelines[name]:
                pass

        return run

    def run_rust(encode: Callable) -> Callable[[], None]:
        def run() -> None:
            for batch in python_batches:
                encode(batch, add_special_tokens=False)

        return run

    contestants = {
        "bert-tf": run_pipeline("bert-tf"),
        "tokenizers encode_batch": run_rust(rust.encode_batch),
        "bert-tf with offsets": run_pipeline("bert-tf with offsets"),
        "tokenizers encode_batch_fast": run_rust(rust._tokenizer.encode_batch_fast),
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()  # warm-up: tracing, thread pools, caches
    for _ in range(arguments.pairs):
        for name, run in contestants.items():
            times[name].append(seconds(run))

    theirs = [
        e.ids
        for batch in python_batches
        for e in rust.encode_batch(batch, add_special_tokens=False)
    ]
    ours = [row for batch in pipelines["bert-tf"] for row in batch.to_list()]
    differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
    print(
        f"{len(lines):,} lines, {megabytes:.1f} MB, {sum(map(len, ours)):,} pieces, "
        f"{arguments.threads} threads, median of {arguments.pairs}; "
        f"lines with other ids: {differing}"
    )
    ours_median = statistics.median(times["bert-tf"])
    for name, measured in times.items():
        median = statistics.median(measured)
        speeds = sorted(megabytes / s for s in measured)
        print(
            f"{name:30} {megabytes / median:6.1f} MB/s  ({speeds[0]:.1f} to {speeds[-1]:.1f})"
            f"  {median / ours_median:5.2f} times the time of bert-tf"
        )


if __name__ == "__main__":
    main()

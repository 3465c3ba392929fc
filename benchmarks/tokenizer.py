"""Speed of our tokenizer and of others in Rust and C++, in turns.

    python benchmarks/tokenizer.py --lines 100000 [--peers peer/bin/python]

All have the same lines and vocabulary, start from text in memory in batches of 1,000 lines and use
the same number of threads; medians are printed, by the clock and in processor seconds, which are
more reliable on a shared machine. Two kinds of work:

- ids of tensors, ours in a tf.data pipeline: the peers are `tokenizers`, by `encode_batch` (with
  offsets, the usual call) and `encode_batch_fast` (without), and those of
  benchmarks/requirements/tokenizers.txt, each a new one in each turn: some remember words;
- lists of strings to ids of 128 tokens, [CLS], [SEP] and padding included: ours called eagerly,
  `tokenizers`, and FlashTokenizer.
"""

import argparse
import ast
import contextlib
import functools
import gzip
import importlib
import json
import os
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import turns  # benchmarks/turns.py
from peers import add_option, environment, peer_python, versions  # benchmarks/peers.py

BATCH, LENGTH = 1000, 128
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


# Tokenizes all lines and says how long it took, by the clock and of the processors.
Turn = Callable[[], list[float]]


def encoder(peer: str, folder: Path) -> Callable[[list[str]], Any]:
    """A new tokenizer of a package; it has vocab.txt and tokenizer.json in the folder."""
    file = str(folder / "tokenizer.json")
    if peer == "flash-tokenizer":
        from flash_tokenizer import BertTokenizerFlash

        flash = BertTokenizerFlash(str(folder / "vocab.txt"), model_max_length=LENGTH)
        return lambda texts: flash.tokenizer.batch_encode(texts, "max_length", LENGTH, True)
    module = importlib.import_module(peer)
    if peer == "tokenizers":
        encode = module.Tokenizer.from_file(file).encode_batch
    elif peer == "tokie":
        encode = module.Tokenizer.from_json(file).encode_batch_flat
    else:
        encode = module.Tokenizer(file).encode_batch
    return functools.partial(encode, add_special_tokens=False)


def peer_process(peer: str, folder: Path) -> None:
    """For each line the seconds of all texts."""
    batches = json.loads((folder / "lists.json").read_text())

    def reply(line: str) -> list[float]:
        encode = encoder(peer, folder)

        def encode_all() -> None:
            for batch in batches:
                encode(batch)

        return turns.timed(encode_all)

    turns.answer(reply)


def compare(contestants: dict[str, Turn], megabytes: float, rounds: int) -> dict[str, Any]:
    """Lets all take turns."""
    for run in contestants.values():
        run()  # warm-up: tracing, thread pools, caches
    times = np.array([[run() for run in contestants.values()] for _ in range(rounds)])
    by_side = {name: times[:, number] for number, name in enumerate(contestants)}
    return turns.summary(by_side, megabytes, "MB")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS if CORPUS.exists() else None)
    parser.add_argument("--vocab", type=Path, help="vocab.txt; by default learned from the lines")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=7)
    add_option(parser)
    parser.add_argument("--output", help="JSON file of the results")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        peer_process(arguments.work[0], Path(arguments.work[1]))
        return
    os.environ["RAYON_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(arguments.threads)

    import tensorflow as tf
    from tokenizers import BertWordPieceTokenizer

    from bert_tf.tokenization import BertTokenizer, Packer, count_words, learn_vocabulary

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
    lists = [lines[i : i + BATCH] for i in range(0, len(lines), BATCH)]

    if arguments.vocab is None:
        tokenizer = BertTokenizer(learn_vocabulary(count_words(data), 30_522))
    else:
        tokenizer = BertTokenizer(arguments.vocab)
    pack = Packer(tokenizer, LENGTH)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = arguments.threads

    def pipeline(function: Callable) -> tf.data.Dataset:
        mapped = data.map(function, num_parallel_calls=arguments.threads)
        return mapped.prefetch(2).with_options(options)

    def over(batches: Iterable, function: Callable) -> Turn:
        def run() -> None:
            for batch in batches:
                function(batch)

        return lambda: turns.timed(run)

    def through(dataset: tf.data.Dataset) -> Turn:
        return over(dataset, lambda batch: None)

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        tokenizer.save(folder)
        (Path(folder) / "lists.json").write_text(json.dumps(lists))
        vocabulary = str(Path(folder) / "vocab.txt")

        def in_process(python: str, peer: str) -> Turn:
            process = stack.enter_context(
                subprocess.Popen(
                    [python, __file__, "--work", peer, folder],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.stdin.close)

            def ask() -> list[float]:
                print(file=process.stdin, flush=True)
                return json.loads(process.stdout.readline())

            return ask

        rust, padding = (BertWordPieceTokenizer(vocabulary, lowercase=True) for _ in range(2))
        rust.save(str(Path(folder) / "tokenizer.json"))
        padding.enable_truncation(LENGTH)
        padding.enable_padding()
        ids = pipeline(tokenizer.tokenize)
        theirs = [
            encoding.ids
            for batch in lists
            for encoding in rust.encode_batch(batch, add_special_tokens=False)
        ]
        ours = [row for batch in ids for row in batch.to_list()]
        differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
        print(
            f"{len(lines):,} lines, {megabytes:.1f} MB, {sum(map(len, ours)):,} pieces, "
            f"{arguments.threads} threads, {arguments.turns} turns; lines with other ids than "
            f"tokenizers': {differing}"
        )
        plain = functools.partial(rust.encode_batch, add_special_tokens=False)
        fast = functools.partial(rust._tokenizer.encode_batch_fast, add_special_tokens=False)
        contestants = {
            "bert-tf": through(ids),
            "tokenizers encode_batch": over(lists, plain),
            "bert-tf with offsets": through(pipeline(tokenizer.tokenize_with_offsets)),
            "tokenizers encode_batch_fast": over(lists, fast),
        }
        others = environment("tokenizers")
        for name, version in versions(others, ("tokenizers", "tokie", "nanotoken")).items():
            contestants[f"{name} {version}"] = in_process(others, name)
        works = {"text to ids": compare(contestants, megabytes, arguments.turns)}

        contestants = {
            "bert-tf eagerly": over(lists, lambda texts: pack(tokenizer.tokenize(texts))),
            "tokenizers encode_batch_fast": over(lists, padding._tokenizer.encode_batch_fast),
        }
        contestants["FlashTokenizer"] = in_process(peer_python(arguments.peers), "flash-tokenizer")
        works["lists to padded ids"] = compare(contestants, megabytes, arguments.turns)
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(works, indent=1))
    for name, rows in works.items():
        print(f"\n{name}\n\n{turns.table(rows)}")


if __name__ == "__main__":
    main()

"""What grows with the corpus: memory and time of single steps and of the whole flow.

    python benchmarks/scale.py reading           # the first and later windows of 8 million blocks
    python benchmarks/scale.py files --count 200000
    python benchmarks/scale.py flow --gigabytes 2 --corpus FOLDER [--tokenizer FOLDER]

Each is a process of its own, whose largest memory is that of the step (`files` prints what the step
adds).
"""

import argparse
import gzip
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(what: str, seconds: float, before: float) -> None:
    print(
        f"{what}: {seconds:.3g} s, {megabytes() - before:.0f} MB more than the {before:.0f} before"
    )


def reading() -> None:
    import numpy as np
    import tensorflow as tf

    from bert_tf.pipelines.shards.pretraining_batches import _records
    from bert_tf.pipelines.shards.record_blocks import RecordBlocks

    count, records = 8_000_000, 256
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "train.tfrecord"))
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(records):
                writer.write(b"x" * 100)
        # All blocks are the same place, which the system keeps in memory.
        zeros, size = np.zeros(count, np.int64), Path(path).stat().st_size
        blocks = RecordBlocks([path], zeros, zeros, np.full(count, size), np.full(count, records))
        seed = tf.constant([1, 2], tf.int64)
        before, began = megabytes(), time.monotonic()
        windows = iter(_records((blocks, None), seed, first=count, repeat=True))
        next(windows)
        report("reading, to the first window", time.monotonic() - began, before)
        before, began = megabytes(), time.monotonic()
        for _ in range(10):
            next(windows)
        report("reading, each window after it", (time.monotonic() - began) / 10, before)


def files(count: int) -> None:
    from bert_tf.pipelines.corpus.sources import open_corpus
    from bert_tf.pipelines.data_options import CorpusOptions

    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            inside = Path(folder, f"{number // 1000:04d}")
            if number % 1000 == 0:
                inside.mkdir()
            (inside / f"{number:07d}.txt").write_text("A line of text.\n\nAnother line of it.\n")
        before, began = megabytes(), time.monotonic()
        corpus = open_corpus(folder, CorpusOptions())
        report(f"files, {count} in {len(corpus.units)} units", time.monotonic() - began, before)


def flow(gigabytes: float, corpus: str, workers: int, tokenizer: str) -> None:
    """Vocabulary and shards of a text that repeats a corpus, with a kill in the middle.

    A `tokenizer` leaves out the vocabulary.
    """
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder, "text"), Path(folder, "shards")
        text.mkdir()
        books = [_content(path) for path in sorted(Path(corpus).glob("*.txt*"))]
        copies = max(1, round(gigabytes * 1e9 / sum(map(len, books))))
        for copy in range(copies):  # words differ from copy to copy, as in more text
            for number, book in enumerate(books):
                changed = book.replace(b" e", b" e%d" % copy)
                (text / f"{copy:04d}-{number:02d}.txt").write_bytes(changed)
        size = sum(path.stat().st_size for path in text.iterdir())
        given = ["--corpus", str(text), "--corpus_format", "text"]
        if not tokenizer:
            tokenizer = str(Path(folder, "vocabulary"))
            learned = _watched(["vocab", *given, "--output", tokenizer])
            print(f"flow, vocabulary of {size / 1e9:.2f} GB: {learned.line(size)}", flush=True)
        command = [
            "shards",
            *given,
            "--tokenizer",
            tokenizer,
            "--output",
            str(out),
            "--masking",
            "dynamic",
            "--workers",
            str(workers),
        ]
        killed = _watched(
            command, until=lambda: len(list(out.glob(".journal/*-last.json"))) >= size >> 26
        )
        shards = len(list(out.glob("*.tfrecord")))
        print(f"flow, killed after {killed.seconds:.0f} s with {shards} shards", flush=True)
        resumed = _watched(command)
        resumed.seconds += killed.seconds
        resumed.processor += killed.processor
        resumed.memory = killed.memory + resumed.memory
        print(f"flow, shards of {size / 1e9:.2f} GB with the kill: {resumed.line(size)}")


def _content(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@dataclass
class _Watched:
    seconds: float
    processor: float  # seconds of all its threads and children
    memory: list[float]  # MB of the process and its children, by time

    def line(self, size: int) -> str:
        early = max(self.memory[: len(self.memory) // 2])
        return (
            f"{self.seconds:.0f} s, {size / 1e6 / self.seconds:.1f} MB/s, "
            f"{size / 1e6 / self.processor:.1f} MB in a processor second, at most "
            f"{max(self.memory):.0f} MB of memory, in the first half {early:.0f} MB"
        )


def _watched(command: list[str], until: Callable[[], bool] = lambda: False) -> _Watched:
    """Runs bert-tf until it ends, or kills it."""
    began, memory, before = time.monotonic(), [0.0], _of_children()
    process = subprocess.Popen([sys.executable, "-m", "bert_tf.cli", *command])
    while process.poll() is None:
        memory.append(_resident(process.pid))
        if until():
            process.kill()
        time.sleep(0.5)
    if process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"{command[0]} failed")
    return _Watched(time.monotonic() - began, _of_children() - before, memory)


def _of_children() -> float:
    """Processor seconds of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _resident(process: int) -> float:
    """The resident memory of a process and its children, in MB."""
    of_parent: dict[int, list[int]] = {}
    resident = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        of_parent.setdefault(int(fields[1]), []).append(int(path.name))
        resident[int(path.name)] = int(fields[21]) * resource.getpagesize() / 1e6
    tree, found = [process], 0.0
    while tree:
        number = tree.pop()
        found += resident.get(number, 0.0)
        tree += of_parent.get(number, [])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=("reading", "files", "flow"))
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--corpus")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.step == "reading":
        reading()
    elif given.step == "files":
        files(given.count)
    else:
        flow(given.gigabytes, given.corpus, given.workers, given.tokenizer)


if __name__ == "__main__":
    main()

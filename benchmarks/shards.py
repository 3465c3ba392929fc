"""Speed and memory of `bert-tf shards` and of the data script of TensorFlow's Model Garden.

    python benchmarks/shards.py --corpus books/ --vocab vocab.txt

Both make the original's instances from the same files with the same vocabulary, in turns, each run
in a separate process; medians are printed. Speed is megabytes of the corpus per second at any
dupe factor. An option measures something else instead:

    python benchmarks/shards.py --cores 1,2        how our speed grows with cores

The corpus is plain text in paragraphs, gzipped or not; by default the documentation inside this
Python. It is split into sentences first and cut into documents of 200 sentences.
"""

import argparse
import gzip
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import shard_processes
from model_garden import data_script, peer_python
from shard_processes import MAX_SEQ_LENGTH

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BOOKS = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpus" / "books"


@dataclass
class Run:
    """A finished process.

    Args:
        seconds: from start to end.
        peak_megabytes: the most memory it held.
        output: what it printed.
    """

    seconds: float
    peak_megabytes: float
    output: str


def run(command: list, cores: int | None = None) -> Run:
    """Runs a process, restricted to `cores` of this process's cores if given."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    with tempfile.TemporaryFile("w+") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.sched_setaffinity(0, allowed),
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        printed = output.read()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command[:4]))} ... failed:\n{printed}")
    return Run(seconds, usage.ru_maxrss / 1024, printed)


def stage(name: str, *arguments: object, cores: int | None = None) -> Run:
    """Runs a function of benchmarks/shard_processes.py in a separate process.

    This process stays small and free of TensorFlow: the peak memory of a process is at least what
    its parent held when it began.
    """
    return run([sys.executable, shard_processes.__file__, name, *arguments], cores)


def bert_tf_shards(
    files: Path, output: Path, tokenizer: Path, dupe_factor: int, masking: str
) -> list:
    """Command line to measure."""
    return [
        sys.executable,
        "-m",
        "bert_tf.cli",
        "shards",
        "--corpus",
        files,
        "--output",
        output,
        "--tokenizer",
        tokenizer,
        "--dupe_factor",
        dupe_factor,
        "--masking",
        masking,
        "--max_seq_length",
        MAX_SEQ_LENGTH,
        "--held_out_share",
        0,
    ]


@dataclass
class Result:
    """One run of a contestant.

    Args:
        process: the command, from start to end.
        work_seconds: without start-up: of ours, the library call in another process.
        instances: written.
    """

    process: Run
    work_seconds: float
    instances: int


@dataclass
class Bench:
    """The options, the prepared inputs, and a folder for outputs."""

    options: argparse.Namespace
    work: Path
    corpus: Path
    tokenizer: Path

    def ours(self, corpus: Path, dupe_factor: int, cores: int | None = None) -> Result:
        """Makes shards with the command, then with the library call."""
        output = self.work / "ours"
        arguments = (corpus, output, self.tokenizer, dupe_factor, self.options.masking)
        process = run(bert_tf_shards(*arguments), cores)
        manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
        shutil.rmtree(output)
        working = stage("library", *arguments, cores=cores)
        shutil.rmtree(output)
        instances = sum(shard["instances"] for shard in manifest["shards"]["train"])
        return Result(process, seconds_of_work(working), instances)

    def peers(self, corpus: Path, dupe_factor: int) -> Result:
        """Makes instances with the peer."""
        output = self.work / "peer.tfrecord"
        process = run(
            data_script(
                self.options.peer_python,
                sorted(corpus.iterdir()),
                output,
                self.tokenizer / "vocab.txt",
                dupe_factor=dupe_factor,
                max_seq_length=MAX_SEQ_LENGTH,
            )
        )
        output.unlink()
        wrote = re.search(r"Wrote (\d+) total instances", process.output)
        assert wrote, process.output
        return Result(process, seconds_of_work(process), int(wrote[1]))

    def compare(self) -> None:
        """Prints our speed and the peer's on part of the corpus, and ours on all of it."""
        part = self.work / "share"
        stage("share", self.corpus, part, self.options.peer_megabytes)
        for dupe_factor in self.options.dupe_factors:
            print(f"\ndupe factor {dupe_factor}, a share of {megabytes_of(part):.1f} MB")
            ours, peers = [], []
            for _ in range(self.options.pairs):
                ours.append(self.ours(part, dupe_factor))
                peers.append(self.peers(part, dupe_factor))
            print_speed("bert-tf", megabytes_of(part), ours)
            print_speed("Model Garden", megabytes_of(part), peers)
            for what, seconds in (
                ("of whole processes", lambda result: result.process.seconds),
                ("of the work alone", lambda result: result.work_seconds),
            ):
                ratios = [seconds(b) / seconds(a) for a, b in zip(ours, peers, strict=True)]
                print(f"ratio {what}: {statistics.median(ratios):.1f}")
            print(f"dupe factor {dupe_factor}, all {megabytes_of(self.corpus):.1f} MB")
            whole = [self.ours(self.corpus, dupe_factor) for _ in range(self.options.pairs)]
            print_speed("bert-tf", megabytes_of(self.corpus), whole)

    def scale(self) -> None:
        """Prints our speed for each number of cores."""
        megabytes = megabytes_of(self.corpus)
        results: dict[int, list[Result]] = {cores: [] for cores in self.options.cores}
        for _ in range(self.options.pairs):
            for cores, found in results.items():
                found.append(self.ours(self.corpus, 1, cores))
        for cores, found in results.items():
            print_speed(f"{cores} cores", megabytes, found)


def megabytes_of(folder: Path) -> float:
    """Bytes of text in a folder, unpacked."""
    total = 0
    for path in folder.iterdir():
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            while block := file.read(1 << 20):
                total += len(block)
    return total / 1e6


def seconds_of_work(finished: Run) -> float:
    """Working time that a run reports, without start-up."""
    match = re.search(r"seconds of work: ([\d.]+)", finished.output)
    assert match, finished.output
    return float(match[1])


def print_speed(name: str, megabytes: float, results: list[Result]) -> None:
    """Prints a line of the table: medians, the highest peak, and each process's time."""
    seconds = statistics.median(result.process.seconds for result in results)
    working = statistics.median(result.work_seconds for result in results)
    peak = max(result.process.peak_megabytes for result in results)
    runs = ", ".join(f"{result.process.seconds:.1f}" for result in results)
    print(
        f"{name:12} {megabytes / seconds:6.2f} MB/s whole, {megabytes / working:6.2f} MB/s and "
        f"{results[0].instances / working:7,.0f} instances/s at work, peak {peak:6,.0f} MB  "
        f"(processes: {runs} s)"
    )


def main() -> None:
    """Measures and prints."""
    sys.stdout.reconfigure(line_buffering=True)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=BOOKS if BOOKS.exists() else None)
    parser.add_argument("--vocab", type=Path, help="vocab.txt; learned from the corpus if missing")
    parser.add_argument("--masking", choices=("static", "dynamic"), default="static")
    parser.add_argument("--dupe-factors", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--pairs", type=int, default=3, help="runs per contestant")
    parser.add_argument(
        "--peer-megabytes", type=float, default=8.0, help="megabytes for the peer, which is slow"
    )
    parser.add_argument(
        "--peer-python",
        type=Path,
        help="Python with Model Garden; by default .venv-model-garden is made",
    )
    parser.add_argument("--cores", type=lambda given: [int(n) for n in given.split(",")])
    parser.add_argument("--work", type=Path, help="folder for temporary files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        bench = Bench(options, work, work / "corpus", work / "tokenizer")
        stage("prepare", options.corpus or "", bench.corpus)
        stage("tokenizer_folder", options.vocab or "", bench.corpus, bench.tokenizer)
        cores = len(os.sched_getaffinity(0))
        print(
            f"{cores} cores, {megabytes_of(bench.corpus):.1f} MB of text, {options.masking} masks"
        )
        if options.cores:
            bench.scale()
        else:
            options.peer_python = peer_python(options.peer_python)
            bench.compare()


if __name__ == "__main__":
    main()

"""Mutation testing: which small mistakes in the core would the fast tests see?

    make mutants                                   # 300 mutants, drawn with seed 0
    make mutants ARGS="--sample 40 --packages training --seed 1"
    make mutants ARGS=--again                      # those that survived the last time

A mutant costs its tests alone: they run in a process forked from one that has imported TensorFlow,
in a copy of the repository with one file changed. A test is near a function if it runs it; the
fewer other functions it runs, the nearer. What tests run is recorded in runs/mutants/reach, once
for each file of tests: remove the folder when functions have moved.

mutmut's own runner (3.8) draws no sample, follows no link (`bert_tf/pipelines`), and leaves out
functions with decorators and constants of modules: 30% of these mutants.
"""

import argparse
import contextlib
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import yaml
from mutations import Mutant, sample
from nearest import Chosen, Reach

RESULTS = Path("runs/mutants")
Reached = dict[str, tuple[float, list[str]]]  # by test: processor seconds, functions of the core


@dataclass
class Job:
    """A run of pytest in a copy of the repository."""

    plugin: Reach | Chosen
    arguments: list[str]
    seconds: float  # until it is killed
    done: Callable[[int | None, Any], None]  # takes the exit code (None: killed) and the result
    mutant: Mutant | None = None


def _run_job(tree: Path, job: Job, results: Any) -> None:
    os.setsid()
    log = os.open(tree.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tree)
    sys.path.insert(0, str(tree))
    os.environ |= {"PYTHONPATH": str(tree), "TMPDIR": str(tree.parent)}
    tempfile.tempdir = None  # is read again
    sys.dont_write_bytecode = job.mutant is not None
    arguments = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--basetemp", f"{tree}.tmp"]
    code = pytest.main([*arguments, *job.arguments], [job.plugin])
    results.send((int(code), job.plugin.result))
    os._exit(0)


def run_jobs(jobs: Iterable[Job], trees: list[Path]) -> None:
    """Runs jobs, one at a time in each copy of the repository."""
    fork, jobs, running = multiprocessing.get_context("fork"), iter(jobs), {}
    while True:
        for tree in trees:
            if tree in running or (job := next(jobs, None)) is None:
                continue
            if job.mutant:
                file = tree / job.mutant.path
                file.rename(file.with_suffix(".kept"))  # with its time: its bytecode stays valid
                file.write_text(job.mutant.code, encoding="utf-8")
            receiver, sender = fork.Pipe(duplex=False)
            process = fork.Process(target=_run_job, args=(tree, job, sender))
            process.start()
            sender.close()
            running[tree] = job, process, receiver, time.monotonic() + job.seconds
        if not running:
            return
        soonest = min(deadline for *_, deadline in running.values())
        wait([receiver for _, _, receiver, _ in running.values()], soonest - time.monotonic())
        for tree, (job, process, receiver, deadline) in list(running.items()):
            if not receiver.poll() and time.monotonic() < deadline:
                continue
            outcome = (None, None)
            if receiver.poll():
                with contextlib.suppress(EOFError):  # the process has crashed
                    outcome = receiver.recv()
            with contextlib.suppress(ProcessLookupError):  # with what it has started
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
            del running[tree]
            if job.mutant:
                file = tree / job.mutant.path
                file.with_suffix(".kept").replace(file)
            job.done(*outcome)


def copies(folder: Path, number: int) -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    if (shared := Path("../shared").resolve()).is_dir():
        (folder / "shared").symlink_to(shared)
    trees = [folder / str(number) for number in range(number)]
    for tree, file in itertools.product(trees, filter(os.path.lexists, files)):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, tree / file, follow_symlinks=False)
    return trees


def record_reach(files: list[Path], core: list[str], trees: list[Path]) -> Reached:
    """Returns what the tests of all files run; a file recorded before is not run again."""
    records = {
        file: RESULTS / "reach" / f"{file.stem}-{hashlib.md5(file.read_bytes()).hexdigest()}.json"
        for file in files
    }

    def job(file: Path) -> Job:
        def done(code: int | None, result: Any) -> None:
            print(f"{file}: {len(result or ())} tests", flush=True)
            if code is not None:
                records[file].write_text(json.dumps(result))

        return Job(Reach(core), [str(file)], 1800, done)

    (RESULTS / "reach").mkdir(parents=True, exist_ok=True)
    run_jobs((job(file) for file in files if not records[file].exists()), trees)
    texts = [record.read_text() for record in records.values() if record.exists()]
    return {test: reached for text in texts for test, reached in json.loads(text).items()}


def nearest_tests(mutant: Mutant, reach: Reached, seconds: float) -> list[str]:
    """Tests that run the function of a mutant, or else its file, and take at most `seconds`."""
    name = f"{mutant.path}:{mutant.function}"
    near = [test for test, (_, functions) in reach.items() if name in functions]
    if not near:
        near = [t for t, (_, fs) in reach.items() if any(f.startswith(mutant.path) for f in fs)]
    near.sort(key=lambda test: (len(reach[test][1]), reach[test][0]))
    spent = itertools.accumulate(reach[test][0] for test in near)
    return [test for test, total in zip(near, spent, strict=True) if total <= seconds] or near[:1]


def files_of(tests: list[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def report(mutants: dict[Mutant, str], survivors: list[Mutant], known: dict) -> None:
    """Prints the table by package, and the survivors: known to be equivalent, and new."""
    reasons = {m: known.get(m.path, {}).get(m.after) for m in survivors}
    print("\n| package | mutants | seen | equivalent | seen of the others |\n|---|---|---|---|---|")
    for package in (*dict.fromkeys(mutants.values()), "all"):
        some = [mutant for mutant, name in mutants.items() if package in (name, "all")]
        seen = sum(mutant not in survivors for mutant in some)
        same = sum(bool(reasons.get(mutant)) for mutant in some)
        share = f"{seen / max(1, len(some) - same):.0%}"
        print(f"| {package} | {len(some)} | {seen} | {same} | {share} |")
    for title, is_known in (("Equivalent", True), ("New survivors", False)):
        some = [mutant for mutant, reason in reasons.items() if bool(reason) == is_known]
        print(f"\n{title}: {len(some)}")
        for m in some:
            print(f"{m.path}:{m.line} {m.function}\n  - {m.before}\n  + {m.after}")
            if is_known:
                print(f"  = {reasons[m]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="mutants, over all packages")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--packages", nargs="+", help="packages of the table; default: all")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders of tests")
    parser.add_argument("--seconds", type=float, default=60, help="of nearest tests, per mutant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--again", action="store_true", help="only survivors of the last run")
    parser.add_argument("--table", type=Path, default=Path(__file__).parent / "mutants.yaml")
    options = parser.parse_args()
    table = yaml.safe_load(options.table.read_text())
    os.environ |= table["environment"]
    for module in table["imported"]:
        importlib.import_module(module)

    packages = {name: table["packages"][name] for name in options.packages or table["packages"]}
    mutants: dict[Mutant, str] = {}  # with their packages
    for package, paths in packages.items():
        drawn, number = sample(paths, -(-options.sample // len(packages)), options.seed)
        print(f"{package}: {len(drawn)} of {number} mutants", flush=True)
        mutants |= dict.fromkeys(drawn, package)
    last = RESULTS / "survivors.json"
    if options.again:
        kept = json.loads(last.read_text())
        mutants = {m: name for m, name in mutants.items() if [m.path, m.before, m.after] in kept}

    folders = map(Path, options.tests)
    files = [f for folder in folders for f in sorted(folder.rglob("test_*.py")) or [folder]]
    survivors: list[Mutant] = []
    seen_by: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = copies(Path(folder).resolve(), options.jobs)
        core = [path for paths in table["packages"].values() for path in paths]
        reach = record_reach(files, core, trees)
        numbers = itertools.count(1)

        def job(mutant: Mutant) -> Job:
            tests = nearest_tests(mutant, reach, options.seconds)

            def done(code: int | None, failed: list[str] | None) -> None:
                is_seen = code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
                if failed:
                    seen_by[mutant] = failed[0]
                elif not is_seen:
                    survivors.append(mutant)
                by = failed[0] if failed else f"exit code {code}" if is_seen else "survives"
                place = f"{next(numbers)}/{len(mutants)} {mutant.path}:{mutant.line}"
                print(f"{place} {by}, {len(tests)} tests", flush=True)

            seconds = 60 + 10 * sum(reach[test][0] for test in tests)
            return Job(Chosen(tests), ["-x", *files_of(tests)], seconds, done, mutant)

        def unseen(code: int | None, failed: list[str] | None) -> None:
            for mutant, test in seen_by.items():
                if failed is None or test in failed:
                    print(f"{mutant.path}:{mutant.line} {test} fails without a mutant, too")
                    survivors.append(mutant)

        run_jobs(map(job, mutants), trees)
        if tests := sorted(set(seen_by.values())):
            run_jobs([Job(Chosen(tests), files_of(tests), 3600, unseen)], trees)
    report(mutants, survivors, table["equivalent"])
    last.write_text(json.dumps([[m.path, m.before, m.after] for m in survivors]))


if __name__ == "__main__":
    main()

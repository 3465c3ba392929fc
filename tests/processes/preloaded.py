"""Processes that start in a tenth of a second: forked from a server that has imported TensorFlow.

For tests that need a process of their own, to kill it, to read its exit code, to set its
environment. TensorFlow may be forked as long as it has only been imported: its threads start with
the first operation.

    process = start_command(["pretrain", "--shards", ...])   # bert-tf, like subprocess.Popen
    done = run_command([...], env={"TF_CONFIG": ...})        # like subprocess.run
    done = run_code("import tensorflow ...", arguments=[...])
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_OURS = ("cli", "commands.pretrain", "commands.shards", "commands.pretraining_run")
_LOADED = [f"bert_tf.{name}" for name in (*_OURS, "pipelines.shards.run")]
_CONTEXT.set_forkserver_preload(["tensorflow", "keras", "bert_tf", *_LOADED])

# The exit code of a process can be read once, and the start of one process reads those of others: a
# second thread that reads it at the same time gets 255.
_LOCK = threading.Lock()

_COMMAND = "import sys; from bert_tf.cli import main; sys.exit(main(sys.argv[1:]))"


def _main(
    code: str, arguments: list[str], env: dict[str, str], cwd: str, outputs: tuple[str, str]
) -> None:
    for descriptor, path in enumerate(outputs, start=1):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    # A daemon, so that none outlives the tests; but one that may start processes of its own.
    multiprocessing.process.current_process()._config["daemon"] = False
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    os.fsync = lambda descriptor: None  # as `what_tests_do_without` in conftest.py
    sys.argv = ["-c", *arguments]
    gc.set_threshold(100_000, 50, 100)
    importlib.invalidate_caches()
    sys.modules["bert_tf.training.device_speed"]._SECONDS = 0.0  # two rounds
    sys.modules["bert_tf.commands.pretraining_run"].hide_words = lambda sample, tokenizer: {}
    graphs = sys.modules["tensorflow"].config.optimizer  # as `graphs_as_traced` in conftest.py
    graphs.set_experimental_options({"disable_meta_optimizer": True})
    exit_code = 1
    try:
        exec(compile(code, "<process>", "exec"), {"__name__": "__main__"})
        exit_code = 0
    except SystemExit as error:
        if isinstance(error.code, int) or error.code is None:
            exit_code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


class Process:
    """A running process, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(
        self,
        code: str,
        arguments: Sequence[object],
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self.args = [str(argument) for argument in arguments]
        self._folder = tempfile.TemporaryDirectory(prefix="process-")
        outputs = tuple(str(Path(self._folder.name) / name) for name in ("stdout", "stderr"))
        for path in outputs:
            Path(path).touch()
        self.stdout, self.stderr = (
            Path(path).open(encoding="utf-8", errors="replace")  # noqa: SIM115
            for path in outputs
        )
        environment = dict(os.environ if env is None else env)
        self._process = _CONTEXT.Process(
            target=_main,
            args=(code, self.args, environment, str(cwd or Path.cwd()), outputs),
            daemon=True,
        )
        with _LOCK:
            self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the number of the signal that ended it, or None."""
        with _LOCK:
            return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        wait_for([self._process.sentinel], timeout)
        if (exit_code := self.returncode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return exit_code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; returns what is unread of standard output and standard error."""
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def first_line(self, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while not (line := self.stdout.readline()).endswith("\n"):
            self.stdout.seek(0)
            assert self.poll() is None and time.monotonic() < deadline, self.stderr.read()
            time.sleep(0.01)
        return line.strip()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        with _LOCK:
            self._process.kill()

    def terminate(self) -> None:
        with _LOCK:
            self._process.terminate()


def wait_until(happened: Callable[[], object], *processes: Process, seconds: float = 120) -> None:
    """Waits for what processes do; fails if one ends before."""
    deadline = time.monotonic() + seconds
    while not happened():
        for process in processes:
            assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def start_code(code: str, arguments: Sequence[object] = (), **options: Any) -> Process:
    """Starts `python -c code *arguments`, in an environment `env` and a folder `cwd`."""
    return Process(code, arguments, **options)


def run_code(
    code: str,
    arguments: Sequence[object] = (),
    *,
    check: bool = False,
    timeout: float = 300,
    **options: Any,
) -> subprocess.CompletedProcess:
    """Runs `python -c code *arguments` to its end."""
    process = start_code(code, arguments, **options)
    stdout, stderr = process.communicate(timeout)
    if check and process.returncode:
        error = subprocess.CalledProcessError(process.returncode, process.args, stdout, stderr)
        error.add_note(stderr)
        raise error
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def start_command(arguments: Sequence[object], *, setup: str = "", **options: Any) -> Process:
    """Starts `bert-tf *arguments`, after the statements `setup`; options are `start_code`'s."""
    return start_code(f"{setup}\n{_COMMAND}", arguments, **options)


def run_command(
    arguments: Sequence[object], *, setup: str = "", **options: Any
) -> subprocess.CompletedProcess:
    """Runs `bert-tf *arguments` to its end; options are `run_code`'s."""
    return run_code(f"{setup}\n{_COMMAND}", arguments, **options)

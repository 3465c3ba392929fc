"""Commands in tests: a line as a user types it, and options of any value."""

import os
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from bert_tf.cli import main


def finished(
    *command: object, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess:
    """Runs a program that must succeed, with more in its environment; gives what it printed."""
    options |= {"capture_output": True, "text": True, "env": {**os.environ, **(env or {})}}
    done = subprocess.run([*map(str, command)], **options)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"[-5000:]
    return done


def words(line: str, *more: object, **options: object) -> list[str]:
    """The arguments of a command.

    `words("predict --text", *texts, model=folder, quiet=True, corpus=[one, other])` has the words
    of the line, the texts behind them, and the options: True is a switch, a list several values.
    """
    arguments = [*line.split(), *map(str, more)]
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [] if value is True else [value]
        arguments += [f"--{name}", *map(str, values)]
    return arguments


def run(line: str, *more: object, **options: object) -> None:
    assert main(words(line, *more, **options)) == 0


class CommandLine:
    """`bert-tf` as a fixture; see `words` for the arguments."""

    def __init__(self, capsys: pytest.CaptureFixture) -> None:
        self._capsys = capsys

    def __call__(self, line: str, *more: object, **options: object) -> tuple[str, str]:
        """Runs a command that must succeed; returns what it printed, and its standard error."""
        self._capsys.readouterr()
        run(line, *more, **options)
        return self._capsys.readouterr()

    def refused(
        self, line: str, *more: object, announced: str | tuple[str, ...] = (), **options: object
    ) -> str:
        """Runs a command that must fail; returns its one line.

        `announced` begins the lines that a run shows before it fails, if it gets that far.
        """
        self._capsys.readouterr()
        assert main(words(line, *more, **options)) == 2
        out, err = self._capsys.readouterr()
        assert out == ""
        *before, error = err.strip().splitlines()
        before = [line for line in before if not line.startswith("exporting: ")]  # if it is slow
        assert bool(before) == bool(announced), err
        assert all(shown.startswith(announced) for shown in before), err
        assert error.startswith(f"bert-tf {line.split()[0]}: error: ")
        return error

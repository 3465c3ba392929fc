"""What a command shows while it works: bars on a terminal, plain lines elsewhere."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# Progress goes to standard error, so that standard output holds results alone.
console = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator["ProgressBar"]:
    """A bar that runs from 0 to `total`, or a counter where `total` is not known."""
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield ProgressBar(bar, description, total)


class ProgressBar:
    """One line of progress; `update` moves it and may change what it says."""

    def __init__(self, bar: Progress, description: str, total: int | None) -> None:
        self._bar = bar
        self._description = description
        self._task = bar.add_task(description, total=total)

    def update(self, completed: int, total: int | None = None, note: str = "") -> None:
        """Sets how much is done, of how much if that has become known, and a note beside it."""
        description = f"{self._description} {note}" if note else self._description
        self._bar.update(self._task, completed=completed, description=description, total=total)

    def print(self, line: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(line, markup=False)


def training_line(step: int, kind: str, scalars: dict[str, float]) -> str:
    """Scalars of a training run in one line: "step 100  loss 7.812  mlm_loss 7.119 …"."""
    parts = [f"step {step:>6}", f"{kind.replace('_', '-'):<8}"]
    for name, value in scalars.items():
        shown = f"{value:.1e}" if name == "learning_rate" else f"{value:.4g}"
        parts.append(f"{name} {shown}")
    return "  ".join(parts)


def typed(command: str) -> str:
    """How `command` is typed here: with the folder of this Python's commands if PATH lacks it."""
    beside = Path(sys.executable).parent / command
    if shutil.which(command) or not beside.exists():
        return command
    return os.path.relpath(beside)

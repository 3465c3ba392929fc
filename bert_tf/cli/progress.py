"""The progress of a command: bars on a terminal, plain lines elsewhere."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from bert_tf.training.loop import TrainingResult

# Progress goes to standard error, so that standard output holds results alone.
console = Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator["ProgressBar"]:
    """A bar from 0 to `total`, or a counter if `total` is unknown."""
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    columns.append(TimeElapsedColumn())
    # Off a terminal a bar would leave an empty line.
    off = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=off) as bar:
        yield ProgressBar(bar, description, total)


class ProgressBar:
    """One line of progress; `update` moves it and may change what it says."""

    def __init__(self, bar: Progress, description: str, total: int | None) -> None:
        self._bar = bar
        self._description = description
        self._task = bar.add_task(description, total=total)

    def update(self, completed: int, total: int | None = None, note: str = "") -> None:
        """Sets how much is done, the total once it is known, and a note beside it."""
        description = f"{self._description} {note}" if note else self._description
        self._bar.update(self._task, completed=completed, description=description, total=total)

    def print(self, line: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(line, markup=False)


# In TensorBoard and scalars.jsonl alone, for lack of room.
_HIDDEN = ("gradient_norm", "loss_scale", "examples_per_second")


def training_line(
    step: int, kind: str, scalars: dict[str, float], total_steps: int | None = None
) -> str:
    """The scalars of a training run in one line.

    "step 1,200/30,000  loss 6.212 (mlm 5.610 nsp 0.602)  accuracy mlm 18.1% nsp 66.0%
    lr 4.8e-04  12,300 tokens/s  61% of peak  1 h 12 min left"; other scalars follow by name.

    Args:
        step: step of the line.
        kind: "train", or a word to show before the scalars, such as "held_out".
        scalars: scalars by name, as `ScalarLog` gives them.
        total_steps: length of the run, if known.
    """
    rest = {name: value for name, value in scalars.items() if name not in _HIDDEN}
    total = "" if total_steps is None else f"/{total_steps:,}"
    width = 6 if total_steps is None else len(f"{total_steps:,}")
    parts = [f"step {step:>{width},}{total}"]
    if kind != "train":
        parts.append(kind.replace("_", "-"))
    parts += _with_parts("loss", "{:.3f}", rest) + _with_parts("accuracy", "{:.1%}", rest)
    for name, shown in (
        ("learning_rate", lambda value: f"lr {value:.1e}" if value else "lr 0"),
        ("nonfinite_steps", lambda value: f"{value:.0f} not finite"),
        ("tokens_per_second", lambda value: f"{value:,.0f} tokens/s"),
        ("share_of_peak", lambda value: f"{100 * value:.{0 if value > 0.1 else 1}f}% of peak"),
        ("minutes_left", lambda value: f"{_duration(value)} left"),
    ):
        if name in rest:
            parts.append(shown(rest.pop(name)))
    # The scores of tasks.
    parts += [f"{name} {value:.4g}" for name, value in rest.items()]
    return "  ".join(parts)


def outcome_lines(result: "TrainingResult", total_steps: int) -> list[str]:
    """What a run has done, in lines for its end."""
    lines = []
    if result.started_at == result.step:
        lines.append(f"The run was complete: it ended at step {result.step:,}")
    elif result.started_at:
        lines.append(f"Resumed from step {result.started_at:,}")
    if result.ended_early:
        lines.append(f"Ended early, at step {result.step:,} of {total_steps:,}: no better score")
    if result.nonfinite_steps:
        lines.append(f"Skipped {result.nonfinite_steps} step(s) with a non-finite loss or gradient")
    if result.step_seconds:
        lines.append(f"A step took {result.step_seconds * 1000:.0f} ms (median)")
    if result.best_step is not None:
        lines.append(f"Best model: of step {result.best_step:,}")
    return lines


def _with_parts(name: str, shown: str, scalars: dict[str, float]) -> list[str]:
    """Removes a scalar and its parts, and formats them: "loss 6.212 (mlm 5.610 nsp 0.602)"."""
    keys = [key for key in scalars if key.endswith(f"_{name}")]
    each = [f"{key.removesuffix(f'_{name}')} {shown.format(scalars.pop(key))}" for key in keys]
    if name not in scalars:
        return [" ".join([name, *each])] if each else []
    parts = f" ({' '.join(each)})" if len(each) > 1 else ""  # one alone is the whole
    return [f"{name} {shown.format(scalars.pop(name))}{parts}"]


def _duration(minutes: float) -> str:
    """Formats minutes: "40 s", "12 min", "1 h 12 min", "3 d 4 h"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    whole = round(minutes)
    if whole < 60:
        return f"{whole} min"
    hours, left = divmod(whole, 60)
    if hours < 48:
        return f"{hours} h {left} min"
    return f"{hours // 24} d {hours % 24} h"


def typed(command: str) -> str:
    """How to type `command` here: with the folder of this Python's commands if PATH lacks it."""
    beside = Path(sys.executable).parent / command
    if shutil.which(command) or not beside.exists():
        return command
    return os.path.relpath(beside)

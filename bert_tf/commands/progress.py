"""The progress of commands and calls: bars in terminals and notebooks, plain lines elsewhere."""

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.progress
from rich.console import Console

from bert_tf.training.watcher import Watcher

if TYPE_CHECKING:
    from bert_tf.training.loop import TrainingResult

# Progress goes to standard error, so that standard output holds results alone.
console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return console.is_jupyter


@dataclass
class ProgressBar:
    """One line of progress, and the lines above it, which `notices` keeps."""

    _progress: rich.progress.Progress
    _description: str
    _task: rich.progress.TaskID
    _shown: bool = True
    _step: str = ""
    notices: list[str] = field(default_factory=list)

    def update(self, completed: int, total: int | None = None, note: str = "") -> None:
        """Sets how much is done, the total once it is known, and a note beside it."""
        description = f"{self._description} {note}".rstrip()
        self._progress.update(self._task, completed=completed, description=description, total=total)

    def step(self, name: str, completed: int, total: int) -> None:
        """Shows how far a step of the work has come; where no bar is drawn, a line as it begins."""
        line = f"{self._description}: {name}"
        if name != self._step and self._progress.disable:
            self.show(line)
        self._step = name
        self._progress.update(self._task, completed=completed, total=total, description=line)

    def print(self, line: str) -> None:
        """Prints a line above the bar, if the bar is shown."""
        self.notices.append(line)
        self.show(line)

    def show(self, line: str) -> None:
        """Like `print`, for a line on a moment of the run: `notices` does not keep it."""
        if self._shown:  # in notebooks, Rich would make a paragraph of every line
            (print if in_notebook() else console.print)(line)


@contextmanager
def progress(title: str, total: int | None = None, *, shown: bool = True) -> Iterator[ProgressBar]:
    """A bar from 0 to `total`, or a counter if `total` is unknown; nothing unless `shown`."""
    columns: list[Any] = [rich.progress.SpinnerColumn(), "{task.description}"]
    if total is not None:
        columns += [rich.progress.BarColumn(), rich.progress.MofNCompleteColumn()]
        columns.append(rich.progress.TimeRemainingColumn())
    # Elsewhere a bar would leave empty lines. In notebooks, Rich draws with ipywidgets.
    draws_bars = console.is_terminal
    if in_notebook():
        draws_bars = importlib.util.find_spec("ipywidgets") is not None
    redirects = not in_notebook()  # there, what is printed stays below the bar by itself
    with rich.progress.Progress(
        *columns,
        rich.progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not (shown and draws_bars),
        redirect_stdout=redirects,
        redirect_stderr=redirects,
    ) as bar:
        yield ProgressBar(bar, title, bar.add_task(title, total=total), shown)


class RunProgress(Watcher):
    """Shows training runs in a bar and lines.

    `one_of_many`, such as "Setting", is for many runs: without losses, and repeated lines once.
    `shorten` says how to make a run shorter, in a notice if it will take over an hour.
    """

    def __init__(self, bar: ProgressBar, one_of_many: str = "", shorten: str = "") -> None:
        self.total_steps = 0
        self._shorten = shorten
        self._bar = bar
        self._what = one_of_many
        self._where = ""
        self._told: set[str] = set()

    def notice(self, line: str) -> None:
        if not self._what or line not in self._told:
            self._bar.print(line)
        self._told.add(line)

    def working(self, what: str, completed: int, total: int) -> None:
        self._bar.step(what, completed, total)  # prints a line where no bar is drawn
        self._bar.update(completed, total, f"{what}, {completed:,} of {total:,}")

    def started(self, title: str, number: int, total: int) -> None:
        self._where = f"{number} of {total}"
        self._bar.show(f"{self._what} {self._where}: {title}")

    def begin(self, total_steps: int) -> None:
        self.total_steps = total_steps

    def after_step(self, step: int) -> None:
        self._bar.update(step, total=self.total_steps, note=self._where)

    def logged(self, step: int, kind: str, scalars: dict[str, float]) -> None:
        if not self._what:
            self._bar.show(training_line(step, kind, scalars, self.total_steps))
        if self._shorten and (minutes := scalars.get("minutes_left", 0)) > _LONG:
            left = self.total_steps - step
            per_hour = float(f"{left * _LONG / minutes:.1g}")
            self.notice(
                f"The remaining {left:,} steps take about {duration(minutes)} on this machine; "
                f"{per_hour:,.0f} take about an hour. For a shorter run, stop this one and "
                f"{self._shorten}"
            )
            self._shorten = ""


_LONG = 60  # minutes
_TIED = 4  # steps with the best score to list
_HIDDEN = ("gradient_norm", "loss_scale", "examples_per_second")  # TensorBoard shows them

_FORMATS: dict[str, Callable[[float], str]] = {
    "learning_rate": lambda value: f"lr {value:.1e}" if value else "lr 0",
    "nonfinite_steps": lambda value: f"{value:.0f} not finite",
    "tokens_per_second": lambda value: f"{value:,.0f} tokens/s",
    "share_of_peak": lambda value: f"{100 * value:.{0 if value > 0.1 else 1}f}% of peak FLOP/s",
    "minutes_left": lambda value: f"{duration(value)} left",
}


def training_line(step: int, kind: str, scalars: dict[str, float], steps: int | None = None) -> str:
    """The scalars of a training run in one line; the scores of tasks follow by name.

    "step 1,200/30,000  loss 6.212 (mlm 5.610 nsp 0.602)  accuracy mlm 18.1% nsp 66.0%
    lr 4.8e-04  12,300 tokens/s  61% of peak FLOP/s  1 h 12 min left"
    """
    rest = {name: value for name, value in scalars.items() if name not in _HIDDEN}
    total = "" if steps is None else f"/{steps:,}"
    width = 6 if steps is None else len(f"{steps:,}")
    parts = [f"step {step:>{width},}{total}"]
    if kind != "train":
        parts.append(kind.replace("_", "-"))
    parts += _with_parts("loss", "{:.3f}", rest) + _with_parts("accuracy", "{:.1%}", rest)
    parts += [shown(rest.pop(name)) for name, shown in _FORMATS.items() if name in rest]
    return "  ".join(parts + [f"{name} {value:.4g}" for name, value in rest.items()])


def outcome_lines(result: "TrainingResult", total_steps: int) -> list[str]:
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
    return lines


def best_model_line(model: object, result: "TrainingResult | None", *facts: str) -> str:
    """Where the best model is, and of which step of a run."""
    if result is not None and result.best_step is not None:
        facts += (f"step {result.best_step:,}{_tie(result)}",)
    shown = f" ({', '.join(facts)})" if facts else ""
    return f"Best model{shown}: {model}"


def _tie(result: "TrainingResult") -> str:
    """The other steps with the best score, and why the best model is not theirs."""
    steps = [f"{step:,}" for step in result.tied_steps if step != result.best_step]
    if not steps:
        return ""
    *first, last = steps
    listed = f"steps {', '.join(first)} and {last}" if first else f"step {last}"
    others = listed if len(steps) <= _TIED else f"{len(steps)} other steps"
    return f", tied with {others}; {'the latest' if result.best_loss is None else 'lowest loss'}"


def scores_line(scores: Mapping[str, float | None]) -> str:
    """Formats scores: "accuracy 0.786  f1 0.849"."""
    return "  ".join(f"{n} {shown_score(x)}" for n, x in scores.items() if n != "examples")


def shown_score(score: float | None) -> str:
    return "undefined" if score is None else f"{score:.4g}"


def _with_parts(name: str, shown: str, scalars: dict[str, float]) -> list[str]:
    """Removes a scalar and its parts, and formats them: "loss 6.212 (mlm 5.610 nsp 0.602)"."""
    keys = [key for key in scalars if key.endswith(f"_{name}")]
    parts = [f"{key.removesuffix(f'_{name}')} {shown.format(scalars.pop(key))}" for key in keys]
    if name not in scalars:
        return [" ".join([name, *parts])] if parts else []
    more = f" ({' '.join(parts)})" if len(parts) > 1 else ""  # one alone is the whole
    return [f"{name} {shown.format(scalars.pop(name))}{more}"]


def duration(minutes: float) -> str:
    """Formats minutes: "40 s", "12 min", "1 h 12 min", "3 d 4 h"."""
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    hours, rest = divmod(round(minutes), 60)
    if hours < 1:
        return f"{rest} min"
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def command_line(*words: object) -> str:
    """A `bert-tf` command as it is typed in a shell here."""
    return f"{typed('bert-tf')} {shlex.join(map(str, words))}"


def export_line(model: object, *options: str) -> str:
    """The command that exports a model directory, under the name of its run."""
    folder = Path(str(model)).resolve()
    name = folder.parent.name if folder.name in ("best", "last") else folder.name
    return f"Next: {command_line('export', '--model', model, '--name', name, *options)}"


def typed(command: str) -> str:
    """How to type `command` here: with the folder of this Python's commands if PATH lacks it."""
    beside = Path(sys.executable).parent / command
    if shutil.which(command) or not beside.exists():
        return command
    near = os.path.relpath(beside)
    return shlex.quote(str(beside) if near.startswith("..") else near)

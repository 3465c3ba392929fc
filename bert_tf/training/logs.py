"""The logs of a run: TensorBoard events, and the same scalars as lines of JSON.

A resumed run removes from both what was logged after its checkpoint, as those steps come again.
"""

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.files.atomic import replace_file, write_text
from bert_tf.training.phases import Phase
from bert_tf.training.resuming import TrainingState
from bert_tf.training.schedule import learning_rate_of
from bert_tf.training.watcher import Watcher
from bert_tf.training.workers import is_chief

SCALARS = "scalars.jsonl"
_OF_ONE_STEP = ("nonfinite", "stop_asked")  # logs of the trainer that concern the last step alone
_SECONDS_BETWEEN_LINES = 20

_ERRNO = {  # the system errors behind TensorFlow's
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.PermissionDeniedError: errno.EACCES,
}


@contextmanager
def as_system_errors(path: str | Path) -> Iterator[None]:
    """Turns errors of TensorFlow's writers into the `OSError` behind them, which names `path`."""
    try:
        yield
    except tf.errors.OpError as error:
        code = _ERRNO.get(type(error), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error


class EventFolder:
    """A folder of events (a "run" in TensorBoard), made with the first event."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer: tf.summary.SummaryWriter | None = None

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Makes `tf.summary` write events of `step` here, or raise OSError; flushed at the end."""
        with as_system_errors(self._folder):
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            with self._writer.as_default(step=step):
                yield
            self._writer.flush()


class ScalarLog:
    """Writes training and held-out scalars for TensorBoard, and reports them to the watchers.

    Every `log_every` steps, before an evaluation, and to watchers after 20 seconds without a line:
    means since the last line, the last step's `learning_rate`, the rate of the steps alone (without
    the first one, which compiles, evaluations and checkpoints), and the time left at that rate.
    `names` maps logs of the trainer to other names for them.
    """

    def __init__(
        self,
        directory: Path,
        state: TrainingState,
        watchers: Sequence[Watcher],
        log_every: int,
        names: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._state = state
        self._watchers = watchers
        self._log_every = log_every
        self._names = names
        self._is_chief = is_chief(state.trainer.strategy)
        self._folders = {kind: EventFolder(directory / kind) for kind in ("train", "held_out")}
        self.step_seconds: list[float] = []  # of each execution but a phase's first

    def begin(self, phase: Phase, steps_after: float) -> None:
        """Begins a phase, after which come `steps_after` steps of its cost."""
        self._phase = phase
        self._steps_after = steps_after
        self._window: list[float] = []  # the step seconds since the last line
        self._peaks: list[float] = []  # the peak at each of these steps
        self._is_compiled = False
        self._reported = time.monotonic()

    def step(self, seconds: float, logs: Mapping[str, Any]) -> None:
        """Logs an execution of so many seconds per step."""
        state = self._state
        if self._is_compiled:
            self._window.append(seconds)
            if self._phase.peak is not None and self._is_chief:
                self._peaks.append(self._phase.peak())
            self.step_seconds.append(seconds)
        self._is_compiled = True
        if state.passed(self._log_every) or state.evaluation_due:
            self._write("train", self._train_scalars(logs))
            self._window = []
            self._peaks = []
            state.trainer.reset_means()
        elif time.monotonic() - self._reported > _SECONDS_BETWEEN_LINES:
            self._report("train", self._train_scalars(logs))

    def held_out(self, scores: Mapping[str, Any]) -> None:
        self._write("held_out", self._renamed(scores))

    def _train_scalars(self, logs: Mapping[str, Any]) -> dict[str, float]:
        state = self._state
        phase = self._phase
        scalars = self._renamed(logs)
        if state.nonfinite_steps:
            scalars["nonfinite_steps"] = float(state.nonfinite_steps)
        scalars["learning_rate"] = learning_rate_of(state.trainer.optimizer, state.step)
        if self._window:
            mean_seconds = sum(self._window) / len(self._window)
            rate = phase.batch_size / mean_seconds
            scalars["examples_per_second"] = rate
            if phase.tokens is not None:
                scalars["tokens_per_second"] = rate * phase.tokens
            if self._peaks:
                share = rate * phase.flops / (sum(self._peaks) / len(self._peaks))
                if share <= 1:  # else the peak was measured while others used the machine
                    scalars["share_of_peak"] = share
            steps_left = phase.until - state.step + self._steps_after
            scalars["minutes_left"] = steps_left * mean_seconds / 60
        return scalars

    def _renamed(self, logs: Mapping[str, Any]) -> dict[str, float]:
        names = self._names
        return {names.get(n, n): float(value) for n, value in logs.items() if n not in _OF_ONE_STEP}

    def _write(self, kind: str, scalars: dict[str, float]) -> None:
        """Writes and flushes a line; in JSON non-finite scalars are null."""
        step = self._state.logged[kind] = self._state.step
        if self._is_chief:
            line = {"step": step, "kind": kind}
            line |= {n: value if math.isfinite(value) else None for n, value in scalars.items()}
            self._directory.mkdir(parents=True, exist_ok=True)
            with (self._directory / SCALARS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            with self._folders[kind].at(step):
                for name, value in scalars.items():
                    tf.summary.scalar(name, value)
        self._report(kind, scalars)

    def _report(self, kind: str, scalars: dict[str, float]) -> None:
        self._reported = time.monotonic()
        if self._is_chief:
            for watcher in self._watchers:
                watcher.logged(self._state.step, kind, scalars)


def forget_later_scalars(directory: Path, state: TrainingState) -> None:
    """Removes from a log folder what was logged after the checkpoint that a run resumes from."""
    for path in sorted(directory.rglob("*.tfevents.*")):
        _forget_later_events(path, state.logged.get(path.parent.name, state.step))
    if (path := directory / SCALARS).exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        write_text(path, "".join(line for line in lines if _is_kept(line, state)))


def _is_kept(line: str, state: TrainingState) -> bool:
    try:
        values = json.loads(line)
    except ValueError:
        return False
    # Without its end the process was killed while writing it.
    return line.endswith("\n") and values["step"] <= state.logged.get(values["kind"], state.step)


def _forget_later_events(path: Path, last: int) -> None:
    """Rewrites an event file without the events after step `last`, if it has any."""
    records = []
    is_truncated = False
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            records.append(record)
    except tf.errors.DataLossError:  # in its last event
        is_truncated = True
    kept = [x for x in records if tf.compat.v1.Event.FromString(x).step <= last]
    if is_truncated or len(kept) < len(records):
        with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
            for record in kept:
                writer.write(record)

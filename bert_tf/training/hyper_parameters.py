"""The hyper-parameters of a run, for TensorBoard's HParams tab."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.summary import session_end_pb

from bert_tf.atomic import replace_file
from bert_tf.training.logs import EventFolder
from bert_tf.training.monitoring import Watcher

# Sorts before the names that writers make from the time: TensorBoard reads files in that order.
_START = "events.out.tfevents.0.hyper_parameters"
_COLUMNS = "events.out.tfevents.0.columns"


@dataclass(eq=False)
class HyperParameters(Watcher):
    """Writes the hyper-parameters of a run, and its best score so far after each evaluation.

    The log folder itself is what the HParams plugin calls a session: all scalars in the folders
    below are its metrics. The session's start is a file of its own, which a resumed run rewrites
    unchanged: each run is one session.

    Attributes:
        directory: TensorBoard log folder.
        run: name of the run.
        values: hyper-parameters by name; None values are skipped.
        score: name of the best score, such as "best_loss".
        total_steps: step at which the session ends.
    """

    directory: Path
    run: str
    values: Mapping[str, bool | int | float | str | None]
    score: str
    total_steps: int

    def __post_init__(self) -> None:
        self._events = EventFolder(self.directory)
        self.state.logged.setdefault(self.directory.name, 0)

    def begin(self) -> None:
        """Writes the session's start."""
        path = self.directory / _START
        begun = time.time()
        if path.exists():  # of the run that is resumed
            first = next(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
            begun = tf.compat.v1.Event.FromString(first).wall_time
        values = {name: value for name, value in self.values.items() if value is not None}
        summary = hparams_api.hparams_pb(values, trial_id=self.run, start_time_secs=begun)
        _write_summary(path, summary, begun)

    def after_evaluation(self) -> None:
        """Writes the best score and, after the last step, the end of the session."""
        step, best = self.state.step, self.state.best
        is_over = step >= self.total_steps
        self.state.logged[self.directory.name] = step
        if best is None and not is_over:
            return
        with self._events.at(step):
            if best is not None:
                tf.summary.scalar(self.score, best)
            if is_over:
                end = session_end_pb(api_pb2.STATUS_SUCCESS)
                tf.summary.experimental.write_raw_pb(end.SerializeToString(), step)


def write_columns(directory: str | Path, values: Mapping[str, Sequence[float]], score: str) -> None:
    """Names the columns of the HParams tab for the runs in a folder.

    Args:
        directory: TensorBoard log folder, above or beside those of the runs.
        values: hyper-parameter -> the list of its values, or a tuple of the smallest and largest.
        score: name of the score that the runs log, such as "best_accuracy".
    """
    summary = hparams_api.hparams_config_pb(
        [hparams_api.HParam(name, _domain(given)) for name, given in values.items()],
        [hparams_api.Metric(score)],
    )
    _write_summary(Path(directory) / _COLUMNS, summary, time.time())


def _domain(values: Sequence[float]) -> hparams_api.Domain:
    if isinstance(values, list):
        return hparams_api.Discrete(values)
    is_whole = all(isinstance(value, int) for value in values)
    return (hparams_api.IntInterval if is_whole else hparams_api.RealInterval)(*values)


def _write_summary(path: Path, summary: Any, wall_time: float) -> None:
    """Writes an event file of one summary."""
    content = tf.compat.v1.Summary.FromString(summary.SerializeToString())
    with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for values in ({"file_version": "brain.Event:2"}, {"summary": content}):
            event = tf.compat.v1.Event(wall_time=wall_time, **values)
            writer.write(event.SerializeToString())

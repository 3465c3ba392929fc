"""The hyper-parameters of a run, for TensorBoard's HParams tab."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary import session_end_pb

from bert_tf.atomic import replace_file
from bert_tf.training.event_folder import EventFolder
from bert_tf.training.state import TrainingState
from bert_tf.training.workers import is_chief

# Sorts before the names that writers make from the time: TensorBoard reads files in that order.
_START = "events.out.tfevents.0.hyper_parameters"
_COLUMNS = "events.out.tfevents.0.columns"


class HyperParameters(keras.callbacks.Callback):
    """Writes the hyper-parameters of a run, and its best score so far after each evaluation.

    The log folder itself is what the HParams plugin calls a session: all scalars in the folders
    below are its metrics. The session's start is a file of its own, which a resumed run rewrites
    unchanged: each run is one session.

    Args:
        directory: TensorBoard log folder.
        state: training state.
        run: name of the run.
        values: hyper-parameters by name; None values are skipped.
        score: name of the best score, such as "best_loss".
        total_steps: step at which the session ends.

    Raises:
        OSError: in `fit`, if a file cannot be written.
    """

    def __init__(
        self,
        directory: str | Path,
        state: TrainingState,
        *,
        run: str,
        values: Mapping[str, bool | int | float | str | None],
        score: str,
        total_steps: int,
    ) -> None:
        super().__init__()
        self._directory = Path(directory)
        self._events = EventFolder(directory)
        self._state = state
        self._run = run
        self._values = {name: value for name, value in values.items() if value is not None}
        self._score = score
        self._total_steps = total_steps
        self._begun = False
        state.logged.setdefault(self._directory.name, 0)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Writes the hyper-parameters, once."""
        if not self._begun and is_chief(self.model.distribute_strategy):
            self._write_start()
        self._begun = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Writes the best score and, after the last step, the end of the session."""
        step = self._state.step
        self._state.logged[self._directory.name] = step
        if not is_chief(self.model.distribute_strategy):
            return
        if self._state.best is None and step < self._total_steps:
            return
        with self._events.at(step):
            if self._state.best is not None:
                tf.summary.scalar(self._score, self._state.best)
            if step >= self._total_steps:
                end = session_end_pb(api_pb2.STATUS_SUCCESS)
                tf.summary.experimental.write_raw_pb(end.SerializeToString(), step)

    def _write_start(self) -> None:
        path = self._directory / _START
        earlier = _session_start(path)
        begun = time.time() if earlier is None else earlier.start_time_secs
        summary = hparams_api.hparams_pb(self._values, trial_id=self._run, start_time_secs=begun)
        _write_summary(path, summary, begun)


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
    events = [
        tf.compat.v1.Event(wall_time=wall_time, file_version="brain.Event:2"),
        tf.compat.v1.Event(
            wall_time=wall_time,
            summary=tf.compat.v1.Summary.FromString(summary.SerializeToString()),
        ),
    ]
    with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for event in events:
            writer.write(event.SerializeToString())


def _session_start(path: Path) -> plugin_data_pb2.SessionStartInfo | None:
    """The session start in `path`, if there is one."""
    if not path.exists():
        return None
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        for value in tf.compat.v1.Event.FromString(record).summary.value:
            if value.tag == metadata.SESSION_START_INFO_TAG:
                content = value.metadata.plugin_data.content
                return metadata.parse_session_start_info_plugin_data(content)
    return None

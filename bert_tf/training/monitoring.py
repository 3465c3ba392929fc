"""Monitoring for TensorBoard: histograms, profiles, the projector and hyper-parameters."""

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_api
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.summary import session_end_pb

from bert_tf.files.atomic import replace_file, write_text
from bert_tf.training.logs import EventFolder, as_system_errors
from bert_tf.training.resuming import TrainingState
from bert_tf.training.watcher import Watcher

# Sorts before the names that writers make from the time: TensorBoard reads files in that order.
_START = "events.out.tfevents.0.hyper_parameters"
_COLUMNS = "events.out.tfevents.0.columns"
_MOST_ROWS = 100_000  # the projector asks for no more


@dataclass(eq=False)
class TensorBoardLog(Watcher):
    """A watcher that writes into a TensorBoard log folder."""

    state: TrainingState
    directory: Path


@dataclass(eq=False)
class Histograms(TensorBoardLog):
    every: int  # steps between two histograms
    weights: keras.Model  # model whose variables to show
    activations: Callable[[], dict[str, tf.Tensor]] = dict  # tensors by name for a fixed batch

    def __post_init__(self) -> None:
        self._events = EventFolder(self.directory / "histograms")

    def after_step(self, step: int) -> None:
        if not self.state.passed(self.every):
            return
        activations = self.activations()
        with self._events.at(step):
            for variable in self.weights.trainable_variables:
                tf.summary.histogram(f"weights/{variable.path}", variable.value)
            for name, values in activations.items():
                tf.summary.histogram(f"activations/{name}", tf.cast(values, tf.float32))


def hidden_states(encoder: Any, examples: Callable[[], Iterable[Any]]) -> Callable[[], dict]:
    """A function that returns an encoder's hidden states for the first batch of some examples."""

    @functools.cache  # the same examples each time
    def inputs() -> dict[str, tf.Tensor]:
        batch, *_ = next(iter(examples()))
        # Of several texts an example, [B, N, T], each is a row, unless it is all padding.
        rows = {
            name: tf.reshape(x, [-1, tf.shape(x)[-1]])
            for name, x in batch.items()
            if not name.endswith("_positions")
        }
        is_text = tf.reduce_any(rows["padding_mask"] != 0, -1)
        return {name: tf.boolean_mask(x, is_text) for name, x in rows.items()}

    def activations() -> dict[str, tf.Tensor]:
        states = encoder(inputs(), training=False)["hidden_states"]
        return {f"hidden_state_{layer}": values for layer, values in enumerate(states)}

    return activations


@dataclass(eq=False)
class Profile(TensorBoardLog):
    """Profiles the executions of steps `first` to `last`, counted from 1, of one phase."""

    first: int
    last: int
    _running: bool = False

    def before_step(self) -> None:
        if 1 <= self.first - self.state.step <= self.state.trainer.steps_per_execution:
            tf.profiler.experimental.start(str(self.directory / "train"))
            self._running = True

    def after_step(self, step: int) -> None:
        if step >= self.last:
            self.end_phase()

    def end_phase(self) -> None:
        if self._running:
            tf.profiler.experimental.stop()
        self._running = False


@dataclass(eq=False)
class ProjectorLog(TensorBoardLog):
    """Writes a table of embeddings after every evaluation, replacing the one before.

    TensorBoard's projector (2.21) reloads a checkpoint whose name has changed, but no text file.
    """

    name: str  # of the table
    table: keras.Variable  # float [rows, width]; rows that `columns` lack are skipped
    columns: Mapping[str, Sequence[object]]  # name -> a value for each row, the label first
    _described: bool = False

    def after_evaluation(self) -> None:
        folder = self.directory / "train"
        step = self.state.step
        rows = list(itertools.islice(zip(*self.columns.values(), strict=True), _MOST_ROWS))
        if not self._described:
            lines = ["\t".join(map(_cell, row)) + "\n" for row in (self.columns, *rows)]
            write_text(folder / "metadata.tsv", "".join(lines))
            config = 'embeddings { metadata_path: "metadata.tsv" }\n'
            write_text(folder / "projector_config.pbtxt", config)
            self._described = True
        checkpoint = f"{self.name}-{step:08d}"
        with as_system_errors(folder / checkpoint):
            tf.raw_ops.SaveV2(
                prefix=str(folder / checkpoint),
                tensor_names=[f"{self.name}_step_{step}"],
                shape_and_slices=[""],
                tensors=[keras.ops.convert_to_numpy(self.table)[: len(rows)]],
            )
        # From here on TensorBoard loads the new one.
        write_text(folder / "checkpoint", f'model_checkpoint_path: "{checkpoint}"\n')
        for path in folder.glob(f"{self.name}-*"):
            if path.stem != checkpoint:
                path.unlink()


def _cell(value: object) -> str:
    """A value as text, with tabs, line ends and other unprintable characters escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )


@dataclass(eq=False)
class HyperParameters(TensorBoardLog):
    """Writes the hyper-parameters of a run, and its best score so far after each evaluation.

    The log folder is one session of the HParams plugin; a resumed run rewrites its start unchanged.
    """

    run: str  # name of the run
    values: Mapping[str, bool | int | float | str | None]
    score: str  # name of the best score, such as "best_loss"

    def __post_init__(self) -> None:
        self._events = EventFolder(self.directory)
        self.state.logged.setdefault(self.directory.name, 0)

    def begin(self, total_steps: int) -> None:
        self._total_steps = total_steps
        path = self.directory / _START
        begun = time.time()
        if path.exists():  # of the run that is resumed
            first = next(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
            begun = tf.compat.v1.Event.FromString(first).wall_time
        values = {name: value for name, value in self.values.items() if value is not None}
        summary = hparams_api.hparams_pb(values, trial_id=self.run, start_time_secs=begun)
        _write_summary(path, summary, begun)

    def after_evaluation(self) -> None:
        step = self.state.step
        best = self.state.best
        is_over = step >= self._total_steps or self.state.ended_early
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
    """Names the columns of the HParams tab; values are lists, or tuples of smallest and largest."""
    summary = hparams_api.hparams_config_pb(
        [hparams_api.HParam(name, _domain(value)) for name, value in values.items()],
        [hparams_api.Metric(score)],
    )
    _write_summary(Path(directory) / _COLUMNS, summary, time.time())


def _domain(values: Sequence[float]) -> hparams_api.Domain:
    if isinstance(values, list):
        return hparams_api.Discrete(values)
    is_whole = all(isinstance(value, int) for value in values)
    return (hparams_api.IntInterval if is_whole else hparams_api.RealInterval)(*values)


def _write_summary(path: Path, summary: Any, wall_time: float) -> None:
    content = tf.compat.v1.Summary.FromString(summary.SerializeToString())
    with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
        for values in ({"file_version": "brain.Event:2"}, {"summary": content}):
            event = tf.compat.v1.Event(wall_time=wall_time, **values)
            writer.write(event.SerializeToString())

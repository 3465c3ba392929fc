"""Monitoring for TensorBoard: histograms, profiles and the embedding projector."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.atomic import write_text
from bert_tf.training.logs import EventFolder, as_system_errors
from bert_tf.training.state import TrainingState

# The projector asks for no more rows.
_MOST_ROWS = 100_000


@dataclass(eq=False)
class Watcher:
    """Watches a run on the chief worker; each method does nothing by default."""

    state: TrainingState

    def begin(self) -> None:
        """Called before the first step in this process."""

    def before_step(self) -> None:
        """Called before each execution."""

    def after_step(self) -> None:
        """Called after each execution."""

    def after_evaluation(self) -> None:
        """Called after each evaluation."""

    def end(self) -> None:
        """Called after each phase."""


@dataclass(eq=False)
class Histograms(Watcher):
    """Writes histograms of weights and activations.

    Attributes:
        directory: TensorBoard log folder.
        every: steps between two histograms.
        weights: model whose variables to show.
        activations: returns tensors by name for a fixed batch.
    """

    directory: Path
    every: int
    weights: keras.Model
    activations: Callable[[], dict[str, tf.Tensor]] = dict

    def __post_init__(self) -> None:
        self._events = EventFolder(self.directory / "histograms")

    def after_step(self) -> None:
        """Writes them where due."""
        if not self.state.passed(self.every):
            return
        activations = self.activations()
        with self._events.at(self.state.step):
            for variable in self.weights.trainable_variables:
                tf.summary.histogram(f"weights/{variable.path}", variable.value)
            for name, values in activations.items():
                tf.summary.histogram(f"activations/{name}", tf.cast(values, tf.float32))


@dataclass(eq=False)
class Profile(Watcher):
    """Profiles the steps `first` to `last`, counted from 1, at most to the end of a phase.

    The steps of one execution are profiled together. A run resumed after the first of the steps is
    not profiled again.
    """

    directory: Path
    first: int
    last: int
    _running: bool = False

    def before_step(self) -> None:
        """Starts it."""
        if 1 <= self.first - self.state.step <= self.state.trainer.steps_per_execution:
            tf.profiler.experimental.start(str(self.directory / "train"))
            self._running = True

    def after_step(self) -> None:
        """Stops it."""
        if self.state.step >= self.last:
            self.end()

    def end(self) -> None:
        """Stops it, so that it is not lost."""
        if self._running:
            tf.profiler.experimental.stop()
        self._running = False


@dataclass(eq=False)
class ProjectorLog(Watcher):
    """Writes a table of embeddings after every evaluation, replacing the one before.

    The projector looks for its configuration and a TensorFlow checkpoint in the folders that hold
    events, and reloads a checkpoint whose name has changed (`projector_plugin.py` of TensorBoard
    2.21): the names of checkpoint and tensor hold the step. It would never reload text files.

    Attributes:
        directory: TensorBoard log folder; the files are in its `train`, beside the events.
        name: name of the table.
        table: float [rows, width].
        columns: name -> a value to show for each row, the label first. Further rows of the table
            are skipped, and all beyond 100,000.
    """

    directory: Path
    name: str
    table: keras.Variable
    columns: Mapping[str, Sequence[object]]
    _described: bool = False

    def after_evaluation(self) -> None:
        """Writes the table.

        Raises:
            OSError: a file cannot be written.
        """
        folder = self.directory / "train"
        rows = list(itertools.islice(zip(*self.columns.values(), strict=True), _MOST_ROWS))
        if not self._described:
            lines = ["\t".join(_cell(value) for value in row) for row in (self.columns, *rows)]
            write_text(folder / "metadata.tsv", "\n".join(lines) + "\n")
            config = 'embeddings { metadata_path: "metadata.tsv" }\n'
            write_text(folder / "projector_config.pbtxt", config)
            self._described = True
        step = self.state.step
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

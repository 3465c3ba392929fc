"""Histograms and profiles for TensorBoard."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.training.callbacks import RunCallback
from bert_tf.training.event_folder import EventFolder


@dataclass(eq=False)
class Histograms(RunCallback):
    """Writes histograms of weights and activations for TensorBoard.

    Attributes:
        directory: TensorBoard log folder.
        every: steps between two histograms.
        weights: model whose variables to show.
        activations: returns tensors by name for a fixed batch; called on the chief worker alone.
    """

    directory: Path
    every: int
    weights: keras.Model
    activations: Callable[[], dict[str, tf.Tensor]] = dict

    def __post_init__(self) -> None:
        super().__post_init__()
        self._events = EventFolder(self.directory / "histograms")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if not self.state.passed(self.every) or not self.is_chief:
            return
        activations = self.activations()
        with self._events.at(self.state.step):
            for variable in self.weights.trainable_variables:
                tf.summary.histogram(f"weights/{variable.path}", variable.value)
            for name, values in activations.items():
                tf.summary.histogram(f"activations/{name}", tf.cast(values, tf.float32))


@dataclass(eq=False)
class Profile(RunCallback):
    """Profiles the steps `first` to `last`, counted from 1, for TensorBoard's profile tab.

    The steps of one execution are profiled together. A run resumed after the first of the steps is
    not profiled again.
    """

    directory: Path
    first: int
    last: int
    _running: bool = False

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        to_come = self.first - self.state.step
        if self.is_chief and 1 <= to_come <= self.model.steps_per_execution:
            tf.profiler.experimental.start(str(self.directory / "train"))
            self._running = True

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.state.step >= self.last:
            self.on_train_end()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Stops with a stretch of training, too, so that the profile is not lost."""
        if self._running:
            tf.profiler.experimental.stop()
        self._running = False

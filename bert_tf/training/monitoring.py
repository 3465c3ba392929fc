"""Histograms and profiles for TensorBoard."""

from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.training.event_folder import EventFolder
from bert_tf.training.state import TrainingState
from bert_tf.training.workers import is_chief


class Histograms(keras.callbacks.Callback):
    """Writes histograms of weights and activations for TensorBoard.

    Args:
        directory: TensorBoard log folder.
        state: training state.
        every: steps between two histograms.
        weights: model whose variables to show.
        activations: returns tensors by name for a fixed batch; called on the chief worker alone.
    """

    def __init__(
        self,
        directory: str | Path,
        state: TrainingState,
        *,
        every: int,
        weights: keras.Model,
        activations: Callable[[], dict[str, tf.Tensor]] | None = None,
    ) -> None:
        super().__init__()
        self._events = EventFolder(Path(directory) / "histograms")
        self._state = state
        self._every = every
        self._weights = weights
        self._activations = activations

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Writes histograms on the steps that are due."""
        if not self._state.passed(self._every):
            return
        if not is_chief(self.model.distribute_strategy):
            return
        activations = self._activations() if self._activations is not None else {}
        with self._events.at(self._state.step):
            for variable in self._weights.trainable_variables:
                tf.summary.histogram(f"weights/{variable.path}", variable.value)
            for name, values in activations.items():
                tf.summary.histogram(f"activations/{name}", tf.cast(values, tf.float32))


class Profile(keras.callbacks.Callback):
    """Profiles some steps, for TensorBoard's profile tab.

    The steps of one execution are profiled together. A run resumed after the first of the steps is
    not profiled again.

    Args:
        directory: TensorBoard log folder.
        state: training state.
        first: first step to profile, counted from 1.
        last: last step to profile.
    """

    def __init__(self, directory: str | Path, state: TrainingState, first: int, last: int) -> None:
        super().__init__()
        self._directory = str(Path(directory) / "train")
        self._state = state
        self._steps = first, last
        self._running = False

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Starts before the first step."""
        if not is_chief(self.model.distribute_strategy):
            return
        to_come = self._steps[0] - self._state.step
        if 1 <= to_come <= self.model.steps_per_execution:
            tf.profiler.experimental.start(self._directory)
            self._running = True

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops after the last step."""
        if self._running and self._state.step >= self._steps[1]:
            self._stop()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Stops with a stretch of training, too, so that the profile is not lost."""
        if self._running:
            self._stop()

    def _stop(self) -> None:
        tf.profiler.experimental.stop()
        self._running = False

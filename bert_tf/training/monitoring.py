"""What one may want to see of a run in TensorBoard beyond its scalars."""

from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.training.state import TrainingState


class Histograms(keras.callbacks.Callback):
    """Writes histograms of weights and activations for TensorBoard.

    Args:
        directory: TensorBoard log folder.
        state: counts the steps.
        every: steps between two.
        weights: the model whose variables are looked at.
        activations: gives named tensors of any shape, run on a fixed batch; None for weights alone.
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
        self._writer = tf.summary.create_file_writer(str(Path(directory) / "histograms"))
        self._state = state
        self._every = every
        self._weights = weights
        self._activations = activations

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Writes them on the steps that are due."""
        if self._state.step % self._every:
            return
        with self._writer.as_default(step=self._state.step):
            for variable in self._weights.trainable_variables:
                tf.summary.histogram(f"weights/{variable.path}", variable.value)
            if self._activations is not None:
                for name, values in self._activations().items():
                    tf.summary.histogram(f"activations/{name}", tf.cast(values, tf.float32))
        self._writer.flush()


class Profile(keras.callbacks.Callback):
    """Profiles some steps, for TensorBoard's profile tab.

    Args:
        directory: TensorBoard log folder.
        state: counts the steps.
        first: first step of the run to profile, counted from 1.
        last: last step to profile.
    """

    def __init__(self, directory: str | Path, state: TrainingState, first: int, last: int) -> None:
        super().__init__()
        self._directory = str(Path(directory) / "train")
        self._state = state
        self._steps = first, last
        self._running = False

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Begins before the first of the steps."""
        if self._state.step + 1 == self._steps[0]:
            tf.profiler.experimental.start(self._directory)
            self._running = True

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Ends after the last of them."""
        if self._running and self._state.step >= self._steps[1]:
            self._stop()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Ends with a stretch of training, too: what was seen is not lost."""
        if self._running:
            self._stop()

    def _stop(self) -> None:
        tf.profiler.experimental.stop()
        self._running = False

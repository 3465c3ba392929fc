"""What happens between the steps of `model.fit`: logging, checkpoints, keeping the best model."""

import time
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.training.state import TrainingState


class ScalarLog(keras.callbacks.Callback):
    """Writes training and held-out scalars for TensorBoard and reports them to the terminal.

    Every `every` steps, and before an evaluation: the logs of `fit` as means over the steps since
    the last line (the metrics are reset there), `learning_rate`, `examples_per_second` (the steps
    alone: neither the first one, which compiles, nor evaluations and checkpoints count).

    Args:
        directory: TensorBoard log folder; `train` and `held_out` are made in it.
        state: counts the steps, shared with the other callbacks.
        batch_size: examples a step, over all replicas.
        every: steps between two lines.
        report: called with (step, kind, scalars), kind "train" or "held_out", for each line.
        names: log name -> the name shown, for logs that Keras names after model outputs.
    """

    def __init__(
        self,
        directory: str | Path,
        state: TrainingState,
        *,
        batch_size: int,
        every: int,
        report: Callable[[int, str, dict[str, float]], None],
        names: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.state = state
        self.batch_size = batch_size
        self.every = every
        self.report = report
        self.names = names or {}
        self.step_seconds: list[float] = []
        self._started = 0.0
        self._first = True
        self._window: list[float] = []
        self._writers = {
            kind: tf.summary.create_file_writer(str(Path(directory) / kind))
            for kind in ("train", "held_out")
        }

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Starts the clock of a step."""
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts the step; every so many, writes a line."""
        seconds = time.perf_counter() - self._started
        self.state.step += 1
        if not self._first:  # the first step of a process traces and compiles the graph
            self._window.append(seconds)
            self.step_seconds.append(seconds)
        self._first = False
        if self.state.step % self.every == 0:
            self._write_train(logs or {})
            self.model.reset_metrics()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Writes the held-out scalars of an evaluation, and those of the steps since the last line.

        Keras resets its metrics next: a run shorter than `every` would show no training at all.
        """
        train, held_out = {}, {}
        for name, value in (logs or {}).items():
            if name.startswith("val_"):
                held_out[name.removeprefix("val_")] = value
            else:
                train[name] = value
        if self.state.step % self.every:
            self._write_train(train)
        if held_out:
            self._write("held_out", self._renamed(held_out))

    def _write_train(self, logs: dict) -> None:
        scalars = self._renamed(logs)
        scalars["learning_rate"] = float(self.model.optimizer.learning_rate)
        if self._window:
            mean_seconds = sum(self._window) / len(self._window)
            scalars["examples_per_second"] = self.batch_size / mean_seconds
        self._window = []
        self._write("train", scalars)

    def _renamed(self, logs: dict) -> dict[str, float]:
        return {self.names.get(name, name): float(value) for name, value in logs.items()}

    def _write(self, kind: str, scalars: dict[str, float]) -> None:
        with self._writers[kind].as_default(step=self.state.step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)
        # A killed run keeps what it has logged.
        self._writers[kind].flush()
        self.report(self.state.step, kind, scalars)


class KeepBest(keras.callbacks.Callback):
    """Calls `save` when an evaluation beats every earlier one.

    Args:
        state: holds the best score, so that a continued run goes on from it.
        monitor: log name of the score, such as "val_loss".
        larger_is_better: True for an accuracy, False for a loss.
        save: writes the model.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        monitor: str,
        larger_is_better: bool,
        save: Callable[[], None],
    ) -> None:
        super().__init__()
        self.state = state
        self.monitor = monitor
        self.larger_is_better = larger_is_better
        self.save = save

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Compares this evaluation with the best one."""
        score = (logs or {}).get(self.monitor)
        if score is None:
            return
        best = self.state.best
        if best is None or (score > best if self.larger_is_better else score < best):
            self.state.best = float(score)
            self.save()


class SaveState(keras.callbacks.Callback):
    """Saves the training state every `every` steps and after each evaluation."""

    def __init__(self, state: TrainingState, *, every: int) -> None:
        super().__init__()
        self.state = state
        self.every = every

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Saves on the steps that are due."""
        if self.state.step % self.every == 0:
            self.state.save()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Saves with the best score as it stands after the evaluation."""
        self.state.save()

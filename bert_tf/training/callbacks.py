"""Callbacks of a run: evaluation, logging, checkpoints, the best model, early stopping.

Their order in `fit` matters: steps are counted first, then logged, then saved, and signals are
handled last.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

import keras

from bert_tf.training.preemption import StopSignals
from bert_tf.training.scalar_files import ScalarFiles
from bert_tf.training.schedule import learning_rate_of
from bert_tf.training.state import TrainingState
from bert_tf.training.workers import from_all_replicas, has_workers, is_chief, meet

# Logs of the trainer that concern the last step alone.
_OF_ONE_STEP = ("nonfinite", "stop_asked")

_SECONDS_BETWEEN_LINES = 20


class CountSteps(keras.callbacks.Callback):
    """Counts the steps in the state the callbacks share.

    Args:
        state: training state.
        ends_stretch: whether an evaluation follows a step.
        on_step: called with the step after each execution.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        ends_stretch: Callable[[int], bool],
        on_step: Callable[[int], object] = lambda step: None,
    ) -> None:
        super().__init__()
        self.state = state
        self.ends_stretch = ends_stretch
        self.on_step = on_step
        self._first = 0

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes the first step of the execution."""
        self._first = batch

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts the steps of the execution."""
        steps = batch - self._first + 1
        self.state.advance(steps, ends_stretch=self.ends_stretch(self.state.step + steps))
        self.on_step(self.state.step)


class Evaluate(keras.callbacks.Callback):
    """Adds the scores of a function to those that Keras has computed on held-out data.

    The function runs on the chief worker alone: the others get no scores, and wait for it in the
    next step. A signal cuts it short and ends the run, which evaluates again when it is resumed;
    with several workers it ends with the next step instead.

    Args:
        state: training state.
        signals: signals to stop on.

    Attributes:
        evaluate: the function of the present phase, or None.
    """

    def __init__(self, state: TrainingState, signals: StopSignals) -> None:
        super().__init__()
        self.state = state
        self.signals = signals
        self.evaluate: Callable[[], dict[str, float]] | None = None

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Evaluates."""
        if self.evaluate is None or not is_chief(self.model.distribute_strategy):
            return
        if has_workers(self.model.distribute_strategy):
            scores = self.evaluate()
        else:
            scores = self.signals.unless_stopped(self.evaluate)
        if scores is None:
            self.state.save()
            self.signals.stop(self.state.step)
        if logs is not None:
            logs |= {f"val_{name}": score for name, score in scores.items()}


class ScalarLog(keras.callbacks.Callback):
    """Writes training and held-out scalars for TensorBoard and reports them to the terminal.

    Every `every` steps, and before an evaluation: the logs of `fit` as means over the steps since
    the last line (the metrics are reset there), the last step's `learning_rate`,
    `examples_per_second` (the steps alone: neither the first one, which compiles, nor evaluations
    and checkpoints count), multiples of it, `minutes_left` at that rate, and `nonfinite_steps`
    where there have been any. The terminal gets the same after 20 seconds without a line.

    Args:
        directory: log folder; see `ScalarFiles`.
        state: training state, its steps counted.
        batch_size: examples per step, over all replicas.
        steps_left: step -> number of steps still to come, in steps like it.
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
        steps_left: Callable[[int], float],
        every: int,
        report: Callable[[int, str, dict[str, float]], None],
        names: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.state = state
        self.batch_size = batch_size
        self.steps_left = steps_left
        self._rates: dict[str, float] = {}
        self.every = every
        self.report = report
        self.names = names or {}
        self.step_seconds: list[float] = []
        self._started = 0.0
        self._reported = 0.0
        self._first = True
        self._window: list[float] = []
        self._files = ScalarFiles(directory)

    def begin(self, rates: dict[str, float]) -> None:
        """Begins a phase, whose first step is traced and compiled.

        Args:
            rates: name -> factor on the examples per second.
        """
        self._rates = rates
        self._first = True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Starts the clock of an execution."""
        self._reported = self._reported or time.monotonic()
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Times the steps, and writes a line when due."""
        seconds = time.perf_counter() - self._started
        if not self._first:  # the first step of a phase traces and compiles the graph
            mean = seconds / self.model.steps_per_execution
            self._window.append(mean)
            self.step_seconds.append(mean)
        self._first = False
        due = self.state.passed(self.every)
        # Keras resets its metrics after a stretch: log its last steps before that.
        if due or self.state.evaluation_due:
            self._write_train(logs or {})
        elif time.monotonic() - self._reported > _SECONDS_BETWEEN_LINES:
            self._report("train", self._train_scalars(logs or {}))
        if due:
            self.model.reset_metrics()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Writes the held-out scalars of an evaluation."""
        held_out = {
            name.removeprefix("val_"): value
            for name, value in (logs or {}).items()
            if name.startswith("val_")
        }
        if held_out:
            self._write("held_out", self._renamed(held_out))

    def _write_train(self, logs: dict) -> None:
        self._write("train", self._train_scalars(logs))
        self._window = []

    def _train_scalars(self, logs: dict) -> dict[str, float]:
        scalars = self._renamed(logs)
        if self.state.nonfinite_steps:
            scalars["nonfinite_steps"] = float(self.state.nonfinite_steps)
        scalars["learning_rate"] = learning_rate_of(self.model.optimizer, self.state.step)
        if self._window:
            mean_seconds = sum(self._window) / len(self._window)
            rate = self.batch_size / mean_seconds
            scalars["examples_per_second"] = rate
            scalars |= {name: rate * factor for name, factor in self._rates.items()}
            if scalars.get("share_of_peak", 0.0) > 1:  # the peak was measured on a busy machine
                del scalars["share_of_peak"]
            scalars["minutes_left"] = self.steps_left(self.state.step) * mean_seconds / 60
        return scalars

    def _renamed(self, logs: dict) -> dict[str, float]:
        return {
            self.names.get(name, name): float(value)
            for name, value in logs.items()
            if name not in _OF_ONE_STEP
        }

    def _write(self, kind: str, scalars: dict[str, float]) -> None:
        self.state.logged[kind] = self.state.step
        if is_chief(self.model.distribute_strategy):
            self._files.write(self.state.step, kind, scalars)
            self._report(kind, scalars)

    def _report(self, kind: str, scalars: dict[str, float]) -> None:
        self._reported = time.monotonic()
        if is_chief(self.model.distribute_strategy):
            self.report(self.state.step, kind, scalars)


class KeepBest(keras.callbacks.Callback):
    """Saves the model when an evaluation beats every earlier one; ends the run when none does.

    The chief worker decides for all.

    Args:
        state: training state; holds the best score.
        best_by: name of the score.
        larger_is_better: True for an accuracy, False for a loss.
        patience: number of evaluations without a better score after which the run ends.
        save: writes the model.

    Attributes:
        may_end: whether the run may end in the present phase.
    """

    def __init__(
        self,
        state: TrainingState,
        *,
        best_by: str,
        larger_is_better: bool,
        patience: int | None,
        save: Callable[[], None],
    ) -> None:
        super().__init__()
        self.state = state
        self.best_by = best_by
        self.larger_is_better = larger_is_better
        self.patience = patience
        self.save = save
        self.may_end = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Compares this evaluation with the best one."""
        score = (logs or {}).get(f"val_{self.best_by}")
        best = self.state.best
        if score is not None:
            self.state.evaluations_since_best += 1
            better = best is None or (score > best if self.larger_is_better else score < best)
            if better and math.isfinite(score):
                self.save()
                self.state.best, self.state.best_step = float(score), self.state.step
                self.state.evaluations_since_best = 0
        if self.patience is not None and self.may_end:
            is_over = self.state.evaluations_since_best >= self.patience
            # Only the chief may have scores: its number is the first.
            is_over = bool(from_all_replicas(self.model.distribute_strategy, int(is_over))[0])
            self.state.ended_early = self.model.stop_training = is_over


class SaveState(keras.callbacks.Callback):
    """Saves the training state every `every` steps and after each evaluation.

    Files are written while training goes on; a failure is raised at the next step.
    """

    def __init__(self, state: TrainingState, *, every: int) -> None:
        super().__init__()
        self.state = state
        self.every = every

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Restores the metrics of a resumed run, which Keras has just reset."""
        self.state.restore_metrics()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Saves on the steps that are due, unless an evaluation comes first."""
        self.state.raise_failure()
        if self.state.evaluation_due:
            return
        if self.state.passed(self.every) or self.state.passed(self.state.keep_every):
            self.state.save(wait=False)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Saves after an evaluation, with the best score so far."""
        self.state.evaluation_due = False
        self.state.save(wait=False)


class StopOnSignal(keras.callbacks.Callback):
    """Saves the state and ends the run when a signal has arrived.

    That happens after a training step, before the next batch of an evaluation (which the resumed
    run repeats) and after an evaluation.

    One of several workers tells the others with its next step, of training or evaluation (see
    `StopFlag`); all end after that one, when the chief has saved the state.
    """

    def __init__(self, state: TrainingState, signals: StopSignals) -> None:
        super().__init__()
        self.state = state
        self.signals = signals

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Tells the other workers with the next training step."""
        if self._agrees and self.signals.received is not None:
            self.model.stop_flag.ask()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """After a training step."""
        self._stop_if_told(logs)

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """In an evaluation."""
        if self._agrees:
            self.on_train_batch_begin(batch)
        else:
            self._stop_if_told(logs)

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """In an evaluation by several workers."""
        if self._agrees:
            self._stop_if_told(logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """After an evaluation."""
        if not self._agrees:
            self._stop_if_told(logs)

    @property
    def _agrees(self) -> bool:
        return getattr(self.model, "stop_flag", None) is not None

    def _stop_if_told(self, logs: dict | None) -> None:
        if self._agrees:
            is_told = (logs or {})["stop_asked"] > 0
        else:
            is_told = self.signals.received is not None
        if is_told:
            self.state.save()
            meet(self.model.distribute_strategy)
            self.signals.stop(self.state.step)

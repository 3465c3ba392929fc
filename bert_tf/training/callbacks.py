"""Callbacks of a run: evaluation, logging, checkpoints, the best model, early stopping.

Their order in `fit` matters: steps are counted first, then logged, then saved, and signals are
handled last.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import keras

from bert_tf.training.plan import Phase, TrainingPlan
from bert_tf.training.preemption import StopSignals
from bert_tf.training.scalar_files import ScalarFiles
from bert_tf.training.schedule import learning_rate_of
from bert_tf.training.state import TrainingState
from bert_tf.training.workers import from_all_replicas, has_workers, is_chief, leave, meet

# Logs of the trainer that concern the last step alone.
_OF_ONE_STEP = ("nonfinite", "stop_asked")

_SECONDS_BETWEEN_LINES = 20


@dataclass(eq=False)
class RunCallback(keras.callbacks.Callback):
    """A callback that knows the training state."""

    state: TrainingState

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and reports."""
        return is_chief(self.model.distribute_strategy)


@dataclass(eq=False)
class CountSteps(RunCallback):
    """Counts the steps in the state the callbacks share; `on_step` gets the step reached."""

    plan: TrainingPlan
    phase: Phase
    on_step: Callable[[int], object]

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        steps = self.model.steps_per_execution
        step = self.state.step + steps
        ends_stretch = step % self.plan.evaluate_every == 0 or step == self.phase.until
        self.state.advance(steps, ends_stretch=ends_stretch)
        self.on_step(step)


@dataclass(eq=False)
class Evaluate(RunCallback):
    """Adds the scores of a phase's own evaluation to those that Keras has computed.

    It runs on the chief worker alone: the others get no scores, and wait for it in the next step. A
    signal cuts it short and ends the run, which evaluates again when it is resumed; with several
    workers it ends with the next step instead.
    """

    evaluate: Callable[[], dict[str, float]] | None
    signals: StopSignals

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if self.evaluate is None or not self.is_chief:
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


@dataclass(eq=False)
class ScalarLog(RunCallback):
    """Writes training and held-out scalars for TensorBoard and reports them to the terminal.

    Every `log_every` steps, and before an evaluation: the logs of `fit` as means over the steps
    since the last line (the metrics are reset there), the last step's `learning_rate`,
    `examples_per_second` (the steps alone: neither the first one, which compiles, nor evaluations
    and checkpoints count), `tokens_per_second`, `share_of_peak`, `minutes_left` at that rate, and
    `nonfinite_steps` where there have been any. The terminal gets the same after 20 seconds without
    a line.

    Attributes:
        steps_after: steps that come after the phase, in steps of its cost.
        report: called with (step, kind, scalars), kind "train" or "held_out", for each line.
        step_seconds: mean seconds per step of each execution but the first.
    """

    plan: TrainingPlan
    phase: Phase
    steps_after: float
    files: ScalarFiles
    report: Callable[[int, str, dict[str, float]], None]
    step_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._window: list[float] = []  # the step seconds since the last line
        self._peaks: list[float] = []  # the peak at each of these steps
        self._is_compiled = False
        self._reported = time.monotonic()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        seconds = (time.perf_counter() - self._started) / self.model.steps_per_execution
        if self._is_compiled:
            self._window.append(seconds)
            if self.phase.peak is not None and self.is_chief:
                self._peaks.append(self.phase.peak())
            self.step_seconds.append(seconds)
        self._is_compiled = True
        due = self.state.passed(self.plan.log_every)
        # Keras resets its metrics after a stretch: log its last steps before that.
        if due or self.state.evaluation_due:
            self._write("train", self._train_scalars(logs or {}))
            self._window, self._peaks = [], []
        elif time.monotonic() - self._reported > _SECONDS_BETWEEN_LINES:
            self._report("train", self._train_scalars(logs or {}))
        if due:
            self.model.reset_metrics()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        scores = {name: score for name, score in (logs or {}).items() if name.startswith("val_")}
        if scores:
            self._write("held_out", self._renamed(scores))

    def _train_scalars(self, logs: dict) -> dict[str, float]:
        step = self.state.step
        scalars = self._renamed(logs)
        if self.state.nonfinite_steps:
            scalars["nonfinite_steps"] = float(self.state.nonfinite_steps)
        scalars["learning_rate"] = learning_rate_of(self.model.optimizer, step)
        if self._window:
            mean_seconds = sum(self._window) / len(self._window)
            rate = self.phase.batch_size / mean_seconds
            scalars["examples_per_second"] = rate
            if self.phase.tokens is not None:
                scalars["tokens_per_second"] = rate * self.phase.tokens
            if self._peaks:
                peak = sum(self._peaks) / len(self._peaks)
                share = rate * self.phase.flops / peak
                if share <= 1:  # else the peak was measured while others used the machine
                    scalars["share_of_peak"] = share
            steps_left = self.phase.until - step + self.steps_after
            scalars["minutes_left"] = steps_left * mean_seconds / 60
        return scalars

    def _renamed(self, logs: dict) -> dict[str, float]:
        named = {name.removeprefix("val_"): float(value) for name, value in logs.items()}
        shown = self.plan.scalar_names
        return {shown.get(n, n): value for n, value in named.items() if n not in _OF_ONE_STEP}

    def _write(self, kind: str, scalars: dict[str, float]) -> None:
        self.state.logged[kind] = self.state.step
        if self.is_chief:
            self.files.write(self.state.step, kind, scalars)
        self._report(kind, scalars)

    def _report(self, kind: str, scalars: dict[str, float]) -> None:
        self._reported = time.monotonic()
        if self.is_chief:
            self.report(self.state.step, kind, scalars)


@dataclass(eq=False)
class KeepBest(RunCallback):
    """Saves the model when an evaluation beats every earlier one; ends the run when none does.

    The chief worker decides for all.

    Attributes:
        may_end: whether the run may end in the present phase.
        save: writes the model.
    """

    plan: TrainingPlan
    may_end: bool
    save: Callable[[], None]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        state = self.state
        score = (logs or {}).get(f"val_{self.plan.best_by}")
        if score is not None:
            state.evaluations_since_best += 1
            sign = 1 if self.plan.larger_is_better else -1
            is_better = state.best is None or sign * score > sign * state.best
            if is_better and math.isfinite(score):
                self.save()
                state.best, state.best_step = float(score), state.step
                state.evaluations_since_best = 0
        if self.plan.patience is not None and self.may_end:
            is_over = state.evaluations_since_best >= self.plan.patience
            # Only the chief may have scores: its number is the first.
            is_over = bool(from_all_replicas(self.model.distribute_strategy, int(is_over))[0])
            state.ended_early = self.model.stop_training = is_over


@dataclass(eq=False)
class SaveState(RunCallback):
    """Saves the training state every `every` steps and after each evaluation.

    Files are written while training goes on; a failure is raised at the next step.
    """

    every: int

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Restores the metrics of a resumed run, which Keras has just reset."""
        self.state.restore_metrics()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.state.raise_failure()
        if self.state.evaluation_due:
            return
        if self.state.passed(self.every) or self.state.passed(self.state.keep_every):
            self.state.save(wait=False)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.state.evaluation_due = False
        self.state.save(wait=False)


@dataclass(eq=False)
class StopOnSignal(RunCallback):
    """Saves the state and ends the run when a signal has arrived.

    That happens after a training step, after a batch of an evaluation (which the resumed run
    repeats) and after an evaluation.

    One of several workers tells the others with its next step, of training or evaluation (see
    `StopFlag`); all end after that one, when the chief has saved the state.
    """

    signals: StopSignals

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        flag = getattr(self.model, "stop_flag", None)
        if flag is not None and self.signals.received is not None:
            flag.ask()

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        self.on_train_batch_begin(batch)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if getattr(self.model, "stop_flag", None) is None:
            is_told = self.signals.received is not None
        else:
            is_told = (logs or {}).get("stop_asked", 0) > 0
        if is_told:
            self.state.save()
            meet(self.model.distribute_strategy)
            leave(self.model.distribute_strategy)
            self.signals.stop(self.state.step)

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Stops after an evaluation; several workers stop with their next step."""
        self.on_train_batch_end(epoch, logs)

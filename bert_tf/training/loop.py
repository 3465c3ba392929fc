"""The training loop: steps and evaluations in a run directory, resumed where it stopped.

The run directory:
    logs/         TensorBoard events, `train` and `held_out`, and the same as `scalars.jsonl`
    checkpoints/  training state, from which a stopped run resumes
    best/, last/  models
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras

from bert_tf.errors import InputError
from bert_tf.training import workers
from bert_tf.training.logs import ScalarLog, forget_later_scalars
from bert_tf.training.phases import Phase
from bert_tf.training.preemption import StopSignals
from bert_tf.training.resuming import Progress, TrainingState
from bert_tf.training.schedule import learning_rate_of
from bert_tf.training.strategy import without_autotuning
from bert_tf.training.training_options import TrainingOptions
from bert_tf.training.watcher import Watcher

LOSS = "loss"  # name of the one score of which less is better


def merit(name: str, score: float, loss: float | None) -> tuple[float, float]:
    """Ranks models by a score: higher is better; of equal scores, the lower loss decides."""
    known_loss = math.inf if loss is None or math.isnan(loss) else loss
    return (-score if name == LOSS else score), -known_loss


class DivergedError(InputError):
    """Too many steps had a non-finite loss or gradient."""


@dataclass(eq=False, kw_only=True)
class TrainingResult(Progress):
    """Outcome of a run: where it has come to, and how."""

    started_at: int = 0  # step it was resumed from, 0 for a new run
    step_seconds: float | None = None  # median seconds per step, None if fewer than two were run
    is_chief: bool = True  # whether this process wrote the files


@dataclass(eq=False)
class TrainingLoop:
    """Trains the trainer of `state` from `state.step` to the end of the last phase.

    The best model has the best score, of equal ones the lowest loss, then the latest step. It is
    of the last phase: scores of different phases do not compare. In the main thread SIGTERM (which
    raises Preempted) and Ctrl-C end the run, on all workers, after the present step, or batch of an
    evaluation, which is repeated later, and a checkpoint.
    """

    phases: Sequence[Phase]
    _: KW_ONLY
    state: TrainingState
    directory: Path
    options: TrainingOptions  # log_every, save_every, patience and skip_nonfinite
    evaluate_every: int  # steps; each phase ends with an evaluation, too
    best_by: str  # name of the score that chooses the best model: the largest, or least `LOSS`
    scalar_names: Mapping[str, str] = field(default_factory=dict)  # trainer's log -> shown name
    save_model: Callable[[Path], None]  # writes the model into a folder
    watchers: Sequence[Watcher] = ()

    def run(self) -> TrainingResult:
        """Trains, and writes the models best/ and last/.

        Raises InputError if `steps_per_execution` does not divide the steps between two evaluations
        or workers resume from different checkpoints; DivergedError after more non-finite steps than
        `skip_nonfinite`; OSError if a file cannot be written, where earlier checkpoints stay.
        """
        state = self.state
        strategy = self.state.trainer.strategy
        started_at = state.step
        is_chief = workers.is_chief(strategy)
        workers.check_same_step(strategy, started_at)
        logs = self.directory / "logs"
        if is_chief:
            forget_later_scalars(logs, state)
        self._log = ScalarLog(logs, state, self.watchers, self.options.log_every, self.scalar_names)
        starts = [0, *(phase.until for phase in self.phases)]
        with StopSignals() as self._signals:
            try:
                for watcher in self.watchers:
                    watcher.begin(self.phases[-1].until)
                for number, (start, phase) in enumerate(zip(starts, self.phases, strict=False), 1):
                    # An evaluation that is due belongs to the phase whose steps it follows.
                    is_done = state.step == phase.until and not state.evaluation_due
                    if is_done or state.step > phase.until or state.ended_early:
                        continue
                    state.trainer.accumulate_gradients(phase.gradient_accumulation_steps)
                    if state.step == start:
                        state.best = state.best_loss = state.best_step = None
                        state.tied_steps = []
                        state.evaluations_since_best = 0
                    later = zip(starts[number:], self.phases[number:], strict=False)
                    steps_after = sum((p.until - begin) * p.cost for begin, p in later) / phase.cost
                    self._log.begin(phase, steps_after)
                    self._train(phase, start)
                state.wait()
            except BaseException:
                # Report what ended the run, after finishing a checkpoint under way.
                with contextlib.suppress(Exception):
                    state.wait()
                raise
            if not state.is_dropped:  # else the model has no weights of the run
                self._save("last")
            workers.meet(strategy)
        seconds = self._log.step_seconds
        return TrainingResult(
            **asdict(state),
            started_at=started_at,
            step_seconds=statistics.median(seconds) if seconds else None,
            is_chief=is_chief,
        )

    def _save(self, name: str) -> None:
        if workers.is_chief(self.state.trainer.strategy):
            self.save_model(self.directory / name)

    def _train(self, phase: Phase, start: int) -> None:
        """Trains to the end of a phase that begins after `start` steps."""
        state = self.state
        trainer = self.state.trainer
        steps = trainer.steps_per_execution
        if state.evaluation_due:
            self._evaluate(phase)
        batches = trainer.iterate(without_autotuning(phase.batches(state.step - start)))
        while state.step < phase.until and not state.ended_early:
            every = self.evaluate_every
            left = min(every - state.step % every, phase.until - state.step)
            if left % steps:  # it may have changed since the run stopped
                raise InputError(
                    f"{left} steps from step {state.step} to the next evaluation do not divide by "
                    f"--steps_per_execution {steps}: give one that divides them"
                )
            for watcher in self.watchers:
                watcher.before_step()
            began = time.perf_counter()
            logs = trainer.train(batches)
            is_finite = not float(logs["nonfinite"])  # waits for the step
            seconds = (time.perf_counter() - began) / steps

            state.advance(steps, ends_stretch=left == steps)
            if not is_finite:
                state.nonfinite_steps = int(keras.ops.convert_to_numpy(trainer.nonfinite_steps))
                if state.nonfinite_steps > self.options.skip_nonfinite:
                    raise _divergence(state, phase, start, logs)  # without a checkpoint
            self._log.step(seconds, logs)
            for watcher in self.watchers:
                watcher.after_step(state.step)
            state.raise_failure()
            is_due = state.passed(self.options.save_every) or state.passed(state.keep_every)
            if is_due and not state.evaluation_due:
                state.save(wait=False)
            self._stop_if_asked(logs)
            if state.evaluation_due:
                self._evaluate(phase)
        for watcher in self.watchers:
            watcher.end_phase()

    def _evaluate(self, phase: Phase) -> None:
        state = self.state
        strategy = self.state.trainer.strategy
        scores = {}
        if phase.held_out is not None:
            held_out = without_autotuning(phase.held_out)
            scores = state.trainer.evaluate(held_out, after=self._stop_if_asked)
        if phase.evaluate is not None and workers.is_chief(strategy):
            if workers.has_workers(strategy):  # they stop together, with the next step
                scores |= phase.evaluate()
            elif (more := self._signals.unless_stopped(phase.evaluate)) is None:
                state.save()
                self._signals.stop(state.step)
            else:
                scores |= more
        if scores:
            self._log.held_out(scores)
        self._keep_best(scores, phase)
        for watcher in self.watchers:
            watcher.after_evaluation()
        state.evaluation_due = False
        state.save(wait=False)
        self._stop_if_asked({})

    def _keep_best(self, scores: Mapping[str, float], phase: Phase) -> None:
        """Saves the model if it is the best one so far; ends the run if none has been lately.

        A model that another only equals, in score and loss, does not prolong the run.
        """
        state = self.state
        patience = self.options.patience
        score = scores.get(self.best_by)
        if score is not None:
            state.evaluations_since_best += 1
        if score is not None and math.isfinite(score):
            loss = scores.get(LOSS)
            new = merit(self.best_by, score, loss)
            best = (-math.inf, -math.inf)
            if state.best is not None:
                best = merit(self.best_by, state.best, state.best_loss)
            if new > best:
                state.evaluations_since_best = 0
            if new[0] > best[0]:
                state.tied_steps = []
            if new[0] >= best[0]:
                state.tied_steps.append(state.step)
            if new >= best:
                self._save("best")
                state.best = float(score)
                state.best_loss = loss
                state.best_step = state.step
        if patience is not None and phase is self.phases[-1]:
            is_over = state.evaluations_since_best >= patience
            # Only the chief may have scores: its number is the first.
            numbers = workers.from_all_replicas(state.trainer.strategy, int(is_over))
            state.ended_early = bool(numbers[0])

    def _stop_if_asked(self, logs: Mapping[str, Any]) -> None:
        """Saves the state and ends the run if a signal has arrived, here or at another worker."""
        trainer = self.state.trainer
        is_asked = bool(self._signals.received)
        if trainer.stop_flag:
            if is_asked:  # all workers see it in the logs of the next step, and stop together
                trainer.stop_flag.ask()
            is_asked = float(logs.get("stop_asked", 0)) > 0
        if is_asked:
            self.state.save()
            workers.meet(trainer.strategy)
            workers.leave(trainer.strategy)
            self._signals.stop(self.state.step)


def _divergence(
    state: TrainingState, phase: Phase, start: int, logs: Mapping[str, Any]
) -> DivergedError:
    """The error after an execution with one non-finite step too many."""
    trainer = state.trainer
    step = state.step
    count = state.nonfinite_steps
    first = step - trainer.steps_per_execution + 1
    steps = f"step {step}" if first == step else f"one of the steps {first} to {step}"
    allowed = f"; {count - 1} such step(s) before it were skipped" if count > 1 else ""
    batch, last = (phase.first_batch + n - 1 - start for n in (first, step))
    after = f" after step {start}" if start and not phase.first_batch else ""
    size = phase.batch_size
    return DivergedError(
        f"{steps}: non-finite loss or gradient (loss {float(logs['loss']):.4g}, gradient norm "
        f"{float(logs['gradient_norm']):.4g}) at learning rate "
        f"{learning_rate_of(trainer.optimizer, first):.3g}{allowed}. Its batch is number "
        f"{batch} counted from 0{after}, instances {batch * size} to "
        f"{(last + 1) * size - 1} in the order of the run: the reader gives it with "
        f"start_step={batch} (docs/resuming.md shows how). The last checkpoint is kept. Lower "
        "--learning_rate, or skip such steps with --skip_nonfinite N"
    )

"""The training loop: `model.fit` in a run directory, resumed where it stopped.

The run directory:
    logs/         TensorBoard events, `train` and `held_out`, and the same as `scalars.jsonl`
    checkpoints/  training state, from which a stopped run resumes
    best/, last/  models
"""

import contextlib
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.callbacks import (
    CountSteps,
    Evaluate,
    KeepBest,
    SaveState,
    ScalarLog,
    StopOnSignal,
)
from bert_tf.training.divergence import StopOnDivergence
from bert_tf.training.plan import Phase, TrainingPlan
from bert_tf.training.preemption import StopSignals
from bert_tf.training.scalar_files import ScalarFiles, forget_later_scalars
from bert_tf.training.state import Progress, TrainingState
from bert_tf.training.strategy import without_autotuning
from bert_tf.training.workers import check_same_step, is_chief, meet


@dataclass(eq=False, kw_only=True)
class TrainingResult(Progress):
    """Outcome of a run: where it has come to, and how.

    Attributes:
        started_at: step it was resumed from, 0 for a new run.
        step_seconds: median seconds per step, None if fewer than two were run.
        is_chief: whether this process wrote the files.
    """

    started_at: int = 0
    step_seconds: float | None = None
    is_chief: bool = True


def check_steps_per_execution(
    steps_per_execution: int, evaluate_every: int, ends: Sequence[int]
) -> None:
    """Refuses executions that would run past an evaluation or the end of a phase.

    Raises:
        InputError: `steps_per_execution` does not divide one of the others.
    """
    for steps in (*ends, *([evaluate_every] if evaluate_every < ends[-1] else [])):
        if steps % steps_per_execution:
            raise InputError(
                f"an evaluation follows step {steps}, which --steps_per_execution "
                f"{steps_per_execution} does not divide: give one that does"
            )


def train(
    model: keras.Model,
    phases: Sequence[Phase],
    *,
    state: TrainingState,
    directory: str | Path,
    plan: TrainingPlan,
    save_model: Callable[[Path], None],
    report: Callable[[int, str, dict[str, float]], None],
    on_step: Callable[[int], object] = lambda step: None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> TrainingResult:
    """Trains a compiled model from `state.step` to the end of the last phase.

    A Keras epoch here is the stretch between two evaluations. A run resumed in the middle of a
    stretch first ends that one, then goes on as an uninterrupted run would; one stopped in an
    evaluation repeats the evaluation.

    Scores of different phases do not compare: the best model is the best of the last phase.

    In the main thread SIGTERM and Ctrl-C end the run after the present step and a checkpoint. With
    several workers all end, whichever gets the signal, once the chief has written its files.

    Args:
        model: a compiled model, made under the run's strategy; a `Trainer` for several workers.
        phases: phases in their order.
        state: state of `model`, restored for a resumed run.
        directory: run directory.
        plan: intervals and scores.
        save_model: writes the model into a folder.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
        on_step: called with the step after each execution.
        callbacks: run after a step is counted and logged and the best score updated, and before the
            state is saved.

    Raises:
        InputError: too many non-finite steps; `steps_per_execution` does not divide the steps
            between two evaluations; or the workers resume from different checkpoints.
        Preempted: on SIGTERM.
        KeyboardInterrupt: on Ctrl-C.
        OSError: a file cannot be written (`errno.ENOSPC` on a full disk); earlier checkpoints stay.
    """
    directory = Path(directory)
    started_at = state.step
    strategy = model.distribute_strategy
    check_same_step(strategy, started_at)
    if is_chief(strategy):
        forget_later_scalars(directory / "logs", state)

    def save(name: str) -> None:
        if is_chief(strategy):
            save_model(directory / name)

    files = ScalarFiles(directory / "logs")
    step_seconds: list[float] = []
    starts = [0, *(phase.until for phase in phases)]
    with StopSignals() as signals, warnings.catch_warnings():
        # Keras learns the length of several workers' held-out data when it meets their end.
        warnings.filterwarnings("ignore", "Your input ran out of data")
        try:
            for number, (start, phase) in enumerate(zip(starts, phases, strict=False), 1):
                # An evaluation that is due belongs to the phase whose steps it follows.
                is_done = state.step == phase.until and not state.evaluation_due
                if is_done or state.step > phase.until or state.ended_early:
                    continue
                phase.begin()
                if state.step == start:
                    state.best = state.best_step = None
                    state.evaluations_since_best = 0
                later = zip(starts[number:], phases[number:], strict=False)
                steps_after = sum((p.until - begin) * p.cost for begin, p in later) / phase.cost
                log = ScalarLog(state, plan, phase, steps_after, files, report)
                every_callback = [
                    CountSteps(state, plan, phase, on_step),
                    StopOnDivergence(state, plan, phase, start),
                    Evaluate(state, phase.evaluate, signals),
                    log,
                    KeepBest(state, plan, phase is phases[-1], lambda: save("best")),
                    *callbacks,
                    SaveState(state, plan.save_every),
                    StopOnSignal(state, signals),
                ]
                _fit(model, phase, start, state, plan.evaluate_every, every_callback)
                step_seconds += log.step_seconds
            state.wait()
        except BaseException:
            # Report what ended the run, after finishing a checkpoint under way.
            with contextlib.suppress(Exception):
                state.wait()
            raise
        save("last")
        meet(strategy)
    return TrainingResult(
        **asdict(state),
        started_at=started_at,
        step_seconds=statistics.median(step_seconds) if step_seconds else None,
        is_chief=is_chief(strategy),
    )


def _fit(
    model: keras.Model,
    phase: Phase,
    start: int,
    state: TrainingState,
    evaluate_every: int,
    callbacks: list[keras.callbacks.Callback],
) -> None:
    """Trains from `state.step` to the end of a phase that begins after `start` steps."""

    def batches() -> tf.data.Dataset:
        return without_autotuning(phase.batches(state.step - start))

    held_out = None if phase.held_out is None else without_autotuning(phase.held_out)
    if state.evaluation_due:
        logs = {}
        if held_out is not None:
            scores = model.evaluate(held_out, callbacks=callbacks, return_dict=True, verbose=0)
            logs = {f"val_{name}": score for name, score in scores.items()}
        epoch = (state.step - 1) // evaluate_every
        keras.callbacks.CallbackList(callbacks, model=model).on_epoch_end(epoch, logs)
    if state.lacks_metrics:
        # Keras builds them when it traces the first step, too late to restore them before it. An
        # evaluation builds them and changes nothing else.
        model.evaluate(batches().take(1), verbose=0)
    while state.step < phase.until and not state.ended_early:
        epoch, done = divmod(state.step, evaluate_every)
        left = phase.until - state.step
        steps = min(evaluate_every - done, left)
        if steps % model.steps_per_execution:  # it may have changed since the run stopped
            raise InputError(
                f"{steps} steps from step {state.step} to the next evaluation do not divide by "
                f"--steps_per_execution {model.steps_per_execution}: give one that divides them"
            )
        model.fit(
            batches(),
            initial_epoch=epoch,
            epochs=epoch + (1 if done else max(1, left // evaluate_every)),
            steps_per_epoch=steps,
            validation_data=held_out,
            callbacks=callbacks,
            shuffle=False,  # the dataset has its order
            verbose=0,
        )

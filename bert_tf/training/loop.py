"""A training run: `model.fit` in a run directory, continued where it stopped.

The run directory:
    logs/         TensorBoard events, `train` and `held_out`, and the same as `scalars.jsonl`
    checkpoints/  training state, from which a stopped run continues
    best/, last/  models, as `save_model` writes them
"""

import contextlib
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.callbacks import CountSteps, KeepBest, SaveState, ScalarLog, StopOnSignal
from bert_tf.training.divergence import StopOnDivergence
from bert_tf.training.preemption import StopSignals
from bert_tf.training.scalar_files import forget_later_scalars
from bert_tf.training.state import TrainingState
from bert_tf.training.strategy import without_autotuning
from bert_tf.training.workers import check_same_step, is_chief, meet


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long a run is and what happens on the way.

    Attributes:
        batch_size: examples a step, over all replicas.
        total_steps: steps of the whole run.
        evaluate_every: steps between two evaluations on held-out data.
        save_every: steps between two checkpoints (one follows every evaluation, too).
        log_every: steps between two lines of scalars.
        monitor: the score that names the best model, as Keras logs it ("val_loss").
        larger_is_better: True if that score is an accuracy, False if a loss.
        scalar_names: shown names of logs that Keras names after model outputs.
        skip_nonfinite: steps of the whole run whose loss or gradient may be not finite; the run
            stops at one more.
        rates: scalars that are multiples of the examples a second: name -> factor.
    """

    batch_size: int
    total_steps: int
    evaluate_every: int
    save_every: int
    log_every: int
    monitor: str
    larger_is_better: bool
    scalar_names: dict[str, str]
    skip_nonfinite: int = 0
    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """What a run ended with.

    Attributes:
        started_at: the step it was continued from, 0 for a new run.
        best: the best score met, None without held-out data.
        step_seconds: median seconds a step, None if fewer than two were run.
        nonfinite_steps: steps whose loss or gradient was not finite, in the whole run.
        is_chief: whether this process wrote the files; of several workers the first one does.
    """

    started_at: int
    best: float | None
    step_seconds: float | None
    nonfinite_steps: int = 0
    is_chief: bool = True


def train(
    model: keras.Model,
    batches: Callable[[int], tf.data.Dataset],
    held_out: tf.data.Dataset | None,
    *,
    state: TrainingState,
    directory: str | Path,
    plan: TrainingPlan,
    save_model: Callable[[Path], None],
    report: Callable[[int, str, dict[str, float]], None],
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> TrainingResult:
    """Trains a compiled model from `state.step` to the end of `plan`.

    What Keras calls an epoch is here the stretch between two evaluations. A run continued in
    the middle of a stretch first ends that one, then goes on as an undisturbed run would; one
    that was stopped in an evaluation first does that again.

    In the main thread SIGTERM and Ctrl-C end the run after the present step and a checkpoint;
    of several workers all end, whichever gets the signal, and none before the first has written
    its files.

    Args:
        model: a compiled model, its optimizer and variables made under the run's strategy; for
            several workers a `Trainer`.
        batches: step -> an endless dataset of the global batches from that step on.
        held_out: evaluated whole each time; None for no evaluation.
        state: of `model`, restored if the run is a continued one; its checkpoints go on.
        directory: the run directory.
        plan: lengths and intervals.
        save_model: writes the model into the folder it is given.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
        callbacks: more of them; they find `state.step` counted and a step logged but not saved.

    Raises:
        InputError: more steps were not finite than `plan.skip_nonfinite`; or the model's
            `steps_per_execution` does not divide the steps between two evaluations; or the
            workers continue from different checkpoints.
        Preempted: on SIGTERM.
        KeyboardInterrupt: on Ctrl-C.
        OSError: something cannot be written (a full disk: `errno.ENOSPC`); the checkpoints that
            were written before stay.
    """
    directory = Path(directory)
    started_at = state.step
    strategy = model.distribute_strategy
    check_same_step(strategy, started_at)
    if is_chief(strategy):
        forget_later_scalars(directory / "logs", state)

    def ends_stretch(step: int) -> bool:
        return step % plan.evaluate_every == 0 or step >= plan.total_steps

    def save(name: str) -> None:
        if is_chief(strategy):
            save_model(directory / name)

    log = ScalarLog(
        directory / "logs",
        state,
        batch_size=plan.batch_size,
        total_steps=plan.total_steps,
        every=plan.log_every,
        report=report,
        names=plan.scalar_names,
        rates=plan.rates,
    )
    with StopSignals() as signals, warnings.catch_warnings():
        every_callback = [
            CountSteps(state, ends_stretch=ends_stretch),
            StopOnDivergence(state, batch_size=plan.batch_size, allowed=plan.skip_nonfinite),
            log,
            *callbacks,
        ]
        if held_out is not None:
            held_out = without_autotuning(held_out)
            best = KeepBest(
                state,
                monitor=plan.monitor,
                larger_is_better=plan.larger_is_better,
                save=lambda: save("best"),
            )
            every_callback.append(best)
        every_callback += [SaveState(state, every=plan.save_every), StopOnSignal(state, signals)]
        try:
            # Keras learns how long held-out data of several workers are when it meets their end.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            _fit(model, batches, held_out, state, plan, every_callback)
            state.wait()
        except BaseException:
            # What ended the run is what to tell; a checkpoint under way is finished first.
            with contextlib.suppress(Exception):
                state.wait()
            raise
        save("last")
        meet(strategy)
    return TrainingResult(
        started_at=started_at,
        best=state.best,
        step_seconds=statistics.median(log.step_seconds) if log.step_seconds else None,
        nonfinite_steps=state.nonfinite_steps,
        is_chief=is_chief(strategy),
    )


def _fit(
    model: keras.Model,
    batches: Callable[[int], tf.data.Dataset],
    held_out: tf.data.Dataset | None,
    state: TrainingState,
    plan: TrainingPlan,
    callbacks: list[keras.callbacks.Callback],
) -> None:
    """Goes from `state.step` to the last step."""
    if state.evaluation_due:
        logs = {}
        if held_out is not None:
            scores = model.evaluate(held_out, callbacks=callbacks, return_dict=True, verbose=0)
            logs = {f"val_{name}": score for name, score in scores.items()}
        epoch = (state.step - 1) // plan.evaluate_every
        keras.callbacks.CallbackList(callbacks, model=model).on_epoch_end(epoch, logs)
    if state.lacks_metrics:
        # Keras builds them with the first step it traces, which is too late to put their values
        # back before it; an evaluation builds them and leaves all else as it is.
        model.evaluate(batches(state.step).take(1), verbose=0)
    while state.step < plan.total_steps:
        done = state.step % plan.evaluate_every
        whole_stretches = (plan.total_steps - state.step) // plan.evaluate_every
        if done or not whole_stretches:
            steps = min(plan.evaluate_every - done, plan.total_steps - state.step)
            stretches = 1
        else:
            steps, stretches = plan.evaluate_every, whole_stretches
        if steps % model.steps_per_execution:  # Keras would run over the end
            raise InputError(
                f"{steps} steps from step {state.step} to the next evaluation do not divide by "
                f"--steps_per_execution {model.steps_per_execution}: give one that divides them"
            )
        first = state.step // plan.evaluate_every
        model.fit(
            without_autotuning(batches(state.step)),
            initial_epoch=first,
            epochs=first + stretches,
            steps_per_epoch=steps,
            validation_data=held_out,
            callbacks=callbacks,
            shuffle=False,  # the dataset has its order
            verbose=0,
        )

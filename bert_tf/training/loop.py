"""A training run: `model.fit` in a run directory, continued where it stopped.

The run directory:
    logs/         TensorBoard events, `train` and `held_out`
    checkpoints/  training state, from which a killed run continues
    best/, last/  models, as `save_model` writes them
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.training.callbacks import KeepBest, SaveState, ScalarLog
from bert_tf.training.state import TrainingState


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
    """

    batch_size: int
    total_steps: int
    evaluate_every: int
    save_every: int
    log_every: int
    monitor: str
    larger_is_better: bool
    scalar_names: dict[str, str]


@dataclass(frozen=True)
class TrainingResult:
    """What a run ended with.

    Attributes:
        started_at: the step it was continued from, 0 for a new run.
        best: the best score met, None without held-out data.
        step_seconds: median seconds a step, None if fewer than two were run.
    """

    started_at: int
    best: float | None
    step_seconds: float | None


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
) -> TrainingResult:
    """Trains a compiled model from `state.step` to the end of `plan`.

    What Keras calls an epoch is here the stretch between two evaluations. A run continued in
    the middle of a stretch first ends that one, then goes on as an undisturbed run would.

    Args:
        model: a compiled model, its optimizer and variables made under the run's strategy.
        batches: step -> an endless dataset of the global batches from that step on.
        held_out: evaluated whole each time; None for no evaluation.
        state: of `model`, restored if the run is a continued one; its checkpoints go on.
        directory: the run directory.
        plan: lengths and intervals.
        save_model: writes the model into the folder it is given.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
    """
    directory = Path(directory)
    started_at = state.step
    log = ScalarLog(
        directory / "logs",
        state,
        batch_size=plan.batch_size,
        every=plan.log_every,
        report=report,
        names=plan.scalar_names,
    )
    callbacks = [log]
    if held_out is not None:
        callbacks.append(
            KeepBest(
                state,
                monitor=plan.monitor,
                larger_is_better=plan.larger_is_better,
                save=lambda: save_model(directory / "best"),
            )
        )
    callbacks.append(SaveState(state, every=plan.save_every))
    while state.step < plan.total_steps:
        done = state.step % plan.evaluate_every
        whole_stretches = (plan.total_steps - state.step) // plan.evaluate_every
        if done or not whole_stretches:
            steps = min(plan.evaluate_every - done, plan.total_steps - state.step)
            stretches = 1
        else:
            steps, stretches = plan.evaluate_every, whole_stretches
        first = state.step // plan.evaluate_every
        model.fit(
            batches(state.step),
            initial_epoch=first,
            epochs=first + stretches,
            steps_per_epoch=steps,
            validation_data=held_out,
            callbacks=callbacks,
            shuffle=False,  # the dataset has its order
            verbose=0,
        )
    save_model(directory / "last")
    return TrainingResult(
        started_at=started_at,
        best=state.best,
        step_seconds=statistics.median(log.step_seconds) if log.step_seconds else None,
    )

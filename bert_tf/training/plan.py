"""The plan of a run: its intervals, its scores and its phases."""

from collections.abc import Callable
from dataclasses import dataclass, field

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Intervals and scores of a run.

    Attributes:
        evaluate_every: steps between two evaluations; each phase ends with one, too.
        save_every: steps between two checkpoints; each evaluation is followed by one, too.
        log_every: steps between two lines of scalars.
        best_by: name of the score that chooses the best model.
        larger_is_better: True if that score is an accuracy, False if a loss.
        patience: end the last phase after this many evaluations without a better score.
        scalar_names: shown names of logs that Keras names after model outputs.
        skip_nonfinite: number of steps with a non-finite loss or gradient to skip before stopping.
    """

    evaluate_every: int
    save_every: int
    log_every: int
    best_by: str
    larger_is_better: bool
    patience: int | None = None
    scalar_names: dict[str, str] = field(default_factory=dict)
    skip_nonfinite: int = 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run's steps that share one kind of batches.

    Attributes:
        until: last step, counted from the beginning of the run.
        batch_size: examples per step, over all replicas.
        batches: step of the phase -> an endless dataset of the global batches from there on.
        first_batch: number that the reader gives the phase's first batch, counted from 0.
        held_out: dataset on which the losses and metrics are evaluated, by all workers together.
        evaluate: returns more scores by name; called on the chief worker alone, so it must not
            communicate with other workers.
        tokens: mean tokens per example, without padding.
        flops: mean floating-point operations per example.
        peak: gives the FLOP/s that the devices can reach now; None to log no share of it.
        cost: relative cost of a step, to estimate the time left.
        begin: called before the first step of the phase in this process.
    """

    until: int
    batch_size: int
    batches: Callable[[int], tf.data.Dataset]
    first_batch: int = 0
    held_out: tf.data.Dataset | None = None
    evaluate: Callable[[], dict[str, float]] | None = None
    tokens: float | None = None
    flops: float = 0.0
    peak: Callable[[], float] | None = None
    cost: float = 1.0
    begin: Callable[[], None] = lambda: None

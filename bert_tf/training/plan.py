"""The plan of a run: its intervals, its scores and its phases."""

from collections.abc import Callable
from dataclasses import dataclass, field

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Intervals and scores of a run; see `TrainingOptions`."""

    evaluate_every: int  # each phase ends with an evaluation, too
    save_every: int  # each evaluation is followed by a checkpoint, too
    log_every: int
    best_by: str  # name of the score that chooses the best model
    larger_is_better: bool  # True if that score is an accuracy, False if a loss
    patience: int | None = None  # in the last phase
    scalar_names: dict[str, str] = field(default_factory=dict)  # log of the trainer -> shown name
    skip_nonfinite: int = 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run's steps that share one kind of batches."""

    until: int  # last step, counted from the beginning of the run
    batch_size: int  # examples per step, over all replicas
    # step of the phase -> an endless dataset of the global batches from there on
    batches: Callable[[int], tf.data.Dataset]
    first_batch: int = 0  # number that the reader gives the phase's first batch, counted from 0
    held_out: tf.data.Dataset | None = None  # for losses and metrics, by all workers together
    # more scores by name, on the chief worker alone: it must not communicate with other workers
    evaluate: Callable[[], dict[str, float]] | None = None
    tokens: float | None = None  # mean tokens per example, without padding
    flops: float = 0.0  # mean floating-point operations per example
    peak: Callable[[], float] | None = None  # FLOP/s of the devices now; None to log no share of it
    cost: float = 1.0  # relative cost of a step, to estimate the time left
    begin: Callable[[], None] = lambda: None  # called before its first step in this process

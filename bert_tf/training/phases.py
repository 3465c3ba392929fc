"""The phases of a run, whose steps end where evaluations and executions meet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from bert_tf.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of a run's steps that share one kind of batches."""

    until: int  # last step, counted from the beginning of the run
    batch_size: int  # examples per step, over all replicas
    batches: Callable[[int], tf.data.Dataset]  # endless global batches from a step of the phase on
    first_batch: int = 0  # number that the reader gives the phase's first batch, counted from 0
    held_out: tf.data.Dataset | None = None  # for losses and metrics, by all workers together
    # more scores by name, on the chief worker alone: it must not communicate with other workers
    evaluate: Callable[[], dict[str, float]] | None = None
    tokens: float | None = None  # mean tokens per example, without padding
    flops: float = 0.0  # mean floating-point operations per example
    peak: Callable[[], float] | None = None  # FLOP/s of the devices now; None to log no share of it
    cost: float = 1.0  # relative cost of a step, to estimate the time left
    gradient_accumulation_steps: int | None = None  # None for those that the trainer has


def check_steps_per_execution(
    steps_per_execution: int, evaluate_every: int, ends: Sequence[int]
) -> None:
    """Raises InputError if an execution would run past an evaluation or the end of a phase."""
    for steps in (*ends, *([evaluate_every] if evaluate_every < ends[-1] else [])):
        if steps % steps_per_execution:
            raise InputError(
                f"an evaluation follows step {steps}, which --steps_per_execution "
                f"{steps_per_execution} does not divide: give one that does"
            )

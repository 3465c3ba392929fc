"""Estimates the cost of a run from a few of its steps."""

import datetime
import resource
import time
from collections.abc import Sequence

import tensorflow as tf

from bert_tf.training.phases import Phase
from bert_tf.training.strategy import without_autotuning
from bert_tf.training.trainer import Trainer
from bert_tf.training.workers import is_chief

_EXECUTIONS = 6  # of a phase: the first one compiles, and batches differ in length


def dry_run(trainer: Trainer, phases: Sequence[Phase]) -> list[str]:
    """Lines on the parameters, steps, time and memory of a run; trains a little of each phase."""
    trained = sum(variable.value.shape.num_elements() for variable in trainer.trainable_variables)
    frozen = trainer.model.count_params() - trained
    lines = [f"{trained:,} parameters" + (f" and {frozen:,} frozen ones" if frozen else "")]
    total = 0.0
    start = 0
    for phase in phases:
        trainer.accumulate_gradients(phase.gradient_accumulation_steps)
        seconds = step_seconds(trainer, phase.batches(0))
        if phase.held_out is not None:  # it may take more memory than the steps
            trainer.evaluate(phase.held_out, limit=1)
        if phase.evaluate is not None and is_chief(trainer.strategy):
            phase.evaluate()
        total += seconds * (phase.until - start)
        lines.append(f"{phase.until - start:,} steps of about {1000 * seconds:,.0f} ms")
        start = phase.until
    duration = datetime.timedelta(seconds=round(total))
    lines.append(f"about {duration} (h:mm:ss) of training, without evaluations")
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if gpus := tf.config.list_logical_devices("GPU"):
        peak = tf.config.experimental.get_memory_info(gpus[0].name.removeprefix("/device:"))["peak"]
    lines.append(f"{peak / 2**30:.1f} GiB of memory on {'each GPU' if gpus else 'this machine'}")
    return lines


def step_seconds(trainer: Trainer, batches: tf.data.Dataset) -> float:
    """Mean seconds of a training step, from a few of them; the trainer's weights change."""
    iterator = trainer.iterate(without_autotuning(batches))
    ends = []
    for _ in range(_EXECUTIONS):
        float(trainer.train(iterator)["loss"])  # waits for the step
        ends.append(time.perf_counter())
    return (ends[-1] - ends[0]) / (len(ends) - 1) / trainer.steps_per_execution

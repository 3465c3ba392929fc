"""What the training tasks have in common before they train: devices, trainer, state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bert_tf.models.classifier import BertClassifier
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.options import FinetuningOptions, PretrainingOptions, TrainingOptions
from bert_tf.training.lamb import Lamb
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.schedule import WarmupLinearDecay
from bert_tf.training.state import TrainingState
from bert_tf.training.strategy import check_jit_compile, make_strategy
from bert_tf.training.trainer import Trainer
from bert_tf.training.workers import is_chief

# Options of every task that the result of a run depends on.
_SETTINGS = (
    "batch_size", "seed", "precision", "learning_rate", "weight_decay", "clip_norm", "optimizer",
    "gradient_accumulation_steps", "freeze_layers",
)  # fmt: skip


def start_strategy(options: TrainingOptions) -> tf.distribute.Strategy:
    """The strategy of a run, made before TensorFlow runs its first op.

    Raises:
        InputError: see `make_strategy` and `check_jit_compile`.
    """
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    strategy = make_strategy(options.strategy)
    check_jit_compile(options.jit_compile, strategy)
    return strategy


def set_precision(precision: str) -> None:
    """Arithmetic of the models made from here on; the trainer scales the loss in float16."""
    keras.config.set_dtype_policy(precision)


def compile_model(
    model: BertPreTrainer | BertClassifier,
    options: PretrainingOptions | FinetuningOptions,
    *,
    total_steps: int,
    warmup_steps: int,
    loss: Any,
    metrics: Any,
) -> Trainer:
    """Wraps `model` with the optimizer, schedule, loss and metrics of a run.

    Args:
        model: a built model, with an encoder.
        options: of the run.
        total_steps: the learning rate reaches 0 here.
        warmup_steps: of linear warm-up.
        loss: see `Trainer`.
        metrics: see `Trainer`.
    """
    if options.freeze_layers is not None:
        model.encoder.freeze_layers(options.freeze_layers)
    model.encoder.rematerialize = options.rematerialize
    optimizer = {"adam": AdamWeightDecay, "lamb": Lamb}[options.optimizer](
        learning_rate=WarmupLinearDecay(options.learning_rate, warmup_steps, total_steps),
        weight_decay_rate=options.weight_decay,
        clip_norm=options.clip_norm,
    )
    return Trainer(
        model,
        optimizer,
        loss=loss,
        metrics=metrics,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        steps_per_execution=options.steps_per_execution,
        jit_compile=options.jit_compile,
    )


def training_state(
    trainer: Trainer,
    options: TrainingOptions,
    settings: dict[str, Any],
    notice: Callable[[str], object],
) -> TrainingState:
    """The state of a run in its directory, to be restored.

    Args:
        trainer: of the run.
        options: of the run.
        settings: of the task, which must not change between a run and its continuation; those
            that every task has come with them.
        notice: told what the user should know; of several workers by the first alone.
    """
    every = {name: getattr(options, name) for name in _SETTINGS}
    if options.deterministic:  # in the last bits of sums it is another run
        every["deterministic"] = True
    return TrainingState(
        trainer,
        Path(options.output) / "checkpoints",
        settings={**settings, **every},
        keep=options.keep,
        keep_every=options.keep_every,
        notice=notice if is_chief(trainer.distribute_strategy) else lambda line: None,
    )

"""What every training task starts with, and compiles its model with."""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.models.classifier import BertClassifier
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.options import FinetuningOptions, PretrainingOptions, TrainingOptions
from bert_tf.training.lamb import Lamb
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.schedule import WarmupLinearDecay
from bert_tf.training.strategy import make_strategy
from bert_tf.training.trainer import Trainer, freeze_layers


def start_strategy(options: TrainingOptions) -> tf.distribute.Strategy:
    """The strategy of a run, made before TensorFlow runs its first op.

    Raises:
        InputError: see `make_strategy`.
    """
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    return make_strategy(options.strategy)


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
        freeze_layers(model, options.freeze_layers)
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

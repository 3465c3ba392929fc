"""What every training task compiles its model with."""

from typing import Any

import keras

from bert_tf.tasks.options import FinetuningOptions, PretrainingOptions
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.schedule import WarmupLinearDecay


def set_precision(precision: str) -> None:
    """Arithmetic of the models made from here on; float16 gets loss scaling in `compile`."""
    keras.config.set_dtype_policy(precision)


def compile_model(
    model: keras.Model,
    options: PretrainingOptions | FinetuningOptions,
    *,
    total_steps: int,
    warmup_steps: int,
    **arguments: Any,
) -> None:
    """Compiles `model` with the original's optimizer and schedule and builds the optimizer.

    Args:
        model: a built model.
        options: learning rate, weight decay, clipping and XLA.
        total_steps: the learning rate reaches 0 here.
        warmup_steps: of linear warm-up.
        arguments: losses and metrics, for `keras.Model.compile`.
    """
    model.compile(
        optimizer=AdamWeightDecay(
            learning_rate=WarmupLinearDecay(options.learning_rate, warmup_steps, total_steps),
            weight_decay_rate=options.weight_decay,
            clip_norm=options.clip_norm,
        ),
        jit_compile=options.jit_compile,
        **arguments,
    )
    model.optimizer.build(model.trainable_variables)

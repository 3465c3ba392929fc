"""An optimizer step with gradients that are already summed over the replicas."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# Options of Keras optimizers that `Optimizer.apply` handles, which such a step bypasses.
_HANDLED_BY_APPLY = (
    "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema",
    "gradient_accumulation_steps", "loss_scale_factor",
)  # fmt: skip


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Refuses optimizers that are more than an update of each variable by its gradient.

    Raises:
        ValueError: naming the optimizer and the option.
    """
    name = type(optimizer).__name__
    base = keras.optimizers.Optimizer
    for method in ("apply", "_backend_update_step"):
        if getattr(type(optimizer), method) is not getattr(base, method):
            raise ValueError(f"Trainer cannot use {name}, which changes `{method}`: use Adam")
    for option in _HANDLED_BY_APPLY:
        if getattr(optimizer, option, None):
            raise ValueError(
                f"Trainer does not apply {option} of {name}: leave it out, or use AdamWeightDecay, "
                "which has weight_decay_rate and clip_norm; Trainer accumulates gradients itself"
            )


def apply_summed(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[Any],
    variables: Sequence[keras.Variable],
    *,
    norm: Any,
    finite: Any,
) -> None:
    """One optimizer step, called in a replica.

    `iterations` counts the step even if it changes nothing: it stays the number of batches seen,
    of which the learning rate is a function. An optimizer with a `skipped` counter counts the
    steps without a change there.

    Args:
        optimizer: built, and accepted by `check_optimizer`.
        gradients: float32 tensors, of the shapes of `variables`.
        variables: some of those the optimizer was built with; the others stay unchanged.
        norm: global norm of `gradients`, float32 [].
        finite: bool []; where False, parameters and optimizer variables stay unchanged.
    """
    values = [variable.value for variable in variables]
    factors = [optimizer.clip_factor(norm)] if hasattr(optimizer, "clip_factor") else []

    def step(value: Any, gradient: Any, rate: Any, *factors: Any) -> None:
        optimizer.update_step(gradient, value, rate, *factors)

    def update(strategy: Any, gradients: Any, finite: Any, *scalars: Any) -> None:
        def all_parameters() -> None:
            for gradient, value in zip(gradients, values, strict=True):
                strategy.extended.update(value, step, args=(gradient, *scalars), group=False)

        # The replicas' sums, and so their answers, are the same: the first one decides.
        decides = strategy.experimental_local_results(finite)[0]
        tf.cond(decides, all_parameters, lambda: None)

    # A condition around updates of mirrored variables must stand outside the replicas.
    tf.distribute.get_replica_context().merge_call(
        update, args=(gradients, finite, optimizer.learning_rate, *factors)
    )
    optimizer.iterations.assign_add(1)
    if hasattr(optimizer, "skipped"):
        optimizer.skipped.assign_add(tf.cast(tf.logical_not(finite), optimizer.skipped.dtype))

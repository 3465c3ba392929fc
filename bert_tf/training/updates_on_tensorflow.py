"""What an optimizer does on TensorFlow: fewer operations, and steps on summed gradients."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.networks.tensorflow.graphs import compiled_by_xla, pays
from bert_tf.training.adam import adam


def clipped(gradients: Sequence[Any], clip_norm: float | None) -> list[tf.Tensor]:
    """Gradients of a global norm of `clip_norm` at most; of tables as whole tensors."""
    # The means decay for every row of a table, looked up or not: rows alone do not do.
    tensors = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return tensors if clip_norm is None else tf.clip_by_global_norm(tensors, clip_norm)[0]


def update_parameter(
    variables: Sequence[Any],
    gradient: tf.Tensor,
    factor: Any,
    rate: Any,
    decay: Any,
    beta_1: float,
    beta_2: float,
    epsilon: tf.Tensor,
) -> None:
    """Assigns what `adam` gives for a parameter and its means."""
    dtype = gradient.dtype
    p, m, v = handles = [
        (variable.value if isinstance(variable, keras.Variable) else variable).handle
        for variable in variables
    ]
    if pays(gradient.shape.num_elements()):
        _in_one_pass(handles, gradient, factor, rate, decay, beta_1, beta_2, epsilon)
        return
    if decay is not None:
        step = decay * tf.raw_ops.ReadVariableOp(resource=p, dtype=dtype)
        tf.raw_ops.AssignSubVariableOp(resource=p, value=step)
    # The op's 1 - beta_2 is float32's, 1e-5 too small for 0.999: the mean of squares is too
    # small by that factor, and its root takes it back.
    rate *= math.sqrt(float(1 - np.float32(beta_2)) / (1 - beta_2))
    none = tf.zeros((), dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=p,
        m=m,
        v=v,
        beta1_power=none,
        beta2_power=none,
        lr=rate,
        beta1=tf.constant(beta_1, dtype),
        beta2=tf.constant(beta_2, dtype),
        epsilon=epsilon,
        grad=gradient if factor is None else gradient * factor,
    )


@compiled_by_xla
def _in_one_pass(handles: Sequence[tf.Tensor], gradient: tf.Tensor, *settings: Any) -> None:
    """`update_parameter` in one pass over the memory; `handles` are the resources of variables."""
    values = [tf.raw_ops.ReadVariableOp(resource=x, dtype=gradient.dtype) for x in handles]
    for handle, value in zip(handles, adam(values, gradient, *settings), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def apply_summed(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[Any],
    variables: Sequence[keras.Variable],
    *,
    norm: Any,
    finite: Any,
) -> None:
    """One step of a built optimizer, called in a replica, on gradients of the global norm `norm`.

    Without `finite`, bool [], only `iterations`, and `skipped` if the optimizer has it, change.
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

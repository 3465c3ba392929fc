"""Adam's step in one pass over a parameter and its means."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_tf.primitives.passes import pays


def adam(
    handles: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    factor: tf.Tensor | None,
    rate: tf.Tensor,
    decay: tf.Tensor | None,
    beta_1: float,
    beta_2: float,
    epsilon: tf.Tensor,
) -> None:
    """A step of Adam with decoupled weight decay, in place.

    With g for factor * gradient, in this order:

        m += (1 - beta_1) (g - m)
        v += (1 - beta_2) (g^2 - v)
        p -= decay p
        p -= rate m / (sqrt(v) + epsilon)

    Args:
        handles: resources of the parameter p and of its means m and v.
        gradient: shape and dtype as p has them.
        factor: scales the gradient, []; None for 1.
        rate: learning rate, [].
        decay: share of p to take off, []; None for none.
        beta_1: decay rate of m.
        beta_2: decay rate of v.
        epsilon: added to the root, [].
    """
    if pays(gradient.shape.num_elements()):
        _adam(handles, gradient, factor, rate, decay, beta_1, beta_2, epsilon)
        return
    dtype = gradient.dtype
    p, m, v = handles
    if decay is not None:
        step = decay * tf.raw_ops.ReadVariableOp(resource=p, dtype=dtype)
        tf.raw_ops.AssignSubVariableOp(resource=p, value=step)
    # The op's 1 - beta_2 is float32's, 1e-5 too small for 0.999: the mean of squares is too small
    # by that factor, and its root takes it back.
    rate *= math.sqrt(float(1 - np.float32(beta_2)) / (1 - beta_2))
    none = tf.zeros((), dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=p, m=m, v=v, beta1_power=none, beta2_power=none, lr=rate,
        beta1=tf.constant(beta_1, dtype), beta2=tf.constant(beta_2, dtype), epsilon=epsilon,
        grad=gradient if factor is None else gradient * factor,
    )  # fmt: skip


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _adam(
    handles: Sequence[tf.Tensor], gradient: tf.Tensor, factor: tf.Tensor | None, rate: tf.Tensor,
    decay: tf.Tensor | None, beta_1: float, beta_2: float, epsilon: tf.Tensor,
) -> None:  # fmt: skip
    p, m, v = (tf.raw_ops.ReadVariableOp(resource=x, dtype=gradient.dtype) for x in handles)
    gradient = gradient if factor is None else gradient * factor
    m += (gradient - m) * (1 - beta_1)
    v += (gradient * gradient - v) * (1 - beta_2)
    p = p if decay is None else p - decay * p
    p -= rate * m / (tf.sqrt(v) + epsilon)
    for handle, value in zip(handles, (p, m, v), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)

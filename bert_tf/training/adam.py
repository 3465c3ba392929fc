"""Adam's rule for one parameter, for every backend of Keras."""

from collections.abc import Sequence
from typing import Any

from keras import ops


def adam(
    values: Sequence[Any],
    gradient: Any,
    factor: Any,
    rate: Any,
    decay: Any,
    beta_1: float,
    beta_2: float,
    epsilon: Any,
) -> tuple[Any, Any, Any]:
    """The rule of `AdamWeightDecay`: new values of a parameter p and of its means m and v.

    `factor` multiplies the gradient, and `decay` is the learning rate times the rate of the weight
    decay; either may be None.
    """
    p, m, v = values
    gradient = gradient if factor is None else gradient * factor
    m += (gradient - m) * (1 - beta_1)
    v += (gradient * gradient - v) * (1 - beta_2)
    p = p if decay is None else p - decay * p
    p -= rate * m / (ops.sqrt(v) + epsilon)
    return p, m, v

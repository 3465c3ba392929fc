"""The activations that a `hidden_act` in config.json may name."""

from collections.abc import Callable
from typing import Any

from keras import ops


def gelu(x: Any) -> Any:
    """The exact x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel, 2016)."""
    return ops.gelu(x, approximate=False)


def gelu_new(x: Any) -> Any:
    """The tanh approximation of `gelu`, which the original's modeling.py writes."""
    return ops.gelu(x, approximate=True)


# Hugging Face's names; the tanh approximation has several.
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": gelu,
    "gelu_new": gelu_new,
    "gelu_fast": gelu_new,
    "gelu_pytorch_tanh": gelu_new,
    "relu": ops.relu,
    "silu": ops.silu,
    "swish": ops.silu,
    "tanh": ops.tanh,
}

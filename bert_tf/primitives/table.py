"""The table of primitives: which ones a layer computes with, where it is called."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from bert_tf.primitives.keras_ops import Primitives

# Whether encoders compute the halves of a batch apart: None where training alone does.
_in_halves: ContextVar[bool | None] = ContextVar("in_halves", default=None)


@contextmanager
def halves(apart: bool) -> Iterator[None]:
    """Has encoders compute the halves of a batch at the same time, or whole batches.

    Without, they do in training on a lone CPU whose cores are shared (`startup.share_cores`).
    """
    token = _in_halves.set(apart)
    try:
        yield
    finally:
        _in_halves.reset(token)


def of_halves(compute: Callable[[Any], Any], inputs: dict[str, Any], training: bool | None) -> Any:
    """`compute` of inputs [B, ...]: of both halves at the same time, where that is quicker."""
    apart = _in_halves.get()
    if not ((training if apart is None else apart) and primitives(training).computes_halves()):
        return compute(inputs)
    middle = (ops.shape(next(iter(inputs.values())))[0] + 1) // 2
    with halves(False):
        first = compute({name: x[:middle] for name, x in inputs.items()})
        second = compute({name: x[middle:] for name, x in inputs.items()})
    return keras.tree.map_structure(lambda *both: ops.concatenate(both), first, second)


def primitives(training: bool | None) -> Primitives:
    """The primitives for Keras' backend, the device and the graph in which the caller is."""
    if keras.backend.backend() == "tensorflow":
        from bert_tf.primitives.on_tensorflow import chosen  # other backends do without TensorFlow

        return chosen(bool(training))
    return Primitives(bool(training))

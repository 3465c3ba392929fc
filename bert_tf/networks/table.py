"""The primitives of layers on any backend, and which ones a layer computes with where it is called.

H is the width of vectors; B, T, n, N and D as in `bert_tf.networks.places`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import keras
from keras import ops

from bert_tf.networks.context import set_within
from bert_tf.networks.places import Places


class Primitives:
    """In keras.ops, on all places of a batch: what XLA compiles and other backends run."""

    def __init__(self, training: bool):
        self.training = training

    def computes_halves(self) -> bool:
        """Whether two halves of a batch are quicker than the batch."""
        return False

    def find_places(self, padding_mask: Any, direction: str, reads: str) -> Places:
        """The places to compute; `reads` is that of `BertEncoder`."""
        return Places(padding_mask, direction)

    def rows(self, table: keras.layers.Embedding, ids: Any) -> Any:
        """Rows of a table, [n, H]."""
        if is_replaced(table):
            return table(ids)
        return ops.take(table.embeddings, ids, axis=0)

    def fork(self, x: Any) -> tuple[Any, Any]:
        """The tensor for two readers."""
        return x, x

    def dense(self, x: Any, layer: keras.layers.Dense) -> Any:
        """The layer's outputs for x [n, H]."""
        return layer(x)

    def feed_forward(self, x: Any, inner: keras.layers.Dense, outer: keras.layers.Dense) -> Any:
        """Both layers of x [n, H], one after the other."""
        return self.dense(self.dense(x, inner), outer)

    def heads(self, x: Any, layers: list[keras.layers.Dense], places: Places, number: int) -> list:
        """Queries, divided by sqrt(D), keys and values of x [n, H], in heads [B, N, T, D]."""
        shape = (places.batch, places.length, number, layers[0].units // number)
        found = (ops.reshape(places.fill(self.dense(x, layer)), shape) for layer in layers)
        query, key, value = (ops.transpose(each, (0, 2, 1, 3)) for each in found)
        # Scaling the queries costs T times less than scaling the scores.
        return [query * shape[-1] ** -0.5, key, value]

    def attend(
        self, x: Any, layers: list[keras.layers.Dense], places: Places, number: int, dropout: Any,
        *, return_probabilities: bool, summary_only: bool,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Self-attention of x [n, H] in a number of heads: contexts [n, H], and probabilities.

        The layers are those of queries, keys and values, and the one that drops probabilities.
        Unless `return_probabilities`, None may take their place. With `summary_only`, computes one
        token of each row, [B, H]: see `Places.summary`.
        """
        query, key, value = self.heads(x, layers, places, number)  # (B, N, T, D)
        query, mask = places.of_summary(query) if summary_only else (query, places.mask)
        context, probabilities = self.attention(query, key, value, mask, dropout)
        context = ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (-1, layers[0].units))
        return (context if summary_only else places.collect(context)), probabilities

    def attention(self, query: Any, key: Any, value: Any, mask: Any, dropout: Any) -> tuple:
        """dropout(softmax(Q K^T + mask)) V, [B, N, Q, D], and the probabilities before, or None.

        Q is scaled, K and V are [B, N, T, D], and the float32 mask broadcasts to [B, N, Q, T].
        """
        # The softmax sums T terms: in float32 even where the rest is in half precision.
        scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
        probabilities = ops.cast(ops.softmax(scores + mask, axis=-1), query.dtype)
        return ops.matmul(self.drop(probabilities, dropout), value), probabilities

    def add_and_normalize(self, x: Any, y: Any, layer: Any, dropout: Any = None) -> Any:
        """LayerNorm, by a layer, of x + dropout(y), [n, H] each; no dropout layer drops nothing."""
        return layer(x + (self.drop(y, dropout) if dropout else y))

    def drop(self, x: Any, dropout: keras.layers.Dropout) -> Any:
        return dropout(x, training=self.training)

    def word_logits(self, x: Any, table: keras.layers.Embedding, bias: Any) -> Any:
        """Logits, float32 [..., V], of x [..., H], a table of V rows [H] and a bias [V]."""
        rows = ops.transpose(ops.cast(values(table), x.dtype))
        return ops.cast(ops.matmul(x, rows), "float32") + ops.cast(bias, "float32")


def recomputed(function: Callable, *tensors: Any) -> Any:
    """The result of a function of tensors, computed anew for its gradient instead of kept."""
    if keras.backend.backend() == "tensorflow":
        from bert_tf.networks.tensorflow.graph_gradients import recomputed

        return recomputed(function)(*tensors)
    return keras.remat(function)(*tensors)


def is_replaced(layer: Any) -> bool:
    """Whether Keras computes the layer from other weights: quantized ones, or added ones (LoRA)."""
    return bool(layer.quantization_mode or layer.lora_enabled)


def values(table: keras.layers.Embedding) -> Any:
    """All rows of a table."""
    if table.quantization_mode:
        return table(ops.arange(table.input_dim))
    return ops.convert_to_tensor(table.embeddings)


# Whether encoders compute the halves of a batch apart: None where training alone does.
_in_halves: ContextVar[bool | None] = ContextVar("in_halves", default=None)


def halves(apart: bool) -> AbstractContextManager:
    """Has encoders compute the halves of a batch at the same time, or whole batches.

    Without, they do in training on a lone CPU whose cores are shared (`startup.share_cores`).
    """
    return set_within(_in_halves, apart)


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
        from bert_tf.networks.tensorflow.on_tensorflow import (
            chosen,  # other backends do without TensorFlow
        )

        return chosen(bool(training))
    return Primitives(bool(training))

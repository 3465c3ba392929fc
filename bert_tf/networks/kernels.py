"""The kernels of the encoder in keras.ops, and the positions of a batch that they compute.

They run on every Keras backend and compile with XLA. `bert_tf.networks.tensorflow` has subclasses
that compute the same faster in TensorFlow's graphs.

B is the batch, T its length, n the computed positions of B * T, H the width of vectors, N the
attention heads, D = H / N their width, V the size of the vocabulary.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops
from keras.layers import Dense, Dropout, Embedding

from bert_tf.extensions import Architecture

Tensors = dict[str, Any]


class Positions:
    """All positions of a batch, n = B * T: every method that moves rows is the identity.

    `TokenPositions` in `networks.tensorflow.kernels` leaves padding out.

    Args:
        padding_mask: [B, T], nonzero at tokens and 0 at padding; or [B, T, T], nonzero where the
            token of the second axis may see the token of the third.
        architecture: which positions see which; BERT's by default.

    Attributes:
        batch, length: B and T, numbers if they are known when the graph is traced, else tensors.
        mask: float32 [B, 1, 1, T] or [B, 1, T, T], added to the attention scores: 0 at the tokens
            (last axis) that each token may see.
    """

    def __init__(self, padding_mask: Any, architecture: Architecture | None = None):
        shape = ops.shape(padding_mask)
        self.batch = shape[0]
        self.length = shape[-1]
        seen = ops.expand_dims(ops.not_equal(padding_mask, 0), (1, 2) if len(shape) == 2 else 1)
        self.mask = self._summary_mask = scores_of(seen)
        self._summary = None  # the position of `summary` in each row, [B]; None for the first
        if architecture and architecture.is_seen:
            positions = ops.arange(self.length)
            is_seen = architecture.is_seen(positions, positions[:, None])
            self.mask = scores_of(ops.logical_and(seen, is_seen))
            if len(shape) == 2:
                self._summary = architecture.summary_positions(padding_mask)

    def collect(self, x: Any) -> Any:
        """[B * T, ...] -> [n, ...]."""
        return x

    def fill(self, x: Any) -> Any:
        """[n, ...] -> [B * T, ...], with anything at padding."""
        return x

    def spread(self, x: Any) -> Any:
        """[n, H] -> [B, T, H], zero at padding that is not computed."""
        return ops.reshape(x, (self.batch, self.length, x.shape[-1]))

    def position_rows(self, table: Any) -> Any:
        """Rows of a table [P, H] by each position in its row, [n, H]."""
        rows = ops.broadcast_to(table[: self.length], (self.batch, self.length, table.shape[-1]))
        return self.collect(ops.reshape(rows, (-1, table.shape[-1])))

    def summary(self, x: Any) -> Any:
        """[B, H], of the tokens that have seen all others: the first, if all see each other."""
        x = ops.reshape(x, (self.batch, self.length, x.shape[-1]))
        if self._summary is None:
            return x[:, 0]
        return ops.take_along_axis(x, self._summary[:, None, None], axis=1)[:, 0]

    def summary_queries(self, query: Any) -> tuple[Any, Any]:
        """Queries [B, N, T, D] -> [B, N, 1, D] of the tokens of `summary`, and their mask."""
        if self._summary is None:
            return query[:, :, :1], self._summary_mask
        positions = self._summary[:, None, None, None]
        return ops.take_along_axis(query, positions, axis=2), self._summary_mask


def scores_of(seen: Any) -> Any:
    """The mask for attention scores: 0 for tokens that may be seen."""
    # -10000 as in the original: its exponential is 0 in every float type, and the sum stays finite
    # in float16, whose largest number is 65504.
    return ops.cast(ops.logical_not(seen), "float32") * -10000.0


def last_positions(padding_mask: Any) -> Any:
    """The position of the last token in each row of a padding mask [B, T], int32 [B]."""
    positions = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    return ops.max(ops.where(ops.equal(padding_mask, 0), 0, positions), axis=1)


class Kernels:
    """The kernels on all positions of a batch, in training or not."""

    def __init__(self, training: bool):
        self.training = training
        self._change: Callable[[Embedding, Any, Any], Any] | None = None

    def in_halves(self, apart: bool) -> Self:
        """These kernels, computing both halves of a batch at the same time where that pays."""
        return self

    def reading(self, weights: Callable[..., Any]) -> Self:
        """These kernels in a training step, whose weights the function gives (`CastWeights`)."""
        return self

    def find_positions(
        self, padding_mask: Any, architecture: Architecture, padding: str
    ) -> Positions:
        """The positions to compute; `padding` is `BertEncoder`'s argument."""
        return Positions(padding_mask, architecture)

    def compute_rows(self, compute: Callable[[Tensors], Any], inputs: Tensors) -> Any:
        """The result of `compute` for inputs [B, ...], whose rows are independent."""
        return compute(inputs)

    def changing_rows(self, change: Callable[[Embedding, Any, Any], Any]) -> Self:
        """These kernels, whose `rows` are `change` of a table, ids [n] and its rows [n, H]."""
        changed = copy.copy(self)
        changed._change = change
        return changed

    def rows(self, table: Embedding, ids: Any) -> Any:
        """Rows of a table, [n, H]."""
        rows = table(ids) if is_replaced(table) else self._looked_up(table, ids)
        return self._change(table, ids, rows) if self._change else rows

    def _looked_up(self, table: Embedding, ids: Any) -> Any:
        return ops.take(table.embeddings, ids, axis=0)

    def fork(self, x: Any) -> tuple[Any, Any]:
        """The tensor for two readers."""
        return x, x

    def dense(self, x: Any, layer: Dense, following: Dense | None = None) -> Any:
        """act(x W + b) of x [n, H]; `following` is the layer that reads nothing else, if known."""
        return layer(x)

    def attend(
        self,
        x: Any,
        layers: Sequence[Dense],
        positions: Positions,
        heads: int,
        dropout: Dropout,
        *,
        return_probabilities: bool = False,
        summary_only: bool = False,
    ) -> tuple[Any, Any]:
        """Self-attention of x [n, H] in N heads: contexts [n, H], and probabilities.

        The layers project queries, keys and values; the dropout is applied to the probabilities.
        Unless `return_probabilities`, None may take their place. With `summary_only`, computes one
        token of each row, [B, H]: see `Positions.summary`.
        """
        query, key, value = self.heads(x, layers, positions, heads)  # (B, N, T, D)
        mask = positions.mask
        if summary_only:
            query, mask = positions.summary_queries(query)
        context, probabilities = self.attention(
            query, key, value, mask, dropout, return_probabilities=return_probabilities
        )
        context = ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (-1, layers[0].units))
        return (context if summary_only else positions.collect(context)), probabilities

    def heads(
        self, x: Any, layers: Sequence[Dense], positions: Positions, number: int
    ) -> list[Any]:
        """Queries, divided by sqrt(D), keys and values of x [n, H], in heads [B, N, T, D]."""
        shape = (positions.batch, positions.length, number, layers[0].units // number)
        query, key, value = (
            ops.transpose(ops.reshape(positions.fill(self.dense(x, layer)), shape), (0, 2, 1, 3))
            for layer in layers
        )
        # Scaling the queries costs T times less than scaling the scores.
        return [query * shape[-1] ** -0.5, key, value]

    def attention(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: Any, **options: bool
    ) -> tuple[Any, Any]:
        """dropout(softmax(Q K^T + mask)) V, [B, N, Q, D], and the probabilities before dropout.

        Q is scaled, K and V are [B, N, T, D], and the float32 mask broadcasts to [B, N, Q, T].
        """
        # The softmax sums T terms: in float32 even where the rest is in half precision.
        scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
        probabilities = ops.cast(ops.softmax(scores + mask, axis=-1), query.dtype)
        return ops.matmul(self.drop(probabilities, dropout), value), probabilities

    def add_and_normalize(
        self, x: Any, y: Any, norm: Any, dense: Dense | None = None, dropout: Dropout | None = None
    ) -> Any:
        """LayerNorm(x + dropout(y W + b)), [n, H], or of x + dropout(y) without a dense layer."""
        y = y if dense is None else self.dense(y, dense)
        return norm(x + (self.drop(y, dropout) if dropout else y))

    def drop(self, x: Any, dropout: Dropout) -> Any:
        return dropout(x, training=self.training)

    def word_logits(self, x: Any, table: Embedding, bias: Any) -> Any:
        """Logits, float32 [..., V], of x [..., H], a table of V rows [H] and a bias [V]."""
        rows = ops.transpose(ops.cast(values(table), x.dtype))
        return ops.cast(ops.matmul(x, rows), "float32") + ops.cast(bias, "float32")


def is_replaced(layer: Any) -> bool:
    """Whether Keras computes the layer from other weights: quantized ones, or added ones (LoRA)."""
    return bool(layer.quantization_mode or layer.lora_enabled)


def values(table: Embedding) -> Any:
    """All rows of a table."""
    if table.quantization_mode:
        return table(ops.arange(table.input_dim))
    return ops.convert_to_tensor(table.embeddings)


def recomputed(function: Callable, *tensors: Any) -> Any:
    """The result of a function of tensors, which its gradient recomputes instead of storing."""
    if keras.backend.backend() == "tensorflow":
        from bert_tf.networks.tensorflow.graphs import recomputed

        return recomputed(function)(*tensors)
    return keras.remat(function)(*tensors)


class FusedAttention(Kernels):
    """Attention by `keras.ops.dot_product_attention`, where it keeps and drops no probabilities.

    On JAX and a GPU, in half precision, that is one kernel. Results differ in rounding, and where a
    token may see nothing. Use it by `encoder.kernels = FusedAttention`.
    """

    def attention(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: Any, **options: bool
    ) -> tuple[Any, Any]:
        if any(options.values()) or (self.training and dropout.rate):
            return super().attention(query, key, value, mask, dropout, **options)
        # The kernel refuses a mask to broadcast over the queries.
        shape = (ops.shape(query)[0], 1, ops.shape(query)[2], ops.shape(key)[2])
        seen = ops.broadcast_to(ops.equal(mask, 0.0), shape)
        query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
        context = ops.dot_product_attention(query, key, value, mask=seen, scale=1.0)
        return ops.transpose(context, (0, 2, 1, 3)), None

"""What the kernels of inference and of training share in TensorFlow's graphs: dropping padding.

Operations on each token take [n, H] (`TokenPositions`): padding costs nothing, and TensorFlow fuses
a product with its bias and activation, which a reshape between them would prevent. Letters as in
`bert_tf.networks.kernels`; b is the rows of a group, t the length of its longest.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf
from keras.layers import Dense, LayerNormalization
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from bert_tf.extensions import Architecture
from bert_tf.networks import activations
from bert_tf.networks.kernels import Kernels, Positions, Tensors, scores_of
from bert_tf.networks.tensorflow.graphs import custom_gradient, device_type
from bert_tf.startup import shares_cores

_GROUPS = 4  # of a batch, each padded to its own longest row alone


class Group(NamedTuple):
    """Rows of like length: where their heads are in a product [n, 3 H] seen as [n * 3 N, D]."""

    heads: tf.Tensor  # int32 [3, b, N, t], of queries, keys and values
    summary: tf.Tensor  # int32 [b, N, 1], of the queries of the summary's tokens
    mask: tf.Tensor  # float32 [b, 1, 1, t] or [b, 1, t, t], added to the scores
    summary_mask: tf.Tensor  # float32 [b, 1, 1, t]


class Groups(NamedTuple):
    """The groups of a batch, the shortest rows first."""

    groups: list[Group]
    back: tf.Tensor  # int32 [n, N]: each token's heads in the contexts of all groups, [., D]
    rows: tf.Tensor | None  # int32 [B]: each row in the groups; None where the order is the same


class TokenPositions(Positions):
    """The positions of tokens alone; in training, the gradient of moving rows is a lookup, too."""

    def __init__(self, padding_mask: tf.Tensor, architecture: Architecture, training: bool):
        super().__init__(padding_mask, architecture)
        self._training = training
        self._is_seen = architecture.is_seen
        self.groups = functools.cache(self._grouped)  # once in a graph
        # A row without tokens keeps its first position, so that every row has a first token.
        computed = (padding_mask != 0) | (tf.range(self.length) == 0)  # (B, T)
        is_computed = tf.reshape(computed, [-1])  # (B * T,)
        self._is_computed = is_computed[:, tf.newaxis]
        self._positions = tf.cast(tf.where(is_computed)[:, 0], tf.int32)  # (n,)
        # The token at each position; at padding, the last one before it.
        self._tokens = tf.cumsum(tf.cast(is_computed, tf.int32)) - 1  # (B * T,)
        self._counts = tf.reduce_sum(tf.cast(computed, tf.int32), 1)  # (B,)
        self._is_token = tf.reshape(padding_mask, [-1]) != 0  # (B * T,)

    def _moved(self, x: tf.Tensor, move: Callable, back: Callable) -> tf.Tensor:
        if self._training and x.dtype.is_floating:
            return custom_gradient(lambda x: (move(x), back))(x)
        return move(x)

    def _at_tokens(self, x: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, self._positions)

    def _with_zeros(self, x: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, self._tokens) * tf.cast(self._is_computed, x.dtype)

    def collect(self, x: tf.Tensor) -> tf.Tensor:
        return self._moved(x, self._at_tokens, self._with_zeros)

    def fill(self, x: tf.Tensor) -> tf.Tensor:
        return self._moved(x, lambda x: tf.gather(x, self._tokens), self._at_tokens)

    def spread(self, x: tf.Tensor) -> tf.Tensor:
        return super().spread(self._moved(x, self._with_zeros, self._at_tokens))

    def position_rows(self, table: tf.Tensor) -> tf.Tensor:
        if self._training:
            return super().position_rows(table)
        return tf.gather(table, self._positions % self.length)

    def summary(self, x: tf.Tensor) -> tf.Tensor:
        rows = self._summaries()

        def back(upstream: tf.Tensor) -> tf.Tensor:
            return tf.scatter_nd(rows[:, tf.newaxis], upstream, tf.shape(x))

        return self._moved(x, lambda x: tf.gather(x, rows), back)

    def _summaries(self) -> tf.Tensor:
        """The token of each row that has seen all others, int32 [B]."""
        first = tf.range(self.batch) * self.length
        return tf.gather(self._tokens, first if self._summary is None else first + self._summary)

    def _grouped(self, heads: int) -> Groups:
        """The groups for a number of heads."""
        counts = self._counts
        summaries = self._summaries()
        starts = tf.cumsum(counts, exclusive=True)  # each row's first token
        order = tf.argsort(counts)
        each_head = tf.range(heads)
        groups = []
        bases = []
        lengths = []
        base = tf.constant(0)
        for number in range(_GROUPS):
            first, last = (self.batch * n // _GROUPS for n in (number, number + 1))
            rows = order[first:last]  # (b,)
            count = tf.gather(counts, rows)[:, tf.newaxis]
            length = tf.reduce_max(tf.concat([count[:, 0], [0]], 0))  # t
            position = tf.range(length)
            start = tf.gather(starts, rows)[:, tf.newaxis]
            token = start + tf.minimum(position, count - 1)  # (b, t); at padding, the last one
            is_token = tf.gather(self._is_token, tf.gather(self._positions, token))
            seen = ((position < count) & is_token)[:, tf.newaxis, tf.newaxis]  # (b, 1, 1, t)
            summary_mask = mask = scores_of(seen)
            if self._is_seen:
                mask = scores_of(seen & self._is_seen(position, position[:, tf.newaxis]))
            part = tf.reshape(tf.range(3), [3, 1, 1, 1])  # queries, keys, values
            at = (token[:, tf.newaxis] * 3 + part) * heads + each_head[:, tf.newaxis]
            summary = tf.gather(summaries, rows)[:, tf.newaxis] * 3 * heads + each_head
            groups.append(Group(at, summary[..., tf.newaxis], mask, summary_mask))
            number_of_rows = tf.size(rows)
            bases.append(base + tf.range(number_of_rows) * heads * length)
            lengths.append(tf.fill([number_of_rows], length))
            base += number_of_rows * heads * length
        inverse = tf.math.invert_permutation(order)
        row = self._positions // self.length  # (n,)
        base, length = (
            tf.gather(tf.gather(tf.concat(values, 0), inverse), row)[:, tf.newaxis]
            for values in (bases, lengths)
        )
        position = tf.range(tf.size(row)) - tf.gather(starts, row)
        return Groups(groups, base + each_head * length + position[:, tf.newaxis], inverse)


class TensorFlowKernels(Kernels):
    """Products of layers side by side, on the positions of tokens, in halves of a batch."""

    def __init__(self, training: bool):
        super().__init__(training)
        self._halves = training

    def in_halves(self, apart: bool) -> Self:
        changed = copy.copy(self)
        changed._halves = apart
        return changed

    def compute_rows(self, compute: Callable[[Tensors], Any], inputs: Tensors) -> Any:
        # Where cores are shared (`share_cores`); in training always, as each half draws its own
        # dropout, which must not depend on what the process has run before. Eagerly, there is one
        # operation at a time.
        is_apart = self._halves and (self.training or shares_cores())
        if not is_apart or tf.executing_eagerly() or device_type() != "CPU":
            return compute(inputs)
        middle = (keras.ops.shape(next(iter(inputs.values())))[0] + 1) // 2
        halves = [
            compute({name: x[rows] for name, x in inputs.items()})
            for rows in (slice(None, middle), slice(middle, None))
        ]
        return keras.tree.map_structure(lambda *both: tf.concat(both, 0), *halves)

    def dense(self, x: tf.Tensor, layer: Dense, following: Dense | None = None) -> tf.Tensor:
        if layer.quantization_mode:
            return super().dense(x, layer)
        y = self.products(x, [layer])
        if layer.activation is keras.activations.linear:
            return y
        # TensorFlow fuses this form of the exact GELU with the product before it.
        return tf.nn.gelu(y) if layer.activation is activations.gelu else layer.activation(y)

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        """X W + b of layers side by side, [n, M]; the first one's is multiplied by `scale`."""
        raise NotImplementedError

    def joined(self, name: str, layers: Sequence[Dense], scale: float) -> tf.Tensor:
        """Kernels or biases of layers side by side, the first multiplied, in the compute dtype."""
        weights = [getattr(layer, name) for layer in layers]
        return side_by_side(weights, layers[0].compute_dtype, scale)

    def heads(
        self, x: Any, layers: Sequence[Dense], positions: Positions, number: int
    ) -> list[Any]:
        if any(layer.quantization_mode for layer in layers):
            return super().heads(x, layers, positions, number)
        shape = [positions.batch, positions.length, len(layers), number, layers[0].units // number]
        product = self.products(x, layers, shape[-1] ** -0.5)
        heads = tf.reshape(positions.fill(product), shape)
        return tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))

    def affine(self, layer: LayerNormalization) -> list[tf.Tensor]:
        """Scale and shift, float32 [H]."""
        return [tf.cast(layer.gamma, tf.float32), tf.cast(layer.beta, tf.float32)]


def side_by_side(variables: Sequence[Any], dtype: str, scale: float = 1.0) -> tf.Tensor:
    """Weights along the last axis in a dtype, the first ones multiplied by `scale`."""
    first, *others = variables
    weights = [first if scale == 1.0 else first * scale, *others]
    values = [tf.cast(weight, dtype) for weight in weights]
    return tf.concat(values, -1) if len(values) > 1 else values[0]


def softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Attention probabilities of scores and a float32 mask, which is added to them."""
    return tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + mask), scores.dtype)


def centre(x: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Vectors [n, H] less their mean, and their inverse standard deviations [n, 1].

    19 us for 9 tokens; TensorFlow's fused op takes 150, if a quarter of the time for 700.
    """
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
    return centred, tf.math.rsqrt(variance + epsilon)


def needs_plain_kernels(training: bool) -> bool:
    """Whether the caller is where kernels in keras.ops serve best: under XLA, on accelerators."""
    is_xla = GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    return is_xla or (training and device_type() != "CPU")

"""The kernels of inference for TensorFlow, faster than those in keras.ops because

- operations on each token take [n, H]: padding costs nothing, and TensorFlow fuses a
  product with its bias and activation, which a reshape between them would prevent;
- attention computes groups of rows of like length;
- an export has weights of its own, in the compute dtype: nothing to cast, and one product for
  queries, keys and values.

Letters as in `bert_tf.networks.kernels`; b is the rows of a group, t the length of its longest.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf
from keras.layers import Dense, Dropout, Embedding, LayerNormalization
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from bert_tf.extensions import Architecture
from bert_tf.networks import activations
from bert_tf.networks.kernels import Kernels, Positions, Tensors, scores_of
from bert_tf.networks.tensorflow.graphs import custom_gradient, device_type
from bert_tf.startup import shares_cores

_GROUPS = 4  # of a batch, each padded to its own longest row alone


class InferenceKernels(Kernels):
    """In plain operations that TensorFlow fuses, on the positions of tokens."""

    def __init__(self, training: bool = False):
        super().__init__(training)
        self._halves = training

    def in_halves(self, apart: bool) -> Self:
        changed = copy.copy(self)
        changed._halves = apart
        return changed

    def of_rows(self, compute: Callable[[Tensors], Any], inputs: Tensors) -> Any:
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

    def find_positions(
        self, padding_mask: tf.Tensor, architecture: Architecture, padding: str
    ) -> Positions:
        is_of_tokens = padding_mask.shape.rank == 2 and padding != "states"
        if self.training:  # known shapes keep padding, so that XLA can compile
            is_static = padding_mask.shape.is_fully_defined()
            is_of_tokens = is_of_tokens and padding == "zeros" and not is_static
        if not is_of_tokens:
            return super().find_positions(padding_mask, architecture, padding)
        return TokenPositions(padding_mask, architecture, self.training)

    def _looked_up(self, table: Embedding, ids: tf.Tensor) -> tf.Tensor:
        value = table.embeddings.value
        # In training, rows taken from the variable itself would have all later reads copy it.
        return tf.gather(tf.convert_to_tensor(value) if self.training else value, ids)

    def dense(self, x: tf.Tensor, layer: Dense, following: Dense | None = None) -> tf.Tensor:
        if layer.quantization_mode:
            return super().dense(x, layer)
        y = self.products(x, [layer])
        if layer.activation is keras.activations.linear:
            return y
        # TensorFlow fuses this form of the exact GELU with the product before it.
        return tf.nn.gelu(y) if layer.activation is activations.gelu else layer.activation(y)

    def joined(self, name: str, layers: Sequence[Dense], scale: float) -> tf.Tensor:
        """Kernels or biases of layers side by side, the first multiplied, in the compute dtype."""
        weights = [getattr(layer, name) for layer in layers]
        return side_by_side(weights, layers[0].compute_dtype, scale)

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        """X W + b of layers side by side, [n, M]; the first one's is multiplied by `scale`."""
        if len(layers) > 1:  # joining kernels takes longer
            first, *others = (self.products(x, [layer]) for layer in layers)
            return tf.concat([first * scale, *others], -1)
        dtype, (layer,) = layers[0].compute_dtype, layers
        product = tf.matmul(tf.cast(x, dtype), tf.cast(layer.kernel, dtype))
        return tf.nn.bias_add(product, tf.cast(layer.bias, dtype))

    def heads(
        self, x: Any, layers: Sequence[Dense], positions: Positions, number: int
    ) -> list[Any]:
        if any(layer.quantization_mode for layer in layers):
            return super().heads(x, layers, positions, number)
        shape = [positions.batch, positions.length, len(layers), number, layers[0].units // number]
        product = self.products(x, layers, shape[-1] ** -0.5)
        heads = tf.reshape(positions.fill(product), shape)
        return tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))

    def attend(
        self,
        x: Any,
        layers: Sequence[Dense],
        positions: Positions,
        heads: int,
        dropout: Dropout,
        **options: bool,
    ) -> tuple[Any, Any]:
        is_other = self.training or options.get("return_probabilities")
        is_other = is_other or any(layer.quantization_mode for layer in layers)
        if is_other or not isinstance(positions, TokenPositions):
            return super().attend(x, layers, positions, heads, dropout, **options)
        summary_only = options.get("summary_only")
        width = layers[0].units // heads
        product = tf.reshape(self.products(x, layers, width**-0.5), [-1, width])
        grouped = positions.groups(heads)
        contexts = []
        for group in grouped.groups:
            if summary_only:
                query = tf.gather(product, group.summary)
                key, value = tf.unstack(tf.gather(product, group.heads[1:]))
                context, _ = self.attention(query, key, value, group.summary_mask, None)
            else:
                query, key, value = tf.unstack(tf.gather(product, group.heads))
                context, _ = self.attention(query, key, value, group.mask, None)
            contexts.append(tf.reshape(context, [-1, width]))
        context = tf.concat(contexts, 0)
        if summary_only:
            return tf.gather(tf.reshape(context, [-1, layers[0].units]), grouped.rows), None
        return tf.reshape(tf.gather(context, grouped.back), [-1, layers[0].units]), None

    def attention(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: Any, **options: bool
    ) -> tuple[Any, Any]:
        probabilities = softmax(tf.matmul(query, key, transpose_b=True), mask)  # (B, N, Q, T)
        return tf.matmul(probabilities, value), probabilities

    def add_and_normalize(
        self, x: Any, y: Any, norm: Any, dense: Dense | None = None, dropout: Dropout | None = None
    ) -> tf.Tensor:
        if norm.compute_dtype == "float64":
            return super().add_and_normalize(x, y, norm, dense, dropout)
        return self.normalize(x + (y if dense is None else self.dense(y, dense)), norm)

    def normalize(self, x: tf.Tensor, layer: Any) -> tf.Tensor:
        gamma, beta = self.affine(layer)
        centred, inverse = centre(tf.cast(x, tf.float32), layer.epsilon)
        return tf.cast(beta + centred * (inverse * gamma), layer.compute_dtype)

    def affine(self, layer: LayerNormalization) -> list[tf.Tensor]:
        """Scale and shift, float32 [H]."""
        return [tf.cast(layer.gamma, tf.float32), tf.cast(layer.beta, tf.float32)]

    def drop(self, x: tf.Tensor, dropout: Dropout) -> tf.Tensor:
        return x


class CopiedWeights(InferenceKernels):
    """Inference with copies of the weights in the compute dtype, made when they are first read."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[Any, tf.Variable] = {}

    def _copy(self, key: Any, make: Any) -> tf.Tensor:
        if key not in self._copies:
            with tf.init_scope():  # outside the graph: one for all functions
                self._copies[key] = tf.Variable(make(), trainable=False)
        return tf.convert_to_tensor(self._copies[key])

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        kernel, bias = (
            self._copy((name, *layers), functools.partial(self.joined, name, layers, scale))
            for name in ("kernel", "bias")
        )
        return tf.nn.bias_add(tf.matmul(tf.cast(x, kernel.dtype), kernel), bias)

    def affine(self, layer: LayerNormalization) -> list[tf.Tensor]:
        cast = super().affine
        return [self._copy((n, layer), lambda n=n: cast(layer)[n]) for n in range(2)]


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
        counts, summaries = self._counts, self._summaries()
        starts = tf.cumsum(counts, exclusive=True)  # each row's first token
        order = tf.argsort(counts)
        each_head = tf.range(heads)
        groups, bases, lengths, base = [], [], [], tf.constant(0)
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

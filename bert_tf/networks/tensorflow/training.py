"""The kernels of training for TensorFlow on CPUs, with gradients of few passes.

Padding is dropped (`TokenPositions`), except in batches whose shape is known when the step is
traced, as in pre-training: XLA compiles what lies between their products. Statistics are float32.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf
from keras.layers import Dense, Embedding

from bert_tf.extensions import Architecture
from bert_tf.networks import activations
from bert_tf.networks.kernels import Kernels, Positions, is_replaced
from bert_tf.networks.tensorflow import vocabulary_loss
from bert_tf.networks.tensorflow.graphs import (
    compiled_by_xla,
    custom_gradient,
    in_few_passes,
    known_shape,
    pays,
    sum_of_rows,
)
from bert_tf.networks.tensorflow.kernels import (
    TensorFlowKernels,
    TokenPositions,
    centre,
    side_by_side,
    softmax,
)
from bert_tf.processor import processor_flags

_BITS = 16  # of a random number: dropout draws one for each element


class TrainingKernels(TensorFlowKernels):
    """Kernels with custom gradients."""

    _weights: Callable[..., tf.Tensor] = staticmethod(side_by_side)

    def __init__(self) -> None:
        super().__init__(training=True)

    def reading(self, weights: Callable[..., tf.Tensor]) -> Self:
        changed = copy.copy(self)
        changed._weights = weights
        return changed

    def find_positions(
        self, padding_mask: tf.Tensor, architecture: Architecture, padding: str
    ) -> Positions:
        # Known shapes keep padding, so that XLA can compile.
        is_static = padding_mask.shape.is_fully_defined()
        if padding_mask.shape.rank != 2 or padding != "zeros" or is_static:
            return super().find_positions(padding_mask, architecture, padding)
        return TokenPositions(padding_mask, architecture, training=True)

    def _looked_up(self, table: Embedding, ids: tf.Tensor) -> tf.Tensor:
        # Rows taken from the variable itself would have all later reads copy it.
        return tf.gather(tf.convert_to_tensor(table.embeddings.value), ids)

    def fork(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return fork(x)

    def dense(self, x: tf.Tensor, layer: Dense, following: Dense | None = None) -> tf.Tensor:
        if layer.quantization_mode or layer.activation is not activations.gelu:
            return super().dense(x, layer)
        return gelu(*self._product_and_bias(x, [layer], 1.0))

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        return add_bias(*self._product_and_bias(x, layers, scale))

    def _product_and_bias(
        self, x: tf.Tensor, layers: Sequence[Dense], scale: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        kernel = self._weights([layer.kernel for layer in layers], layers[0].compute_dtype, scale)
        product = tf.matmul(tf.cast(x, kernel.dtype), kernel)
        return product, self.joined("bias", layers, scale)

    def attention(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: Any, **options: bool
    ) -> tuple[Any, Any]:
        if options.get("return_probabilities"):
            return Kernels(True).attention(query, key, value, mask, dropout)
        shape = [*known_shape(query)[:3], known_shape(key)[2]]
        return attention(query, key, value, mask, _drawn(dropout, shape)), None

    def add_and_normalize(
        self, x: Any, y: Any, norm: Any, dense: Dense | None = None, dropout: Any = None
    ) -> tf.Tensor:
        if norm.compute_dtype == "float64":
            return super().add_and_normalize(x, y, norm, dense, dropout)
        y = y if dense is None else self.dense(y, dense)
        drawn = _drawn(dropout, known_shape(y)) if dropout else None
        gamma, beta = self.affine(norm)
        return add_and_normalize(x, y, drawn, gamma, beta, norm.epsilon, norm.compute_dtype)

    def drop(self, x: tf.Tensor, dropout: keras.layers.Dropout) -> tf.Tensor:
        return drop(x, _drawn(dropout, known_shape(x)))

    def word_logits(self, x: tf.Tensor, table: Embedding, bias: Any) -> tf.Tensor:
        if is_replaced(table):
            return super().word_logits(x, table, bias)
        rows = self._weights([table.embeddings], x.dtype.name)
        return vocabulary_loss.word_logits(x, rows, tf.cast(bias, tf.float32))


class Dropout(NamedTuple):
    """Which elements to drop: those whose number is below the threshold."""

    numbers: tf.Tensor  # a uniform uint16 for each element
    threshold: int


def _drawn(layer: keras.layers.Dropout, shape: list[Any]) -> Dropout | None:
    """What the layer drops of its next input."""
    return draw_dropout(layer.seed_generator.next(), shape, layer.rate) if layer.rate else None


def draw_dropout(seed: tf.Tensor, shape: Any, rate: float) -> Dropout | None:
    """Draws what to drop; None at rate 0.

    Equal seeds give equal numbers. The rate is a multiple of 2^-16, 0.10001 for 0.1. Two numbers
    are a hash of their position under keys from TensorFlow's generator, which is 7 times as slow.
    """
    threshold = round(rate * 2**_BITS)
    if not threshold:
        return None
    size = math.prod(shape) if all(isinstance(n, int) for n in shape) else tf.reduce_prod(shape)
    keys = tf.random.stateless_uniform([2], tf.cast(seed, tf.int64), None, None, tf.uint32)
    hashed = _hashed_in_one_pass if pays(size) else _hashed
    numbers = tf.reshape(tf.bitcast(hashed(keys, (size + 1) // 2), tf.uint16), [-1])[:size]
    return Dropout(tf.reshape(numbers, shape), threshold)


def _hashed(keys: tf.Tensor, number: Any) -> tf.Tensor:
    """Hashes uint32 [number] of the positions under two keys uint32 [2].

    lowbias32 (C. Wellons, Prospecting for Hash Functions, 2018) with the second key in its middle.
    """

    def mixed(x: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32)))

    x = tf.bitwise.bitwise_xor(tf.cast(tf.range(number), tf.uint32), keys[0])
    x = mixed(x, 16) * tf.constant(0x7FEB352D, tf.uint32) + keys[1]
    return mixed(mixed(x, 15) * tf.constant(0x846CA68B, tf.uint32), 16)


_hashed_in_one_pass = compiled_by_xla(_hashed)


def keeps(dropout: Dropout | None, dtype: Any) -> Any:
    """1 for elements to keep, 0 for others; without dropout just 1."""
    return 1 if dropout is None else tf.cast(dropout.numbers >= dropout.threshold, dtype)


def scale_of(dropout: Dropout | None) -> float:
    """The factor that makes up for the dropped share."""
    return 1.0 if dropout is None else 2**_BITS / (2**_BITS - dropout.threshold)


def drop(x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    if dropout is None:
        return x

    @custom_gradient
    def dropped(x: tf.Tensor) -> Any:
        return _dropped(x, dropout), lambda upstream: _dropped(upstream, dropout)

    return dropped(x)


@in_few_passes
def _dropped(x: tf.Tensor, dropout: Dropout) -> tf.Tensor:
    return x * (keeps(dropout, x.dtype) * tf.constant(scale_of(dropout), x.dtype))


_sum = in_few_passes(tf.add)
_product = in_few_passes(tf.multiply)


@custom_gradient
def fork(x: tf.Tensor) -> Any:
    """The tensor [n, H] for two readers, whose gradients are added up in one pass."""
    return (tf.identity(x), tf.identity(x)), _sum


@custom_gradient
def add_bias(product: tf.Tensor, bias: tf.Tensor) -> Any:
    """The sum of a product [n, M] and a bias [M]."""
    add = _biased if _is_kept_apart(product) else tf.nn.bias_add
    return add(product, bias), lambda upstream: (upstream, sum_of_rows(upstream))


@in_few_passes
def _biased(product: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(_sum_with_bias(product, bias), product.dtype)


def _sum_with_bias(product: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    if _is_kept_apart(product):
        product = tf.cast(product, tf.float32)
        bias = tf.cast(bias, tf.float32)
    return tf.nn.bias_add(product, bias)


def _is_kept_apart(product: tf.Tensor) -> bool:
    """Whether a cast keeps TensorFlow from joining a product and its bias.

    Joined they take up to four times as long with AMX (Xeon, family 6, model 207), which oneDNN's
    `inner_product` uses only for kernels that are packed.
    """
    return product.dtype == tf.bfloat16 and _has_amx()


@functools.cache
def _has_amx() -> bool:
    return "amx_bf16" in processor_flags()


@custom_gradient
def gelu(product: tf.Tensor, bias: tf.Tensor) -> Any:
    """`bert_tf.networks.activations.gelu` of the sum of [n, M] and [M]; keeps its derivative."""
    y, derivative = _gelu(product, bias)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_product = _product(upstream, derivative)
        return of_product, sum_of_rows(of_product)

    return y, gradient


@in_few_passes
def _gelu(product: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    wide = tf.cast(_sum_with_bias(product, bias), tf.float32)
    phi = 0.5 + 0.5 * tf.math.erf(wide * math.sqrt(0.5))
    density = tf.exp(wide * wide * -0.5) * math.sqrt(0.5 / math.pi)
    return tf.cast(wide * phi, product.dtype), tf.cast(phi + wide * density, product.dtype)


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor, dropout: Dropout | None
) -> tf.Tensor:
    """dropout(softmax(Q K^T + mask)) V, [B, N, Q, D]; as `Kernels.attention`."""
    scale = tf.constant(scale_of(dropout), value.dtype)

    @custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_b=True)  # (B, N, Q, T)
        probabilities, dropped = _probabilities(scores, mask, dropout)
        context = tf.matmul(dropped, value) * scale

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # The mean of the probabilities' gradients, weighted by them, from narrower tensors.
            products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            mean = tf.reduce_sum(products, -1, keepdims=True)  # (B, N, Q, 1)
            upstream *= scale
            of_dropped = tf.matmul(upstream, value, transpose_b=True)
            of_scores = _scores_gradient(of_dropped, probabilities, mean, dropout)
            return (
                tf.matmul(of_scores, key),
                tf.matmul(of_scores, query, transpose_a=True),
                tf.matmul(dropped, upstream, transpose_a=True),
            )

        return context, gradient

    return attended(query, key, value)


@in_few_passes
def _probabilities(
    scores: tf.Tensor, mask: tf.Tensor, dropout: Dropout | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Probabilities before dropout, and after it without its scale."""
    probabilities = softmax(scores, mask)
    return probabilities, probabilities * keeps(dropout, scores.dtype)


@in_few_passes
def _scores_gradient(
    of_dropped: tf.Tensor, probabilities: tf.Tensor, mean: tf.Tensor, dropout: Dropout | None
) -> tf.Tensor:
    of_probabilities = of_dropped * keeps(dropout, of_dropped.dtype)
    return probabilities * (of_probabilities - tf.cast(mean, of_dropped.dtype))


def add_and_normalize(
    x: tf.Tensor,
    y: tf.Tensor,
    dropout: Dropout | None,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    dtype: str,
) -> tf.Tensor:
    """LayerNorm of x + dropout(y), [n, H] each, in `dtype`; gamma and beta are float32 [H]."""

    @custom_gradient
    def normalized(x: tf.Tensor, y: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        result, standard, inverse = _normalized(x, y, dropout, gamma, beta, epsilon, dtype)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return _normalized_gradient(
                upstream, standard, inverse, dropout, gamma, x.dtype, y.dtype
            )

        return result, gradient

    return normalized(x, y, gamma, beta)


@in_few_passes
def _normalized(
    x: tf.Tensor,
    y: tf.Tensor,
    dropout: Dropout | None,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    dtype: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The result, the vectors of mean 0 and variance 1, and their inverse deviations [n, 1]."""
    x = tf.cast(x, tf.float32)
    y = tf.cast(y, tf.float32)
    if dropout is not None:
        y *= keeps(dropout, tf.float32) * scale_of(dropout)
    centred, inverse = centre(x + y, epsilon)
    standard = centred * inverse
    return tf.cast(standard * gamma + beta, dtype), tf.cast(standard, dtype), inverse


@in_few_passes
def _normalized_gradient(
    upstream: tf.Tensor,
    standard: tf.Tensor,
    inverse: tf.Tensor,
    dropout: Dropout | None,
    gamma: tf.Tensor,
    x_dtype: Any,
    y_dtype: Any,
) -> tuple[tf.Tensor, ...]:
    upstream = tf.cast(upstream, tf.float32)
    standard = tf.cast(standard, tf.float32)
    product = upstream * standard
    mean = tf.reduce_mean(upstream * gamma, -1, keepdims=True)
    slope = tf.reduce_mean(product * gamma, -1, keepdims=True)
    of_y = total = (upstream * gamma - mean - standard * slope) * inverse
    if dropout is not None:
        of_y *= keeps(dropout, tf.float32) * scale_of(dropout)
    return (
        tf.cast(total, x_dtype),
        tf.cast(of_y, y_dtype),
        tf.raw_ops.BiasAddGrad(out_backprop=product),  # the sum over n, faster than reduce_sum
        tf.raw_ops.BiasAddGrad(out_backprop=upstream),
    )

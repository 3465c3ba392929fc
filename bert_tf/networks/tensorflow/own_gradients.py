"""Bias, GELU, attention, and residual sum with LayerNorm, with gradients of few passes.

n is a number of tokens, other letters as in `bert_tf.networks.table`. Statistics are float32.
"""

import functools
import math
from typing import Any

import tensorflow as tf

from bert_tf.networks.tensorflow.dropout import Dropout, keeps, scale_of
from bert_tf.networks.tensorflow.graph_gradients import custom_gradient
from bert_tf.networks.tensorflow.passes import in_few_passes
from bert_tf.processor import processor_flags

_sum, _product = in_few_passes(tf.add), in_few_passes(tf.multiply)


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
        product, bias = tf.cast(product, tf.float32), tf.cast(bias, tf.float32)
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


def sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """[n, M] -> [M], as a product, which is faster than a sum."""
    return tf.matmul(tf.ones_like(x[:, :1]), x, transpose_a=True)[0]


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
    """dropout(softmax(Q K^T + mask)) V, [B, N, Q, D]; as `Primitives.attention`."""
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
    probabilities = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + mask), scores.dtype)
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
    x: tf.Tensor, y: tf.Tensor, dropout: Dropout | None, gamma: tf.Tensor, beta: tf.Tensor,
    epsilon: float, dtype: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:  # fmt: skip
    """The result, the vectors of mean 0 and variance 1, and their inverse deviations [n, 1]."""
    x, y = tf.cast(x, tf.float32), tf.cast(y, tf.float32)
    if dropout is not None:
        y *= keeps(dropout, tf.float32) * scale_of(dropout)
    total = x + y
    centred = total - tf.reduce_mean(total, -1, keepdims=True)
    variance = tf.reduce_mean(centred * centred, -1, keepdims=True)
    inverse = tf.math.rsqrt(variance + epsilon)
    standard = centred * inverse
    return tf.cast(standard * gamma + beta, dtype), tf.cast(standard, dtype), inverse


@in_few_passes
def _normalized_gradient(
    upstream: tf.Tensor, standard: tf.Tensor, inverse: tf.Tensor, dropout: Dropout | None,
    gamma: tf.Tensor, x_dtype: Any, y_dtype: Any,
) -> tuple[tf.Tensor, ...]:  # fmt: skip
    upstream, standard = tf.cast(upstream, tf.float32), tf.cast(standard, tf.float32)
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

"""Attention with a gradient of few passes.

B is the batch, T its length, Q the number of queries, N the heads, D their width.
"""

from typing import Any

import tensorflow as tf

from bert_tf.primitives.dropout import Dropout, kept, scale_of
from bert_tf.primitives.passes import in_few_passes


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor, dropout: Dropout | None
) -> tf.Tensor:
    """dropout(softmax(Q K^T + mask)) V, [B, N, Q, D]; as `Primitives.attention`."""
    numbers, threshold = dropout or (None, 0)
    scale = tf.constant(scale_of(threshold), value.dtype)

    @tf.custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_b=True)  # (B, N, Q, T)
        probabilities, dropped = _probabilities(scores, mask, numbers, threshold)
        context = tf.matmul(dropped, value) * scale

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # The mean of the probabilities' gradients, weighted by them, from narrower tensors.
            products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            mean = tf.reduce_sum(products, -1, keepdims=True)  # (B, N, Q, 1)
            upstream *= scale
            of_dropped = tf.matmul(upstream, value, transpose_b=True)
            of_scores = _scores_gradient(of_dropped, probabilities, mean, numbers, threshold)
            return (
                tf.matmul(of_scores, key),
                tf.matmul(of_scores, query, transpose_a=True),
                tf.matmul(dropped, upstream, transpose_a=True),
            )

        return context, gradient

    return attended(query, key, value)


@in_few_passes
def _probabilities(
    scores: tf.Tensor, mask: tf.Tensor, numbers: tf.Tensor | None, threshold: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Probabilities before dropout, and after it without its scale."""
    probabilities = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + mask), scores.dtype)
    return probabilities, probabilities * kept(numbers, threshold, scores.dtype)


@in_few_passes
def _scores_gradient(
    of_dropped: tf.Tensor, probabilities: tf.Tensor, mean: tf.Tensor, numbers: tf.Tensor | None,
    threshold: int,
) -> tf.Tensor:  # fmt: skip
    of_probabilities = of_dropped * kept(numbers, threshold, of_dropped.dtype)
    return probabilities * (of_probabilities - tf.cast(mean, of_dropped.dtype))

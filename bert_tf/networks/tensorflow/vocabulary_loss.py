"""Logits over a vocabulary, their cross-entropy and their largest, in few passes."""

import functools
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from bert_tf.networks.tensorflow.graph_gradients import custom_gradient
from bert_tf.networks.tensorflow.own_gradients import sum_of_rows
from bert_tf.networks.tensorflow.passes import in_few_passes, known_shape, pays


@dataclass(eq=False)
class WordLogits:
    """Logits in two parts; `word_logits` attaches them to their sum as its attribute `parts`.

    A graph whose losses and metrics read these never makes a pass over the float32 sum.
    """

    products: tf.Tensor  # [..., V] in the compute dtype
    bias: tf.Tensor  # float32 [V]

    @functools.cached_property
    def largest(self) -> tf.Tensor:
        """The largest logit of each row, float32 [..., 1]."""
        return _largest(self.products, self.bias)


def word_logits(x: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    # Transposed by the product itself: the gradient of a transposition would be another one.
    products = tf.matmul(tf.reshape(x, [-1, table.shape[1]]), table, transpose_b=True)
    products = tf.reshape(products, [*known_shape(x)[:-1], table.shape[0]])
    logits = _added(products, bias)
    if pays(products.shape.num_elements()):
        logits.parts = WordLogits(products, bias)
    return logits


def _added(products: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(products, tf.float32) + bias


def argmax(logits: Any) -> tf.Tensor:
    """The index of the first largest of the logits [..., C], int32 [...]."""
    if parts := getattr(logits, "parts", None):
        return _argmax(parts.products, parts.bias, parts.largest)
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def cross_entropy(labels: Any, logits: Any) -> tf.Tensor:
    """Losses float32 [...] of int labels [...] and logits [..., C]."""
    parts = getattr(logits, "parts", None)
    if parts is None:
        logits = tf.convert_to_tensor(logits)
        if not pays(logits.shape.num_elements()):
            return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        parts = WordLogits(logits, tf.zeros(logits.shape[-1]))
    labels, largest = tf.cast(labels, tf.int32)[..., tf.newaxis], parts.largest

    @custom_gradient
    def losses(products: tf.Tensor, bias: tf.Tensor) -> Any:
        values, norms = _cross_entropy(labels, products, bias, largest)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_products = _cross_entropy_gradient(upstream, labels, products, bias, norms)
            of_bias = sum_of_rows(tf.reshape(of_products, [-1, products.shape[-1]]))
            return of_products, tf.cast(of_bias, bias.dtype)

        return values, gradient

    return losses(parts.products, parts.bias)


@in_few_passes
def _largest(products: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.reduce_max(_added(products, bias), -1, keepdims=True)


@in_few_passes
def _argmax(products: tf.Tensor, bias: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
    logits = _added(products, bias)
    classes = tf.range(logits.shape[-1])
    return tf.reduce_min(tf.where(logits == largest, classes, classes[-1]), -1)


@in_few_passes
def _cross_entropy(
    labels: tf.Tensor, products: tf.Tensor, bias: tf.Tensor, largest: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Losses, and the logarithms [..., 1] of the sums of exponentials."""
    exponentials = tf.exp(_added(products, bias) - largest)
    norms = largest + tf.math.log(tf.reduce_sum(exponentials, -1, keepdims=True))
    of_label = _added(
        tf.gather(products, labels, axis=-1, batch_dims=labels.shape.rank - 1),
        tf.gather(bias, labels),
    )  # [..., 1]
    return (norms - of_label)[..., 0], norms


@in_few_passes
def _cross_entropy_gradient(
    upstream: tf.Tensor, labels: tf.Tensor, products: tf.Tensor, bias: tf.Tensor, norms: tf.Tensor
) -> tf.Tensor:
    logits = _added(products, bias)
    is_label = tf.cast(tf.range(logits.shape[-1]) == labels, tf.float32)
    gradient = (tf.exp(logits - norms) - is_label) * upstream[..., tf.newaxis]
    return tf.cast(gradient, products.dtype)

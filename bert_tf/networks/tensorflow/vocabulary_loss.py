"""Logits over a vocabulary, their cross-entropy and their largest, in few passes."""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.networks.tensorflow.graphs import (
    custom_gradient,
    in_few_passes,
    known_shape,
    pays,
    sum_of_rows,
)


def word_logits(x: tf.Tensor, table: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Logits, float32 [..., V], of x [..., H], a table [V, H] and a float32 bias [V]."""
    # Transposed by the product itself: the gradient of a transposition would be another one.
    products = tf.matmul(tf.reshape(x, [-1, table.shape[1]]), table, transpose_b=True)
    return _added(tf.reshape(products, [*known_shape(x)[:-1], table.shape[0]]), bias)


def _added(products: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.cast(products, tf.float32) + bias


def _addends(logits: Any) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Products [..., V] and bias [V] that `_added` made the logits of, in a graph of static shapes.

    A graph whose losses and metrics read these never makes a pass over the float32 sum.
    """
    is_of_graph = isinstance(logits, tf.Tensor) and not tf.executing_eagerly()
    if not (is_of_graph and pays(logits.shape.num_elements())):
        return None
    operation = logits.op
    if operation.type != "AddV2" or operation.inputs[1].shape.rank != 1:
        return None
    products, bias = operation.inputs
    products = products.op.inputs[0] if products.op.type == "Cast" else products
    is_float = products.dtype.is_floating and products.shape == logits.shape
    return (products, bias) if is_float else None


def argmax(logits: Any) -> tf.Tensor:
    """The index of the first largest of the logits [..., C], int32 [...]."""
    if addends := _addends(logits):
        return _first_at(*addends, _largest(*addends))
    return tf.argmax(logits, axis=-1, output_type=tf.int32)


def cross_entropy(labels: Any, logits: Any) -> tf.Tensor:
    """Losses float32 [...] of int labels [...] and logits [..., C]."""
    logits = tf.convert_to_tensor(logits)
    if not pays(logits.shape.num_elements()):
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    labels = tf.cast(labels, tf.int32)[..., tf.newaxis]

    @custom_gradient
    def losses(products: tf.Tensor, bias: tf.Tensor) -> Any:
        values, norms = _losses_and_norms(labels, products, bias, _largest(products, bias))

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_products = _cross_entropy_gradient(upstream, labels, products, bias, norms)
            of_bias = sum_of_rows(tf.reshape(of_products, [-1, products.shape[-1]]))
            return of_products, tf.cast(of_bias, bias.dtype)

        return values, gradient

    return losses(*(_addends(logits) or (logits, tf.zeros(logits.shape[-1]))))


@in_few_passes
def _largest(products: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """The largest logit of each row, float32 [..., 1]; a graph computes it once for all readers."""
    return tf.reduce_max(_added(products, bias), -1, keepdims=True)


@in_few_passes
def _first_at(products: tf.Tensor, bias: tf.Tensor, largest: tf.Tensor) -> tf.Tensor:
    logits = _added(products, bias)
    classes = tf.range(logits.shape[-1])
    return tf.reduce_min(tf.where(logits == largest, classes, classes[-1]), -1)


@in_few_passes
def _losses_and_norms(
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

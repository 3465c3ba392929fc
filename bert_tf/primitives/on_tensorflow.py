"""The primitives of layers for TensorFlow, faster than those in keras.ops because

- what is done to each token is done on [n, H]: padding costs nothing, and TensorFlow fuses a
  product with its bias and activation, which a reshape between them would prevent;
- in training, dropout, residual, LayerNorm, GELU and softmax have gradients of their own; batches
  whose shape is known when the step is traced, as in pre-training, keep their padding, and XLA
  compiles what lies between the products;
- an export has weights of its own, in the compute dtype: nothing to cast, and one product for
  queries, keys and values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from bert_tf.primitives import activations, attention, elementwise, vocabulary_loss
from bert_tf.primitives.devices import device_type
from bert_tf.primitives.dropout import Dropout, draw_dropout, drop
from bert_tf.primitives.keras_ops import Primitives, is_replaced
from bert_tf.primitives.passes import known_shape
from bert_tf.primitives.places import Places
from bert_tf.startup import shares_cores


class TokenPlaces(Places):
    """The places of tokens alone; in training, the gradient of moving rows is a lookup, too."""

    def __init__(self, padding_mask: tf.Tensor, direction: str, training: bool):
        super().__init__(padding_mask, direction)
        self._training = training
        # A row without tokens keeps its first place, so that every row has a first token.
        is_computed = (padding_mask != 0) | (tf.range(self.length) == 0)
        is_computed = tf.reshape(is_computed, [-1])  # (B * T,)
        self._is_computed = is_computed[:, tf.newaxis]
        self._places = tf.cast(tf.where(is_computed)[:, 0], tf.int32)  # (n,)
        # The token at each place; at padding, the last one before it.
        self._tokens = tf.cumsum(tf.cast(is_computed, tf.int32)) - 1  # (B * T,)

    def _moved(self, x: tf.Tensor, move: Callable, back: Callable) -> tf.Tensor:
        if self._training and x.dtype.is_floating:
            return tf.custom_gradient(lambda x: (move(x), back))(x)
        return move(x)

    def _at_tokens(self, x: tf.Tensor) -> tf.Tensor:
        return tf.gather(x, self._places)

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
        return tf.gather(table, self._places % self.length)

    def summary(self, x: tf.Tensor) -> tf.Tensor:
        first = tf.range(self.batch) * self.length
        rows = tf.gather(self._tokens, first if self._last is None else first + self._last)

        def back(upstream: tf.Tensor) -> tf.Tensor:
            return tf.scatter_nd(rows[:, tf.newaxis], upstream, tf.shape(x))

        return self._moved(x, lambda x: tf.gather(x, rows), back)


class Inference(Primitives):
    """In plain operations that TensorFlow fuses, on the places of tokens."""

    # TensorFlow fuses this form of the exact GELU with the product before it.
    gelu: Any = staticmethod(tf.nn.gelu)

    def computes_halves(self) -> bool:
        # Two operations at a time; eagerly, there is one.
        return shares_cores() and not tf.executing_eagerly() and device_type() == "CPU"

    def find_places(self, padding_mask: tf.Tensor, direction: str, reads: str) -> Places:
        is_of_tokens = padding_mask.shape.rank == 2 and reads != "all"
        if self.training:  # static shapes let XLA compile
            is_static = padding_mask.shape.is_fully_defined()
            is_of_tokens = is_of_tokens and reads != "all_in_training" and not is_static
        if not is_of_tokens:
            return super().find_places(padding_mask, direction, reads)
        return TokenPlaces(padding_mask, direction, self.training)

    def rows(self, table: keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
        if is_replaced(table):
            return super().rows(table, ids)
        value = table.embeddings.value
        # In training, rows taken from the variable itself would have all later reads copy it.
        return tf.gather(tf.convert_to_tensor(value) if self.training else value, ids)

    def dense(self, x: tf.Tensor, layer: keras.layers.Dense) -> tf.Tensor:
        if layer.quantization_mode:
            return super().dense(x, layer)
        y = self.products(x, [layer])
        if layer.activation is keras.activations.linear:
            return y
        return self.gelu(y) if layer.activation is activations.gelu else layer.activation(y)

    def products(self, x: tf.Tensor, layers: list[keras.layers.Dense]) -> tf.Tensor:
        """X W + b of layers side by side, [n, M]."""
        if len(layers) > 1:  # joining kernels takes longer
            return tf.concat([self.products(x, [layer]) for layer in layers], -1)
        dtype, (layer,) = layers[0].compute_dtype, layers
        product = tf.matmul(tf.cast(x, dtype), tf.cast(layer.kernel, dtype))
        return tf.nn.bias_add(product, tf.cast(layer.bias, dtype))

    def heads(self, x: Any, layers: list[keras.layers.Dense], places: Places, number: int) -> list:
        if any(layer.quantization_mode for layer in layers):
            return super().heads(x, layers, places, number)
        shape = [places.batch, places.length, len(layers), number, layers[0].units // number]
        heads = tf.reshape(places.fill(self.products(x, layers)), shape)
        return tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))

    def attention(self, query: Any, key: Any, value: Any, mask: Any, dropout: Any) -> tuple:
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)  # (B, N, Q, T)
        probabilities = tf.cast(tf.nn.softmax(scores + mask), query.dtype)
        return tf.matmul(probabilities, value), probabilities

    def add_and_normalize(self, x: Any, y: Any, layer: Any, dropout: Any = None) -> tf.Tensor:
        if layer.compute_dtype == "float64":
            return super().add_and_normalize(x, y, layer, dropout)
        x = tf.cast(x + y, tf.float32)
        gamma, beta = self.affine(layer)
        # 19 us for 9 tokens; TensorFlow's fused op takes 150, if a quarter of the time for 700.
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        scale = tf.math.rsqrt(variance + layer.epsilon) * gamma
        return tf.cast(beta + centred * scale, layer.compute_dtype)

    def affine(self, layer: keras.layers.LayerNormalization) -> list[tf.Tensor]:
        """Scale and shift, float32 [H]."""
        return [tf.cast(layer.gamma, tf.float32), tf.cast(layer.beta, tf.float32)]

    def drop(self, x: tf.Tensor, dropout: keras.layers.Dropout) -> tf.Tensor:
        return x


class CopiedWeights(Inference):
    """Inference with copies of the weights, made when they are first read, in the compute dtype."""

    def __init__(self) -> None:
        super().__init__(training=False)
        self._copies: dict[Any, tf.Variable] = {}

    def _copy(self, key: Any, make: Any) -> tf.Tensor:
        if key not in self._copies:
            with tf.init_scope():  # outside the graph: one for all functions
                self._copies[key] = tf.Variable(make(), trainable=False)
        return tf.convert_to_tensor(self._copies[key])

    def products(self, x: tf.Tensor, layers: list[keras.layers.Dense]) -> tf.Tensor:
        dtype = layers[0].compute_dtype
        # oneDNN's product with a bias rearranges a bfloat16 kernel in every call; its product of
        # batches does not, if the kernel is [out, in]: an eighth less time for a sentence.
        is_linear = layers[0].activation is keras.activations.linear
        is_transposed = dtype == "bfloat16" and is_linear

        def kernel() -> tf.Tensor:
            joined = tf.concat([tf.cast(layer.kernel, dtype) for layer in layers], -1)
            return tf.transpose(joined) if is_transposed else joined

        def bias() -> tf.Tensor:
            return tf.concat([tf.cast(layer.bias, dtype) for layer in layers], -1)

        kernels = self._copy(("kernel", *layers), kernel)
        biases = self._copy(("bias", *layers), bias)
        x = tf.cast(x, dtype)
        if is_transposed:
            return tf.matmul(x[tf.newaxis], kernels[tf.newaxis], transpose_b=True)[0] + biases
        return tf.nn.bias_add(tf.matmul(x, kernels), biases)

    def affine(self, layer: keras.layers.LayerNormalization) -> list[tf.Tensor]:
        made = super().affine
        return [self._copy((n, layer), lambda n=n: made(layer)[n]) for n in range(2)]


class Training(Inference):
    """With gradients of their own, for CPUs."""

    gelu = staticmethod(elementwise.gelu)
    fork = staticmethod(elementwise.fork)
    word_logits = staticmethod(vocabulary_loss.word_logits)

    def products(self, x: tf.Tensor, layers: list[keras.layers.Dense]) -> tf.Tensor:
        dtype = layers[0].compute_dtype
        kernel = tf.concat([tf.cast(layer.kernel, dtype) for layer in layers], -1)
        bias = tf.concat([tf.cast(layer.bias, dtype) for layer in layers], -1)
        return elementwise.dense(tf.cast(x, dtype), kernel, bias)

    def attention(self, query: Any, key: Any, value: Any, mask: Any, dropout: Any) -> tuple:
        shape = [*known_shape(query)[:3], known_shape(key)[2]]
        return attention.attention(query, key, value, mask, _drawn(dropout, shape)), None

    def add_and_normalize(self, x: Any, y: Any, layer: Any, dropout: Any = None) -> tf.Tensor:
        if layer.compute_dtype == "float64":
            return Primitives.add_and_normalize(self, x, y, layer, dropout)
        drawn = _drawn(dropout, known_shape(y)) if dropout else None
        gamma, beta = self.affine(layer)
        return elementwise.add_and_normalize(
            x, y, drawn, gamma, beta, layer.epsilon, layer.compute_dtype
        )

    def drop(self, x: tf.Tensor, dropout: keras.layers.Dropout) -> tf.Tensor:
        return drop(x, _drawn(dropout, known_shape(x)))


def _drawn(layer: keras.layers.Dropout, shape: list[Any]) -> Dropout | None:
    """What the layer drops of its next input."""
    return draw_dropout(layer.seed_generator.next(), shape, layer.rate) if layer.rate else None


_copied: ContextVar[CopiedWeights | None] = ContextVar("copied", default=None)


@contextmanager
def copied_weights() -> Iterator[None]:
    """Functions traced within the context infer with copies of the weights, made now."""
    token = _copied.set(CopiedWeights())
    try:
        yield
    finally:
        _copied.reset(token)


def chosen(training: bool) -> Primitives:
    """The primitives where the caller is.

    XLA needs all places; accelerators train with the primitives in keras.ops, as others were not
    measured there.
    """
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return Primitives(training)
    if training:
        return Training(training) if device_type() == "CPU" else Primitives(training)
    return _copied.get() or Inference(training)

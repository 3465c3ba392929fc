"""The primitives of layers for TensorFlow, faster than those in keras.ops because

- what is done to each token is done on [n, H]: padding costs nothing, and TensorFlow fuses a
  product with its bias and activation, which a reshape between them would prevent;
- in training, dropout, residual, LayerNorm, GELU and softmax have gradients of their own; batches
  whose shape is known when the step is traced, as in pre-training, keep their padding, and XLA
  compiles what lies between the products; `Trainer` casts kernels once a step;
- an export has weights of its own, in the compute dtype: nothing to cast, and one product for
  queries, keys and values.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf
from keras.layers import Dense
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from bert_tf.networks import activations
from bert_tf.networks.context import set_within
from bert_tf.networks.places import Places
from bert_tf.networks.table import Primitives, is_replaced
from bert_tf.networks.tensorflow import own_gradients, vocabulary_loss
from bert_tf.networks.tensorflow.devices import device_type
from bert_tf.networks.tensorflow.dropout import Dropout, draw_dropout, drop
from bert_tf.networks.tensorflow.passes import known_shape
from bert_tf.networks.tensorflow.step_kernels import side_by_side, step_kernel
from bert_tf.networks.tensorflow.token_places import TokenPlaces
from bert_tf.startup import shares_cores


class Inference(Primitives):
    """In plain operations that TensorFlow fuses, on the places of tokens."""

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
            found = super().rows(table, ids)
        else:
            value = table.embeddings.value
            # In training, rows taken from the variable itself would have all later reads copy it.
            found = tf.gather(tf.convert_to_tensor(value) if self.training else value, ids)
        change = _change.get()
        return change(table, ids, found) if change else found

    def dense(self, x: tf.Tensor, layer: Dense) -> tf.Tensor:
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

    def heads(self, x: Any, layers: list[Dense], places: Places, number: int) -> list:
        if any(layer.quantization_mode for layer in layers):
            return super().heads(x, layers, places, number)
        shape = [places.batch, places.length, len(layers), number, layers[0].units // number]
        product = self.products(x, layers, shape[-1] ** -0.5)
        heads = tf.reshape(places.fill(product), shape)
        return tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))

    def attend(
        self, x: Any, layers: list[Dense], places: Places, number: int, dropout: Any,
        **options: bool,
    ) -> tuple[Any, Any]:  # fmt: skip
        is_replaced = any(layer.quantization_mode for layer in layers)
        is_other = self.training or is_replaced or options["return_probabilities"]
        if is_other or not isinstance(places, TokenPlaces):
            return super().attend(x, layers, places, number, dropout, **options)
        width = layers[0].units // number
        product = tf.reshape(self.products(x, layers, width**-0.5), [-1, width])
        made = places.groups(number)
        contexts = []
        for group in made.groups:
            if options["summary_only"]:
                query = tf.gather(product, group.summary)
                key, value = tf.unstack(tf.gather(product, group.heads[1:]))
                context, _ = self.attention(query, key, value, group.summary_mask, None)
            else:
                query, key, value = tf.unstack(tf.gather(product, group.heads))
                context, _ = self.attention(query, key, value, group.mask, None)
            contexts.append(tf.reshape(context, [-1, width]))
        context = tf.concat(contexts, 0)
        if options["summary_only"]:
            return tf.gather(tf.reshape(context, [-1, layers[0].units]), made.rows), None
        return tf.reshape(tf.gather(context, made.back), [-1, layers[0].units]), None

    def attention(self, query: Any, key: Any, value: Any, mask: Any, dropout: Any) -> tuple:
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)  # (B, N, Q, T)
        probabilities = tf.cast(tf.nn.softmax(scores + mask), query.dtype)
        return tf.matmul(probabilities, value), probabilities

    def add_and_normalize(self, x: Any, y: Any, layer: Any, dropout: Any = None) -> tf.Tensor:
        if layer.compute_dtype == "float64":
            return super().add_and_normalize(x, y, layer, dropout)
        return self.normalize(x + y, layer)

    def normalize(self, x: tf.Tensor, layer: Any) -> tf.Tensor:
        x = tf.cast(x, tf.float32)
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

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        kernel, bias = (
            self._copy((name, *layers), functools.partial(self.joined, name, layers, scale))
            for name in ("kernel", "bias")
        )
        return tf.nn.bias_add(tf.matmul(tf.cast(x, kernel.dtype), kernel), bias)

    def affine(self, layer: keras.layers.LayerNormalization) -> list[tf.Tensor]:
        made = super().affine
        return [self._copy((n, layer), lambda n=n: made(layer)[n]) for n in range(2)]


class Training(Inference):
    """With gradients of their own, for CPUs."""

    fork = staticmethod(own_gradients.fork)

    def dense(self, x: tf.Tensor, layer: Dense) -> tf.Tensor:
        if layer.quantization_mode or layer.activation is not activations.gelu:
            return super().dense(x, layer)
        return own_gradients.gelu(*self._product_and_bias(x, [layer], 1.0))

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        return own_gradients.add_bias(*self._product_and_bias(x, layers, scale))

    def _product_and_bias(
        self, x: tf.Tensor, layers: Sequence[Dense], scale: float
    ) -> tuple[tf.Tensor, tf.Tensor]:
        kernel = step_kernel([layer.kernel for layer in layers], layers[0].compute_dtype, scale)
        product = tf.matmul(tf.cast(x, kernel.dtype), kernel)
        return product, self.joined("bias", layers, scale)

    def attention(self, query: Any, key: Any, value: Any, mask: Any, dropout: Any) -> tuple:
        shape = [*known_shape(query)[:3], known_shape(key)[2]]
        return own_gradients.attention(query, key, value, mask, _drawn(dropout, shape)), None

    def add_and_normalize(self, x: Any, y: Any, layer: Any, dropout: Any = None) -> tf.Tensor:
        if layer.compute_dtype == "float64":
            return Primitives.add_and_normalize(self, x, y, layer, dropout)
        drawn = _drawn(dropout, known_shape(y)) if dropout else None
        gamma, beta = self.affine(layer)
        return own_gradients.add_and_normalize(
            x, y, drawn, gamma, beta, layer.epsilon, layer.compute_dtype
        )

    def drop(self, x: tf.Tensor, dropout: keras.layers.Dropout) -> tf.Tensor:
        return drop(x, _drawn(dropout, known_shape(x)))

    def word_logits(self, x: tf.Tensor, table: keras.layers.Embedding, bias: Any) -> tf.Tensor:
        if is_replaced(table):
            return super().word_logits(x, table, bias)
        rows = step_kernel([table.embeddings], x.dtype.name)
        return vocabulary_loss.word_logits(x, rows, tf.cast(bias, tf.float32))


def _drawn(layer: keras.layers.Dropout, shape: list[Any]) -> Dropout | None:
    """What the layer drops of its next input."""
    return draw_dropout(layer.seed_generator.next(), shape, layer.rate) if layer.rate else None


_chosen: ContextVar[Primitives | None] = ContextVar("chosen", default=None)
_change: ContextVar[Callable | None] = ContextVar("change", default=None)


def inferring_with(primitives: Primitives) -> AbstractContextManager:
    """Functions traced within the context infer with these primitives."""
    return set_within(_chosen, primitives)


def changing_rows(change: Callable) -> AbstractContextManager:
    """Inference within the context goes on with `change` of a table, ids [n] and rows [n, H]."""
    return set_within(_change, change)


def chosen(training: bool) -> Primitives:
    """The primitives where the caller is: in keras.ops for XLA and training on accelerators."""
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return Primitives(training)
    if training:
        return Training(training) if device_type() == "CPU" else Primitives(training)
    return _chosen.get() or Inference(training)

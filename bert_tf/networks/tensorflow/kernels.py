"""What the kernels of inference and of training share in TensorFlow's graphs.

Operations on each token take [n, H]: padding costs nothing, and TensorFlow fuses a product with its
bias and activation, which a reshape between them would prevent. Letters as in
`bert_tf.networks.kernels`.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import tensorflow as tf
from keras.layers import Dense, LayerNormalization
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from bert_tf.networks import activations
from bert_tf.networks.kernels import Kernels, Positions, Tensors
from bert_tf.networks.tensorflow.graphs import device_type
from bert_tf.startup import shares_cores


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

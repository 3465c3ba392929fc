"""Kernels in the operations that other runtimes recognize, and then compute as one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.networks.kernels import Kernels
from bert_tf.networks.tensorflow.int8 import LARGEST_INPUT, ProductPlan, quantize_weights


class PortableKernels(Kernels):
    """Kernels whose normalization is divided by the standard deviation, not multiplied.

    OpenVINO and ONNX Runtime look for this form: 25 operations of their own in BERT-base, not 225.
    """

    def __init__(self) -> None:
        super().__init__(training=False)

    def add_and_normalize(
        self, x: Any, y: Any, norm: Any, dense: Any = None, dropout: Any = None
    ) -> tf.Tensor:
        x += y if dense is None else self.dense(y, dense)
        centred = x - tf.reduce_mean(x, [-1], keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), [-1], keepdims=True)
        return centred / tf.sqrt(variance + norm.epsilon) * norm.gamma + norm.beta


class FakeQuantized(PortableKernels):
    """Kernels whose products in a plan are rounded as int8 rounds them.

    OpenVINO computes a product of such inputs and weights in int8.
    """

    def __init__(self, plan: ProductPlan) -> None:
        super().__init__()
        self._plan = plan
        self._ranges = dict(plan.ranges)
        self._weights: dict[Any, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def heads(self, x: Any, layers: Sequence[Any], *arguments: Any) -> list[Any]:
        self._ranges |= {layer: self._plan.ranges.get(layers[0]) for layer in layers}
        return super().heads(x, layers, *arguments)

    def dense(self, x: Any, layer: Any, following: Any = None) -> Any:
        if layer not in self._weights:
            self._weights[layer] = self._weights_of(layer)
        kernel, sizes, bias = self._weights[layer]
        inputs = self._ranges.get(layer)
        if inputs is None:
            return layer.activation(tf.matmul(x, kernel) + bias)
        if inputs.divisors is not None and not inputs.is_divided:
            x = x * (1 / inputs.divisors)
        x = self.rounded(x, float(inputs.limit))
        return layer.activation(tf.matmul(x, self.kernel(layer, kernel, sizes)) + bias)

    def _weights_of(self, layer: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kernel [K, M], in int8 in a plan, what a step is in each column [M], and bias [M]."""
        with tf.init_scope():  # outside the graph
            kernel, bias = (weight.numpy() for weight in (layer.kernel, layer.bias))
        divisors = self._plan.divisors.get(layer, np.ones(1, np.float32))
        kernel = kernel / divisors
        inputs = self._ranges.get(layer)
        if inputs is None:
            return kernel, divisors, bias / divisors
        if inputs.divisors is not None:
            kernel = kernel * inputs.divisors[:, np.newaxis]
        steps, scale = quantize_weights(kernel)
        return steps, scale / LARGEST_INPUT, bias / divisors

    def rounded(self, x: tf.Tensor, limit: float) -> tf.Tensor:
        """Inputs of a product in steps of which 127 are `limit`."""
        return tf.quantization.fake_quant_with_min_max_args(x, -limit, limit, 8, narrow_range=True)

    def kernel(self, layer: Any, steps: np.ndarray, sizes: np.ndarray) -> tf.Tensor:
        return tf.cast(tf.constant(steps), tf.float32) * sizes

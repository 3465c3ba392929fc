"""Inference with the encoder's products in int8: how it is calibrated, and how it computes.

A `Recorder` measures the ranges of a product's inputs while the model answers the rows that
`commands.int8_calibration` reads.

n is a number of tokens, K the width of a product's inputs, M the width of its outputs.
"""

import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.framework import ops

from bert_tf.networks import activations
from bert_tf.networks.tensorflow.inference import CopiedWeights, InferenceKernels

OP = "_QuantizedMatMul"  # TensorFlow has it from 2.17 on, for x86 processors
# Weights have 7 bits: products of 8 bits overflow in silence on processors without VNNI, where
# oneDNN adds pairs of them in 16 bits (2 * 127 * 127 < 2^15 <= 2 * 127 * 128 + ...).
LARGEST_WEIGHT = 63
LARGEST_INPUT = 127
_FUSED = {  # activations that the op computes, and its names for them
    activations.gelu: "GeluExact",
    activations.gelu_new: "GeluApproximate",
    keras.ops.relu: "Relu",
}

_SMOOTHING = 0.85  # of the inputs' outliers move into the weights (SmoothQuant, Xiao et al. 2023)
_ROWS = 512  # of a product's inputs, kept to compare the product in both types
_LARGEST_ERROR = 0.1  # of a product, relative; rounding alone makes 1 to 3%
_WORTH_A_PASS = 1.5  # by which smoothing that costs a pass over the inputs must divide the error


class Layers(NamedTuple):
    """The dense layers of a block, by product."""

    heads: tuple[keras.layers.Dense, ...]  # queries, keys, values
    attended: keras.layers.Dense
    inner: keras.layers.Dense
    outer: keras.layers.Dense


@dataclass(frozen=True)
class Range:
    """How a product's inputs become int8."""

    limit: float  # what 127 stands for, after division
    divisors: np.ndarray | None  # [K], of the inputs' columns; the kernel's rows are multiplied
    is_divided: bool  # whether the product before it divides them
    error: float  # the product's relative error on the recorded rows


@dataclass
class ProductPlan:
    """Ranges by a product's first layer; products without one are computed in float32."""

    ranges: dict[Any, Range] = field(default_factory=dict)
    divisors: dict[Any, np.ndarray] = field(default_factory=dict)  # of the outputs of a layer, [M]
    products: int = 0  # int8 or not


class Recorder(InferenceKernels):
    """Inference in float32 that records the inputs of products: the largest, and some rows."""

    def __init__(self, blocks: Iterable[Layers]) -> None:
        super().__init__()
        self.blocks = list(blocks)
        self._recorded = {
            layers
            for block in self.blocks
            for layers in (block.heads, (block.attended,), (block.inner,), (block.outer,))
        }
        self.largest: dict[Any, np.ndarray] = {}  # first layer -> [K]
        self.samples: dict[Any, list[np.ndarray]] = {}
        self._draw = np.random.default_rng(0)
        self._lock = threading.Lock()

    def products(self, x: tf.Tensor, layers: Sequence[Any], scale: float = 1.0) -> tf.Tensor:
        if tuple(layers) in self._recorded:
            tf.numpy_function(functools.partial(self._record, layers[0]), [x], [])
        return super().products(x, layers, scale)

    def _record(self, layer: Any, x: np.ndarray) -> None:
        with self._lock:  # batches are answered two at a time
            largest = np.abs(x).max(0, initial=0.0)
            self.largest[layer] = np.maximum(self.largest.get(layer, 0.0), largest)
            samples = self.samples.setdefault(layer, [])
            if sum(map(len, samples)) < _ROWS:
                samples.append(x[self._draw.permutation(len(x))[: _ROWS // 8]])


def make_plan(recorder: Recorder) -> ProductPlan:
    """The ranges of the products that int8 computes well enough."""
    plan = ProductPlan()
    for block in recorder.blocks:
        plain = _range(recorder, [block.outer], is_smoothed=False)
        smoothed = _range(recorder, [block.outer])
        ranges = {
            block.heads[0]: _range(recorder, block.heads),
            # The values' weights divide for it: free.
            block.attended: _range(recorder, [block.attended], is_divided=True),
            block.inner: _range(recorder, [block.inner]),
            block.outer: smoothed if smoothed.error * _WORTH_A_PASS < plain.error else plain,
        }
        good = {layer: x for layer, x in ranges.items() if x.error <= _LARGEST_ERROR}
        if block.attended in good:
            plan.divisors[block.heads[2]] = np.asarray(good[block.attended].divisors)
        plan.ranges |= good
        plan.products += len(ranges)
    return plan


def _range(
    recorder: Recorder, layers: Sequence[Any], *, is_smoothed: bool = True, is_divided: bool = False
) -> Range:
    kernel = np.concatenate([layer.kernel.numpy() for layer in layers], -1)
    largest = recorder.largest[layers[0]]
    rows = np.concatenate(recorder.samples[layers[0]])
    divisors = np.ones(len(largest), np.float32)
    if is_smoothed:
        tiny = 1e-5 * max(float(largest.max()), 1e-30)
        of_inputs = np.maximum(largest, tiny) ** _SMOOTHING
        of_weights = np.maximum(np.abs(kernel).max(1), 1e-5 * np.abs(kernel).max())
        divisors = (of_inputs / of_weights ** (1 - _SMOOTHING)).astype(np.float32)
    limit = max(float((largest / divisors).max()), 1e-30)
    steps, scale = quantize_weights(kernel * divisors[:, np.newaxis])
    step = limit / LARGEST_INPUT
    rounded = np.clip(np.round(rows / divisors / step), -LARGEST_INPUT, LARGEST_INPUT) * step
    products = rounded @ (steps * (scale / LARGEST_INPUT))
    exact = rows @ kernel
    error = float(np.linalg.norm(products - exact)) / max(float(np.linalg.norm(exact)), 1e-30)
    return Range(limit, divisors if is_smoothed else None, is_divided, error)


class Int8(CopiedWeights):
    """Inference whose products in a plan are int8; the others are float32."""

    def __init__(self, plan: ProductPlan) -> None:
        super().__init__()
        self._plan = plan
        self._scales: dict[Any, np.ndarray] = {}

    def dense(self, x: tf.Tensor, layer: keras.layers.Dense, following: Any = None) -> tf.Tensor:
        if layer not in self._plan.ranges:
            return super().dense(x, layer)
        activation = _FUSED.get(layer.activation)
        output = self._plan.ranges.get(following)
        limit = output.limit if activation and output and output.divisors is None else None
        y = self._product(x, [layer], activation=activation, output_limit=limit)
        return y if activation else layer.activation(y)

    def products(self, x: tf.Tensor, layers: Sequence[Any], scale: float = 1.0) -> tf.Tensor:
        if layers[0] in self._plan.ranges:
            return self._product(x, layers, scale)
        return super().products(x, layers, scale)

    def joined(self, name: str, layers: Sequence[Any], scale: float) -> tf.Tensor:
        divisors = [self._plan.divisors.get(layer, np.ones(layer.units, "f4")) for layer in layers]
        return super().joined(name, layers, scale) / np.concatenate(divisors)

    def add_and_normalize(
        self, x: Any, y: Any, norm: Any, dense: Any = None, dropout: Any = None
    ) -> tf.Tensor:
        if dense not in self._plan.ranges:
            return super().add_and_normalize(x, y, norm, dense, dropout)
        return self.normalize(self._product(y, [dense], addend=x), norm)

    def _product(
        self, x: tf.Tensor, layers: Sequence[Any], scale: float = 1.0, **options: Any
    ) -> tf.Tensor:
        """The product of layers side by side; options as of `int8_product`."""
        inputs = self._plan.ranges[layers[0]]

        def kernel() -> np.ndarray:
            values = self.joined("kernel", layers, scale).numpy()
            if inputs.divisors is not None:
                values *= inputs.divisors[:, np.newaxis]
            steps, self._scales[layers[0]] = quantize_weights(values)
            return steps

        weights = self._copy(("int8", *layers), kernel)
        bias = self._copy(("bias", *layers), lambda: self.joined("bias", layers, scale))
        if x.dtype != tf.qint8:
            if inputs.divisors is not None and not inputs.is_divided:
                x *= 1 / inputs.divisors
            x = quantize(x, inputs.limit)
        scales = self._scales[layers[0]]
        return int8_product(x, weights, scales, bias, inputs.limit, **options)


def quantize_weights(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An int8 kernel [K, M], and what 127 stands for in each column, float32 [M]."""
    largest = np.maximum(np.abs(kernel).max(0), np.finfo(np.float32).tiny * LARGEST_INPUT)
    scale = (largest * (LARGEST_INPUT / LARGEST_WEIGHT)).astype(np.float32)
    steps = np.round(kernel / scale * LARGEST_INPUT)
    return np.clip(steps, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8), scale


def quantize(x: tf.Tensor, limit: float) -> tf.Tensor:
    """qint8 in which 127 stands for `limit`; larger values are cut."""
    return tf.raw_ops.QuantizeV2(
        input=x,
        min_range=-limit,
        max_range=limit,
        T=tf.qint8,
        mode="SCALED",
        round_mode="HALF_TO_EVEN",
        narrow_range=True,
    ).output


def int8_product(
    x: tf.Tensor,
    kernel: tf.Tensor,
    scale: np.ndarray,
    bias: tf.Tensor,
    limit: float,
    *,
    addend: tf.Tensor | None = None,
    activation: str | None = None,
    output_limit: float | None = None,
) -> tf.Tensor:
    """activation(x W + b [+ addend]), float32 [n, M], in a graph.

    In `x`, qint8 [n, K], 127 stands for `limit`; in each column of the kernel, int8 [K, M], for its
    `scale`, [M]. The kernel is a variable's value, which the op packs once. `bias` is float32 [M],
    `addend` float32 [n, M], `activation` of `_FUSED`. Returns qint8 of an `output_limit`, if given.
    """
    device = [x, tf.bitcast(kernel, tf.qint8), bias, *([] if addend is None else [addend])]
    # Constants: oneDNN's primitive is cached by them.
    host = [tf.constant(value, tf.float32) for value in (-limit, limit, -scale, scale)]
    fused = ["BiasAdd"] + ["Add"] * (addend is not None)
    fused += [activation] if activation else []
    outputs = [tf.float32]
    output_ranges = []
    if output_limit is None:
        fused.append("Dequantize")
    else:
        fused.append("Requantize")
        outputs = [tf.qint8]
        output_ranges = [tf.float32] * 2
        host += [tf.constant(value, tf.float32) for value in (-output_limit, output_limit)]
    qint8, float32 = (AttrValue(type=t.as_datatype_enum) for t in (tf.qint8, tf.float32))
    yes = AttrValue(b=True)
    no = AttrValue(b=False)
    scaled = AttrValue(s=b"SCALED")
    attributes = {
        "Tdevice_inputs": _types([tensor.dtype for tensor in device]),
        "Thost_inputs": _types([tf.float32] * len(host)),
        "Tdevice_outputs": _types(outputs),
        "Thost_outputs": _types(output_ranges),
        "T1": qint8,
        "T2": qint8,
        "Tbias": float32,
        "U": float32,
        "Tout": float32 if output_limit is None else qint8,
        "fused_ops": AttrValue(list=AttrValue.ListValue(s=[name.encode() for name in fused])),
        "is_weight_const": yes,
        "is_bias_const": yes,
        "transpose_a": no,
        "transpose_b": no,
        "input_quant_mode": scaled,
        "output_quant_mode": scaled,
        "leakyrelu_alpha": AttrValue(f=0.2),
    }
    # It is not among tf.raw_ops. It needs a name of its own: its type's underscore makes none.
    operation = ops.get_default_graph()._create_op_internal(
        OP, device + host, outputs + output_ranges, name="int8_product", attrs=attributes
    )
    product = operation.outputs[0]
    product.set_shape([x.shape[0], scale.shape[0]])
    return product


def _types(dtypes: list[Any]) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(type=[dtype.as_datatype_enum for dtype in dtypes]))

"""Products of int8 on x86 processors, by an op that TensorFlow has from 2.17 on.

n is a number of rows, K the width of the inputs, M that of the outputs.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.framework import ops

OP = "_QuantizedMatMul"
# Weights have 7 bits: products of 8 bits overflow in silence on processors without VNNI, where
# oneDNN adds pairs of them in 16 bits (2 * 127 * 127 < 2^15 <= 2 * 127 * 128 + ...).
LARGEST_WEIGHT = 63
LARGEST_INPUT = 127
# Activations that the op computes: those of `bert_tf.primitives.activations`, by name.
ACTIVATIONS = {"gelu": "GeluExact", "gelu_new": "GeluApproximate", "relu": "Relu"}


def quantize_weights(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An int8 kernel [K, M], and what 127 stands for in each column, float32 [M]."""
    largest = np.maximum(np.abs(kernel).max(0), np.finfo(np.float32).tiny * LARGEST_INPUT)
    scale = (largest * (LARGEST_INPUT / LARGEST_WEIGHT)).astype(np.float32)
    steps = np.round(kernel / scale * LARGEST_INPUT)
    return np.clip(steps, -LARGEST_WEIGHT, LARGEST_WEIGHT).astype(np.int8), scale


def quantize(x: tf.Tensor, limit: float) -> tf.Tensor:
    """qint8 in which 127 stands for `limit`; larger values are cut."""
    return tf.raw_ops.QuantizeV2(
        input=x, min_range=-limit, max_range=limit, T=tf.qint8, mode="SCALED",
        round_mode="HALF_TO_EVEN", narrow_range=True,
    ).output  # fmt: skip


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
    """activation(x W + b [+ addend]), in a graph.

    Args:
        x: qint8 [n, K], in which 127 stands for `limit`.
        kernel: int8 [K, M]; a variable's value, which the op packs once.
        scale: the value of 127 in each column of the kernel, [M].
        bias: float32 [M].
        limit: see `x`.
        addend: float32 [n, M].
        activation: a key of `ACTIVATIONS`.
        output_limit: return qint8 in which 127 stands for it, instead of float32.
    """
    device = [x, tf.bitcast(kernel, tf.qint8), bias, *([] if addend is None else [addend])]
    # Constants: oneDNN's primitive is cached by them.
    host = [tf.constant(value, tf.float32) for value in (-limit, limit, -scale, scale)]
    fused = ["BiasAdd"] + ["Add"] * (addend is not None)
    fused += [ACTIVATIONS[activation]] if activation else []
    outputs, output_ranges = [tf.float32], []
    if output_limit is None:
        fused.append("Dequantize")
    else:
        fused.append("Requantize")
        outputs, output_ranges = [tf.qint8], [tf.float32] * 2
        host += [tf.constant(value, tf.float32) for value in (-output_limit, output_limit)]
    yes, no, scaled = AttrValue(b=True), AttrValue(b=False), AttrValue(s=b"SCALED")
    attributes = {
        "Tdevice_inputs": _types([each.dtype for each in device]),
        "Thost_inputs": _types([tf.float32] * len(host)),
        "Tdevice_outputs": _types(outputs), "Thost_outputs": _types(output_ranges),
        "T1": _type(tf.qint8), "T2": _type(tf.qint8), "Tbias": _type(tf.float32),
        "U": _type(tf.float32), "Tout": _type(outputs[0]),
        "fused_ops": AttrValue(list=AttrValue.ListValue(s=[each.encode() for each in fused])),
        "is_weight_const": yes, "is_bias_const": yes, "transpose_a": no, "transpose_b": no,
        "input_quant_mode": scaled, "output_quant_mode": scaled,
        "leakyrelu_alpha": AttrValue(f=0.2),
    }  # fmt: skip
    # It is not among tf.raw_ops. It needs a name of its own: its type's underscore makes none.
    operation = ops.get_default_graph()._create_op_internal(
        OP, device + host, outputs + output_ranges, name="int8_product", attrs=attributes
    )
    product = operation.outputs[0]
    product.set_shape([x.shape[0], scale.shape[0]])
    return product


def _type(dtype: tf.DType) -> AttrValue:
    return AttrValue(type=dtype.as_datatype_enum)


def _types(dtypes: list[Any]) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(type=[each.as_datatype_enum for each in dtypes]))

"""Writes ONNX models: tf2onnx converts the graph, and the weights join it afterwards.

tf2onnx copies constants in each of its passes, and keeps all copies: over 20 GB for BERT-base.
"""

import math
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.files.atomic import replace_file
from bert_tf.networks.tensorflow.int8 import LARGEST_INPUT, ProductPlan
from bert_tf.serving.portable_kernels import FakeQuantized

_OPSET = 17  # ONNX Runtime reads it since 1.12
_DOMAIN = "com.microsoft"  # of ONNX Runtime's own operations
_STEPS = 128  # of int8 below zero; ONNX Runtime's fast products take uint8, so this is its zero


class IntegerProducts(FakeQuantized):
    """Kernels whose products in a plan become products of integers in ONNX.

    The first trace finds the int8 weights, `steps` by the kernel's id; later ones read them from
    the layer.
    """

    def __init__(self, plan: ProductPlan) -> None:
        super().__init__(plan)
        self.steps: dict[int, np.ndarray] = {}

    def rounded(self, x: tf.Tensor, limit: float) -> tf.Tensor:
        least = -limit * _STEPS / LARGEST_INPUT
        return tf.quantization.fake_quant_with_min_max_args(x, least, limit, 8)

    def kernel(self, layer: Any, steps: np.ndarray, sizes: np.ndarray) -> tf.Tensor:
        if id(layer.kernel) in self.steps:
            return tf.convert_to_tensor(layer.kernel) * sizes
        self.steps[id(layer.kernel)] = steps
        return super().kernel(layer, steps, sizes)


def with_weights(function: Any, model: Any, kernels: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """A traced function that takes the model's weights as further inputs, and these by name."""
    inputs = function.input_signature
    steps = getattr(kernels, "steps", {})
    weights = {
        f"variable_{number}": steps.get(id(variable), np.asarray(variable))
        for number, variable in enumerate(model.variables)
    }
    specs = [tf.TensorSpec(x.shape, x.dtype, name) for name, x in weights.items()]

    def answer(*tensors: tf.Tensor) -> Any:
        with keras.StatelessScope(zip(model.variables, tensors[len(inputs) :], strict=True)):
            return function.python_function(*tensors[: len(inputs)])

    traced = tf.function(answer, input_signature=[*inputs, *specs], autograph=False)
    traced.get_concrete_function()
    return traced, weights


def write_onnx(
    function: Any,
    weights: Mapping[str, np.ndarray],
    names: list[str],
    path: Path,
    facts: Mapping[str, str],
) -> None:
    """Writes what `with_weights` made; `names` are its outputs', `facts` are kept in the file."""
    onnx = import_module("onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it asks NumPy for names
        # tf2onnx uses names that NumPy 2 has dropped.
        import_module("keras.src.export.tf2onnx_lib").patch_tf2onnx()
    proto, _ = import_module("tf2onnx.convert").from_function(
        function, input_signature=function.input_signature, opset=_OPSET
    )
    graph = proto.graph
    inputs = [*graph.input]
    del graph.input[:]
    graph.input.extend(value for value in inputs if value.name not in weights)
    _write_as_fused(graph)
    if int8 := {name for name, x in weights.items() if x.dtype == np.int8}:
        _multiply_integers(graph, int8)
        proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    _remove_unread(graph)
    used = _read_names(graph)
    graph.initializer.extend(
        onnx.numpy_helper.from_array(x, name) for name, x in weights.items() if name in used
    )
    renamed = dict(zip((output.name for output in graph.output), names, strict=True))
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [renamed.get(name, name) for name in tensors]
    for output in graph.output:
        output.name = renamed[output.name]
    onnx.helper.set_model_props(proto, dict(facts))
    onnx.checker.check_model(proto)
    with replace_file(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())


def _multiply_integers(graph: Any, int8: set[str]) -> None:
    """Products of rounded inputs and int8 weights, which tf2onnx writes in float32, with biases.

    `MatMulIntegerToFloat` is ONNX Runtime's own; standard operations take three passes more.
    """
    onnx = import_module("onnx")
    made_by = {name: node for node in graph.node for name in node.output}
    constants = {x.name: onnx.numpy_helper.to_array(x) for x in graph.initializer}
    for node in [x for x in graph.node if x.op_type == "MatMul"]:
        rounded, scaled = (made_by.get(name) for name in node.input)
        if rounded is None or scaled is None or rounded.op_type != "DequantizeLinear":
            continue
        cast = next((made_by[x] for x in scaled.input if x in made_by), None)
        if cast is None or cast.input[0] not in int8:
            continue
        (sizes,) = (name for name in scaled.input if name in constants)
        values, size, zero = rounded.input
        node.op_type, node.domain = "MatMulIntegerToFloat", _DOMAIN
        node.input[:] = [values, cast.input[0], size, sizes, zero]
        (following,) = (x for x in graph.node if node.output[0] in x.input)
        biases = [name for name in following.input if name in constants]
        if following.op_type == "Add" and biases:
            node.input.extend(["", *biases])
            node.output[:] = following.output
            following.output[:] = []


def _write_as_fused(graph: Any) -> None:
    """Writes normalization and GELU as ONNX Runtime looks for them: a power, and a quotient."""
    onnx = import_module("onnx")
    numbers = {"two": 2.0, "root_of_two": math.sqrt(2.0)}
    for name, number in numbers.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.float32(number), name))
    erf_inputs = {node.input[0] for node in graph.node if node.op_type == "Erf"}
    for node in [x for x in graph.node if x.op_type == "Mul"]:
        if node.input[0] == node.input[1]:
            node.op_type, node.input[1] = "Pow", "two"
        elif node.output[0] in erf_inputs:
            node.op_type, node.input[1] = "Div", "root_of_two"


def _remove_unread(graph: Any) -> None:
    used = _read_names(graph)
    while unused := [node for node in graph.node if used.isdisjoint(node.output)]:
        for node in unused:
            graph.node.remove(node)
        used = _read_names(graph)
    for constant in [x for x in graph.initializer if x.name not in used]:
        graph.initializer.remove(constant)


def _read_names(graph: Any) -> set[str]:
    names = {name for node in graph.node for name in node.input}
    return names | {output.name for output in graph.output}

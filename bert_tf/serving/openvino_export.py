"""Writes OpenVINO models that take raw strings and give the answers of a SavedModel.

`openvino_model` reads them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.networks.kernels import Kernels
from bert_tf.networks.tensorflow.int8 import LARGEST_INPUT, ProductPlan, quantize_weights
from bert_tf.serving.openvino_model import INFORMATION
from bert_tf.serving.openvino_text import Pieces, TextGraph, packed
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.rows import alone
from bert_tf.tasks.signatures import DEFAULT, Tensors

_NAMES = ("label", "labels", "predicted_label")  # outputs that are labels
_BLANK = "is_blank"


def row_function(answerer: Any) -> tuple[Callable[..., Tensors], list[tf.TensorSpec]]:
    """The function from rows of tokens [R, T] to answers, and its inputs.

    Operations on strings stay outside: labels are numbers, from 1, and 0 where there is none. Of
    lists of choices [B, n] it takes the rows one after the other, and which choices are empty.
    InputError if `with_text` cannot follow the tokenizer.
    """
    TextGraph(answerer.tokenizer)
    kind: Any = answerer.task.kind
    numbers = range(1, 1 + len(answerer.labels))
    if isinstance(kind, MultiLabel):
        kind = kind.renamed(dict(zip(answerer.labels, numbers, strict=True)))
    model = answerer.model.answering_model()
    numbered = replace(answerer, labels=list(numbers), model=model)
    rows = {name: tf.TensorSpec([None, None], tf.int32, name) for name in model.input}
    specs = list(rows.values())
    if "choices" in kind.signatures(answerer.task)[DEFAULT].inputs:
        specs.append(tf.TensorSpec([None, None], tf.bool, _BLANK))

    def answer(*tensors: tf.Tensor) -> Tensors:
        inputs = dict(zip(rows, tensors, strict=False))
        if len(tensors) > len(rows):
            return kind.choose(numbered.predict(alone(inputs)), tensors[-1])
        return kind.row_answers(inputs, numbered, lambda function, x: function(x))

    return answer, specs


def with_text(converted: Any, answerer: Any, precision: str) -> Any:
    """OpenVINO's model of `row_function` as one from strings to answers."""
    graph = TextGraph(answerer.tokenizer)
    op = graph.op
    openvino = import_module("openvino")
    signature = answerer.task.kind.signatures(answerer.task)[DEFAULT].inputs
    parameters = []
    strings = {}
    for name, spec in signature.items():
        parameter = op.parameter([-1] * spec.shape.rank, openvino.Type.string, name)
        parameter.output(0).tensor.set_names({name})
        parameters.append(parameter)
        strings[name] = op.string_tensor_unpack(parameter).outputs()
    tensors = _rows(graph, strings, answerer)
    for parameter in converted.get_parameters():
        (name,) = parameter.output(0).names & set(tensors)
        parameter.output(0).replace(tensors[name])
    outputs = {}
    for result in converted.get_results():
        (name,) = result.output(0).names
        outputs[name] = result.input_value(0)
    outputs["truncated"] = tensors["truncated"]
    results = []
    for name, output in outputs.items():
        if name in _NAMES:
            output = graph.looked_up(["", *answerer.labels], output)
        result = op.result(output)
        result.output(0).tensor.set_names({name})
        results.append(result)
    model = openvino.Model(results, parameters, "bert_tf")
    model.set_rt_info(json.dumps(list(answerer.labels)), [INFORMATION, "labels"])
    model.set_rt_info(precision, [INFORMATION, "precision"])
    return model


def _rows(graph: TextGraph, strings: Mapping[str, Sequence[Any]], answerer: Any) -> dict[str, Any]:
    """The inputs of `row_function`, and `truncated`, int32 [B], of unpacked strings."""
    op = graph.op
    if "choices" not in strings:
        prefix = getattr(answerer.task.kind, "prompt", "")
        segments = [graph.pieces(texts, prefix) for texts in strings.values()]
        return packed(graph, segments, answerer.tokenizer, answerer.max_length)
    starts, ends, texts = strings["choices"]  # [B, n] both
    flat = [op.reshape(edge, np.array([-1]), False).output(0) for edge in (starts, ends)]
    shape = op.shape_of(starts)
    column = np.array([-1, 1])
    contexts = graph.pieces(strings["context"])
    first, last = (
        op.reshape(op.broadcast(op.reshape(edge, column, False), shape), np.array([-1]), False)
        for edge in contexts[:2]
    )
    context = Pieces(first.output(0), last.output(0), contexts.ids)
    choices = graph.pieces([*flat, texts])
    rows = packed(graph, [context, choices], answerer.tokenizer, answerer.max_length)
    truncated = op.reshape(rows["truncated"], shape, False)
    return rows | {
        _BLANK: op.equal(starts, ends).output(0),
        "truncated": op.reduce_max(truncated, np.int32(1)).output(0),
    }


class FakeQuantized(Kernels):
    """Kernels whose products in a plan are rounded as int8 rounds them.

    OpenVINO computes a product of such inputs and weights in int8.
    """

    def __init__(self, plan: ProductPlan) -> None:
        super().__init__(training=False)
        self._plan = plan
        self._ranges = dict(plan.ranges)

    def heads(self, x: Any, layers: Sequence[Any], *arguments: Any) -> list[Any]:
        self._ranges |= {layer: self._plan.ranges.get(layers[0]) for layer in layers}
        return super().heads(x, layers, *arguments)

    def dense(self, x: Any, layer: Any, following: Any = None) -> Any:
        with tf.init_scope():  # outside the graph
            kernel, bias = (weight.numpy() for weight in (layer.kernel, layer.bias))
        divisors = self._plan.divisors.get(layer, np.float32(1))
        kernel, bias = kernel / divisors, bias / divisors
        inputs = self._ranges.get(layer)
        if inputs is None:
            return layer.activation(tf.matmul(x, kernel) + bias)
        if inputs.divisors is not None:
            kernel = kernel * inputs.divisors[:, np.newaxis]
            x = x if inputs.is_divided else x * (1 / inputs.divisors)
        limit = float(inputs.limit)
        x = tf.quantization.fake_quant_with_min_max_args(x, -limit, limit, 8, narrow_range=True)
        steps, scale = quantize_weights(kernel)
        weights = tf.cast(tf.constant(steps), tf.float32) * (scale / LARGEST_INPUT)
        return layer.activation(tf.matmul(x, weights) + bias)

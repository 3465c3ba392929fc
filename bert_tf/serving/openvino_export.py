"""Writes OpenVINO models that take raw strings and give the answers of a SavedModel.

`openvino_model` reads them.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from bert_tf.serving.openvino_model import INFORMATION
from bert_tf.serving.openvino_text import Pieces, TextGraph, packed
from bert_tf.serving.row_models import IS_BLANK, LABEL_OUTPUTS
from bert_tf.tasks.signatures import DEFAULT


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
        if name in LABEL_OUTPUTS:
            output = graph.looked_up(["", *answerer.labels], output)
        result = op.result(output)
        result.output(0).tensor.set_names({name})
        results.append(result)
    model = openvino.Model(results, parameters, "bert_tf")
    model.set_rt_info(json.dumps(list(answerer.labels)), [INFORMATION, "labels"])
    model.set_rt_info(precision, [INFORMATION, "precision"])
    model.set_rt_info(str(answerer.max_length), [INFORMATION, "max_length"])
    model.set_rt_info(_prompt(answerer), [INFORMATION, "prompt"])
    return model


def _prompt(answerer: Any) -> str:
    return getattr(answerer.task.kind, "prompt", "")


def _rows(graph: TextGraph, strings: Mapping[str, Sequence[Any]], answerer: Any) -> dict[str, Any]:
    """The inputs of `row_function`, and `truncated`, int32 [B], of unpacked strings."""
    op = graph.op
    if "choices" not in strings:
        segments = [graph.pieces(texts, _prompt(answerer)) for texts in strings.values()]
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
        IS_BLANK: op.equal(starts, ends).output(0),
        "truncated": op.reduce_max(truncated, np.int32(1)).output(0),
    }

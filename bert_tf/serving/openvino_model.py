"""OpenVINO models that take raw strings and give the answers of a SavedModel.

`openvino_export` writes them.
"""

import contextlib
import json
import queue
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.openvino_text import import_extension
from bert_tf.serving.token_rows import ROWS, TokenRows
from bert_tf.startup import forget_pages

SUFFIX = ".xml"
HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}  # of products that are not int8
INFORMATION = "bert_tf"  # of the file
_FACTS = ("labels", "precision")
_OF_ROWS = ("max_length", "prompt")  # for a tokenizer before the model
_MOST_BYTES = 1 << 26  # of the strings of a call, each as wide as the longest


class OpenVinoModel:
    """A model.xml that takes strings, on the CPU; `run` may be called from several threads.

    `labels` are in the order of the outputs. The model's `tokenizer`, if given, takes the place of
    its operations on strings, which are slower. InputError if it cannot be read.
    """

    def __init__(self, path: Path, tokenizer: Any = None) -> None:
        import_extension()
        openvino = import_module("openvino")
        core = openvino.Core()
        try:
            model = core.read_model(path)
            self.specs = {
                port.any_name: tf.TensorSpec([None] * len(port.partial_shape), tf.string)
                for port in model.inputs
                if port.element_type == openvino.Type.string
            }
            if len(self.specs) < len(model.inputs):
                raise InputError(
                    f"{path} takes token ids, not raw strings: export a SavedModel, or a model of "
                    "a kind that docs/other-runtimes.md lists"
                )
            names = _FACTS if tokenizer is None else _FACTS + _OF_ROWS
            facts = {name: model.get_rt_info([INFORMATION, name]).astype(str) for name in names}
            self.labels: list[str] = json.loads(facts["labels"])
            self.precision = facts["precision"]
            self._rows = None
            if tokenizer is not None:
                self._rows = TokenRows(tokenizer, int(facts["max_length"]), facts["prompt"])
                model = _from_rows(model)
            hint = {"INFERENCE_PRECISION_HINT": HINTS[self.precision]}
            self._compiled = core.compile_model(model, "CPU", hint)
        except InputError:
            raise
        except (RuntimeError, KeyError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[-1]
            raise InputError(
                f"{path} cannot be loaded ({reason}): export the model again, and keep its .bin "
                "beside it"
            ) from error
        self._inputs = [port.any_name for port in self._compiled.inputs]
        self._outputs = [port.any_name for port in self._compiled.outputs]
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._weights: Path | None = path.with_suffix(".bin")  # until they are arranged

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for arrays of bytes, by name; strings are bytes in arrays of objects."""
        batch = len(next(iter(inputs.values())))
        if not batch:  # which OpenVINO leaves out
            one = {name: np.full((1, *x.shape[1:]), b"") for name, x in inputs.items()}
            return {name: x[:0] for name, x in self.run(one).items()}
        if self._rows is not None:
            rows = self._rows(inputs)
            outputs = self._infer({name: rows[name] for name in self._inputs})
            return outputs | {"truncated": rows["truncated"]}
        widths = (x.size * max(map(len, x.flat), default=0) for x in inputs.values())
        if batch > 1 and max(widths) > _MOST_BYTES:
            parts = (slice(batch // 2), slice(batch // 2, None))
            halves = [self.run({name: x[part] for name, x in inputs.items()}) for part in parts]
            return {name: np.concatenate([x[name] for x in halves]) for name in self._outputs}
        # Of one width, as OpenVINO takes bytes; NULs at an end have no meaning.
        return self._infer({name: texts.astype("S") for name, texts in inputs.items()})

    def _infer(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        request = None
        with contextlib.suppress(queue.Empty):
            request = self._idle.get_nowait()
        request = request or self._compiled.create_infer_request()
        try:
            request.infer(arrays)
            tensors = map(request.get_output_tensor, range(len(self._outputs)))
            outputs = dict(zip(self._outputs, map(_values, tensors), strict=True))
        finally:
            self._idle.put(request)
        if self._weights is not None:  # the first request has arranged them for the processor
            forget_pages(self._weights)
            self._weights = None
        return outputs


def _from_rows(model: Any) -> Any:
    """The model from its rows of tokens on, without `truncated`."""
    openvino = import_module("openvino")
    made = {
        name: port for node in model.get_ops() for port in node.outputs() for name in port.names
    }
    parameters = []
    for name in ROWS & made.keys():
        port = made[name]
        parameter = import_extension().op.parameter([-1, -1], port.element_type, name)
        for reader in port.get_target_inputs():
            reader.replace_source_output(parameter.output(0))
        parameter.output(0).tensor.set_names({name})
        parameters.append(parameter)
    results = [x for x in model.get_results() if "truncated" not in x.output(0).names]
    return openvino.Model(results, parameters, "bert_tf")


def _values(tensor: Any) -> np.ndarray:
    if tensor.element_type.type_name != "string":
        return tensor.data.copy()
    if not tensor.size:  # OpenVINO divides by it
        return np.full(tuple(tensor.shape), b"", object)
    return tensor.bytes_data.astype(object)

"""The twin of an export in ONNX Runtime: rows of tokens in the graph, strings around it."""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np

from bert_tf.errors import InputError, pip_install
from bert_tf.serving.row_models import LABEL_OUTPUTS
from bert_tf.serving.token_rows import TokenRows
from bert_tf.tokenization.tokenizer import BertTokenizer

FACTS = "bert_tf"  # in the file: labels, max_length, prompt, precision


class OnnxModel:
    """A model.onnx beside an export, on the CPU; `run` may be called from several threads.

    InputError if it cannot be read.
    """

    def __init__(self, path: Path, tokenizer: BertTokenizer) -> None:
        try:
            onnxruntime = import_module("onnxruntime")
        except ImportError as error:
            raise InputError(f"{path} needs onnxruntime ({error}): {pip_install('onnx')}") from None
        try:
            providers = ["CPUExecutionProvider"]
            self._session = onnxruntime.InferenceSession(path, providers=providers)
            facts = json.loads(self._session.get_modelmeta().custom_metadata_map[FACTS])
        except Exception as error:  # of ONNX Runtime, which have no class in common
            reason = (str(error).splitlines() or [""])[0]
            raise InputError(
                f"{path} cannot be loaded ({reason}): export the model again with --twin"
            ) from error
        self.precision: str = facts["precision"]
        labels = [label.encode() for label in ("", *facts["labels"])]
        self._labels = np.array(labels, object)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._rows = TokenRows(tokenizer, facts["max_length"], facts["prompt"])

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for arrays of bytes of one example or more, by name, as a SavedModel's."""
        rows = self._rows(inputs)
        values = self._session.run(self._outputs, {name: rows[name] for name in self._inputs})
        outputs = dict(zip(self._outputs, values, strict=True))
        for name in LABEL_OUTPUTS:
            if name in outputs:
                outputs[name] = self._labels[outputs[name]]
        return outputs | {"truncated": rows["truncated"]}

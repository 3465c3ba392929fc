"""Which engine answers a request: TensorFlow, or OpenVINO where an export has both.

Which is faster depends on the processor: OpenVINO is ahead for single texts on most, TensorFlow for
batches, whose padding it does not compute. Both are measured once, and the times kept.
"""

import functools
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from bert_tf.errors import InputError
from bert_tf.processor import best_seconds, fastest, processor
from bert_tf.serving.openvino_model import OpenVinoModel
from bert_tf.serving.precisions import works_of
from bert_tf.serving.saved_model import LoadedModel
from bert_tf.serving.warmup_requests import example_texts
from bert_tf.tasks.signatures import DEFAULT

Engine = Literal["auto", "tensorflow", "openvino"]
TWIN = "openvino/model.xml"  # in a version's folder
_SINGLE, _BATCH = "short", "batch"  # of `works_of`
_SECONDS = 0.5  # of measuring each of them
_LOG = logging.getLogger(__name__)


class Engines:
    """A SavedModel, and its twin in OpenVINO if it has one; safe to run from several threads.

    `engine` holds the answers of the default signature to one of them; "auto" takes the faster one
    for single texts, and the faster one for batches. Times are kept if they were measured while it
    `is_quiet`. Raises what `LoadedModel` raises, and InputError for an engine that is not there.
    """

    def __init__(self, directory: Path, engine: Engine = "auto", *, is_quiet: bool = True) -> None:
        self._model = LoadedModel(directory)
        self.signatures = self._model.signatures
        self._twin: OpenVinoModel | None = None
        self._chosen = {_SINGLE: "tensorflow", _BATCH: "tensorflow"}
        try:
            self._open_twin(directory, engine, is_quiet)
        except BaseException:
            self._model.close()
            raise

    def _open_twin(self, directory: Path, engine: Engine, is_quiet: bool) -> None:
        path = directory / TWIN
        if engine == "tensorflow" or not path.is_file():
            if engine == "openvino":
                raise InputError(f"{path} is not there: export the model again with --twin")
            return
        try:
            self._twin = OpenVinoModel(path)
        except InputError as error:
            if engine == "openvino":
                raise
            _LOG.warning("TensorFlow alone answers: %s", error)
            return
        if engine == "openvino":
            self._chosen = dict.fromkeys(self._chosen, engine)
            return
        changed = path.stat().st_mtime_ns
        for work in self._chosen:
            self._chosen[work], _ = fastest(
                "engine_times.json",
                f"{work} {path.resolve()} {changed} {processor()}",
                ("tensorflow", "openvino"),
                functools.partial(self._times, work),
                usual="tensorflow",
                keep=is_quiet,
            )
        if "openvino" not in self._chosen.values():
            self._twin = None  # and its memory

    def _times(self, work: str) -> dict[str, float]:
        """Engine -> its best time, in seconds; the engines take turns."""
        assert self._twin is not None
        signature = self.signatures[DEFAULT]
        inputs = works_of(example_texts(signature.inputs, signature.outputs))[work]
        runs = {
            "tensorflow": functools.partial(self._model.run, DEFAULT, inputs),
            "openvino": functools.partial(self._twin.run, inputs),
        }
        return best_seconds(runs, _SECONDS)

    def engine_for(self, name: str, inputs: Mapping[str, np.ndarray]) -> str:
        """The engine that answers a request to a signature."""
        if name != DEFAULT or self._twin is None:
            return "tensorflow"
        rows = len(next(iter(inputs.values()), ()))
        return self._chosen[_BATCH if rows > 1 else _SINGLE]

    def run(
        self, name: str, inputs: Mapping[str, np.ndarray], deadline: float = math.inf
    ) -> dict[str, np.ndarray]:
        """The outputs of a signature by name, as of `LoadedModel.run`.

        OpenVINO does not stop at the deadline: its graph has no loop.
        """
        if self.engine_for(name, inputs) == "openvino":
            assert self._twin is not None
            return self._twin.run(inputs)
        return self._model.run(name, inputs, deadline)

    def close(self) -> None:
        self._twin = None
        self._model.close()

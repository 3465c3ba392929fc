"""Which engine answers a request, TensorFlow or a twin in OpenVINO or ONNX Runtime; in which type.

Which is fastest depends on the processor: the others are ahead for single texts on most, TensorFlow
for batches, whose padding it does not compute. All are measured once, and the times kept.
"""

import contextlib
import functools
import logging
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from bert_tf.errors import InputError
from bert_tf.processor import best_seconds, fastest, processor
from bert_tf.serving.export import ASSETS
from bert_tf.serving.openvino_model import OpenVinoModel
from bert_tf.serving.precisions import milliseconds, same_in_other_types, works_of
from bert_tf.serving.saved_model import LoadedModel
from bert_tf.serving.warmup_requests import example_texts
from bert_tf.startup import return_freed_memory
from bert_tf.tasks.signatures import DEFAULT

if TYPE_CHECKING:
    from bert_tf.serving.onnx_model import OnnxModel
    from bert_tf.tokenization.tokenizer import BertTokenizer

Engine = Literal["auto", "tensorflow", "openvino", "onnx"]
TWINS = {"openvino": "openvino/model.xml", "onnx": "onnx/model.onnx"}  # in a version's folder
_SINGLE, _BATCH = "short", "batch"  # of `works_of`
_SECONDS = 0.5  # of measuring each of them
_LOG = logging.getLogger(__name__)


class Engines:
    """A SavedModel and its twins, if it has any; safe to run from several threads.

    `engine` holds the answers of the default signature to one of them; "auto" takes the fastest one
    for single texts, and the fastest one for batches. Times are kept if they were measured while it
    `is_quiet`. Raises what `LoadedModel` raises, and InputError for an engine that is not there.
    """

    def __init__(self, directory: Path, engine: Engine = "auto", *, is_quiet: bool = True) -> None:
        self._model = LoadedModel(directory)
        self.signatures = self._model.signatures
        self._twins: dict[str, OpenVinoModel | OnnxModel] = {}
        self._chosen = {_SINGLE: "tensorflow", _BATCH: "tensorflow"}
        try:
            self._open_twins(directory, engine, is_quiet)
        except BaseException:
            self._model.close()
            raise

    def _open_twins(self, directory: Path, engine: Engine, is_quiet: bool) -> None:
        read_tokenizer = functools.cache(functools.partial(_read_tokenizer, directory))
        for name, file in TWINS.items():
            path = directory / file
            if engine == name and not path.is_file():
                raise InputError(f"{path} is not there: export the model again with --twin {name}")
            if engine not in ("auto", name) or not path.is_file():
                continue
            try:
                self._twins[name] = _opened(name, path, read_tokenizer())
            except InputError as error:
                if engine == name:
                    raise
                _LOG.warning("%s does not answer: %s", name, error)
        if not self._twins:
            return
        if engine == "auto":
            self._choose(directory, is_quiet)
        else:
            self._chosen = dict.fromkeys(self._chosen, engine)
        return_freed_memory()  # what reading the files took, too

    def _choose(self, directory: Path, is_quiet: bool) -> None:
        changed = max((directory / TWINS[name]).stat().st_mtime_ns for name in self._twins)
        for work in self._chosen:
            self._chosen[work], _ = fastest(
                "engine_times.json",
                f"{work} {directory.resolve()} {changed} {processor()}",
                ("tensorflow", *self._twins),
                functools.partial(self._times, work),
                usual="tensorflow",
                keep=is_quiet,
            )
        for name in self._twins.keys() - self._chosen.values():
            del self._twins[name]  # and its memory

    def _times(self, work: str) -> dict[str, float]:
        """Engine -> its best time, in seconds; the engines take turns."""
        signature = self.signatures[DEFAULT]
        inputs = works_of(example_texts(signature.inputs, signature.outputs))[work]
        runs = {name: functools.partial(x.run, inputs) for name, x in self._twins.items()}
        runs["tensorflow"] = functools.partial(self._model.run, DEFAULT, inputs)
        return best_seconds(runs, _SECONDS)

    def engine_for(self, name: str, inputs: Mapping[str, np.ndarray]) -> str:
        """The engine that answers a request to a signature."""
        rows = len(next(iter(inputs.values()), ()))
        if name != DEFAULT or not rows:
            return "tensorflow"
        return self._chosen[_BATCH if rows > 1 else _SINGLE]

    def run(
        self, name: str, inputs: Mapping[str, np.ndarray], deadline: float = math.inf
    ) -> dict[str, np.ndarray]:
        """The outputs of a signature by name, as of `LoadedModel.run`.

        A twin does not stop at the deadline: its graph has no loop.
        """
        if twin := self._twins.get(self.engine_for(name, inputs)):
            return twin.run(inputs)
        return self._model.run(name, inputs, deadline)

    def close(self) -> None:
        self._twins.clear()
        self._model.close()


def fastest_version(newest: Path, engine: Engine = "auto", *, is_quiet: bool = True) -> Path:
    """The version to serve: the newest one in its fastest type here, measured once.

    `engine` and `is_quiet` are as of `Engines`.
    """
    versions = same_in_other_types(newest)
    if len(versions) < 2 or newest not in versions.values():
        return newest
    changed = (newest / "saved_model.pb").stat().st_mtime_ns
    usual = next(dtype for dtype, path in versions.items() if path == newest)
    dtype, _ = fastest(
        "export_times.json",
        f"{engine} {newest.resolve()} {changed} {processor()}",
        tuple(versions),
        functools.partial(_times_of, versions, engine, is_quiet),
        usual=usual,
        keep=is_quiet,
    )
    return versions.get(dtype, newest)


def _times_of(versions: Mapping[str, Path], engine: Engine, is_quiet: bool) -> dict[str, float]:
    """Type -> milliseconds, a mean over works; types that cannot be loaded are absent."""
    times = {}
    for dtype, directory in versions.items():
        # No kernel, a damaged export: others may serve.
        with (
            contextlib.suppress(Exception),
            contextlib.closing(Engines(directory, engine, is_quiet=is_quiet)) as model,
        ):
            asked = model.signatures[DEFAULT]
            texts = example_texts(asked.inputs, asked.outputs)
            works = milliseconds(functools.partial(model.run, DEFAULT), texts)
            times[dtype] = statistics.geometric_mean(works.values())
    return times


def _read_tokenizer(directory: Path) -> "BertTokenizer":
    from bert_tf.tokenization.tokenizer import BertTokenizer  # here, as most exports have no twin

    return BertTokenizer.from_directory(directory / ASSETS)


def _opened(name: str, path: Path, tokenizer: "BertTokenizer") -> "OpenVinoModel | OnnxModel":
    from bert_tf.serving.onnx_model import OnnxModel

    return {"openvino": OpenVinoModel, "onnx": OnnxModel}[name](path, tokenizer)

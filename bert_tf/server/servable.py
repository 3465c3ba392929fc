"""One version of a model: loading, warm-up, requests, retirement."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from grpc import StatusCode
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo
from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf.errors import InputError
from bert_tf.files.model_files import VOCABULARY
from bert_tf.server.batching import (
    LARGE_ANSWER,
    Arrays,
    BatchQueue,
    Workers,
    in_thread_if,
    row_count,
)
from bert_tf.server.configuration import BatchingParameters, read_batching_parameters
from bert_tf.server.errors import ServingError, from_tensorflow, invalid
from bert_tf.server.monitoring import Metrics
from bert_tf.server.tensors import predict_inputs, sizes_of
from bert_tf.server.word_pieces import WordPieces
from bert_tf.serving.engines import Engine, Engines
from bert_tf.serving.export import ASSETS, BATCHING_FILE
from bert_tf.serving.precisions import load_error
from bert_tf.serving.warmup_requests import WARMUP_FILE
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tokenization.tokenizer import BertTokenizer

REQUESTS = Path(ASSETS, WARMUP_FILE)
_MOST = 1000  # of them

_LARGEST_ANSWER = 2**28  # bytes: about the attention of 28 texts of BERT-base
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class Servable:
    """One version of a model. It stays loaded while a request holds it.

    If the version's folder or `overrides` have batching parameters, requests are joined, and, as in
    TensorFlow Serving, refused if they have more rows than a batch may have.
    """

    name: str
    version: int
    directory: Path
    workers: Workers
    metrics: Metrics
    parameters: BatchingParameters
    overrides: Mapping[str, Any]
    refuses_truncated: bool = False  # requests with texts that the model cannot read whole
    engine: Engine = "auto"
    is_quiet: bool = True  # whether times measured now may be kept
    state: int = ModelVersionStatus.START
    error: ServingError | None = None  # why loading failed
    is_outdated: bool = False  # the files have changed: load them anew
    stamp: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)  # of loaded files
    seen: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)  # at the last look

    def __post_init__(self) -> None:
        observe = functools.partial(self.metrics.batch, self.name)
        self._queue = BatchQueue(self.workers, self.parameters, observe)
        self._model: Engines
        self._holders = 0

    @property
    def rows_waiting(self) -> int:
        return self._queue.rows

    @property
    def is_available(self) -> bool:
        return self.state == ModelVersionStatus.AVAILABLE

    def load(self) -> None:
        """Loads and warms up the model, in a thread of its own; the state tells the outcome."""
        self.state = ModelVersionStatus.LOADING
        path = str(self.directory)
        started = time.monotonic()
        try:
            self.stamp = stamp(self.directory)
            self._load()
        except Exception as error:
            self.error = _load_error(error, self.directory)
            self.metrics.loads.labels(path, self.error.code.name).inc()
            self.state = ModelVersionStatus.END
            _LOG.warning("%s cannot be loaded: %s", self.directory, self.error.message)
            return
        self.metrics.loads.labels(path, StatusCode.OK.name).inc()
        self.state = ModelVersionStatus.AVAILABLE
        _LOG.info("loaded %s in %.1f s", self.directory, time.monotonic() - started)

    def _load(self) -> None:
        parameters = self.parameters
        file = self.directory / BATCHING_FILE
        is_batched = bool(self.overrides) or file.exists()
        if file.exists():
            parameters = read_batching_parameters(file, parameters)
        self._queue.parameters = parameters = parameters.overridden(self.overrides)
        self.most_rows = parameters.max_batch_size if is_batched else sys.maxsize  # of a request
        self._word_pieces: WordPieces | None = None
        if (self.directory / ASSETS / VOCABULARY).is_file():
            with contextlib.suppress(InputError):  # of another's model
                tokenizer = BertTokenizer.from_directory(self.directory / ASSETS)
                self._word_pieces = WordPieces(tokenizer)
        self._model = Engines(self.directory, self.engine, is_quiet=self.is_quiet)
        signatures = self.signatures.items() if is_batched else ()
        self._joined = {name for name, x in signatures if x.inputs and can_join(x)}
        started = time.monotonic()
        requests = self.directory / REQUESTS
        try:
            if requests.exists():
                _warm_up(self._model, requests)
                spent = time.monotonic() - started
                self.metrics.warm_ups.labels(str(self.directory), "OK").observe(1e6 * spent)
        except BaseException:
            self._model.close()
            raise

    def has_changed(self) -> bool:
        """Whether the files differ from those loaded, and no longer change since the last look."""
        now = stamp(self.directory)
        before = self.seen
        self.seen = now
        # A version that serves stays as it is where its files are gone.
        return now == before != self.stamp and bool(now or self.error)

    def unload(self) -> None:
        """Frees the memory, once nobody holds it; in the thread that loads."""
        if self.state == ModelVersionStatus.END:
            return
        self.state = ModelVersionStatus.UNLOADING
        self._model.close()
        self.state = ModelVersionStatus.END
        _LOG.info("unloaded %s", self.directory)

    async def drained(self) -> None:
        # A batch outlives requests whose clients have gone.
        while self._holders or self._queue.running:
            await asyncio.sleep(0.01)

    @contextlib.contextmanager
    def held(self) -> Iterator["Servable"]:
        self._holders += 1
        try:
            yield self
        finally:
            self._holders -= 1

    @property
    def signatures(self) -> Mapping[str, SignatureDef]:
        return self._model.signatures

    def signature(self, name: str) -> SignatureDef:
        return _signature_of(self.signatures, name)

    def check_rows(self, count: int) -> None:
        """Refuses a request with more rows than a batch may have (INVALID_ARGUMENT)."""
        if count > self.most_rows:
            message = f"The request has {count} rows: send at most {self.most_rows}"
            raise invalid(message, "too_many_rows")

    async def count_pieces(self, texts: np.ndarray, deadline: float) -> np.ndarray:
        """The number of word pieces of each text, int64 [B]; 0 without a tokenizer."""
        if self._word_pieces is None:
            return np.zeros(len(texts), np.int64)
        inputs = {"text": texts}
        return (await self._queue.run(self._word_pieces.counts, inputs, None, deadline))["counts"]

    async def tokenize(self, texts: np.ndarray, deadline: float) -> list[dict[str, Any]]:
        """The `pieces` of each text [B], with id, text, and start and end in its code points.

        INVALID_ARGUMENT for a version without a tokenizer, too many texts or too many pieces.
        """
        word_pieces = self._word_pieces
        if word_pieces is None:
            raise invalid(f"{self.name} has no vocab.txt in {ASSETS}: export it with bert-tf")
        self.check_rows(len(texts))
        columns = await self._queue.run(word_pieces.pieces, {"text": texts}, None, deadline)
        return await in_thread_if(len(columns["id"]) > LARGE_ANSWER, word_pieces.rows, columns)

    async def predict(
        self,
        name: str,
        inputs: Arrays,
        deadline: float = math.inf,
        *,
        may_truncate: bool = False,
    ) -> dict[str, np.ndarray]:
        """Runs a signature until a moment of `time.monotonic()`, joined with other requests.

        Strings are bytes in arrays of objects. Raises ServingError: FAILED_PRECONDITION for an
        unknown signature, INVALID_ARGUMENT, UNAVAILABLE for a full queue, DEADLINE_EXCEEDED.
        """
        signature = self.signature(name)
        check_inputs(signature, inputs)
        self.check_rows(row_count(inputs))
        key = name if name in self._joined else None
        started = time.monotonic()
        outputs = await self._queue.run(functools.partial(self._run, name), inputs, key, deadline)
        microseconds = 1e6 * (time.monotonic() - started)
        self.metrics.runtime.labels(self.name, "Predict", "TF1").observe(microseconds)
        if self.refuses_truncated and not may_truncate:
            refuse_truncated(outputs)
        return without_padding(signature, outputs)

    def _run(self, name: str, inputs: Arrays, deadline: float) -> dict[str, np.ndarray]:
        started = time.monotonic()
        engine = self._model.engine_for(name, inputs)
        outputs = self._model.run(name, inputs, deadline)
        self.metrics.engines.labels(self.name, engine).inc()
        self.metrics.stages.labels("compute").observe(time.monotonic() - started)
        size = sum(array.nbytes for array in outputs.values())
        texts = (array.flat for array in outputs.values() if array.dtype == object)
        size += sum(map(len, itertools.chain.from_iterable(texts)))
        if size > _LARGEST_ANSWER:
            raise invalid(
                f"The answer has {size} bytes, more than {_LARGEST_ANSWER}: send fewer rows or "
                "shorter texts",
                "answer_bytes",
            )
        return outputs

    def status(self) -> ModelVersionStatus:
        error = {}
        if self.error:
            error = {"error_code": self.error.code.value[0], "error_message": self.error.message}
        return ModelVersionStatus(version=self.version, state=self.state, status=error)


def _warm_up(model: Engines, path: Path) -> None:
    """Runs the requests of a warm-up file, so that no client waits for a cold model."""
    number = 0
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            number += 1
            if number > _MOST:
                raise invalid(f"there are more than {_MOST}")
            _replay(model, PredictionLog.FromString(record))
    except (tf.errors.OpError, ServingError) as failure:
        error = failure if isinstance(failure, ServingError) else from_tensorflow(failure)
        message = f"warm-up request {number} of {path} failed: {error.message}"
        raise ServingError(error.code, message) from failure


def _replay(model: Engines, log: PredictionLog) -> None:
    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
        request = log.predict_log.request
        name = request.model_spec.signature_name or DEFAULT
        inputs = predict_inputs(request)
        check_inputs(_signature_of(model.signatures, name), inputs)
        model.run(name, inputs)
    elif kind not in (None, "classify_log", "regress_log", "multi_inference_log"):
        raise ServingError(StatusCode.UNIMPLEMENTED, f"it is a {kind}")


def _signature_of(signatures: Mapping[str, SignatureDef], name: str) -> SignatureDef:
    if name not in signatures:
        message = f"There is no signature {name}: the model has {', '.join(sorted(signatures))}"
        raise ServingError(StatusCode.FAILED_PRECONDITION, message)
    return signatures[name]


def stamp(directory: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of the files in a folder: a version still being copied changes them."""
    files = {}
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            status = path.stat()
            files[str(path)] = status.st_size, status.st_mtime_ns
    return files


def check_inputs(signature: SignatureDef, inputs: Arrays) -> None:
    """Refuses inputs of other names, types or shapes than the signature's, or unequal batches."""
    if set(inputs) != set(signature.inputs):
        names = (", ".join(sorted(x)) or "none" for x in (inputs, signature.inputs))
        raise invalid("the inputs are {}: the signature takes {}".format(*names))
    for name, array in inputs.items():
        info = signature.inputs[name]
        dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        if dtype.as_datatype_enum != info.dtype:
            expected = tf.as_dtype(info.dtype).name
            raise invalid(
                f'input "{name}" has the type {dtype.name}: the signature takes {expected}'
            )
        if not tf.TensorShape(info.tensor_shape).is_compatible_with(array.shape):
            shape = list(array.shape)
            sizes = sizes_of(info)
            raise invalid(f'input "{name}" has the shape {shape}: the signature takes {sizes}')
    if len({array.shape[:1] for array in inputs.values()}) > 1 and _joins_rows(signature):
        raise invalid("the inputs have different numbers of rows: send one value of each per row")


def _joins_rows(signature: SignatureDef) -> bool:
    """Whether every input and output has the batch first, so that requests can be joined."""

    def has_batch(info: TensorInfo) -> bool:
        return info.tensor_shape.unknown_rank or sizes_of(info)[:1] == [-1]

    return all(map(has_batch, (*signature.inputs.values(), *signature.outputs.values())))


def can_join(signature: SignatureDef) -> bool:
    """Whether requests that are joined get the answers that they get alone."""
    # Of outputs padded to the widest of a batch, only lists with a `<list>_count` can be cut again.
    prefixes = tuple(x.removesuffix("count") for x in signature.outputs if x.endswith("_count"))

    def is_cut(name: str, info: TensorInfo) -> bool:
        sizes = sizes_of(info)
        is_list = name.startswith(prefixes) and -1 not in sizes[2:]
        return not info.tensor_shape.unknown_rank and (-1 not in sizes[1:] or is_list)

    # Only requests of equal shapes are joined.
    is_fixed = any(-1 in sizes_of(info)[1:] for info in signature.inputs.values())
    return _joins_rows(signature) and (
        is_fixed or all(is_cut(name, info) for name, info in signature.outputs.items())
    )


def refuse_truncated(outputs: Arrays) -> None:
    """Refuses (INVALID_ARGUMENT) truncated rows; signatures without `truncated` cannot tell."""
    truncated = outputs.get("truncated")
    if truncated is not None and truncated.any():
        index = tuple(np.argwhere(truncated)[0])
        text = f", text {index[1]}," if truncated[0].size > 1 else ""  # of a list
        raise invalid(
            f"Row {index[0]}{text} is {int(truncated[index])} word pieces longer than the model "
            "reads: shorten or split it",
            "truncated",
        )


def without_padding(signature: SignatureDef, outputs: Arrays) -> dict[str, np.ndarray]:
    """Cuts lists `<list>_...`, padded for other requests, to the longest of `<list>_count`."""
    shorter = dict(outputs)
    for counted, counts in outputs.items():
        if not counted.endswith("_count") or counts.ndim != 1:
            continue
        width = int(counts.max(initial=0))
        prefix = counted.removesuffix("count")
        for name, array in outputs.items():
            dimensions = signature.outputs[name].tensor_shape.dim
            is_list = name.startswith(prefix) and array.ndim > 1 and len(dimensions) > 1
            # Nothing but padding is cut, whatever the names mean in another's model.
            if is_list and dimensions[1].size == -1 and not array[:, width:].any():
                shorter[name] = array[:, :width]
    return shorter


def _load_error(error: Exception, directory: Path) -> ServingError:
    if cure := load_error(directory, str(error)):
        return ServingError(StatusCode.UNIMPLEMENTED, cure)
    match error:
        case ServingError():
            return error
        case tf.errors.OpError():
            return from_tensorflow(error)
        case FileNotFoundError():
            return ServingError(StatusCode.NOT_FOUND, f"{directory} has no saved_model.pb")
        case OSError():
            return ServingError(StatusCode.UNAVAILABLE, str(error))
        case MemoryError():
            return ServingError(StatusCode.RESOURCE_EXHAUSTED, "Out of memory")
        case DecodeError() | ValueError() | InputError():
            return invalid(str(error).splitlines()[0])
    _LOG.error("internal error while loading %s", directory, exc_info=error)
    return ServingError(StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

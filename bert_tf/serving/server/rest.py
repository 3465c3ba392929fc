"""TensorFlow Serving's REST API, as an ASGI application for the paths within /v1/."""

import asyncio
import contextlib
import functools
import json
import logging
import re
import time
import zlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from grpc import StatusCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec

from bert_tf.serving.server import json_answers, json_requests
from bert_tf.serving.server.batching import row_count
from bert_tf.serving.server.conversion import LARGE_ANSWER, LARGE_BODY, in_thread_if
from bert_tf.serving.server.errors import ServingError, invalid
from bert_tf.serving.server.example_requests import classify, regress
from bert_tf.serving.server.models import Models

# From tensorflow_serving/model_servers/http_server.cc.
_CODES = {
    200: "OK", 400: "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE", 401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS ABORTED",
    429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 500: "UNKNOWN INTERNAL DATA_LOSS",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip
HTTP_STATUS = {
    StatusCode[code]: status for status, codes in _CODES.items() for code in codes.split()
}

# From tensorflow_serving/model_servers/http_rest_api_util.cc. Names are percent-decoded later.
_SERVABLE = "/v1/models/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?"
_INFERENCE = re.compile(f"{_SERVABLE}:(predict|classify|regress)", re.IGNORECASE)
_STATUS = re.compile(f"{_SERVABLE}(/metadata)?", re.IGNORECASE)
_NO_MODEL = re.compile("/v1/models(?:/versions/[0-9]+)?", re.IGNORECASE)

_LONGEST_NAME = 256  # in the access log
# A body that is too large is read so many times its limit before it is refused: most clients read
# no answer before they have sent everything.
_READ_TO_REFUSE = 4
# Bodies up to this size are always taken: large ones cannot keep them out.
_SMALL_BODY = 2**16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 32 * 2**20  # of one body, or 413
    # Of all bodies that are read or answered. Beyond it the largest that is still read gets 429.
    held_bytes: int = 256 * 2**20
    body_seconds: float = 30  # until a body has arrived, or 408
    seconds: float = 30  # until a request is answered, or 504


class _HttpError(ServingError):
    """An error whose HTTP status no code of TensorFlow Serving has."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(StatusCode.INVALID_ARGUMENT, message)
        self.status = status


@dataclass(eq=False)
class _Upload:
    size: int = 0  # bytes held
    chunks: list[bytes] = field(default_factory=list)
    timeout: asyncio.Timeout | None = None  # ends the reading
    is_refused: bool = False  # to make room for others


# The name of a model, and the version or label that a path names, without both for the newest.
_Target = tuple[str, int | None, str | None]


def _target(found: re.Match) -> _Target:
    version = found[2]
    if version and (len(version.lstrip("0")) > 19 or int(version[-19:]) >= 2**63):
        raise invalid(f"Failed to convert version: {version} to numeric.")
    label = found[3] and unquote(found[3])
    return unquote(found[1]), version and int(version[-19:]), label


def raw_path(scope: Scope) -> str:
    """The path of a request as it was sent, without the query."""
    return scope.get("raw_path", scope["path"].encode()).partition(b"?")[0].decode("latin-1")


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the shape that all answers within /v1/ have."""
    return _json(json.dumps({"error": message}, indent=4, ensure_ascii=False), status, headers)


def _json(body: str | bytes, status: int = 200, headers: Any = None) -> Response:
    ended = body + "\n" if isinstance(body, str) else body + b"\n"  # for terminals
    return Response(ended, status, headers, media_type="application/json")


class RestApi:
    """The ASGI application. Paths outside /v1/ are answered with a plain 404."""

    def __init__(self, models: Models, limits: Limits) -> None:
        self._models = models
        self._limits = limits
        self._held = 0
        self._uploads: set[_Upload] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not raw_path(scope).lower().startswith("/v1/"):
            return await PlainTextResponse("Not Found", 404)(scope, receive, send)
        try:
            response = _json(await self._answer(Request(scope, receive)))
        except _HttpError as error:
            response = error_response(error.status, error.message, {"Connection": "close"})
        except ServingError as error:
            response = error_response(HTTP_STATUS[error.code], error.message)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:  # it stops, and has waited long enough
            response = error_response(503, "The server is stopping", {"Connection": "close"})
        except Exception:  # whatever happens, the server goes on
            _log.exception("%s %s", scope["method"], raw_path(scope))
            response = error_response(500, "Internal error; the server's log has its cause")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> str | bytes:
        path, method = raw_path(request.scope), request.method
        pattern = {"POST": _INFERENCE, "GET": _STATUS}.get(method)
        if found := pattern and pattern.fullmatch(path):
            target, verb = _target(found), (found[4] or "").lower()
            access = request.scope.setdefault("state", {}).setdefault("access", {})
            access["model"] = target[0][:_LONGEST_NAME]
            if method == "POST":
                return await self._infer(request, target, verb, access)
            answer = self._metadata(target) if verb else _fields(self._models.status(*target))
            return json.dumps(answer, indent=1, ensure_ascii=False)
        if method == "GET" and _NO_MODEL.fullmatch(path):
            raise invalid("Missing model name in request.")
        raise invalid(f"Malformed request: {method} {path}")

    def _metadata(self, target: _Target) -> dict[str, Any]:
        with self._models.servable(*target) as servable:
            signatures = SignatureDefMap(signature_def=servable.signatures)
            spec = ModelSpec(name=servable.name, version={"value": servable.version})
        # The name stands twice: once for the map of metadata, once for the message's field.
        return {"model_spec": _fields(spec), "metadata": {"signature_def": _fields(signatures)}}

    async def _infer(
        self, request: Request, target: _Target, verb: str, access: dict[str, Any]
    ) -> bytes:
        start, code = time.monotonic(), StatusCode.OK
        try:
            async with self._body(request) as body:
                answering = self._answer_to(body, target, verb, start, access)
                return await _unless_disconnected(request, answering)
        except (ServingError, ClientDisconnect) as error:
            code = error.code if isinstance(error, ServingError) else StatusCode.CANCELLED
            raise
        except Exception:
            code = StatusCode.INTERNAL
            raise
        finally:
            seconds = time.monotonic() - start
            self._models.metrics.request(target[0], verb.capitalize(), "REST", code, seconds)

    async def _answer_to(
        self, body: bytes, target: _Target, verb: str, start: float, access: dict[str, Any]
    ) -> bytes:
        deadline = start + self._limits.seconds
        is_large = len(body) > LARGE_BODY
        document = await in_thread_if(is_large, json_requests.parse, body)
        name = json_requests.signature_name(document)
        with self._models.servable(*target) as servable:
            access["version"] = servable.version
            if (signature_name := name or "serving_default") in servable.signatures:
                access["signature"] = signature_name
            listed = document.get("instances" if verb == "predict" else "examples")
            # Refused before it costs the time of a conversion.
            servable.check_rows(len(listed) if isinstance(listed, list) else 0)
            if verb == "predict":
                infos = servable.signature(name).inputs
                if not infos:
                    raise invalid(f"Failed to get input map for signature: {name or 'DEFAULT'}")
                inputs = {key: tf.as_dtype(info.dtype) for key, info in infos.items()}
                tensors = await in_thread_if(is_large, json_requests.tensors, document, inputs)
                access["rows"] = row_count(tensors) if any(x.ndim for x in tensors.values()) else 1
                write = json_answers.outputs if "inputs" in document else json_answers.predictions
                del document  # several times the size of its body
                answer = await servable.predict(name, tensors, deadline)
                outputs = dict(sorted(answer.items()))
                is_large = sum(output.size for output in outputs.values()) > LARGE_ANSWER
                return await in_thread_if(is_large, write, outputs, deadline)
            examples = await in_thread_if(is_large, json_requests.examples, document)
            access["rows"] = len(document["examples"])
            self._models.metrics.examples(servable.name, access["rows"])
            run = functools.partial(servable.predict, deadline=deadline)
            if verb == "classify":
                classes = await classify(run, servable.signatures, name, examples)
                is_large = sum(len(row.classes) for row in classes.classifications) > LARGE_ANSWER
                return await in_thread_if(is_large, json_answers.classifications, classes)
            return json_answers.regressions(await regress(run, servable.signatures, name, examples))

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The request's body, unpacked, which counts as held until the block ends."""
        upload = _Upload()
        try:
            body = await self._read(request, upload)
            if "gzip" in request.headers.get("content-encoding", "").lower():
                body = await in_thread_if(True, _unpacked, body, self._limits.body_bytes)
                self._hold(upload, len(body) - upload.size)
            yield body
        finally:
            self._held -= upload.size

    async def _read(self, request: Request, upload: _Upload) -> bytes:
        limits = self._limits
        if int(request.headers.get("content-length", 0)) > limits.body_bytes * _READ_TO_REFUSE:
            raise _too_large(limits.body_bytes)
        size = 0
        try:
            async with asyncio.timeout(limits.body_seconds) as upload.timeout:
                self._uploads.add(upload)
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limits.body_bytes * _READ_TO_REFUSE:
                        break
                    if size <= limits.body_bytes:
                        upload.chunks.append(chunk)
                        self._hold(upload, len(chunk))
        except TimeoutError:
            if upload.is_refused:
                raise self._too_many() from None
            message = f"Request body did not arrive within {limits.body_seconds:g} s"
            raise _HttpError(408, message) from None
        finally:
            self._uploads.discard(upload)
        if size > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        body = b"".join(upload.chunks)
        upload.chunks.clear()
        return body

    def _hold(self, upload: _Upload, size: int) -> None:
        """Counts more bytes of a body. The largest of those that still arrive makes room for it."""
        upload.size += size
        self._held += size
        while self._held > self._limits.held_bytes and upload.size > _SMALL_BODY:
            largest = max(self._uploads, key=lambda each: each.size, default=upload)
            if largest.size <= upload.size:
                raise self._too_many()
            self._uploads.discard(largest)
            self._held -= largest.size
            largest.size = 0
            largest.chunks.clear()
            largest.is_refused = True
            if largest.timeout and not largest.timeout.expired():
                largest.timeout.reschedule(asyncio.get_running_loop().time())

    def _too_many(self) -> ServingError:
        message = f"More than {self._limits.held_bytes} bytes of request bodies are in work"
        return ServingError(StatusCode.RESOURCE_EXHAUSTED, message)


def _too_large(limit: int) -> _HttpError:
    return _HttpError(413, f"Request body is larger than {limit} bytes")


def _unpacked(body: bytes, limit: int) -> bytes:
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS + 16)
    try:
        content = unpacking.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid(f"Request body is not gzip, as its Content-Encoding says: {error}") from None
    if len(content) > limit:
        raise _too_large(limit)
    if not unpacking.eof or unpacking.unused_data:
        raise invalid("Request body is not one whole gzip stream")
    return content


async def _unless_disconnected(request: Request, answering: Coroutine[Any, Any, bytes]) -> bytes:
    """Waits for an answer; ends it and raises ClientDisconnect when the client has gone."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(request.receive())  # the body has been read: only this can come
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        gone.cancel()
        if not answer.done():
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)


def _fields(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

"""HTTP: bodies of requests, within limits of time and size; answers and errors as JSON."""

import asyncio
import contextlib
import json
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from grpc import StatusCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bert_tf.server.batching import LARGE_ANSWER, in_thread_if
from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.metrics import Metrics

# From tensorflow_serving/model_servers/http_server.cc.
_CODES = {
    200: "OK",
    400: "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "UNKNOWN INTERNAL DATA_LOSS",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
HTTP_STATUS = {StatusCode[x]: status for status, codes in _CODES.items() for x in codes.split()}
LONGEST_NAME = 256  # of a model or signature, in the access log
# Larger bodies are read up to so many times the limit, then refused: most clients read no answer
# before they have sent everything.
_READ_TO_REFUSE = 4
# Bodies up to this size are always accepted, whatever large ones hold.
_SMALL_BODY = 2**16
_log = logging.getLogger(__name__)


def raw_path(scope: Scope) -> str:
    """The path of a request as it was sent, without the query."""
    return scope.get("raw_path", scope["path"].encode()).partition(b"?")[0].decode("latin-1")


def json_response(body: str | bytes, status: int = 200, headers: Any = None) -> Response:
    ended = body + "\n" if isinstance(body, str) else body + b"\n"  # for terminals
    return Response(ended, status, headers, media_type="application/json")


def error_text(status: int, message: str) -> str:
    """An error in the shape that all of TensorFlow Serving's answers have."""
    return json.dumps({"error": message}, indent=4, ensure_ascii=False)


def log_fields(scope: Scope) -> dict[str, Any]:
    """Fields of a request in the access log and its span, which grow while it is answered."""
    return scope.setdefault("state", {}).setdefault("access", {})


@dataclass(eq=False)
class Api:
    """An ASGI application that answers with JSON, whatever happens."""

    answer: Callable[[Request], Awaitable[str | bytes]]
    metrics: Metrics
    write_error: Callable[[int, str], str] = error_text

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, code, response = time.monotonic(), StatusCode.OK, None
        with self.metrics.in_flight.labels("REST").track_inprogress():
            try:
                response = json_response(await self.answer(Request(scope, receive)))
            except ServingError as error:
                code, response = error.code, self._refusal(error)
            except ClientDisconnect:
                code = StatusCode.CANCELLED
            except asyncio.CancelledError:  # the server stops, and has waited long enough
                code, text = StatusCode.UNAVAILABLE, "The server is stopping"
                response = self._refusal(ServingError(code, text, "stopping", 503))
            except Exception:  # whatever happens, the server goes on
                path, number = raw_path(scope), log_fields(scope).get("request_id", "")
                _log.exception("%s %s, %s", scope["method"], path, number)
                text = self.write_error(500, "Internal error; the server's log has its cause")
                code, response = StatusCode.INTERNAL, json_response(text, 500)
            if api := scope.get("state", {}).get("api"):
                model, seconds = log_fields(scope).get("model", ""), time.monotonic() - start
                self.metrics.request(model, api, "REST", code, seconds)
            if response is not None:
                await response(scope, receive, send)

    def _refusal(self, error: ServingError) -> Response:
        self.metrics.refusals.labels(error.reason).inc()
        status = error.status or HTTP_STATUS[error.code]
        headers = {"Connection": "close"} if error.status else {}
        if error.allow:
            headers["Allow"] = error.allow
        return json_response(self.write_error(status, error.message), status, headers)


async def written(
    metrics: Metrics, values: int, write: Callable[..., bytes], *arguments: Any
) -> bytes:
    """The answer that `write` makes, in a thread if it has many values."""
    with metrics.stages.labels("write").time():
        return await in_thread_if(values > LARGE_ANSWER, write, *arguments)


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 32 * 2**20  # of one body, or 413
    # Of all bodies that are read or answered. Beyond it the largest that is still read gets 429.
    held_bytes: int = 256 * 2**20
    body_seconds: float = 30  # until a body has arrived, or 408
    seconds: float = 30  # until a request is answered, or 504


@dataclass(eq=False)
class _Upload:
    size: int = 0  # bytes held
    chunks: list[bytes] = field(default_factory=list)
    timeout: asyncio.Timeout | None = None  # ends the reading
    is_refused: bool = False  # to make room for others


@dataclass(eq=False)
class Bodies:
    """Reads the bodies of a server's requests, and has them answered in time."""

    limits: Limits
    metrics: Metrics
    _held: int = 0  # bytes
    _uploads: set[_Upload] = field(default_factory=set)  # that still arrive

    async def answered(
        self, request: Request, api: str, answer: Callable[[bytes, float], Awaitable[bytes]]
    ) -> bytes:
        """Calls `answer` with the body and the moment of `time.monotonic()` that ends its time.

        The request is counted under the name `api`. Raises ClientDisconnect.
        """
        request.state.api, start = api, time.monotonic()
        async with self._body(request) as body:
            self.metrics.stages.labels("read").observe(time.monotonic() - start)
            deadline = start + self.limits.seconds
            return await _in_time(request, answer(body, deadline), deadline)

    @contextlib.asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The request's body, unpacked, which counts as held until the block ends."""
        upload = _Upload()
        try:
            body = await self._read(request, upload)
            if _is_packed(request):
                body = await in_thread_if(True, _unpacked, body, self.limits.body_bytes)
                self._hold(upload, len(body) - upload.size)
            yield body
        finally:
            self._held -= upload.size

    async def _read(self, request: Request, upload: _Upload) -> bytes:
        limits, size = self.limits, 0
        most = limits.body_bytes * _READ_TO_REFUSE
        if int(request.headers.get("content-length", 0)) > most:
            raise _too_large(limits.body_bytes)
        try:
            async with asyncio.timeout(limits.body_seconds) as upload.timeout:
                self._uploads.add(upload)
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        break
                    if size <= limits.body_bytes:
                        upload.chunks.append(chunk)
                        self._hold(upload, len(chunk))
        except TimeoutError:
            if upload.is_refused:
                raise self._too_many() from None
            message = f"Request body did not arrive within {limits.body_seconds:g} s"
            raise invalid(message, "body_seconds", 408) from None
        finally:
            self._uploads.discard(upload)
        if size > limits.body_bytes:
            raise _too_large(limits.body_bytes)
        body = b"".join(upload.chunks)
        upload.chunks.clear()
        return body

    def _hold(self, upload: _Upload, size: int) -> None:
        """Counts more bytes of a body; refuses the largest upload under way if they do not fit."""
        upload.size += size
        self._held += size
        while self._held > self.limits.held_bytes and upload.size > _SMALL_BODY:
            largest = max(self._uploads, key=lambda other: other.size, default=upload)
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
        message = f"More than {self.limits.held_bytes} bytes of request bodies are in work"
        return ServingError(StatusCode.RESOURCE_EXHAUSTED, message, "held_bytes")


def _too_large(limit: int) -> ServingError:
    return invalid(f"Request body is larger than {limit} bytes", "body_bytes", 413)


def _is_packed(request: Request) -> bool:
    """Whether the body is in gzip; any other coding is refused with 415."""
    header = ",".join(request.headers.getlist("content-encoding")).lower()
    codings = [x.strip() for x in header.split(",") if x.strip() not in ("", "identity")]
    if codings and codings not in (["gzip"], ["x-gzip"]):
        message = f"Content-Encoding {', '.join(codings)} is not supported: send gzip, or none"
        raise invalid(message, "content_encoding", 415)
    return bool(codings)


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


async def _in_time(request: Request, answering: Awaitable[bytes], deadline: float) -> bytes:
    """Waits for an answer. Ends it at the deadline, or when the client has gone: ClientDisconnect.

    The deadline, a moment of `time.monotonic()`, holds for whatever a route does.
    """
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(request.receive())  # the body has been read: only this can come
    try:
        seconds = deadline - time.monotonic()
        await asyncio.wait({answer, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        if gone.done():
            raise ClientDisconnect
        raise ServingError(StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded")
    finally:
        gone.cancel()
        if not answer.done():
            answer.cancel()
            await asyncio.gather(answer, return_exceptions=True)

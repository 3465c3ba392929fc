"""Bodies of HTTP requests: limits of time and size, gzip, room for all of them together."""

import asyncio
import contextlib
import time
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from grpc import StatusCode
from starlette.requests import ClientDisconnect, Request

from bert_tf.serving.server.conversion import in_thread_if
from bert_tf.serving.server.errors import ServingError, invalid
from bert_tf.serving.server.metrics import Metrics
from bert_tf.serving.server.responses import HttpError, learned

# A body that is too large is read so many times its limit before it is refused: most clients read
# no answer before they have sent everything.
_READ_TO_REFUSE = 4
# Bodies up to this size are always taken: large ones cannot keep them out.
_SMALL_BODY = 2**16


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


class Bodies:
    """Reads the bodies of a server's requests, and has them answered in time."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics
        self._held = 0
        self._uploads: set[_Upload] = set()

    async def answered(
        self,
        request: Request,
        api: str,
        answer: Callable[[bytes, float], Coroutine[Any, Any, bytes]],
    ) -> bytes:
        """Calls `answer` with the body and the moment of `time.monotonic()` that ends its time.

        Raises ClientDisconnect when the client has gone. Counts the request for the model that is
        `learned`.
        """
        start, code = time.monotonic(), StatusCode.OK
        try:
            async with self._body(request) as body:
                self._metrics.stages.labels("read").observe(time.monotonic() - start)
                answering = answer(body, start + self._limits.seconds)
                return await _unless_disconnected(request, answering)
        except (ServingError, ClientDisconnect) as error:
            code = error.code if isinstance(error, ServingError) else StatusCode.CANCELLED
            raise
        except Exception:
            code = StatusCode.INTERNAL
            raise
        finally:
            model = learned(request.scope).get("model", "")
            self._metrics.request(model, api, "REST", code, time.monotonic() - start)

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
            raise HttpError(408, message, "body_seconds") from None
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
        return ServingError(StatusCode.RESOURCE_EXHAUSTED, message, "held_bytes")


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"Request body is larger than {limit} bytes", "body_bytes")


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

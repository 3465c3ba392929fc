"""HTTP responses: statuses of TensorFlow Serving's codes, and errors of every kind."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from grpc import StatusCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bert_tf.serving.server.errors import ServingError, invalid
from bert_tf.serving.server.metrics import Metrics

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
LONGEST_NAME = 256  # of a model or signature, in the access log
_log = logging.getLogger(__name__)


class HttpError(ServingError):
    """An error whose HTTP status no code of TensorFlow Serving has."""

    def __init__(self, status: int, message: str, reason: str) -> None:
        super().__init__(StatusCode.INVALID_ARGUMENT, message, reason)
        self.status = status


def raw_path(scope: Scope) -> str:
    """The path of a request as it was sent, without the query."""
    return scope.get("raw_path", scope["path"].encode()).partition(b"?")[0].decode("latin-1")


def json_response(body: str | bytes, status: int = 200, headers: Any = None) -> Response:
    ended = body + "\n" if isinstance(body, str) else body + b"\n"  # for terminals
    return Response(ended, status, headers, media_type="application/json")


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the shape that all of TensorFlow Serving's answers have."""
    body = json.dumps({"error": message}, indent=4, ensure_ascii=False)
    return json_response(body, status, headers)


def learned(scope: Scope) -> dict[str, Any]:
    """What is learned of a request: fields of the access log and of its span."""
    return scope.setdefault("state", {}).setdefault("access", {})


class Api:
    """An ASGI application that answers with JSON, whatever happens."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[str | bytes]],
        metrics: Metrics,
        write_error: Callable[..., Response] = error_response,
    ) -> None:
        self._answer = answer
        self._metrics = metrics
        self._write_error = write_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        close = {"Connection": "close"}
        with self._metrics.in_flight.labels("REST").track_inprogress():
            try:
                response = json_response(await self._answer(Request(scope, receive)))
            except ServingError as error:
                self._metrics.refusals.labels(error.reason).inc()
                if isinstance(error, HttpError):
                    response = self._write_error(error.status, error.message, close)
                else:
                    response = self._write_error(HTTP_STATUS[error.code], error.message)
            except ClientDisconnect:
                return
            except asyncio.CancelledError:  # it stops, and has waited long enough
                self._metrics.refusals.labels("stopping").inc()
                response = self._write_error(503, "The server is stopping", close)
            except Exception:  # whatever happens, the server goes on
                path, known = raw_path(scope), learned(scope)
                _log.exception("%s %s, %s", scope["method"], path, known.get("request_id", ""))
                response = self._write_error(500, "Internal error; the server's log has its cause")
            await response(scope, receive, send)


def malformed(request: Request) -> ServingError:
    return invalid(f"Malformed request: {request.method} {raw_path(request.scope)}")

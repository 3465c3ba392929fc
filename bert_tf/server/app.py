"""The server's HTTP application: TensorFlow Serving's REST API and OpenAI's, probes and guards.

`json_tensors` and `openai` convert bodies; the playground adds routes of its own.
"""

import asyncio
import contextlib
import functools
import json
import logging
import re
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
import tensorflow as tf
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from grpc import StatusCode
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec

from bert_tf.server import json_tensors, openai, rerank
from bert_tf.server.batching import LARGE_ANSWER, LARGE_BODY, in_thread_if
from bert_tf.server.credentials import Tokens
from bert_tf.server.errors import HTTP_STATUS, ServingError, invalid
from bert_tf.server.models import Models
from bert_tf.server.monitoring import Metrics

METRICS_PATH = "/monitoring/prometheus/metrics"
_SMALLEST_PACKED = 2**10  # bytes of an answer that is worth packing
# Browsers ask the user for a password, which is the token, if Basic is offered; Chromium reads only
# the first scheme of a header.
_CHALLENGES = ('Bearer realm="bert-tf"', 'Basic realm="bert-tf: the token is the password"')
# From tensorflow_serving/model_servers/http_rest_api_util.cc, which has no :tokenize. A name may
# hold a percent-encoded line break.
_PATH = re.compile(
    "/v1/models(?:/([^/:]+)(?:/versions/([0-9]{1,19})|/labels/([^/:]+))?"
    "(?::(predict|tokenize|classify|regress)|(/metadata))?)?",
    re.IGNORECASE,
)
# Paths with clients of their own: the name in metrics, and what answers a body.
_BODIES = {
    openai.PATH: ("Embeddings", openai.embeddings),
    rerank.PATH: ("Rerank", rerank.rerank),
}
# Larger bodies are read up to so many times the limit, then refused: most clients read no answer
# before they have sent everything.
_READ_TO_REFUSE = 4
# Bodies up to this size are always accepted, whatever large ones hold.
_SMALL_BODY = 2**16
_LOG = logging.getLogger(__name__)

# The name of a model, and the version or label that a path names, without both for the newest.
_Target = tuple[str, int | None, str | None]


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 32 * 2**20  # of one body, or 413
    # Of all bodies that are read or answered. Beyond it the largest that is still read gets 429.
    held_bytes: int = 256 * 2**20
    body_seconds: float = 30  # until a body has arrived, or 408
    seconds: float = 30  # until a request is answered, or 504


def make_app(
    models: Models,
    *,
    limits: Limits | None = None,
    routes: Sequence[BaseRoute] = (),
    hosts: Collection[str] = (),
    tokens: Tokens | None = None,
    cors_origins: Sequence[str] = (),
    metrics_path: str | None = METRICS_PATH,
) -> Starlette:
    """Makes the ASGI application of a server; the caller starts and closes the models."""
    middleware = [Middleware(_unless, answered=functools.partial(_probe, models))]
    if hosts:
        guard = functools.partial(_refuse_other_host, hosts, models.metrics)
        middleware.append(Middleware(_unless, answered=guard))
    if cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
        middleware.append(cors)
    if tokens is not None:
        guard = functools.partial(_refuse_without_token, tokens, models.metrics)
        middleware.append(Middleware(_unless, answered=guard))
    pack = Middleware(
        GZipMiddleware,
        minimum_size=_SMALLEST_PACKED,
        thread_minimum_size=LARGE_BODY,
        compresslevel=1,
    )
    middleware.append(pack)

    async def metrics(request: Request) -> Response:
        text = models.metrics.render(models.rows_waiting(), models.readiness())
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    file = resources.files(__package__) / "openapi.yaml"
    description = json.dumps(yaml.safe_load(file.read_text(encoding="utf-8")))

    async def openapi(request: Request) -> Response:
        return _json_response(description)

    metrics_routes = [Route(metrics_path, metrics)] if metrics_path else []
    app = Starlette(
        routes=[*routes, Route("/openapi.json", openapi), *metrics_routes], middleware=middleware
    )
    app.router.redirect_slashes = False
    app.router.default = RestApi(models, limits)
    return app


def _unless(app: ASGIApp, answered: Callable[[Scope], Response | None]) -> ASGIApp:
    """Answers with the response of `answered` if there is one, else with the application."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = answered(scope) if scope["type"] == "http" else None
        await (response or app)(scope, receive, send)

    return answer


def _probe(models: Models, scope: Scope) -> Response | None:
    """Answers an orchestrator's probes: from anyone, under any host's name."""
    path = scope["path"]
    if path not in ("/healthz", "/readyz"):
        return None
    if scope["method"] not in ("GET", "HEAD"):
        return PlainTextResponse("Method Not Allowed\n", 405, {"Allow": "GET, HEAD"})
    if path == "/healthz":
        return PlainTextResponse("ok\n")
    readiness = models.readiness()
    text = f"{sum(readiness.values())} of {len(readiness)} models are ready\n"
    return PlainTextResponse(text, 200 if models.is_ready else 503)


def _refuse_without_token(tokens: Tokens, metrics: Metrics, scope: Scope) -> Response | None:
    if tokens.admit(Headers(scope=scope).get("authorization", "")):
        return None
    error = ServingError(StatusCode.UNAUTHENTICATED, "Missing or wrong token", "token")
    refusal = _refusal(scope, metrics, error)
    for challenge in _CHALLENGES:
        refusal.headers.append("WWW-Authenticate", challenge)
    return refusal


def _refuse_other_host(hosts: Collection[str], metrics: Metrics, scope: Scope) -> Response | None:
    # A web page whose name resolves to this machine (DNS rebinding) would read answers as its own.
    header = Headers(scope=scope).get("host", "")
    try:
        host = urlsplit(f"//{header}").hostname
    except ValueError:
        host = header
    if not host or host in hosts:
        return None
    message = f"{host} is no name of this server: add it with --allowed_hosts"
    return _refusal(scope, metrics, ServingError(StatusCode.PERMISSION_DENIED, message, "host"))


def _raw_path(scope: Scope) -> str:
    """The path of a request as it was sent, without the query."""
    return scope["raw_path"].decode("latin-1")


def _json_response(body: str | bytes, status: int = 200, headers: Any = None) -> Response:
    ended = body + "\n" if isinstance(body, str) else body + b"\n"  # for terminals
    return Response(ended, status, headers, media_type="application/json")


def _error_response(scope: Scope, status: int, message: str, headers: Any = None) -> Response:
    """An error as the clients of a path show it: OpenAI's, or TensorFlow Serving's."""
    if scope["path"] in _BODIES:
        text = json.dumps(openai.error(status, message))
    else:
        text = json.dumps({"error": message}, indent=4, ensure_ascii=False)
    return _json_response(text, status, headers)


def _refusal(scope: Scope, metrics: Metrics, error: ServingError) -> Response:
    metrics.refusals.labels(error.reason).inc()
    headers = {"Connection": "close"} if error.status else {}
    if error.allow:
        headers["Allow"] = error.allow
    status = error.status or HTTP_STATUS[error.code]
    return _error_response(scope, status, error.message, headers)


class RestApi:
    """Answers with JSON, whatever happens; paths outside /v1/ with a plain 404."""

    def __init__(self, models: Models, limits: Limits | None = None) -> None:
        self._models = models
        self._metrics = models.metrics
        self.bodies = Bodies(limits or Limits(), models.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _raw_path(scope).lower().startswith("/v1/"):
            return await PlainTextResponse("Not Found", 404)(scope, receive, send)
        start = time.monotonic()
        code = StatusCode.OK
        response = None
        with self._metrics.in_flight.labels("REST").track_inprogress():
            try:
                response = _json_response(await self._answer(Request(scope, receive)))
            except ServingError as error:
                code = error.code
                response = _refusal(scope, self._metrics, error)
            except ClientDisconnect:
                code = StatusCode.CANCELLED
            except asyncio.CancelledError:  # the server stops, and has waited long enough
                code = StatusCode.UNAVAILABLE
                text = "The server is stopping"
                end = ServingError(code, text, "stopping", 503)
                response = _refusal(scope, self._metrics, end)
            except Exception:  # whatever happens, the server goes on
                _LOG.exception("%s %s", scope["method"], _raw_path(scope))
                code = StatusCode.INTERNAL
                text = "Internal error; the server's log has its cause"
                response = _error_response(scope, 500, text)
            state = scope.get("state", {})
            if api := state.get("api"):
                seconds = time.monotonic() - start
                self._metrics.request(state.get("model", ""), api, "REST", code, seconds)
            if response is not None:
                await response(scope, receive, send)

    async def _answer(self, request: Request) -> str | bytes:
        path = _raw_path(request.scope)
        method = request.method
        match = _PATH.fullmatch(path)
        body = _BODIES.get(request.scope["path"])
        if not match and not body:
            raise invalid(f"Malformed request: {method} {path}")
        name, version, label, verb, metadata = match.groups() if match else (None,) * 5
        allowed = ("POST",) if verb or body else ("GET", "HEAD")
        if method not in allowed:
            message = f"The method {method} is not allowed here: use {allowed[0]}"
            raise ServingError(StatusCode.UNIMPLEMENTED, message, "method", 405, allowed[0])
        if body:
            api, function = body
            call = functools.partial(function, self._models, request.state)
            return await self.bodies.answered(request, api, call)
        if not name:
            # TensorFlow Serving has no such list: its clients get an error, as there.
            if request.headers.get("user-agent", "").startswith("OpenAI/"):
                return openai.listed(self._models)
            raise invalid("The path does not name a model: use /v1/models/NAME")
        target = unquote(name), int(version) if version else None, unquote(label) if label else None
        request.state.model = target[0]
        if not verb:
            answer = self._metadata(target) if metadata else _json(self._models.status(*target))
            return json.dumps(answer, indent=1, ensure_ascii=False)
        verb = verb.lower()
        if verb in ("classify", "regress"):
            cure = f"ask :predict, or TensorFlow Serving, which has the export's :{verb}"
            raise ServingError(StatusCode.UNIMPLEMENTED, f"This server has no :{verb}: {cure}")
        convert = self._tokens if verb == "tokenize" else self._predictions
        call = functools.partial(convert, target)
        return await self.bodies.answered(request, verb.capitalize(), call)

    def _metadata(self, target: _Target) -> dict[str, Any]:
        with self._models.servable(*target) as servable:
            signatures = SignatureDefMap(signature_def=servable.signatures)
            spec = ModelSpec(name=servable.name, version={"value": servable.version})
        # The name stands twice: once for the map of metadata, once for the message's field.
        return {"model_spec": _json(spec), "metadata": {"signature_def": _json(signatures)}}

    async def _predictions(self, target: _Target, body: bytes, deadline: float) -> bytes:
        start = time.monotonic()
        is_large = len(body) > LARGE_BODY
        document = await in_thread_if(is_large, json_tensors.parse, body)
        name = json_tensors.signature_name(document)
        with self._models.servable(*target) as servable:
            infos = servable.signature(name).inputs
            rows = document.get("instances")
            # Refused before it costs the time of a conversion.
            servable.check_rows(len(rows) if isinstance(rows, list) else 0)
            if not infos:
                raise invalid(f"The signature {name} has no inputs: call it over gRPC")
            inputs = {key: tf.as_dtype(info.dtype) for key, info in infos.items()}
            tensors = await in_thread_if(is_large, json_tensors.tensors, document, inputs)
            write = json_tensors.outputs if "inputs" in document else json_tensors.predictions
            del document, rows  # several times the size of its body
            self._metrics.stages.labels("parse").observe(time.monotonic() - start)
            answer = await servable.predict(name, tensors, deadline)
            outputs = dict(sorted(answer.items()))
            is_large = sum(output.size for output in outputs.values()) > LARGE_ANSWER
            with self._metrics.stages.labels("write").time():
                return await in_thread_if(is_large, write, outputs, deadline)

    async def _tokens(self, target: _Target, body: bytes, deadline: float) -> bytes:
        is_large = len(body) > LARGE_BODY
        inputs = {"text": tf.string}
        document = await in_thread_if(is_large, json_tensors.parse, body)
        texts = (await in_thread_if(is_large, json_tensors.tensors, document, inputs))["text"]
        with self._models.servable(*target) as servable:
            if texts.ndim > 1:
                raise invalid("Send a text, or a list of texts")
            rows = await servable.tokenize(texts.reshape(-1), deadline)
        key = "outputs" if "inputs" in document else "predictions"
        is_large = sum(len(row["pieces"]) for row in rows) > LARGE_ANSWER
        answer = {key: rows if texts.ndim else rows[0]}
        with self._metrics.stages.labels("write").time():
            return await in_thread_if(is_large, orjson.dumps, answer)


def _json(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


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
        request.state.api = api
        start = time.monotonic()
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
        limits = self.limits
        size = 0
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

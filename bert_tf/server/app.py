"""The server's HTTP application: TensorFlow Serving's REST API, probes, metrics and guards.

`http` reads bodies and writes errors, `json_tensors` converts them; `openai` and the playground add
routes of their own.
"""

import functools
import json
import re
import time
from collections.abc import Callable, Collection, Sequence
from importlib import resources
from typing import Any
from urllib.parse import unquote, urlsplit

import orjson
import tensorflow as tf
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from grpc import StatusCode
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Counter
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec

from bert_tf.server import json_tensors, openai
from bert_tf.server.batching import LARGE_BODY, in_thread_if, row_count
from bert_tf.server.credentials import Tokens
from bert_tf.server.errors import ServingError, invalid, not_allowed
from bert_tf.server.http import (
    LONGEST_NAME,
    Api,
    Bodies,
    Limits,
    json_response,
    log_fields,
    raw_path,
    written,
)
from bert_tf.server.models import Models
from bert_tf.server.records import AccessLog, Tracer, identity, recorded

METRICS_PATH = "/monitoring/prometheus/metrics"
_LONGEST_PATH = 256  # in the access log
_SMALLEST_PACKED = 2**10  # bytes of an answer that is worth packing
# Browsers ask the user for a password, which is the token, if Basic is offered; Chromium reads only
# the first scheme of a header.
_CHALLENGES = ('Bearer realm="bert-tf"', 'Basic realm="bert-tf: the token is the password"')

# From tensorflow_serving/model_servers/http_rest_api_util.cc, which has no :tokenize. A name may
# hold a percent-encoded line break.
_SERVABLE = "/v1/models/([^/:]+)(?:/versions/([0-9]{1,19})|/labels/([^/:]+))?"
_INFERENCE = re.compile(f"{_SERVABLE}:(predict|tokenize|classify|regress)", re.IGNORECASE)
_STATUS = re.compile(f"{_SERVABLE}(/metadata)?", re.IGNORECASE)

# The name of a model, and the version or label that a path names, without both for the newest.
_Target = tuple[str, int | None, str | None]


def make_app(
    models: Models,
    *,
    limits: Limits | None = None,
    routes: Sequence[BaseRoute] = (),
    hosts: Collection[str] = (),
    tokens: Tokens | None = None,
    cors_origins: Sequence[str] = (),
    access_log: AccessLog | None = None,
    tracer: Tracer | None = None,
    metrics_path: str | None = METRICS_PATH,
) -> Starlette:
    """Makes the ASGI application of a server; the caller starts and closes the models."""
    refusals = models.metrics.refusals
    middleware = [
        Middleware(_unless, answered=functools.partial(_probe, models)),
        Middleware(_observed, log=access_log, tracer=tracer),
    ]
    if hosts:
        refusal = functools.partial(_refuse_other_host, hosts, refusals)
        middleware.append(Middleware(_unless, answered=refusal))
    if cors_origins:
        cors = functools.partial(
            CORSMiddleware,
            allow_origins=cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Request-ID", "Traceparent"],
            expose_headers=["X-Request-ID"],
        )
        middleware.append(Middleware(cors))
    if tokens is not None:
        refusal = functools.partial(_refuse_without_token, tokens, refusals)
        middleware.append(Middleware(_unless, answered=refusal))
    pack = functools.partial(
        GZipMiddleware,
        minimum_size=_SMALLEST_PACKED,
        thread_minimum_size=LARGE_BODY,
        compresslevel=1,
    )
    middleware.append(Middleware(pack))

    async def metrics(request: Request) -> Response:
        text = models.metrics.render(models.rows_waiting(), models.readiness())
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    file = resources.files(__package__) / "openapi.yaml"
    description = json.dumps(yaml.safe_load(file.read_text(encoding="utf-8")))

    async def openapi(request: Request) -> Response:
        return json_response(description)

    bodies = Bodies(limits or Limits(), models.metrics)
    rest = Route("/{path:path}", RestApi(models, bodies))
    rest.path_regex = re.compile("")  # `path` would match no line feed
    metrics_routes = [Route(metrics_path, metrics)] if metrics_path else []
    first = [*routes, Route("/openapi.json", openapi), *metrics_routes]
    return Starlette(routes=[*first, openai.route(models, bodies), rest], middleware=middleware)


def _unless(app: ASGIApp, answered: Callable[[Scope], Response | None]) -> ASGIApp:
    """Answers with the response of `answered` if there is one, else with the application."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = answered(scope) if scope["type"] == "http" else None
        await (response or app)(scope, receive, send)

    return answer


def _probe(models: Models, scope: Scope) -> Response | None:
    """Answers an orchestrator's probes: from anyone, under any host's name, and not logged."""
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


def _refuse_without_token(tokens: Tokens, refusals: Counter, scope: Scope) -> Response | None:
    if name := tokens.name_of(Headers(scope=scope).get("authorization", "")):
        log_fields(scope)["token"] = name
        return None
    refusals.labels("token").inc()
    refusal = openai.refusal(scope, 401, "Missing or wrong token")
    for challenge in _CHALLENGES:
        refusal.headers.append("WWW-Authenticate", challenge)
    return refusal


def _refuse_other_host(hosts: Collection[str], refusals: Counter, scope: Scope) -> Response | None:
    # A web page whose name resolves to this machine (DNS rebinding) would read answers as its own.
    header = Headers(scope=scope).get("host", "")
    try:
        host = urlsplit(f"//{header}").hostname
    except ValueError:
        host = header
    if not host or host in hosts:
        return None
    refusals.labels("host").inc()
    message = f"{host} is no name of this server: add it with --allowed_hosts"
    return openai.refusal(scope, 403, message)


def _observed(app: ASGIApp, log: AccessLog | None, tracer: Tracer | None) -> ASGIApp:
    """Gives requests an id, and writes their `log_fields` to the log and a span."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        headers, fields = Headers(scope=scope), log_fields(scope)
        fields |= {
            "client": (scope.get("client") or ("",))[0],
            "protocol": "REST",
            "method": scope["method"],
            "path": raw_path(scope)[:_LONGEST_PATH],
            **identity(headers),
            "status": 499,  # of a request without an answer
            "request_bytes": 0,
            "response_bytes": 0,
        }

        async def counting_receive() -> AsgiMessage:
            message = await receive()
            fields["request_bytes"] += len(message.get("body", b""))
            return message

        async def counting_send(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                fields["status"] = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = fields["request_id"]
            fields["response_bytes"] += len(message.get("body", b""))
            await send(message)

        with recorded(log, tracer, scope["method"], headers, fields):
            await app(scope, counting_receive, counting_send)

    return answer


class RestApi(Api):
    """TensorFlow Serving's REST API; paths outside /v1/ are answered with a plain 404."""

    def __init__(self, models: Models, bodies: Bodies) -> None:
        super().__init__(self._answer_path, models.metrics)
        self._models, self._bodies = models, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_inside = raw_path(scope).lower().startswith("/v1/")
        answer = super().__call__ if is_inside else PlainTextResponse("Not Found", 404)
        await answer(scope, receive, send)

    async def _answer_path(self, request: Request) -> str | bytes:
        path, method = raw_path(request.scope), request.method
        match, is_list = _INFERENCE.fullmatch(path), path.lower() == "/v1/models"
        is_inference = match is not None
        match = match or _STATUS.fullmatch(path)
        if not match and not is_list:
            raise invalid(f"Malformed request: {method} {path}")
        allowed = ("POST",) if is_inference else ("GET", "HEAD")
        if method not in allowed:
            raise not_allowed(method, allowed[0])
        if match is None:
            # TensorFlow Serving has no such list: its clients get its message.
            if request.headers.get("user-agent", "").startswith("OpenAI/"):
                return openai.listed(self._models)
            raise invalid("Missing model name in request.")
        version = int(match[2]) if match[2] else None
        target: _Target = unquote(match[1]), version, unquote(match[3]) if match[3] else None
        fields = log_fields(request.scope)
        fields["model"] = target[0][:LONGEST_NAME]
        if not is_inference:
            answer = self._metadata(target) if match[4] else _json(self._models.status(*target))
            return json.dumps(answer, indent=1, ensure_ascii=False)
        verb = match[4].lower()
        if verb in ("classify", "regress"):
            cure = f"ask :predict, or TensorFlow Serving, which has the export's :{verb}"
            raise ServingError(StatusCode.UNIMPLEMENTED, f"This server has no :{verb}: {cure}")
        convert = self._tokens if verb == "tokenize" else self._predictions
        call = functools.partial(convert, target=target, fields=fields)
        return await self._bodies.answered(request, verb.capitalize(), call)

    def _metadata(self, target: _Target) -> dict[str, Any]:
        with self._models.servable(*target) as servable:
            signatures = SignatureDefMap(signature_def=servable.signatures)
            spec = ModelSpec(name=servable.name, version={"value": servable.version})
        # The name stands twice: once for the map of metadata, once for the message's field.
        return {"model_spec": _json(spec), "metadata": {"signature_def": _json(signatures)}}

    async def _predictions(
        self, body: bytes, deadline: float, *, target: _Target, fields: dict[str, Any]
    ) -> bytes:
        start, is_large = time.monotonic(), len(body) > LARGE_BODY
        document = await in_thread_if(is_large, json_tensors.parse, body)
        name = json_tensors.signature_name(document)
        with self._models.servable(*target) as servable:
            fields["version"] = servable.version
            infos = servable.signature(name).inputs
            fields["signature"] = name or "serving_default"
            rows = document.get("instances")
            # Refused before it costs the time of a conversion.
            servable.check_rows(len(rows) if isinstance(rows, list) else 0)
            if not infos:
                raise invalid(f"The signature {name or 'serving_default'} has no inputs: ask gRPC")
            inputs = {key: tf.as_dtype(info.dtype) for key, info in infos.items()}
            tensors = await in_thread_if(is_large, json_tensors.tensors, document, inputs)
            fields["rows"] = row_count(tensors) if any(x.ndim for x in tensors.values()) else 1
            write = json_tensors.outputs if "inputs" in document else json_tensors.predictions
            del document, rows  # several times the size of its body
            self.metrics.stages.labels("parse").observe(time.monotonic() - start)
            answer = await servable.predict(name, tensors, deadline)
            outputs = dict(sorted(answer.items()))
            values = sum(output.size for output in outputs.values())
            return await written(self.metrics, values, write, outputs, deadline)

    async def _tokens(
        self, body: bytes, deadline: float, *, target: _Target, fields: dict[str, Any]
    ) -> bytes:
        is_large, inputs = len(body) > LARGE_BODY, {"text": tf.string}
        document = await in_thread_if(is_large, json_tensors.parse, body)
        texts = (await in_thread_if(is_large, json_tensors.tensors, document, inputs))["text"]
        with self._models.servable(*target) as servable:
            fields["version"] = servable.version
            if texts.ndim > 1:
                raise invalid("Send a text, or a list of texts")
            rows = await servable.tokenize(texts.reshape(-1), deadline)
        fields["rows"] = len(rows)
        key = "outputs" if "inputs" in document else "predictions"
        pieces = sum(len(row["pieces"]) for row in rows)
        answer = {key: rows if texts.ndim else rows[0]}
        return await written(self.metrics, pieces, orjson.dumps, answer)


def _json(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

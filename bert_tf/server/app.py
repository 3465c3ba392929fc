"""The server's HTTP application: REST API, probes, metrics and playground; what guards them."""

import functools
import json
import re
from collections.abc import Callable, Collection, Sequence
from importlib import resources
from urllib.parse import urlsplit

import yaml
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Counter
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_tf.server import openai
from bert_tf.server.conversion import LARGE_BODY
from bert_tf.server.credentials import Tokens
from bert_tf.server.http import Bodies, Limits, json_response, learned, raw_path
from bert_tf.server.models import Models
from bert_tf.server.records import AccessLog, Tracer, identity, recorded
from bert_tf.server.rest import RestApi

METRICS_PATH = "/monitoring/prometheus/metrics"
_LONGEST_PATH = 256  # in the access log
_LEAST_PACKED = 2**10  # bytes of an answer that is worth packing
# Browsers ask the user for a password, which is the token, if Basic is offered; Chromium reads only
# the first scheme of a header.
_CHALLENGES = ('Bearer realm="bert-tf"', 'Basic realm="bert-tf: the token is the password"')


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
    middleware = [
        Middleware(_unless, answered=functools.partial(_probe, models)),
        Middleware(_observed, log=access_log, tracer=tracer),
    ]
    if hosts:
        refused = functools.partial(_refuse_other_host, hosts, models.metrics.refusals)
        middleware.append(Middleware(_unless, answered=refused))
    if cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "X-Request-ID", "Traceparent"],
                expose_headers=["X-Request-ID"],
            )
        )
    if tokens is not None:
        refused = functools.partial(_refuse_without_token, tokens, models.metrics.refusals)
        middleware.append(Middleware(_unless, answered=refused))
    pack = functools.partial(
        GZipMiddleware, minimum_size=_LEAST_PACKED, thread_minimum_size=LARGE_BODY, compresslevel=1
    )
    middleware.append(Middleware(pack))

    async def metrics(request: Request) -> Response:
        text = models.metrics.render(models.rows_waiting(), models.readiness())
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    described = resources.files(__package__) / "openapi.yaml"
    description = json.dumps(yaml.safe_load(described.read_text(encoding="utf-8")))

    async def openapi(request: Request) -> Response:
        return json_response(description)

    bodies = Bodies(limits or Limits(), models.metrics)
    rest = Route("/{path:path}", RestApi(models, bodies))
    rest.path_regex = re.compile("")  # `path` would match no line feed
    every = [
        *routes,
        Route("/openapi.json", openapi),
        *([Route(metrics_path, metrics)] if metrics_path else []),
        openai.route(models, bodies),
        rest,
    ]
    return Starlette(routes=every, middleware=middleware)


def _unless(app: ASGIApp, answered: Callable[[Scope], Response | None]) -> ASGIApp:
    """Has the application answer the requests for which `answered` gives no response."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = answered(scope) if scope["type"] == "http" else None
        await (response or app)(scope, receive, send)

    return answer


def _probe(models: Models, scope: Scope) -> Response | None:
    """Answers an orchestrator's probes: of anyone, under any host's name, not in the log."""
    path = scope["path"]
    if path not in ("/healthz", "/readyz"):
        return None
    if scope["method"] not in ("GET", "HEAD"):
        return PlainTextResponse("Method Not Allowed\n", 405, {"Allow": "GET, HEAD"})
    if path == "/healthz":
        return PlainTextResponse("ok\n")
    found = models.readiness()
    ready = f"{sum(found.values())} of {len(found)} models are ready\n"
    return PlainTextResponse(ready, 200 if models.is_ready else 503)


def _refuse_without_token(tokens: Tokens, refusals: Counter, scope: Scope) -> Response | None:
    if name := tokens.name_of(Headers(scope=scope).get("authorization", "")):
        learned(scope)["token"] = name
        return None
    refusals.labels("token").inc()
    refusal = openai.refusal(scope, 401, "Missing or wrong token")
    for challenge in _CHALLENGES:
        refusal.headers.append("WWW-Authenticate", challenge)
    return refusal


def _refuse_other_host(hosts: Collection[str], refusals: Counter, scope: Scope) -> Response | None:
    # A web page whose name resolves to this machine (DNS rebinding) would read answers as its own.
    named = Headers(scope=scope).get("host", "")
    try:
        host = urlsplit(f"//{named}").hostname
    except ValueError:
        host = named
    if not host or host in hosts:
        return None
    refusals.labels("host").inc()
    message = f"{host} is no name of this server: add it with --allowed_hosts"
    return openai.refusal(scope, 403, message)


def _observed(app: ASGIApp, log: AccessLog | None, tracer: Tracer | None) -> ASGIApp:
    """Gives requests an id, and writes what the application has `learned` to the log and a span."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        headers, fields = Headers(scope=scope), learned(scope)
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

        async def counting_receive() -> Message:
            message = await receive()
            fields["request_bytes"] += len(message.get("body", b""))
            return message

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields["status"] = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = fields["request_id"]
            fields["response_bytes"] += len(message.get("body", b""))
            await send(message)

        with recorded(log, tracer, scope["method"], headers, fields):
            await app(scope, counting_receive, counting_send)

    return answer

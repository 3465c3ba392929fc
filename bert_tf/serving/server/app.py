"""The server's HTTP application: REST API, metrics and playground, and what guards them."""

import base64
import hmac
import time
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_tf.serving.server.access_log import AccessLog
from bert_tf.serving.server.metrics import CONTENT_TYPE
from bert_tf.serving.server.models import Models
from bert_tf.serving.server.rest import Limits, RestApi, error_response, raw_path

_LONGEST_PATH = 256  # in the access log
# Browsers ask the user for a password, which is the token, if Basic is offered; Chromium reads only
# the first scheme of a header.
_CHALLENGES = ('Bearer realm="bert-tf"', 'Basic realm="bert-tf: the token is the password"')


def make_app(
    models: Models,
    *,
    limits: Limits | None = None,
    routes: Sequence[BaseRoute] = (),
    hosts: Collection[str] = (),
    token: str | None = None,
    cors_origins: Sequence[str] = (),
    access_log: AccessLog | None = None,
) -> Starlette:
    """Makes the ASGI application of a server; the caller starts and closes the models."""
    middleware = []
    if access_log is not None:
        middleware.append(Middleware(_logged, log=access_log))
    if hosts:
        middleware.append(Middleware(_guarded, refuse=lambda x: _refuse_other_host(x, hosts)))
    if cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
            )
        )
    if token is not None:
        middleware.append(Middleware(_guarded, refuse=lambda x: _refuse_without_token(x, token)))

    async def metrics(request: Request) -> Response:
        return Response(models.metrics.render(), media_type=CONTENT_TYPE)

    ours = [
        Route("/monitoring/prometheus/metrics", metrics),
        Route("/{path:path}", RestApi(models, limits or Limits())),
    ]
    return Starlette(routes=[*routes, *ours], middleware=middleware)


def is_authorized(header: str, token: str) -> bool:
    """Whether an `Authorization` header shows the token, as Bearer or as password of Basic."""
    scheme, _, given = header.strip().partition(" ")
    shown = given.strip().encode()
    if scheme.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    # In a time that does not depend on how much of it is right.
    return hmac.compare_digest(shown, token.encode())


def _refuse_without_token(headers: Headers, token: str) -> Response | None:
    if is_authorized(headers.get("authorization", ""), token):
        return None
    refusal = error_response(401, "Missing or wrong token")
    for challenge in _CHALLENGES:
        refusal.headers.append("WWW-Authenticate", challenge)
    return refusal


def _refuse_other_host(headers: Headers, hosts: Collection[str]) -> Response | None:
    # A web page whose name resolves to this machine (DNS rebinding) would read answers as its own.
    named = headers.get("host", "")
    try:
        host = urlsplit(f"//{named}").hostname
    except ValueError:
        host = named
    if host and host not in hosts:
        return error_response(403, f"{host} is no name of this server: add it with --allowed_hosts")
    return None


def _guarded(app: ASGIApp, refuse: Callable[[Headers], Response | None]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        refusal = refuse(Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or app)(scope, receive, send)

    return answer


def _logged(app: ASGIApp, log: AccessLog) -> ASGIApp:
    """Logs requests, with what the application adds to `scope["state"]["access"]`."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        start = time.perf_counter()
        learned = scope.setdefault("state", {}).setdefault("access", {})
        # The status of a request without an answer.
        counted = {"status": 499, "request_bytes": 0, "response_bytes": 0}

        async def counting_receive() -> Message:
            message = await receive()
            counted["request_bytes"] += len(message.get("body", b""))
            return message

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                counted["status"] = message["status"]
            counted["response_bytes"] += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, counting_receive, counting_send)
        finally:
            log.write(
                {
                    "client": (scope.get("client") or ("",))[0],
                    "protocol": "REST",
                    "method": scope["method"],
                    "path": raw_path(scope)[:_LONGEST_PATH],
                    **learned,
                    **counted,
                    "milliseconds": round(1000 * (time.perf_counter() - start), 3),
                }
            )

    return answer

"""The server's HTTP application: REST API, metrics and playground."""

import functools
from collections.abc import Collection, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bert_tf.serving.server.access_log import AccessLog, LoggedApp
from bert_tf.serving.server.authorization import (
    GuardedApp,
    refuse_other_host,
    refuse_without_token,
)
from bert_tf.serving.server.metrics import CONTENT_TYPE
from bert_tf.serving.server.models import Models
from bert_tf.serving.server.rest import Limits, RestApi


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
    """Makes the ASGI application of a server.

    Args:
        models: models to serve; whoever makes them starts and closes them.
        limits: largest size and longest times of a request.
        routes: further pages.
        hosts: names and addresses that requests may give as host; none for any.
        token: token that every request must show; None for no check.
        cors_origins: origins of web pages that may read answers; "*" for any.
        access_log: where to log requests; None for nowhere.
    """
    middleware = []
    if access_log is not None:
        middleware.append(Middleware(LoggedApp, log=access_log))
    if hosts:
        refuse_host = functools.partial(refuse_other_host, hosts=hosts)
        middleware.append(Middleware(GuardedApp, refuse=refuse_host))
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
        refuse = functools.partial(refuse_without_token, token=token)
        middleware.append(Middleware(GuardedApp, refuse=refuse))

    async def metrics(request: Request) -> Response:
        return Response(models.metrics.render(), media_type=CONTENT_TYPE)

    ours = [
        Route("/monitoring/prometheus/metrics", metrics),
        Route("/{path:path}", RestApi(models, limits or Limits())),
    ]
    return Starlette(routes=[*routes, *ours], middleware=middleware)

"""Who may ask: the token, the same over REST and gRPC, and the host names of REST."""

import base64
import hmac
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from bert_tf.serving.server.rest import error_response

# Browsers ask the user for a password, which is the token, if Basic is offered; Chromium reads only
# the first scheme of a header.
_CHALLENGES = ('Bearer realm="bert-tf"', 'Basic realm="bert-tf: the token is the password"')


def is_authorized(header: str, token: str) -> bool:
    """Whether an `Authorization` header shows the token, as Bearer or as password of Basic.

    The time this takes does not depend on how much of the token is right.
    """
    scheme, _, given = header.strip().partition(" ")
    shown = given.strip().encode()
    if scheme.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(shown, token.encode())


def refuse_other_host(headers: Headers, hosts: Collection[str]) -> Response | None:
    """Refuses (403) a request that names another host; none, as no browser does, is let through.

    A web page can have its own name resolve to an address of this machine (DNS rebinding), and
    would then read answers as its own. Its requests still carry its name.
    """
    named = headers.get("host", "")
    try:
        host = urlsplit(f"//{named}").hostname
    except ValueError:
        host = named
    if host and host not in hosts:
        message = f"{host} is no name of this server: add it with --allowed_hosts"
        return error_response(403, message)
    return None


def refuse_without_token(headers: Headers, token: str) -> Response | None:
    """Refuses (401) a request that does not show the token."""
    if is_authorized(headers.get("authorization", ""), token):
        return None
    refusal = error_response(401, "Missing or wrong token")
    for challenge in _CHALLENGES:
        refusal.headers.append("WWW-Authenticate", challenge)
    return refusal


class GuardedApp:
    """An ASGI application of requests whose headers `refuse` has no answer to."""

    def __init__(self, app: ASGIApp, refuse: Callable[[Headers], Response | None]) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        refusal = self._refuse(Headers(scope=scope)) if is_http else None
        await (refusal or self._app)(scope, receive, send)

"""Who may ask: the token, the same over REST and gRPC, and the host names of REST."""

import base64
import hmac
from collections.abc import Collection
from urllib.parse import urlsplit

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


class NamedApp:
    """An ASGI application that answers 403 to requests for other hosts.

    A web page can have its own name resolve to an address of this machine (DNS rebinding), and
    would then read answers as its own. Its requests still carry its name.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, if it names one of the hosts or, as no browser does, none."""
        if scope["type"] == "http":
            named = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            try:
                host = urlsplit(f"//{named}").hostname
            except ValueError:
                host = named
            if host and host not in self._hosts:
                message = f"{host} is no name of this server: add it with --allowed_hosts"
                return await error_response(403, message)(scope, receive, send)
        await self._app(scope, receive, send)


class AuthorizedApp:
    """An ASGI application that answers 401 without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, if it shows the token."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if not is_authorized(headers.get(b"authorization", b"").decode("latin-1"), self._token):
                refusal = error_response(401, "Missing or wrong token")
                for challenge in _CHALLENGES:
                    refusal.headers.append("WWW-Authenticate", challenge)
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)

"""HTTP connections with limits, so that slow clients hold none for ever; `http` limits bodies."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30  # in which the head of a request must arrive
HEAD_BYTES = 2**16  # of a head and, after a body in chunks, its trailer
MOST_PIPELINED = 100  # requests that wait for the answers to those before them
# Idle connections stay open for so long at shutdown: requests under way get their answers.
LINGER_SECONDS = 0.5
# A client that closes its sending side is gone, or waits for its answer: it gets an answer that is
# ready within this time.
HALF_CLOSED_SECONDS = 1.0
UNREAD_SECONDS = 75  # in which a client must read some of its answer
UNREAD_BYTES = 2**28  # of all answers that clients have not read yet
_SMALL_ANSWER = 2**16


@dataclass
class Connections:
    """All connections of a server, whose number and unread answers are limited together."""

    most: int = 1000
    open: set["BoundedHttpProtocol"] = field(default_factory=set)
    # Without a request; the longest idle one first.
    idle: dict["BoundedHttpProtocol", None] = field(default_factory=dict)

    def make_room(self, newest: "BoundedHttpProtocol") -> bool:
        """Whether the newest may stay; closes the longest idle connection if that is needed."""
        self.open.add(newest)
        if len(self.open) <= self.most:
            return True
        if self.idle:
            next(iter(self.idle)).give_up()
            return True
        return False

    def limit_unread(self, newest: "BoundedHttpProtocol") -> None:
        """Closes connections with the largest unread answers until the limit holds."""
        unread = {x: size for x in self.open if (size := x.unread_bytes)}
        while sum(unread.values()) > UNREAD_BYTES:
            others = [other for other in unread if other is not newest]
            largest = max(others, key=lambda other: unread[other], default=newest)
            if unread.pop(largest) <= _SMALL_ANSWER or largest is newest:
                return
            largest.give_up()


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits for what comes before a request and after its answer.

    `Upgrade` is ignored, as RFC 9110 allows: the server speaks HTTP/1.1 alone.
    """

    def __init__(self, *arguments: Any, shared: Connections | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._shared = shared or Connections()
        self._head_bytes = 0
        self._unparsed_bytes = 0
        self._is_head = True  # otherwise headers are a trailer's
        self._refusal = ""  # of everything received from here on
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._shared.make_room(self):
            self._wait_for_head()
        else:
            self.give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.open.discard(self)
        self._shared.idle.pop(self, None)
        for timer in (self._head_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Frees the connection's descriptor and memory at once."""
        self._shared.open.discard(self)
        self._shared.idle.pop(self, None)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refusal or self.transport.is_closing():
            return  # nothing is read after an invalid request
        self._unset_keepalive_if_required()
        # A line of a head or of a chunk is parsed when it has ended: an endless one is refused.
        self._unparsed_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refusal = self._refusal or "Invalid HTTP request received."
        if self._unparsed_bytes > HEAD_BYTES:
            self._refusal = self._refusal or "Request head is too long."
        if self._refusal:
            self._end_with_refusal()
        elif self._is_idle and not self.transport.is_closing():
            self._wait_for_head()

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser takes what follows for another protocol's. It is the request's body, or
                # the next request: a new parser reads the head again, without its `Upgrade`.
                method = self.parser.get_method()
                version = self.parser.get_http_version()
                lines = [b"%s %s HTTP/%s" % (method, self.url, version.encode())]
                lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
                data = data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _end_with_refusal(self) -> None:
        """Answers with 400, once the requests before it are answered."""
        if self.pipeline and self.pipeline[0][0].more_body:  # its own, which cannot be read
            self.pipeline.popleft()
        elif self._is_idle or (not self.pipeline and self.cycle.more_body):
            self.send_400_response(self._refusal)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keeps the connection of a client that has sent all of its request, for a moment."""
        is_whole = not self._is_idle and (bool(self._refusal) or not self.cycle.more_body)
        if not is_whole or self.scheme == "https":
            return None
        self.cycle.keep_alive = False
        self.loop.call_later(HALF_CLOSED_SECONDS, self.transport.close)
        return True

    def _refuse(self, reason: str) -> NoReturn:
        self._refusal = reason
        raise ValueError(reason)  # which ends the parser

    def _count(self, size: int) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES:
            self._refuse("Request head is too long.")

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._is_head = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        if self._is_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._is_idle:  # the request has been answered
            self._count(len(body))
        super().on_body(body)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                self._refuse("This server is no proxy.")
            return  # `_parse` has it read again
        self._stop_head_timer()
        self._is_head = False
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._refuse("Request needs one Host header.")
        self._shared.idle.pop(self, None)
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            self._refuse("Too many requests wait for answers on this connection.")
        if self._is_stopping:  # this request is the connection's last one
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Callable) -> None:
        async def when_read(*channels: Any) -> None:
            await self.flow.drain()  # the answers before this one
            cycle.disconnected = self.transport.is_closing()
            if not cycle.disconnected:
                await app(*channels)

        super()._start_asgi_task(cycle, when_read if self.flow.write_paused else app)

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if unread := self.unread_bytes:
            self._shared.limit_unread(self)
            self._watch_reader(unread)
        if is_last and not self.transport.is_closing():
            self._shared.idle[self] = None
            if self._refusal:
                self.send_400_response(self._refusal)

    @property
    def unread_bytes(self) -> int:
        """Bytes that the system has not taken yet; under TLS, the transport below counts, too."""
        below = getattr(getattr(self.transport, "_ssl_protocol", None), "_transport", None)
        layers = filter(None, (self.transport, below))
        return sum(layer.get_write_buffer_size() for layer in layers)

    def _watch_reader(self, unread: int) -> None:
        """Closes the connection if its client reads nothing for a time."""
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._check_reader, unread)

    def _check_reader(self, before: int) -> None:
        if (unread := self.unread_bytes) >= before:
            self.give_up()
        elif unread:
            self._watch_reader(unread)

    def _wait_for_head(self) -> None:
        self._shared.idle.setdefault(self)
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def shutdown(self) -> None:
        """Closes the connection after the answer, or after a moment without a request."""
        self._is_stopping = True
        if self._is_idle:
            self.loop.call_later(LINGER_SECONDS, self._close_if_idle)
        else:
            super().shutdown()

    def _close_if_idle(self) -> None:
        if self._is_idle:
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, unless its client still reads."""
        if self.unread_bytes:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

"""HTTP connections that a slow client cannot hold for good; bodies have limits in `http`."""

import asyncio
from typing import NoReturn

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30  # in which the head of a request must arrive
HEAD_BYTES = 2**16  # of a head and, after a body in chunks, its trailer
MOST_PIPELINED = 100  # requests that wait for the answers to those before them
# Before idle connections are closed at the end: requests that are on their way get their answer.
LINGER_SECONDS = 0.5


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits for what comes before a request and after its answer."""

    _head_bytes = 0
    _unparsed_bytes = 0
    _refusal = ""
    _head_timer: asyncio.TimerHandle | None = None
    _unsent_bytes = 0
    _is_stopping = False

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # A line of a head or of a chunk is parsed when it has ended: an endless one is refused.
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("Request head is too long.")
        if self._is_idle and not self.transport.is_closing():
            self._start_head_timer()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self._refusal or msg)

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
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._is_idle:  # the request has been answered
            self._count(len(body))
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            self._refuse("Request needs one Host header.")
        super().on_headers_complete()
        if len(self.pipeline) > MOST_PIPELINED:
            self._refuse("Too many requests wait for answers on this connection.")
        if self._is_stopping:  # this request is the connection's last one
            self.cycle.keep_alive = False

    def _start_head_timer(self) -> None:
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
        """Closes an idle connection; waits for a client that still reads its answer."""
        unsent, before = self.transport.get_write_buffer_size(), self._unsent_bytes
        self._unsent_bytes = unsent
        if not unsent:
            self.transport.close()
        elif before and unsent >= before:
            self.transport.abort()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

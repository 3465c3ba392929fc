"""HTTP connections that a slow or hostile client cannot hold for good.

Once the head of a request has arrived, its body and answer have limits of their own (`rest`).
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 30  # in which the head of a request must arrive
HEAD_BYTES = 2**16  # of a head
# Before idle connections are closed at the end: requests that are on their way get their answer.
LINGER_SECONDS = 0.5


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with limits for what comes before a request and after its answer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0
        self._is_stopping = False

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Waits for the first head."""
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timer."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Closes the connection when a head, or what follows an answered request, is too long."""
        super().data_received(data)
        if self._is_idle and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._start_head_timer()
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("Request head is too long.")

    def on_headers_complete(self) -> None:
        """Starts the request; it is the connection's last one if the server stops."""
        self._stop_head_timer()
        self._head_bytes = 0
        super().on_headers_complete()
        if self._is_stopping:
            self.cycle.keep_alive = False

    def _start_head_timer(self) -> None:
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

"""A line of JSON for each request: who asked which model, how it ended, how long it took.

It never contains request texts or answers.
"""

import datetime
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_tf.serving.server.rest import raw_path

_LONGEST_PATH = 256
_MOST_LINES = 2**14  # that wait for a slow disk
_MOST_AT_ONCE = 2**10
_GATHER_SECONDS = 0.05  # lines of this time are written at once: waking the thread costs the most
_CLOSE_SECONDS = 5

_LOG = logging.getLogger(__name__)


class AccessLog:
    """Writes the lines, in a thread of its own.

    Lines that cannot be written are dropped: no answer fails or waits for them.

    Args:
        path: file to append to; "-" for standard output.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = sys.stdout.fileno() if str(path) == "-" else path
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._is_losing = False
        self._append("")
        self._thread = threading.Thread(target=self._write_lines, name="access log", daemon=True)
        self._thread.start()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Writes one line, with the time in front; all of it is printable ASCII."""
        if self._lines.qsize() >= _MOST_LINES:
            return self._lose("it is too slow")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **fields})
        self._lines.put(line.replace("\x7f", "\\u007f") + "\n")

    def close(self) -> None:
        """Writes the lines that wait, unless that takes too long."""
        self._closing.set()
        self._lines.put("")
        self._thread.join(_CLOSE_SECONDS)

    def _write_lines(self) -> None:
        is_open = True
        while is_open or not self._lines.empty():
            lines = [self._lines.get()]
            is_open = not self._closing.wait(_GATHER_SECONDS)
            while len(lines) < _MOST_AT_ONCE and not self._lines.empty():
                lines.append(self._lines.get())
            try:
                self._append("".join(lines))
            except OSError as error:
                self._lose(str(error))
            else:
                self._is_losing = False

    def _append(self, lines: str) -> None:
        # Opened each time: a log rotation may have moved the file.
        is_path = not isinstance(self._file, int)
        with open(self._file, "a", encoding="ascii", closefd=is_path) as file:
            file.write(lines)

    def _lose(self, reason: str) -> None:
        """Reports the first of several lines that are dropped."""
        if not self._is_losing:
            self._is_losing = True
            _LOG.error("the access log drops lines: %s", reason)


class LoggedApp:
    """An ASGI application whose requests are logged.

    `scope["state"]["access"]` is a dict to which the application adds what it learns: model,
    version, signature, rows.
    """

    def __init__(self, app: ASGIApp, log: AccessLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application, then logs the request; without an answer its status is 499."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start = time.perf_counter()
        learned = scope.setdefault("state", {}).setdefault("access", {})
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
            await self._app(scope, counting_receive, counting_send)
        finally:
            milliseconds = 1000 * (time.perf_counter() - start)
            self._log.write(
                {
                    "client": (scope.get("client") or ("",))[0],
                    "protocol": "REST",
                    "method": scope["method"],
                    "path": raw_path(scope)[:_LONGEST_PATH],
                    **learned,
                    **counted,
                    "milliseconds": round(milliseconds, 3),
                }
            )

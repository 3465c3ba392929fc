"""A line of JSON for each request: who asked which model, how it ended, how long it took.

It never contains request texts or answers.
"""

import datetime
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_tf.serving.server.rest import raw_path

_LONGEST_PATH = 256
_MOST_LINES = 2**14  # that wait for a slow disk
_CLOSE_SECONDS = 5

_LOG = logging.getLogger(__name__)


class AccessLog:
    """Writes the lines, in a thread of its own.

    A file that a log rotation has moved is opened again. Lines that cannot be written are dropped:
    no answer fails or waits for them.

    Args:
        path: file to append to; "-" for standard output.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = None if str(path) == "-" else Path(path)
        self._file = self._opened()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._is_losing = False
        self._thread = threading.Thread(target=self._write_lines, name="access log", daemon=True)
        self._thread.start()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Writes one line, with the time in front; all of it is printable ASCII."""
        if self._lines.qsize() >= _MOST_LINES:
            return self._lose("it is too slow")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **fields})
        self._lines.put(line.replace("\x7f", "\\u007f"))

    def close(self) -> None:
        """Writes the lines that wait, unless that takes too long."""
        self._lines.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _opened(self) -> FileIO:
        if self._path is None:
            return FileIO(sys.stdout.fileno(), "a", closefd=False)
        return FileIO(self._path, "a")

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                if self._has_moved():
                    self._file, moved = self._opened(), self._file
                    moved.close()
                self._file.write(f"{line}\n".encode())
            except OSError as error:
                self._lose(str(error))
            else:
                self._is_losing = False
        self._file.close()

    def _has_moved(self) -> bool:
        if self._path is None:
            return False
        try:
            return not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return True

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

"""A line of JSON for each request: who asked which model, how it ended, how long it took.

What users sent and what they were told is never in it.
"""

import datetime
import json
import logging
import sys
import time
from collections.abc import Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bert_tf.serving.server.rest import raw_path

_LONGEST_PATH = 256


class AccessLog:
    """Writes the lines; opens the file again when a log rotation has moved it.

    Args:
        path: file to append to; "-" for standard output.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._handler: logging.Handler = (
            logging.StreamHandler(sys.stdout)
            if str(path) == "-"
            else WatchedFileHandler(path, encoding="utf-8")
        )

    def write(self, fields: Mapping[str, Any]) -> None:
        """Writes one line, with the time in front."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **fields}, ensure_ascii=False)
        self._handler.handle(logging.LogRecord("access", 0, "", 0, line, None, None))

    def close(self) -> None:
        """Closes the file."""
        self._handler.close()


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

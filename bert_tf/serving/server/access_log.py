"""A line of JSON for each request, which never contains request texts or answers."""

import datetime
import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_LINES = 2**14  # that wait for a slow disk
_MOST_AT_ONCE = 2**10
_GATHER_SECONDS = 0.05  # lines of this time are written at once: waking the thread costs the most
_CLOSE_SECONDS = 5

_LOG = logging.getLogger(__name__)


class AccessLog:
    """Appends lines to a file, or to standard output ("-"), in a thread; drops them if it fails."""

    def __init__(self, path: str | Path) -> None:
        self._file = sys.stdout.fileno() if str(path) == "-" else path
        self._lines: deque[str] = deque()
        self._closing = threading.Event()
        self._is_losing = False
        self._append("")
        self._thread = threading.Thread(target=self._write_lines, name="access log", daemon=True)
        self._thread.start()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Writes one line, with the time in front; all of it is printable ASCII."""
        if len(self._lines) >= _MOST_LINES:
            return self._lose("it is too slow")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **fields})
        self._lines.append(line.replace("\x7f", "\\u007f") + "\n")

    def close(self) -> None:
        """Writes the lines that wait, unless that takes too long."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def _write_lines(self) -> None:
        while not self._closing.wait(_GATHER_SECONDS) or self._lines:
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), _MOST_AT_ONCE))]
            if lines:
                try:
                    self._append("".join(lines))
                    self._is_losing = False
                except OSError as error:
                    self._lose(str(error))

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

"""One writer at a time in a folder of an object store, which has no locks.

A writer keeps the object `.bert-tf-lease-N` there and rewrites it every few seconds. A later
process watches the object: if it stays the same, its writer has died. The successor creates number
N + 1, which a store lets only one process do. No clocks are compared.

`files.mirror` takes it for runs and exports, `pipelines.shards.journal` for shards; jobs with
`--units` share their folder without one, as each makes units of its own.
"""

import contextlib
import json
import logging
import os
import re
import threading
import time
import uuid
from pathlib import Path

from bert_tf.errors import InputError
from bert_tf.files.storage import Folder

_log = logging.getLogger(__name__)
_NAME = ".bert-tf-lease-"
_BEAT_SECONDS, _PATIENCE_SECONDS = 10.0, 60.0


class LostLeaseError(InputError):
    """Another process has become the writer."""


class Lease:
    """The right to write a folder; taken and released once."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._number = 0
        self._writer = {"id": uuid.uuid4().hex, "place": _place(), "process": os.getpid()}
        self._beats = 0
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    def take(self) -> None:
        """Raises InputError if another process writes there, after up to a minute of watching."""
        last = self._last()
        if not (last and self._is_alive(last)):
            # Of all who saw the same last writer one creates the next lease, however late it is.
            self._number, content = last + 1, self._content()
            self._folder.create(f"{_NAME}{self._number}", content)
            if self._folder.read(f"{_NAME}{self._number}") == content:
                if self._last() <= self._number:
                    self._remove(last)
                    self._thread.start()
                    return
                self._remove(self._number)  # it was released meanwhile, and a later one is held
        raise InputError(
            f"{self._folder}: another process is writing there: wait until it ends, or give "
            "another --output"
        )

    def check(self) -> None:
        """Raises LostLeaseError if another process took this one for dead."""
        if self._last() > self._number:
            raise LostLeaseError(
                "another process writes there, as this one had not been heard of for "
                f"{_PATIENCE_SECONDS:g} s"
            )

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        self._remove(self._number)

    __enter__ = take

    def __exit__(self, *error: object) -> None:
        self.release()

    def _last(self) -> int:
        """The number of the last writer, 0 if there is none."""
        matches = (re.fullmatch(rf"{re.escape(_NAME)}(\d+)", name) for name in self._folder.sizes())
        return max((int(match[1]) for match in matches if match), default=0)

    def _content(self) -> bytes:
        self._beats += 1
        return json.dumps({**self._writer, "beats": self._beats}).encode()

    def _is_alive(self, number: int) -> bool:
        name = f"{_NAME}{number}"
        content = self._folder.read(name)
        if not content:  # released
            return False
        with contextlib.suppress(ValueError, KeyError, TypeError):
            writer = json.loads(content)
            if writer["place"] == self._writer["place"] is not None:
                try:
                    os.kill(writer["process"], 0)
                except ProcessLookupError:
                    return False
        _log.warning(
            "%s: another process was writing there: watching for up to %g s whether it still runs",
            self._folder,
            _PATIENCE_SECONDS,
        )
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            time.sleep(_BEAT_SECONDS / 4)
            if (now := self._folder.read(name)) != content:
                return bool(now)
        return False

    def _beat(self) -> None:
        while not self._released.wait(_BEAT_SECONDS):
            with contextlib.suppress(InputError, OSError):  # of the store: later ones may arrive
                self.check()
                self._folder.write(f"{_NAME}{self._number}", self._content())

    def _remove(self, number: int) -> None:
        if number:
            with contextlib.suppress(InputError, OSError):
                try:
                    self._folder.remove([f"{_NAME}{number}"])
                except InputError:  # without the right to delete
                    self._folder.write(f"{_NAME}{number}", b"")


def _place() -> str | None:
    """An identifier of this start of this machine or container; None if unknown."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None

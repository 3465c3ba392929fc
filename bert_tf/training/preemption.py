"""Stopping a run by Ctrl-C, or by SIGTERM, which clusters send before they take a machine."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Preempted(Exception):
    """A run that SIGTERM ended after it saved a checkpoint; the same command resumes it."""

    exit_code = getattr(os, "EX_TEMPFAIL", 75)  # of the process: "try again" in sysexits.h


class _Interrupted(BaseException):
    """Leaves a block that a signal may cut short; no `except Exception` catches it."""


class StopSignals:
    """Notes SIGTERM and SIGINT inside the `with` block instead of ending the process.

    A second Ctrl-C interrupts at once. Does nothing outside the main thread, where Python takes no
    signals, and leaves SIGINT alone where it is ignored (a job in the background).
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._interrupts = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            # None: a handler set outside Python, which Python cannot restore.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
        if self._interrupts:
            raise _Interrupted

    def unless_stopped(self, function: Callable[[], Any]) -> Any:
        """The result of `function`, or None if a signal arrives before it ends."""
        with contextlib.suppress(_Interrupted):  # a second signal may come in `finally`, too
            try:
                self._interrupts = True
                return function() if self.received is None else None
            finally:
                self._interrupts = False
        return None

    def stop(self, step: int) -> None:
        """Raises what ends a saved run: KeyboardInterrupt after Ctrl-C, else Preempted."""
        message = f"stopped at step {step} and saved: run the same command again to resume"
        raise KeyboardInterrupt(message) if self.received is signal.SIGINT else Preempted(message)

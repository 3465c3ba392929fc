"""Stopping a run from outside: SIGTERM, as clusters send it before they take a machine, and Ctrl-C.

This file imports nothing heavy.
"""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Preempted(Exception):
    """SIGTERM has ended a run after it had saved a checkpoint: the same command goes on from it.

    Attributes:
        exit_code: what a process ends with on it, 75: EX_TEMPFAIL of sysexits.h, «try again».
    """

    exit_code = getattr(os, "EX_TEMPFAIL", 75)


class StopSignals:
    """Notes SIGTERM and SIGINT while it is entered, instead of ending the process.

    A second Ctrl-C interrupts at once. Outside the main thread, where Python takes no signals, it
    does nothing; nor does it with SIGINT where that is ignored (a job in the background).

    Attributes:
        received: the signal that came, None before that.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not set from Python, and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)

    def stop(self, step: int) -> None:
        """Ends the run, whose checkpoint has been saved, as the signal asks.

        Raises:
            Preempted: after SIGTERM.
            KeyboardInterrupt: after Ctrl-C.
        """
        message = f"stopped at step {step} and saved: the same command goes on from there"
        raise KeyboardInterrupt(message) if self.received is signal.SIGINT else Preempted(message)

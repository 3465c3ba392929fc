"""Processes that are the workers of one run, which talk as machines on a network would.

with workers(["pretrain", ...], ["pretrain", ...]) as processes:   # `bert-tf` each
    ...
with code_workers(code, [...], [...], late=0.2) as processes:      # a slow network
    ...
"""

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from preloaded import Process, start_code, start_command

Workers = AbstractContextManager[list[Process]]


def workers(*arguments: Sequence[object], late: float = 0) -> Workers:
    """Starts `bert-tf` with each of these arguments, as a worker; killed with the `with` block.

    The answers of the second worker come to the first `late` seconds late, and not at all if it
    has ended by then.
    """
    starts = [partial(start_command, [*own, "--strategy", "multi_worker"]) for own in arguments]
    return _started(starts, late)


def code_workers(code: str, *arguments: Sequence[object], late: float = 0) -> Workers:
    """Starts `python -c code` as `workers` starts commands."""
    return _started([partial(start_code, code, own) for own in arguments], late)


@contextmanager
def _started(starts: Sequence[Callable[..., Process]], late: float) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        addresses = [f"localhost:{port}" for port in free_ports(len(starts))]
        processes = []
        for index, start in enumerate(starts):
            seen = addresses
            if late and index == 0:
                port = stack.enter_context(_slow_link(int(addresses[1].split(":")[1]), late))
                seen = [addresses[0], f"localhost:{port}"]
            config = {"cluster": {"worker": seen}, "task": {"type": "worker", "index": index}}
            process = start(env={**os.environ, "TF_CONFIG": json.dumps(config)})
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _slow_link(port: int, late: float) -> Iterator[int]:
    """A port that leads to another one, whose answers come late."""

    def accept(listener: socket.socket) -> None:
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection(("localhost", port))
            except OSError:  # the worker does not listen yet, and the other one tries again
                near.close()
                continue
            for ends in ((near, far, 0), (far, near, late)):
                _in_background(_forward, *ends)

    with socket.create_server(("localhost", 0)) as listener:
        _in_background(accept, listener)
        yield listener.getsockname()[1]


def _forward(source: socket.socket, sink: socket.socket, late: float) -> None:
    """Sends on what comes, until an end closes."""
    chunks: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def send() -> None:
        while True:
            due, data = chunks.get()
            time.sleep(max(0, due - time.monotonic()))
            sink.sendall(data)

    with suppress(OSError):
        _in_background(send)
        while data := source.recv(1 << 16):
            chunks.put((time.monotonic() + late, data))
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _in_background(function: Callable[..., Any], *arguments: Any) -> None:
    """Runs it in a thread, to its end or until a socket is closed."""

    def run() -> None:
        with suppress(OSError):
            function(*arguments)

    threading.Thread(target=run, daemon=True).start()

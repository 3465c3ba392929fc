"""`bert-tf serve` in a process of its own, on free ports."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from preloaded import Process, start_command


@contextmanager
def running(*arguments: object, setup: str = "") -> Iterator[tuple[int, Process]]:
    """A server whose models are loaded: its REST port and the process."""
    process = start_command(["serve", *arguments, "--rest_port=0", "--grpc_port=0"], setup=setup)
    try:
        deadline = time.monotonic() + 120
        text = ""
        while not (line := re.search(r"Try: curl .*https?://[^/]*:(\d+)/", text)):
            assert process.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.02)
            text += process.stderr.read()
        yield int(line[1]), process
    finally:
        process.kill()
        process.wait()


def grpc_port(process: Process) -> int:
    process.stderr.seek(0)
    return int(re.search(r"gRPC: \S+:(\d+)", process.stderr.read())[1])

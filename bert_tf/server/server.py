"""The server as a process: REST and gRPC in one event loop, until a signal stops it."""

import asyncio
import contextlib
import errno
import functools
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from bert_tf.errors import InputError
from bert_tf.server.connections import BoundedHttpProtocol, Connections
from bert_tf.server.credentials import Certificate
from bert_tf.server.grpc_service import GrpcServer
from bert_tf.server.models import Models
from bert_tf.startup import return_freed_memory

_KEEP_ALIVE_SECONDS = 75
_TRIM_SECONDS = 10
_COMPLAINT_SECONDS = 60.0
_MOST_CONNECTIONS = 2**13
_LOG = logging.getLogger(__name__)


def bind(host: str, port: int, option: str = "--rest_port") -> socket.socket:
    """Takes an address, with port 0 any free one; raises InputError, which names the `option`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            cure = f"give another {option}, or 0 for any free port"
            message = f"port {port} of {host} is in use: {cure}"
        elif error.errno in (errno.EACCES, errno.EPERM):
            message = f"port {port} needs more rights: give {option} 1024 or more"
        else:
            message = f"{host} is no address of this machine ({error}): give --host"
        raise InputError(message) from error


def take_descriptors() -> int:
    """Raises this process's limit of open files; returns how many of them REST may have.

    gRPC may have as many again; what remains is for models and logs.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses its own "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if now < 0 else min(_MOST_CONNECTIONS, now * 3 // 8)


class _Complaints:
    """Handles errors of an event loop; asyncio reports each accept without a free descriptor."""

    _last = -_COMPLAINT_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._last + _COMPLAINT_SECONDS:
            self._last = time.monotonic()
            _LOG.error("connections wait for a free file descriptor: raise `ulimit -n`")


class _Server(uvicorn.Server):
    capture_signals = contextlib.nullcontext  # type: ignore[assignment]  # `serve` handles them


async def _repeat(seconds: float, call: Callable[[], object]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(call)


@contextlib.contextmanager
def _signalled(loop: asyncio.AbstractEventLoop) -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets; a second signal ends the process at once."""
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _rest_server(app: ASGIApp, tls: Certificate | None, grace: float, connections: int) -> _Server:
    config = uvicorn.Config(
        app,
        http=functools.partial(BoundedHttpProtocol, shared=Connections(connections)),  # type: ignore[arg-type]
        backlog=min(connections, 2**11),  # accepted at once, before there is room
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(grace),
        ssl_context_factory=(lambda config, default: tls.context) if tls else None,
    )
    return _Server(config)


async def serve(
    models: Models,
    app: ASGIApp,
    rest_socket: socket.socket,
    start_grpc: Callable[[], Awaitable[tuple[GrpcServer, int]]],
    *,
    ready: Callable[[], object] = lambda: None,
    stopping: Callable[[], object] = lambda: None,
    tls: Certificate | None = None,
    grace: float = 60,
    connections: int = 1000,
) -> None:
    """Serves until SIGTERM or SIGINT, then answers what has been accepted and returns.

    While models load, probes are answered and requests refused. A second signal ends the process at
    once. `ready` is called when requests are answered; `stopping` at the first signal, after which
    requests get `grace` seconds. The caller ends threads that still compute.
    """
    rest_server = _rest_server(app, tls, grace, connections)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_Complaints())
    # For large bodies and answers; converting them holds Python's lock: more threads gain nothing.
    loop.set_default_executor(ThreadPoolExecutor(2, "convert"))
    with _signalled(loop) as stop:
        stopped = asyncio.create_task(stop.wait())
        trimming: asyncio.Task[None] | None = None
        try:
            grpc_server, _ = await start_grpc()
            rest = asyncio.create_task(rest_server.serve([rest_socket]))
            try:
                loading = asyncio.create_task(models.start())
                ends = {stopped, rest}
                await asyncio.wait({loading, *ends}, return_when=asyncio.FIRST_COMPLETED)
                if loading.done():
                    await loading
                    ready()
                    # glibc keeps freed memory for the thread that used it.
                    trimming = asyncio.create_task(_repeat(_TRIM_SECONDS, return_freed_memory))
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                stopping()
                loading.cancel()
            finally:
                rest_server.should_exit = True
                await asyncio.gather(rest, grpc_server.stop(grace))
        finally:
            stopped.cancel()
            if trimming:
                trimming.cancel()
            await models.close()

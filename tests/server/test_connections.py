import asyncio
import contextlib
import re

import uvicorn
from cases import for_each
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from bert_tf.server import connections
from bert_tf.server.connections import HEAD_BYTES, MOST_PIPELINED, BoundedHttpProtocol, Connections

START = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


STATUSES = re.compile(rb"HTTP/1.1 (\d+|reset)")


def exchange(
    *parts: bytes, most: int = 1, is_half_closed: bool = False, seconds: float = 0.0
) -> bytes:
    """What a server answers to these bytes, each part sent a moment after the last.

    Its application answers after so many seconds, with what it was asked. A connection that is
    closed while data arrives loses what was written: "reset".
    """

    async def app(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body")
        await asyncio.sleep(seconds)
        names = b" ".join(name for name, _ in scope["headers"])
        answer = b"<%s %s %s [%s]>" % (scope["method"].encode(), scope["raw_path"], body, names)
        await PlainTextResponse(answer)(scope, receive, send)

    async def ask() -> bytes:
        async with listening(app) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.005)
            if is_half_closed:
                writer.write_eof()
            received = b""
            try:
                async with asyncio.timeout(10):
                    while len(STATUSES.findall(received)) < most and not reader.at_eof():
                        received += await reader.read(2**20)
            except (ConnectionError, TimeoutError):
                received = received or b"HTTP/1.1 reset"
            writer.close()
        return received

    return asyncio.run(ask())


@contextlib.asynccontextmanager
async def listening(app, most: int = 1000):
    """The port of a server of an application, and what its connections share."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(app, log_config=None, lifespan="off")
    shared = Connections(most)
    server = await loop.create_server(
        lambda: BoundedHttpProtocol(config, ServerState(), {}, shared=shared), "127.0.0.1", 0
    )
    async with server:
        yield server.sockets[0].getsockname()[1], shared


def answered(*parts: bytes, most: int = 1) -> list[bytes]:
    return STATUSES.findall(exchange(*parts, most=most))


def is_refused(*parts: bytes) -> bool:
    return answered(*parts, most=2)[-1:] in ([b"400"], [b"reset"])


def lines(size: int) -> bytes:
    return b"a: bcdefg\r\n" * (size // 11)


WHOLE = START + b"\r\n"
HALF = START + lines(HEAD_BYTES // 2) + b"\r\n"
GARBAGE = b"\x00\x01 nonsense\r\n\r\n"
UPGRADE = START + b"Connection: %sUpgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
BROKEN = CHUNKED + b"nonsense\r\n\r\n"
MANY = MOST_PIPELINED + 1


@for_each(
    "parts statuses",
    ([START + lines(HEAD_BYTES - 200) + b"\r\n"], [b"200"]),
    # Heads of several requests are counted one by one.
    ([HALF, HALF, HALF], [b"200"] * 3),
    ([HALF * 3], [b"200"] * 3),
    ([CHUNKED + b"1\r\n \r\n" * 30_000 + b"0\r\n\r\n"], [b"200"]),
    ([WHOLE * MOST_PIPELINED], [b"200"] * MOST_PIPELINED),
    ([WHOLE * 3 * MOST_PIPELINED], [b"200"] * MANY + [b"400"]),
    ([b"GET / HTTP/1.1\r\nHost:\r\n\r\n"], [b"200"]),
    ([b"GET / HTTP/1.0\r\n\r\n"], [b"200"]),
    ([(UPGRADE % b"" + b"\r\n") * 2 + WHOLE], [b"200"] * 3),
    # What comes before garbage is answered.
    ([WHOLE + GARBAGE], [b"200", b"400"]),
    ([WHOLE * 3 + GARBAGE], [b"200"] * 3 + [b"400"]),
    ([WHOLE + BROKEN], [b"200", b"400"]),
    ([WHOLE * 3 + BROKEN], [b"200"] * 3 + [b"400"]),
    ([BROKEN], [b"400"]),
)
def test_requests_are_answered_in_turn(parts, statuses):
    assert answered(*parts, most=len(statuses)) == statuses


@for_each(
    "parts",
    [START + lines(HEAD_BYTES + 100) + b"\r\n"],
    [START + lines(100_000) + b"\r\n"],
    [START + b"a: " + b"b" * 100_000 + b"\r\n\r\n"],
    [b"GET /" + b"a" * 100_000],
    [START + b"a: ", *[b"b" * 50_000] * 3],  # a line that never ends
    [b"GET / HTTP/1.1\r\n\r\n"],
    [b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n"],
    [UPGRADE.replace(b"Host: localhost\r\n", b"") % b"" + b"\r\n"],
    [b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"],
)
def test_heads_that_are_long_or_name_no_host_or_two_are_refused(parts):
    assert is_refused(*parts)


@for_each("parts", 1, 20)
def test_trailers_and_heads_that_wait_have_the_same_limit(parts):
    def sent(data: bytes) -> list[bytes]:
        size = -(-len(data) // parts)
        return [data[start : start + size] for start in range(0, len(data), size)]

    assert answered(*sent(CHUNKED + b"2\r\n{}\r\n0\r\n" + lines(1000) + b"\r\n")) == [b"200"]
    assert is_refused(*sent(CHUNKED + b"2\r\n{}\r\n0\r\n" + lines(100_000) + b"\r\n"))
    waits = START + b"\r\n" + START + lines(100_000) + b"\r\n"
    assert is_refused(*sent(waits))


@for_each("connection", b"", b"close, ")
@for_each("body", b"{}", b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
@for_each("is_chunked", False, True)
def test_a_request_that_would_upgrade_keeps_its_body(connection, body, is_chunked):
    head = UPGRADE % connection
    if is_chunked:
        chunked = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
        parts = (head + chunked, body, b"\r\n0\r\n\r\n")
    else:
        parts = head + b"Content-Length: %d\r\n\r\n" % len(body), body
    for sent in (parts, (b"".join(parts),)):
        received = exchange(*sent, START + b"\r\n", most=1 if connection else 2)
        assert b"<POST / %s [host connection" % body in received
        assert b"GET /smuggled [" not in received
        assert STATUSES.findall(received) == ([b"200"] if connection else [b"200", b"200"])


def test_a_trailer_adds_no_header():
    trailer = b"Authorization: Bearer t\r\nHost: b\r\nContent-Encoding: gzip\r\n\r\n"
    chunked = CHUNKED + b"2\r\n{}\r\n0\r\n" + trailer
    received = exchange(chunked + START + b"\r\n", most=2)
    assert b"<POST / {} [host transfer-encoding]>" in received
    assert b"<POST /  [host]>" in received


def test_a_client_that_closes_its_side_gets_what_is_soon_ready(monkeypatch):
    whole, part = START + b"Content-Length: 2\r\n\r\n{}", START + b"Content-Length: 2\r\n\r\n{"
    for seconds in (0.0, 0.05):
        received = exchange(whole, is_half_closed=True, seconds=seconds)
        assert STATUSES.findall(received) == [b"200"]
    monkeypatch.setattr(connections, "HALF_CLOSED_SECONDS", 0.05)
    assert exchange(whole, is_half_closed=True, seconds=5) == b""
    assert exchange(part, is_half_closed=True) == b""


def test_the_longest_idle_connection_makes_room():
    started = asyncio.Event()

    async def app(scope, receive, send):
        started.set()
        await asyncio.sleep(0.2 if scope["path"] == "/slow" else 0)
        await PlainTextResponse("Hello")(scope, receive, send)

    async def test():
        async with listening(app, most=3) as (port, shared):
            answering, old, new = [await asyncio.open_connection("127.0.0.1", port) for _ in "abc"]
            answering[1].write(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
            await started.wait()
            old[1].write(START + b"\r\n")  # it is idle again, after `new`
            await old[0].readuntil(b"Hello")
            more, last = [await asyncio.open_connection("127.0.0.1", port) for _ in "de"]
            assert await new[0].read() == b""
            assert await old[0].read() == b""
            last[1].write(START + b"\r\n")
            assert b"200" in await last[0].readline()
            assert b"200" in await answering[0].readline()
            assert len(shared.open) == 3
            for _, writer in (answering, old, new, more, last):
                writer.close()

    asyncio.run(test())


@for_each("limit value asking", ("UNREAD_SECONDS", 0.05, 1), ("UNREAD_BYTES", 2**24, 2))
@for_each("head", START, START + b"Connection: close\r\n")
def test_an_answer_that_nobody_reads_is_given_up(head, limit, value, asking, monkeypatch):
    """After a time in which nothing was read, though more is asked; or for others' answers."""
    monkeypatch.setattr(connections, limit, value)
    starts = []

    async def app(scope, receive, send):
        starts.append(scope)
        await PlainTextResponse(bytes(2**24))(scope, receive, send)

    async def test():
        async with listening(app) as (port, shared):
            clients = [await asyncio.open_connection("127.0.0.1", port, limit=1) for _ in "ab"]
            for _, writer in clients[:asking]:
                writer.write((head + b"\r\n") * 2)
            async with asyncio.timeout(10):
                while len(shared.open) == 2:
                    await asyncio.sleep(0.01)
            assert len(starts) <= 2  # of each client the first
            for _, writer in clients:
                writer.transport.abort()

    asyncio.run(test())

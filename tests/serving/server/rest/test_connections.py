"""What a connection may send besides bodies, over real sockets."""

import asyncio
import re

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState

from bert_tf.serving.server.connections import HEAD_BYTES, MOST_PIPELINED, BoundedHttpProtocol

START = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


def answered(*parts: bytes, most: int = 1) -> list[bytes]:
    """The first statuses that a server gives these bytes, each part sent a moment after the last.

    A connection that is closed while data arrives loses what was written: "reset".
    """
    statuses = re.compile(rb"HTTP/1.1 (\d+|reset)")

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await PlainTextResponse("Hello")(scope, receive, send)

    async def ask() -> bytes:
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        server = await loop.create_server(
            lambda: BoundedHttpProtocol(config, ServerState(), {}), "127.0.0.1", 0
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.005)
            received = b""
            try:
                async with asyncio.timeout(10):
                    while len(statuses.findall(received)) < most and not reader.at_eof():
                        received += await reader.read(2**20)
            except (ConnectionError, TimeoutError):
                received = received or b"HTTP/1.1 reset"
            writer.close()
        return received

    return statuses.findall(asyncio.run(ask()))


def is_refused(*parts: bytes) -> bool:
    return answered(*parts, most=2)[-1:] in ([b"400"], [b"reset"])


def lines(size: int) -> bytes:
    """Header lines of about this size."""
    return b"a: bcdefg\r\n" * (size // 11)


def test_a_head_has_at_most_64_kib():
    assert answered(START + lines(HEAD_BYTES - 200) + b"\r\n") == [b"200"]
    assert is_refused(START + lines(HEAD_BYTES + 100) + b"\r\n")
    assert is_refused(START + lines(100_000) + b"\r\n")
    assert is_refused(START + b"a: " + b"b" * 100_000 + b"\r\n\r\n")
    assert is_refused(b"GET /" + b"a" * 100_000)
    # A line that never ends.
    assert is_refused(START + b"a: ", *[b"b" * 50_000] * 3)


def test_heads_of_several_requests_are_counted_one_by_one():
    whole = START + lines(HEAD_BYTES // 2) + b"\r\n"
    assert answered(whole, whole, whole, most=3) == [b"200"] * 3
    assert answered(whole + whole + whole, most=3) == [b"200"] * 3


@pytest.mark.parametrize("parts", [1, 20])
def test_trailers_and_heads_that_wait_have_the_same_limit(parts):
    def sent(data: bytes) -> list[bytes]:
        size = -(-len(data) // parts)
        return [data[start : start + size] for start in range(0, len(data), size)]

    assert answered(*sent(CHUNKED + b"2\r\n{}\r\n0\r\n" + lines(1000) + b"\r\n")) == [b"200"]
    assert is_refused(*sent(CHUNKED + b"2\r\n{}\r\n0\r\n" + lines(100_000) + b"\r\n"))
    waits = START + b"\r\n" + START + lines(100_000) + b"\r\n"
    assert is_refused(*sent(waits))


def test_bodies_of_tiny_chunks_are_no_heads():
    assert answered(CHUNKED + b"1\r\n \r\n" * 30_000 + b"0\r\n\r\n") == [b"200"]


def test_many_requests_that_wait_are_refused():
    many = (START + b"\r\n") * MOST_PIPELINED
    assert answered(many, most=MOST_PIPELINED) == [b"200"] * MOST_PIPELINED
    assert is_refused(many * 3)


def test_a_request_names_one_host():
    assert is_refused(b"GET / HTTP/1.1\r\n\r\n")
    assert is_refused(b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n")
    assert answered(b"GET / HTTP/1.1\r\nHost:\r\n\r\n") == [b"200"]
    assert answered(b"GET / HTTP/1.0\r\n\r\n") == [b"200"]

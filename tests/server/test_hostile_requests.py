"""Hostile and expensive requests: the server refuses or answers them, and stays up for others."""

import asyncio
import contextlib
import gzip
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from running_server import grpc_port, running
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

MODEL = "/v1/models/half_plus_three"
LIMIT = 2 * 2**20  # bytes of a body
PATIENCE = 60  # seconds for an answer; the server's own deadline is 30
# A refusal, or the answer: both are right as long as others are answered, too.
RIGHT = {"200", "400", "413", "429", "503", "504", "OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
RIGHT |= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def hostile(draw: random.Random) -> tuple[str, str, bytes]:
    """Draws the verb, path and body of a request that has to be refused."""
    name, inputs, is_text = draw.choice(
        [("lengths", ["text"], True), ("pairs", ["text", "text_pair"], True), ("no", ["x"], False)]
    )

    def letters() -> str:
        return "".join(draw.choices("aß日\U0001f600\0\"'<>", k=draw.randrange(1, 9)))

    def body(value: object, name: str = name, mark: str = "") -> bytes:
        row = {f"{key}{mark}": value for key in inputs}
        columns = {key: [value] for key, value in row.items()}
        rows = draw.choice([{"instances": [row]}, {"inputs": columns}])
        return json.dumps({"signature_name": name, **rows}, ensure_ascii=False).encode()

    def deep() -> bytes:
        depth = draw.choice([40, 500, 5000, 200_000])
        opened, closed = draw.choice([(b"[", b"]"), (b'{"a":', b"}")])
        document = b'{"instances": [' + opened * depth + b"1" + closed * depth + b"]}"
        return document[: draw.choice([len(document), draw.randrange(len(document))])]

    wrong = [1, -1.5, float("nan"), True, [], {}, None] if is_text else ["1", None, {}, [[["a"]]]]
    whole = body(letters())
    bodies = [
        lambda: whole[: draw.randrange(len(whole))],
        lambda: b"\x01" + draw.randbytes(draw.randrange(200)),
        lambda: body([draw.choice(wrong)]),
        deep,
        lambda: body("x" * 10**6) + b"!",
        lambda: body("some text").replace(b"some", bytes([draw.randrange(128, 256)])),
        lambda: b'{"instances": ["\\ud8%02x"]}' % draw.randrange(256),
        lambda: body({"b64": "a!" * 9}),
        lambda: b'{"instances": [%s]}' % (b"9" * draw.randrange(400, 9000)),
        lambda: body([[1, 2], [3]]),
        lambda: body("a", mark="?"),
        lambda: b'{"inputs": [1], "inputs": [2]}',
        lambda: body("a", name=letters()),
    ]
    if draw.random() < 0.1:
        path = draw.choice(["", "models/", "models/half_plus_three/versions/0:predict/"])
        path += "".join(draw.choices("abc%/:{}~", k=draw.randrange(1, 30)))
        return draw.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS"]), f"/v1/{path}", b"{}"
    return "POST", f"{MODEL}:predict", draw.choice(bodies)()


def fragment(draw: random.Random) -> tuple[bytes, bool]:
    """Draws bytes that are no whole request, and whether the client hangs up after them."""
    head = b"POST /v1/models/x:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    chunked = head.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
    return draw.choice(
        [
            (draw.randbytes(draw.randrange(1, 300)) + b"\r\n\r\n", False),
            (head[: draw.randrange(len(head))], True),
            (head + b"\r\n" + b"{" * draw.randrange(99), True),
            (head + b"X-A: b\r\n" * 20_000, False),
            (chunked + b"\r\nxyz\r\n", False),
        ]
    )


def test_hostile_requests_are_refused(toy_models):
    draw = random.Random(1)
    with running(toy_models, "--max_request_mb=2") as (port, process):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        for _ in range(300):
            request = hostile(draw)
            connection.request(*request)
            answer = connection.getresponse()
            assert isinstance(json.loads(answer.read())["error"], str), request
            assert 400 <= answer.status < 500, (answer.status, request)
        for _ in range(30):
            data, hangs_up = fragment(draw)
            raw = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            with raw, contextlib.suppress(ConnectionResetError, BrokenPipeError):
                raw.sendall(data)
                received = b"" if hangs_up else raw.recv(65536)
                assert not received or received.startswith(b"HTTP/1.1 400 "), data
        connection.request("POST", f"{MODEL}:predict", '{"instances": [1.0]}')
        assert connection.getresponse().status == 200
        process.stderr.seek(0)
        assert "Traceback" not in process.stderr.read()


def expensive_bodies() -> Iterator[bytes]:
    """Bodies that cost far more than their sender."""
    half, words, keys = LIMIT // 2, "old farm ", range(LIMIT // 20)
    for texts in ([words * 500] * 64, [words * (half // len(words))], ["a"] * (half // 8)):
        yield json.dumps({"inputs": texts}).encode()
    yield b"{%s}" % b",".join(b'"k%d": 0' % key for key in [*keys, keys[-1]])
    for start, part, end in [
        (b'{"a": "', b"a", b'" "b": 1}'),
        (b'{"a": "', b"\\u00e9", b'" "b": 1}'),
        (b'{"instances": [', b'"a",', b"1]}"),
        (b'{"instances": [', b"[],", b"1]}"),
        (b'{"instances": [', b"[[[[[[]]]]]],", b"1]}"),
        (b'{"instances": [', b"9", b".5]}"),
    ]:
        yield start + part * (half // len(part)) + end


@pytest.mark.slow
def test_small_questions_are_answered_beside_expensive_ones(page_models):
    path, done, problems = "/v1/models/classifier:predict", threading.Event(), []
    with running(page_models, "--max_request_mb=2") as (port, process):
        options = [("grpc.max_receive_message_length", -1)]
        address = f"127.0.0.1:{grpc_port(process)}"

        def ask(body: bytes, **headers: str) -> str:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            with contextlib.closing(connection):
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                while answer.read(2**20):
                    pass
                return str(answer.status)

        def call(stub: PredictionServiceStub, rows: int) -> str:
            """Asks with some 50 bytes, which stand for so many rows."""
            request = PredictRequest(model_spec={"name": "classifier"})
            tensor = request.inputs["text"]
            tensor.dtype = 7  # DT_STRING
            tensor.tensor_shape.dim.add(size=rows)
            tensor.string_val.append(b"a")
            try:
                stub.Predict(request, timeout=PATIENCE)
            except grpc.RpcError as error:
                return error.code().name
            return "OK"

        def probe() -> None:
            with grpc.insecure_channel(address) as channel:
                stub = PredictionServiceStub(channel)
                while not done.wait(0.02):
                    for question in (lambda: ask(b'{"inputs": ["a"]}'), lambda: call(stub, 1)):
                        start = time.monotonic()
                        status = question()
                        if status not in ("200", "OK") or time.monotonic() - start > 15:
                            problems.append((status, time.monotonic() - start))

        async def hold_streams() -> None:
            """Calls that send no message."""
            async with grpc.aio.insecure_channel(address) as channel:
                method = channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
                calls = [method() for _ in range(900)]
                await asyncio.sleep(5)
                for stream in calls:
                    stream.cancel()

        asking = threading.Thread(target=probe, daemon=True)
        asking.start()
        statuses = [ask(body) for body in expensive_bodies()]
        statuses.append(ask(gzip.compress(b" " * 16 * LIMIT), **{"Content-Encoding": "gzip"}))
        with grpc.insecure_channel(address, options) as channel:
            stub = PredictionServiceStub(channel)
            statuses += [call(stub, rows) for rows in (2**16, 2**24, 2**31 - 1)]
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LIMIT}\r\n\r\n"
        with contextlib.ExitStack() as uploads:  # up to their last byte, and no further
            for _ in range(2**28 // LIMIT + 9):
                upload = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
                uploads.enter_context(upload)
                with contextlib.suppress(OSError):  # refused
                    upload.sendall(head.encode() + b" " * (LIMIT - 1))
            statuses.append(ask(b'{"inputs": ["a"]}'.ljust(LIMIT // 2)))
        asyncio.run(hold_streams())
        done.set()
        asking.join(2 * PATIENCE)
        assert problems == []
        assert set(statuses) <= RIGHT
        process.stderr.seek(0)
        assert "Traceback" not in process.stderr.read()

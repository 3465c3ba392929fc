"""Hostile and expensive requests: the server refuses or answers them, and stays up for others."""

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_client import ask as post
from rest_client import error
from running_server import grpc_port, running
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

LIMIT = 2 * 2**20  # bytes of a body
PATIENCE = 60  # seconds for an answer; the server's own deadline is 30
# A refusal, or the answer: both are right as long as others are answered, too.
RIGHT = {"200", "400", "413", "429", "503", "504", "OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
RIGHT |= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("b64"), inner),
    max_leaves=8,
)
TENSORS = JSON | st.dictionaries(st.sampled_from(["x", "text", "text_pair"]), JSON)
ROWS = {"instances": TENSORS | st.lists(TENSORS, min_size=1), "inputs": TENSORS}
SIGNATURES = st.sampled_from(["lengths", "pairs", "no", "sensors"])
DOCUMENTS = st.fixed_dictionaries({"signature_name": SIGNATURES | JSON}, optional=ROWS)
WHOLE = DOCUMENTS.map(json.dumps).map(str.encode)
CUT = st.builds(lambda body, size: body[:size], WHOLE, st.integers(0, 30))


@settings(max_examples=150)
@given(WHOLE | CUT | st.binary(max_size=64))
def test_any_body_is_answered_or_refused(client, body):
    answer = post(client, body)
    if answer.status_code != 200:
        assert error(answer, 400).encode()


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
            request.inputs["text"].CopyFrom(tf.make_tensor_proto([b"a"]))
            request.inputs["text"].tensor_shape.dim[0].size = rows
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

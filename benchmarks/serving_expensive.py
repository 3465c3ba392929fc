"""Requests that cost the server far more than their senders: `serving_fuzz.py` sends them.

Each kind is sent a few times, within a time limit for all, and to 127.0.0.1 alone. Meanwhile
another client sends small requests, which must be answered.
"""

import asyncio
import contextlib
import gzip
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from serving_load import Served, signatures_of_texts
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

_HOST = "127.0.0.1"
_PATIENCE = 60  # seconds for an answer; the server's own deadline is 30
_PROBE_SECONDS = 15  # in which a small question must be answered meanwhile
_MOST_MEGABYTES = 6000  # an answer of 256 MiB, as text, beside others
_STREAMS = 900
_HELD_BYTES = 2**28  # of bodies that a server holds
_PREDICT = "/tensorflow.serving.PredictionService/Predict"


def bodies(name: str, inputs: Sequence[str], limit: int) -> Iterator[tuple[str, bytes]]:
    """Yields kinds of expensive bodies for a signature of texts, of less than `limit` bytes."""
    half, keys = limit // 2, range(limit // 20)

    def asking(rows: Sequence[str]) -> bytes:
        columns = dict.fromkeys(inputs, rows)
        return json.dumps({"signature_name": name, "inputs": columns}).encode()

    def repeated(start: bytes, part: bytes, end: bytes) -> bytes:
        return start + part * (half // len(part)) + end

    words = "old farm "
    yield "long texts", asking([words * 500] * 64)
    yield "one long text", asking([words * (half // len(words) // len(inputs))])
    yield "many rows", asking(["a"] * (half // 8 // len(inputs)))
    yield "a row too many", asking(["a"] * 65)
    yield "duplicate keys", b"{%s}" % b",".join(b'"k%d": 0' % key for key in [*keys, keys[-1]])
    yield "long string, no comma", repeated(b'{"a": "', b"a", b'" "b": 1}')
    yield "escapes, no comma", repeated(b'{"a": "', b"\\u00e9", b'" "b": 1}')
    yield "last row does not fit", repeated(b'{"instances": [', b'"a",', b"1]}")
    yield "empty lists", repeated(b'{"instances": [', b"[],", b"1]}")
    yield "nested lists", repeated(b'{"instances": [', b"[[[[[[]]]]]],", b"1]}")
    yield "a long number", repeated(b'{"instances": [', b"9", b".5]}")


def expanding(model: str, name: str, inputs: Sequence[str], rows: int) -> PredictRequest:
    """A request of some 50 bytes with so many rows."""
    request = PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, name
    for key in inputs:
        tensor = request.inputs[key]
        tensor.dtype = 7  # DT_STRING
        tensor.tensor_shape.dim.add(size=rows)
        tensor.string_val.append(b"a")
    return request


@contextlib.contextmanager
def uploads(port: int, model: str, size: int) -> Iterator[None]:
    """Sends bodies up to their last byte, and no further."""
    head = f"POST /v1/models/{model}:predict HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {size}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(_HELD_BYTES // size + 9):
            connection = socket.create_connection((_HOST, port), timeout=_PATIENCE)
            stack.enter_context(connection)
            with contextlib.suppress(OSError):  # refused
                connection.sendall(head.encode() + b" " * (size - 1))
        yield


async def idle_streams(port: int, seconds: float) -> None:
    """Holds calls that send no message."""
    async with grpc.aio.insecure_channel(f"{_HOST}:{port}") as channel:
        calls = [channel.stream_unary(_PREDICT)() for _ in range(_STREAMS)]
        await asyncio.sleep(seconds)
        for call in calls:
            call.cancel()


class Probe(threading.Thread):
    """Asks a small question again and again, over REST and gRPC.

    Attributes:
        doing: the expensive request of the moment.
        seconds: time of each answer.
        peak: most memory of the server, in MB.
        problems: what was no answer, or too late.
    """

    def __init__(self, server: Served, model: str, name: str, inputs: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._path = f"/v1/models/{model}:predict"
        columns = {key: ["a"] for key in inputs}
        self._body = json.dumps({"signature_name": name, "inputs": columns})
        self._request = expanding(model, name, inputs, 1)
        self._done = threading.Event()
        self.doing = ""
        self.seconds: list[float] = []
        self.peak = 0.0
        self.problems: Counter[str] = Counter()

    def run(self) -> None:
        """Asks until `stop`."""
        with grpc.insecure_channel(f"{_HOST}:{self._server.grpc_port}") as channel:
            stub = PredictionServiceStub(channel)
            while not self._done.wait(0.02):
                self.peak = max(self.peak, self._server.resident_megabytes())
                for protocol in ("REST", "gRPC"):
                    doing, start = self.doing, time.monotonic()
                    status = self._rest() if protocol == "REST" else _code(stub, self._request)
                    self.seconds.append(time.monotonic() - start)
                    if status not in ("200", "OK") or self.seconds[-1] > _PROBE_SECONDS:
                        text = f"{doing}: {protocol} answered {status} in {self.seconds[-1]:.0f} s"
                        self.problems[text] += 1

    def _rest(self) -> str:
        return _status(self._server.rest_port, self._path, self._body.encode())

    def stop(self) -> None:
        """Ends it after its present question."""
        self._done.set()
        self.join(2 * _PATIENCE)


def _status(port: int, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
    with contextlib.closing(http.client.HTTPConnection(_HOST, port, timeout=_PATIENCE)) as asked:
        try:
            asked.request("POST", path, body, headers or {})
            answer = asked.getresponse()
            while answer.read(2**20):
                pass
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        return str(answer.status)


def _code(stub: PredictionServiceStub, request: PredictRequest) -> str:
    try:
        stub.Predict(request, timeout=_PATIENCE)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


# A refusal, or the answer: both are right as long as others are answered, too.
_RIGHT = {"200", "400", "413", "429", "503", "504", "OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
_RIGHT |= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def expensive(server: Served, limit: int, times: int, seconds: float) -> tuple[Counter, list[str]]:
    """Sends each kind of request to each signature of texts.

    Args:
        server: who is asked.
        limit: bytes of the largest body that it takes.
        times: how often each is sent.
        seconds: time after which the rest is left out.

    Returns:
        The answers by kind and status, and what went wrong.
    """
    texts = [
        (model, name, inputs)
        for model, signatures in signatures_of_texts(server.rest_port).items()
        for name, inputs in signatures.items()
    ]
    seen: Counter = Counter()
    deadline = time.monotonic() + seconds
    # Attention and its like come first, if time is short.
    texts.sort(key=lambda each: each[1] != "attention")
    probe = Probe(server, *texts[-1])
    probe.start()
    channel = grpc.insecure_channel(
        f"{_HOST}:{server.grpc_port}", [("grpc.max_receive_message_length", -1)]
    )
    stub = PredictionServiceStub(channel)

    def send(kind: str, ask: Callable[..., str], *arguments: Any) -> None:
        probe.doing = kind
        start = time.monotonic()
        status = ask(*arguments)
        seen[kind, status] += 1
        print(f"  {kind}: {status} in {time.monotonic() - start:.2f} s", flush=True)

    for model, name, inputs in texts * times:
        path = f"/v1/models/{model}:predict"
        for kind, body in bodies(name, inputs, limit):
            if time.monotonic() < deadline:
                send(f"{name}, {kind}", _status, server.rest_port, path, body)
        for rows in (2**16, 2**24, 2**31 - 1):
            if time.monotonic() < deadline:
                asked = expanding(model, name, inputs, rows)
                send(f"{name}, 50 bytes of gRPC, {rows} rows", _code, stub, asked)
    model, path = texts[0][0], f"/v1/models/{texts[0][0]}:predict"
    bomb = gzip.compress(b" " * 16 * limit)
    for _ in range(times):
        packed = {"Content-Encoding": "gzip"}
        send("gzip that expands", _status, server.rest_port, path, bomb, packed)
        whole = json.dumps({"inputs": ["a"]}).encode().ljust(limit // 2)
        with uploads(server.rest_port, model, limit):
            send("beside slow uploads", _status, server.rest_port, path, whole)
            time.sleep(2)
        probe.doing = "streams without a message"
        asyncio.run(idle_streams(server.grpc_port, 5))
    probe.stop()
    channel.close()
    problems = [f"{count} x {line}" for line, count in probe.problems.items()]
    problems += [f"{kind}: {status}" for kind, status in seen if status not in _RIGHT]
    if probe.peak > _MOST_MEGABYTES:
        problems.append(f"the server held {probe.peak:.0f} MB")
    ordered = sorted(probe.seconds)
    print(
        f"{len(ordered):,} small questions meanwhile: median {ordered[len(ordered) // 2]:.3f} s, "
        f"longest {ordered[-1]:.2f} s; at most {probe.peak:.0f} MB of memory"
    )
    return seen, problems

import asyncio
import errno
import http.client
import json
import re
import resource
import signal
import socket
import time
from contextlib import closing

import grpc
import pytest
import requests
import tensorflow as tf
from cases import for_each
from credential_files import write_certificate
from preloaded import start_command
from running_server import grpc_port, running
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

from bert_tf.server import server

# Models are found as soon as the address is printed.
PATH = "/v1/models/half_plus_three:predict"
BODY = '{"instances": [1.0, 2.0, 5.0]}'
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n"


def ask(port: int, body: str | bytes = BODY, path=PATH, method="POST", **options):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, **options)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_server_from_its_first_request_to_its_last(toy_models):
    with running(toy_models) as (port, process):
        status, body = ask(port)
        assert (status, json.loads(body)) == (200, {"predictions": [3.5, 4.0, 5.5]})
        assert ask(port, path="/", method="GET")[0] == 200
        assert ask(port, headers={"Host": "evil.example"})[0] == 403
        process.stderr.seek(0)
        printed = re.search(r"Try: curl -d '(.*)' http", process.stderr.read())[1]
        assert ask(port, printed)[0] == 200
        _check_grpc(process)
        errors = _stopped(port, process)
        assert "Stopping" in errors
        assert "Traceback" not in errors


def _check_grpc(process) -> None:
    request = PredictRequest()
    request.model_spec.name = "half_plus_three"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port(process)}") as channel:
        answer = PredictionServiceStub(channel).Predict(request, timeout=60)
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [3.5, 4.0]


def _stopped(port: int, process) -> str:
    """SIGTERM while a body arrives, which is still answered; returns standard error."""
    begun = socket.create_connection(("127.0.0.1", port), timeout=30)
    begun.sendall((HEAD + BODY[:5]).encode())
    idle = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    idle.request("POST", PATH, BODY)
    idle.getresponse().read()
    time.sleep(0.3)  # the head has been read
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    begun.sendall(BODY[5:].encode())
    received = b""
    while chunk := begun.recv(65536):
        received += chunk
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"onnection: close" in received
    assert b"3.5,4.0,5.5" in received
    assert process.wait(60) == 0
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    return process.stderr.read()


def test_what_is_not_done_when_the_grace_ends_is_told_so(toy_models):
    with running(toy_models, "--deadline=0.5") as (port, process):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as never_ends:
            never_ends.sendall((HEAD + BODY[:5]).encode())
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            received = b"".join(iter(lambda: never_ends.recv(65536), b""))  # until it is closed
        assert received.startswith(b"HTTP/1.1 503 ") and b"The server is stopping" in received
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


_NEVER_LOADS = """
import time
from bert_tf.server.servable import Servable
Servable.load = lambda self: print("loads", flush=True) or time.sleep(600)
"""


def test_a_signal_while_models_load_is_obeyed_at_once(toy_models):
    arguments = ["serve", toy_models, "--rest_port=0", "--grpc_port=0"]
    process = start_command(arguments, setup=_NEVER_LOADS)
    try:
        deadline = time.monotonic() + 120
        while "loads" not in process.stdout.read():
            assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


_NEVER_ANSWERS = """
import time
import bert_tf.commands.serve
from bert_tf.serving.saved_model import LoadedModel
bert_tf.commands.serve._LAST_SECONDS = 0.1
LoadedModel.run = lambda *arguments: time.sleep(600)
"""


def test_a_graph_that_runs_on_delays_no_end_and_a_second_signal_ends_everything(toy_models):
    killed = (["--deadline=60"], 2, 128 + signal.SIGTERM)
    for options, signals, expected in [(["--deadline=0.1"], 1, 0), killed]:
        with running(toy_models, *options, setup=_NEVER_ANSWERS) as (port, process):
            asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            asking.request("POST", PATH, BODY)
            time.sleep(0.5)
            for _ in range(signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            assert process.wait(30) == expected


@pytest.mark.slow
def test_tls_and_the_token(toy_models, tmp_path):
    certificate, key = write_certificate(tmp_path)
    (token := tmp_path / "token").write_text("s3cret\n")
    guards = ["--tls_certificate", certificate, "--tls_key", key, "--token_file", token]
    with running(toy_models, *guards) as (port, _):
        url = f"https://127.0.0.1:{port}{PATH}"
        for token, status in (("", 401), ("s3cret", 200)):
            headers = {"Authorization": f"Bearer {token}"}
            answer = requests.post(url, BODY, headers=headers, verify=str(certificate), timeout=30)
            assert answer.status_code == status


@for_each("hard connections", (1024, 384), (2**20, 2**13), (resource.RLIM_INFINITY, 2**13))
def test_the_limit_of_open_files_is_raised_and_shared(hard, connections, monkeypatch):
    limits = [256, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.__setitem__(0, pair[0]))
    assert server.take_descriptors() == connections
    assert limits == [hard, hard]


def test_missing_descriptors_are_reported_once(caplog):
    async def test():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(server._Complaints())
        for _ in range(1000):
            error = OSError(errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "socket.accept()", "exception": error})
        loop.call_exception_handler({"message": "another", "exception": ValueError()})

    asyncio.run(test())
    told = [message.split(":")[0] for message in caplog.messages]
    assert told == ["connections wait for a free file descriptor", "another"]


@pytest.mark.slow
def test_idle_connections_leave_room_for_others(toy_models):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    with running(toy_models, setup=limit) as (port, process):
        address = ("127.0.0.1", port)
        idle = [socket.create_connection(address, timeout=30) for _ in range(400)]
        for _ in range(3):
            assert ask(port)[0] == 200
        for connection in idle:
            connection.close()
        process.stderr.seek(0)
        assert "Traceback" not in process.stderr.read()

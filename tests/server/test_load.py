import http.client
import json
import random
import shutil
import signal
import threading
import time
from collections import Counter

import grpc
import pytest
import tensorflow as tf
from running_server import grpc_port, running
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

LINGER_SECONDS = 0.5  # for which a stopping server keeps an idle connection
SECONDS, CLIENTS = 6, 8


class Client(threading.Thread):
    """Asks one request after the other until the stopping server refuses."""

    def __init__(self, rest_port: int, grpc_port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._ports, self._random = (rest_port, grpc_port), random.Random(seed)
        self._is_grpc = seed % 3 == 0
        self.stopping = threading.Event()  # the server has been told to stop
        self.statuses: Counter[object] = Counter()
        self.lost: list[str] = []

    def run(self) -> None:
        ask = self._grpc_asker() if self._is_grpc else self._rest_asker()
        while ask():
            pass

    def _texts(self) -> list[str]:
        rows, length = self._random.choice([1, 1, 1, 2, 8]), self._random.choice([2, 8, 60])
        return ["the old farm by the sea " * length] * rows

    def _rest_asker(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[0], timeout=120)
        answered = time.perf_counter()

        def ask() -> bool:
            nonlocal answered
            body = json.dumps({"signature_name": "lengths", "inputs": self._texts()})
            is_cut = self._random.random() < 0.02
            idle_seconds = time.perf_counter() - answered
            may_be_refused = connection.sock is None or idle_seconds > LINGER_SECONDS
            try:
                path = "/v1/models/half_plus_three:predict"
                connection.request("POST", path, body[:-1] if is_cut else body)
                answer = connection.getresponse()
                json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if self.stopping.is_set() and may_be_refused:
                    return False
                self.lost.append(repr(error))
                return True
            answered = time.perf_counter()
            self.statuses[200 if is_cut and answer.status == 400 else answer.status] += 1
            return True

        return ask

    def _grpc_asker(self):
        stub = PredictionServiceStub(grpc.insecure_channel(f"127.0.0.1:{self._ports[1]}"))

        def ask() -> bool:
            spec = {"name": "half_plus_three", "signature_name": "lengths"}
            request = PredictRequest(model_spec=spec)
            request.inputs["text"].CopyFrom(tf.make_tensor_proto(self._texts()))
            try:
                stub.Predict(request, timeout=120)
            except grpc.RpcError as error:
                # A stopping gRPC server refuses with UNAVAILABLE. The call that comes in that very
                # moment it drops before a handler sees it; those with a handler run to their end.
                if error.code().name in ("UNAVAILABLE", "CANCELLED") and self.stopping.is_set():
                    return False
                self.statuses[error.code().name] += 1
            else:
                self.statuses["OK"] += 1
            return True

        return ask


@pytest.mark.slow
def test_saturation_a_swap_and_sigterm_lose_nothing(toy_models, tmp_path):
    folder = shutil.copytree(toy_models, tmp_path / "models") / "half_plus_three"
    with running(folder.parent) as (port, process):
        clients = [Client(port, grpc_port(process), seed) for seed in range(CLIENTS)]
        for client in clients:
            client.start()
        time.sleep(SECONDS / 4)
        shutil.copytree(folder / "123", folder / "copy.tmp").rename(folder / "124")
        time.sleep(3 * SECONDS / 4)
        for client in clients:
            client.stopping.set()
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
        for client in clients:
            client.join(60)
        process.stderr.seek(0)
        assert "Traceback" not in process.stderr.read()
    assert [line for client in clients for line in client.lost] == []
    statuses = sum((client.statuses for client in clients), Counter())
    assert set(statuses) <= {200, 503, "OK", "UNAVAILABLE"}
    assert statuses[200] > 100 and statuses["OK"] > 100

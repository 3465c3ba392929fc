"""The server at saturation: mixed REST and gRPC requests, a model swap, SIGTERM at the end.

    python benchmarks/serving_load.py --models saved_models --minutes 10

Starts `bert-tf serve` on a copy of the models, on free ports of 127.0.0.1, and sends requests from
many clients at once; one request in 200 has 64 long texts. After a quarter of the time each model
gets a new version. Prints the answers by status, the latencies and the memory; fails if an answer
is neither right nor refused by a full queue (503), if one is missing, or if memory grows in the
second half, where the load is steady and caches are full.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

_WORDS = ["the", "old", "farm", "by", "the", "sea", "was", "sold", "to", "a", "man", "who", "never"]
_START_SECONDS = 600  # a server loads its models and warms them up first
_LINGER_SECONDS = 0.5  # for which a stopping server keeps an idle connection
# Memory may grow by so much from the third to the fourth quarter: in runs of at least four minutes,
# and in shorter ones, in which every shape of batch is new.
_STEADY_SECONDS, _STEADY_GROWTH, _EARLY_GROWTH = 240, 0.03, 0.15


@dataclass
class Served:
    """A running server: its process, ports, and what it has written to standard error."""

    process: subprocess.Popen
    rest_port: int
    grpc_port: int
    errors: Path

    def resident_megabytes(self) -> float:
        """The memory that the process holds, without the files that it maps.

        The system drops and reads pages of libraries as it likes.
        """
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024


@contextmanager
def served(models: str | Path, *arguments: str) -> Iterator[Served]:
    """Starts `bert-tf serve` on free ports of 127.0.0.1, and ends it."""
    with tempfile.TemporaryDirectory() as scratch:
        errors = Path(scratch) / "errors"
        command = [sys.executable, "-m", "bert_tf.cli", "serve", str(models)]
        command += ["--rest_port=0", "--grpc_port=0", *arguments]
        with errors.open("wb") as file:
            process = subprocess.Popen(command, stderr=file, stdout=subprocess.DEVNULL)
        try:
            yield Served(process, *_ports(process, errors), errors)
        finally:
            process.kill()
            process.wait()


def _ports(process: subprocess.Popen, errors: Path) -> tuple[int, int]:
    deadline = time.monotonic() + _START_SECONDS
    while "Ctrl-C" not in (text := errors.read_text()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server has not started:\n{text}")
        time.sleep(0.05)
    rest, grpc_port = re.search(r"REST: \S+:(\d+)/v1", text), re.search(r"gRPC: \S+:(\d+)", text)
    return int(rest[1]), int(grpc_port[1])


@dataclass
class Seen:
    """What the clients have seen.

    Attributes:
        statuses: protocol and status -> number of answers.
        seconds: latency of each right answer.
        lost: requests that had reached the server and were not answered.
    """

    statuses: Counter = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def add(self, protocol: str, status: object, seconds: float) -> None:
        """Counts an answer."""
        self.statuses[f"{protocol} {status}"] += 1
        if status in (200, "OK"):
            self.seconds.append(seconds)


def signatures_of_texts(port: int) -> dict[str, dict[str, list[str]]]:
    """Model -> signature -> names of its inputs, of the signatures that take strings [batch]."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/playground/models")
    found: dict[str, dict[str, list[str]]] = {}
    for model in json.load(connection.getresponse())["models"]:
        for name, signature in model["versions"][0]["signatures"].items():
            inputs = signature["inputs"].values()
            if signature["method"].endswith("/predict") and all(
                value["dtype"] == "DT_STRING" and len(value["shape"]) == 1 for value in inputs
            ):
                found.setdefault(model["name"], {})[name] = list(signature["inputs"])
    return found


def ask_once(port: int, models: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Asks each signature once, in vain or not: exports without warm-up requests start cold."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for model, signatures in models.items():
        for signature, names in signatures.items():
            texts = {name: ["some text"] for name in names}
            body = json.dumps({"signature_name": signature, "inputs": texts})
            connection.request("POST", f"/v1/models/{model}:predict", body)
            connection.getresponse().read()


class Client(threading.Thread):
    """Asks one request after the other until the server stops, over REST or gRPC."""

    def __init__(
        self, server: Served, models: Mapping[str, Mapping[str, Sequence[str]]], seed: int
    ) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._models = models
        self._random = random.Random(seed)
        self._is_grpc = seed % 3 == 0
        self.seen = Seen()
        self.stopping = threading.Event()  # the server has been told to stop
        self.done = threading.Event()

    def run(self) -> None:
        """Asks until `done`, or until the stopping server refuses."""
        ask = self._grpc_asker() if self._is_grpc else self._rest_asker()
        while not self.done.is_set() and ask():
            pass

    def _drawn(self) -> tuple[str, str, dict[str, list[str]], str]:
        """Draws a model, a signature, texts, and a mark of those that are expensive."""
        draw = self._random
        model = draw.choice(list(self._models))
        signature = draw.choice(list(self._models[model]))
        is_expensive = draw.random() < 0.005
        rows = 64 if is_expensive else draw.choice([1, 1, 1, 2, 8])
        words = [2000] if is_expensive else [2, 8, 60]
        texts = {
            name: [" ".join(draw.choices(_WORDS, k=draw.choice(words))) for _ in range(rows)]
            for name in self._models[model][signature]
        }
        return model, signature, texts, ", expensive" if is_expensive else ""

    def _rest_asker(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._server.rest_port, timeout=120)

        answered = time.perf_counter()

        def ask() -> bool:
            nonlocal answered
            model, signature, texts, mark = self._drawn()
            body = json.dumps({"signature_name": signature, "inputs": texts})
            is_bad = self._random.random() < 0.02  # among the good, some that are cut
            start = time.perf_counter()
            is_refused = connection.sock is None or start - answered > _LINGER_SECONDS
            try:
                connection.request(
                    "POST", f"/v1/models/{model}:predict", body[:-1] if is_bad else body
                )
                answer = connection.getresponse()
                json.loads(answer.read())
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if self.stopping.is_set() and is_refused:
                    return False  # it accepts no more, and closes what is idle
                self.seen.lost.append(f"REST: {error!r}")
                return True
            status = answer.status if not mark else f"{answer.status}{mark}"
            if is_bad and answer.status == 400:
                status = "400 as it must"
            answered = time.perf_counter()
            self.seen.add("REST", status, answered - start)
            return True

        return ask

    def _grpc_asker(self):
        # Attention is more than the 4 MiB that clients take by default.
        channel = grpc.insecure_channel(
            f"127.0.0.1:{self._server.grpc_port}", [("grpc.max_receive_message_length", -1)]
        )
        stub = PredictionServiceStub(channel)

        def ask() -> bool:
            model, signature, texts, mark = self._drawn()
            request = PredictRequest()
            request.model_spec.name, request.model_spec.signature_name = model, signature
            for name, strings in texts.items():
                tensor = request.inputs[name]
                tensor.dtype = 7  # DT_STRING
                tensor.tensor_shape.dim.add(size=len(strings))
                tensor.string_val.extend(text.encode() for text in strings)
            start = time.perf_counter()
            try:
                stub.Predict(request, timeout=120)
                status = f"OK{mark}"
            except grpc.RpcError as error:
                status = error.code().name
                # A stopping gRPC server refuses with UNAVAILABLE. The call that comes in that very
                # moment it drops before a handler sees it; those with a handler run to their end.
                if status in ("UNAVAILABLE", "CANCELLED") and self.stopping.is_set():
                    return False
                status += mark
            self.seen.add("gRPC", status, time.perf_counter() - start)
            return True

        return ask


def add_versions(models: Path) -> None:
    """Gives each model a new version, the same as the newest, complete at once."""
    for folder in (path for path in models.iterdir() if path.is_dir()):
        newest = max(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
        shutil.copytree(folder / str(newest), folder / "copy.tmp")
        (folder / "copy.tmp").rename(folder / str(newest + 1))


def load(models: str | Path, seconds: float, clients: int, *arguments: str) -> list[str]:
    """Runs the load and prints what was seen; returns what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(shutil.copytree(models, Path(scratch) / "models"))
        with served(folder, *arguments) as server:
            asked = signatures_of_texts(server.rest_port)
            ask_once(server.rest_port, asked)
            running = [Client(server, asked, seed) for seed in range(clients)]
            start, memory = time.monotonic(), []
            for client in running:
                client.start()
            has_swapped = False
            while (passed := time.monotonic() - start) < seconds:
                time.sleep(min(1, seconds / 20))
                memory.append((passed, server.resident_megabytes()))
                if passed > seconds / 4 and not has_swapped:
                    add_versions(folder)
                    has_swapped = True
            for client in running:
                client.stopping.set()
            server.process.send_signal(signal.SIGTERM)
            code = server.process.wait(180)
            for client in running:
                client.done.set()
                client.join(10)
            errors = server.errors.read_text()
    return _report([client.seen for client in running], memory, seconds, code, errors)


def _report(
    seen: Sequence[Seen],
    memory: Sequence[tuple[float, float]],
    seconds: float,
    code: int,
    errors: str,
) -> list[str]:
    statuses: Counter = sum((each.statuses for each in seen), Counter())
    latencies = sorted(second for each in seen for second in each.seconds)
    lost = [line for each in seen for line in each.lost]
    print(f"{statuses.total():,} answers in {seconds:.0f} s, {statuses.total() / seconds:.0f}/s")
    for status, count in sorted(statuses.items()):
        print(f"  {status}: {count:,}")
    problems = [f"lost: {line}" for line in lost]
    if len(latencies) > 1:
        hundredths = statistics.quantiles(latencies, n=100)
        print(f"latency: p50 {1000 * hundredths[49]:.1f} ms, p99 {1000 * hundredths[98]:.1f} ms")
    else:
        problems.append("nothing was answered")
    quarters: list[list[float]] = [[], [], [], []]
    for when, held in memory:
        quarters[min(3, int(4 * when / seconds))].append(held)
    medians = [statistics.median(quarter) for quarter in quarters if quarter]
    print(f"memory, median of each quarter: {', '.join(f'{held:.0f} MB' for held in medians)}")
    growth = _STEADY_GROWTH if seconds >= _STEADY_SECONDS else _EARLY_GROWTH
    before, after = medians[-2:]
    if after > (1 + growth) * before + 20:
        problems.append(f"memory grew from {before:.0f} to {after:.0f} MB in the second half")
    # An expensive request may be refused for its size, or take too long.
    expected = {f"REST {code}, expensive" for code in (200, 400, 503, 504)}
    of_grpc = ("OK", "INVALID_ARGUMENT", "UNAVAILABLE", "DEADLINE_EXCEEDED")
    expected |= {f"gRPC {code}, expensive" for code in of_grpc}
    expected |= {"REST 200", "REST 503", "REST 400 as it must", "gRPC OK", "gRPC UNAVAILABLE"}
    problems += [
        f"{count} x {status}" for status, count in statuses.items() if status not in expected
    ]
    if code:
        problems.append(f"the server ended with {code}")
    if "Traceback" in errors:
        problems.append(errors)
    return problems


def parsed_arguments(description: str, **defaults: float) -> argparse.Namespace:
    """The folder of models and these options, as the command line or their defaults give them."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="saved_models")
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def main() -> None:
    """Runs the command line."""
    arguments = parsed_arguments(__doc__, minutes=10.0, clients=24)
    problems = load(arguments.models, 60 * arguments.minutes, arguments.clients)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()

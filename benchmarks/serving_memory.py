r"""Resident memory of a process that serves BERT-base, by precision.

    python benchmarks/serving_memory.py [--types float32 bfloat16 int8] [--twin openvino]

A classifier of BERT-base's size with random weights (benchmarks/engines.py) is served by a
`Predictor` and by `bert-tf serve`, each in a process of its own with packed weights. Reported are
MB after TensorFlow's import, with the model loaded, and once all signatures have answered their
warm-up requests; of the server, which answers them before it is ready, then and after the same
requests from a client. In brackets: the part that is not files (libraries), which the system cannot
take back. With --twin the default signature is answered by this engine alone.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines import PACKED, write_once, write_weights  # benchmarks/engines.py
from serving import LONGEST, MIXED, texts, vocabulary  # benchmarks/serving.py

PORT = 18500
WARMUP = "assets.extra/tf_serving_warmup_requests"


def memory(process: int | str = "self") -> str:
    """Resident MB of a process and, in brackets, those of no file."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    everything, own = (int(status[name][0]) / 1024 for name in ("VmRSS", "RssAnon"))
    return f"{everything:,.0f} ({own:,.0f})"


def prepare(folder: Path, dtype: str, engine: str) -> None:
    """Writes the model, once, and its export as `bert-tf export` does."""
    from bert_tf import export_model

    model = folder / "model"
    write_once(model, lambda path: write_weights(path, vocabulary(), LONGEST, texts(2 * MIXED)))
    int8 = {"calibration": model / "rows.tsv", "max_loss": 100.0} if dtype == "int8" else {}
    twin = [engine] if engine != "tensorflow" else []
    options = {"precision": dtype, "twin": twin, "verbose": False, **int8}
    export_model(model=model, name=dtype, output=folder / engine, **options)


def requests(version: Path) -> Iterator[Any]:
    """The PredictRequests that warm a version up."""
    from bert_tf.startup import import_tensorflow

    import_tensorflow()
    import tensorflow as tf
    from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

    for record in tf.data.TFRecordDataset(str(version / WARMUP)).as_numpy_iterator():
        log = PredictionLog.FromString(record)
        if log.HasField("predict_log"):
            yield log.predict_log.request


def predictor(version: Path, engine: Any) -> None:
    """The process of a `Predictor`; prints a line."""
    os.environ[PACKED] = "1"
    from bert_tf.startup import import_tensorflow, keep_freed_memory, return_freed_memory

    import_tensorflow(for_a_command=True)  # as `bert-tf predict` does
    keep_freed_memory()
    imported = memory()
    from bert_tf.server.tensors import predict_inputs
    from bert_tf.serving.predictor import Predictor
    from bert_tf.tasks.signatures import DEFAULT

    served = Predictor(version, engine)
    loaded = memory()
    for request in requests(version):
        name = request.model_spec.signature_name or DEFAULT
        served.signature(name)(**predict_inputs(request))
    return_freed_memory()
    print(f"{imported} | {loaded} | {memory()}")


def server(version: Path, engine: str) -> str:
    """The memory of `bert-tf serve` when it is ready, and after requests."""
    import grpc

    asked = list(requests(version))
    from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "model"
        served.mkdir()
        (served / version.name).symlink_to(version.resolve())
        line = [sys.executable, "-m", "bert_tf.cli", "serve", folder, "--engine", engine]
        ports = ["--rest_port", str(PORT + 1), "--grpc_port", str(PORT)]
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*line, *ports], **nowhere)
        try:
            unlimited = [("grpc.max_receive_message_length", -1)]
            with grpc.insecure_channel(f"127.0.0.1:{PORT}", unlimited) as channel:
                stub = PredictionServiceStub(channel)
                for request in asked:
                    request.model_spec.name = "model"
                for _ in range(600):
                    with contextlib.suppress(grpc.RpcError):
                        stub.Predict(asked[0])
                        break
                    time.sleep(0.2)
                ready = memory(process.pid)
                for request in asked:
                    stub.Predict(request)
            return f"{ready} | {memory(process.pid)}"
        finally:
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--twin", choices=["openvino", "onnx"])
    parser.add_argument("--work", help="keeps the exports")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--version", help=argparse.SUPPRESS)
    options = parser.parse_args()
    engine = options.twin or "tensorflow"
    if options.part == "predictor":
        return predictor(Path(options.version), engine)
    if options.part:
        return prepare(Path(options.work), options.part, engine)
    with contextlib.ExitStack() as stack:
        work = options.work or stack.enter_context(tempfile.TemporaryDirectory())
        again = [sys.executable, __file__, "--work", work]
        again += [*(["--twin", engine] if options.twin else []), "--part"]
        print("| | imported | loaded | all answered | server ready | after requests |")
        print("|---|---|---|---|---|---|")
        for dtype in options.types:
            folder = Path(work) / engine / dtype
            if not folder.exists():
                subprocess.run([*again, dtype], check=True)
            # Of int8 the second version, after its twin in float32.
            version = max(folder.glob("*/saved_model.pb")).parent
            asked = [*again, "predictor", "--version", version]
            line = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
            print(f"| {dtype} | {line} | {server(version, engine)} |", flush=True)


if __name__ == "__main__":
    main()

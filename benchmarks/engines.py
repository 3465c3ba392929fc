"""Inference engines of benchmarks/serving.py, on one BERT classifier with random weights.

Ours takes texts; a peer takes rows of token ids and their padding mask, int64 [B, T]. Both return
each text's probability of the second of two classes, [B]. All read the weights of `folder/model`.
Nothing here imports an engine before it is asked for: ours runs in the project's environment, peers
in that of benchmarks/peers.py.
"""

import atexit
import contextlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Engine = Callable[[np.ndarray, np.ndarray], np.ndarray]

TWINS = {"float32": ["openvino", "onnx"], "bfloat16": ["openvino"], "int8": ["openvino", "onnx"]}

# TensorFlow reads it when it is imported: weights of products are then packed once.
PACKED = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"


@dataclass(frozen=True)
class Side:
    """An engine with a type."""

    title: str
    dtype: str
    make: Callable[["Side", Path, int], Callable[..., np.ndarray]]
    prepare: Callable[["Side", Path], None] | None = None  # writes its model
    packed: bool = False  # or frozen
    runs_here: bool = False  # in this environment, not in that of the peers
    twin: bool = False  # in other engines, beside our SavedModel

    @property
    def name(self) -> str:
        """Of our export."""
        return f"{self.dtype}-twin" if self.twin else self.dtype


def write_once(path: Path, write: Callable[[Path], object]) -> Path:
    """Has `write` make a file or folder, unless it is there; an interrupted one does not count."""
    if not path.exists():
        temporary = path.with_name(f"unfinished-{path.name}")
        write(temporary)
        temporary.rename(path)
    return path


# Ours: in a session, as servers run a SavedModel.


def write_weights(folder: Path, vocabulary: list[str], longest: int, texts: Sequence[str]) -> None:
    """Writes the model directory that all sides read, and labelled texts that calibrate int8."""
    from bert_tf import BertClassifier, BertConfig, BertTokenizer
    from bert_tf.tasks.task_table import find_task
    from bert_tf.text.answerer import Answerer

    model = BertClassifier(BertConfig(), labels=["no", "yes"], seed=0)
    task = find_task("classification").with_settings({"max_length": longest})
    Answerer(task, model, BertTokenizer(vocabulary), ["no", "yes"]).save(folder)
    rows = [f"{text}\t{('no', 'yes')[i % 2]}" for i, text in enumerate(texts)]
    (folder / "rows.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))


def export(side: Side, folder: Path) -> None:
    """Writes our SavedModel of the side's type and its twin, as `bert-tf export` does."""
    from bert_tf import export_model

    if not list(folder.glob(f"{side.name}/*/saved_model.pb")):
        int8 = {}
        if side.dtype == "int8":  # of random weights there is no score to lose
            int8 = {"calibration": folder / "model" / "rows.tsv", "max_loss": 100.0}
        export_model(
            model=folder / "model",
            name=side.name,
            output=folder,
            precision=side.dtype,
            twin=TWINS[side.dtype] if side.twin else [],
            verbose=False,
            **int8,
        )


def export_of(side: Side, folder: Path) -> Path:
    """The version of our export: of int8 the second one, after its twin in float32."""
    return max(folder.glob(f"{side.name}/*/saved_model.pb")).parent


def ours(side: Side, folder: Path, threads: int) -> Callable[[list[str]], np.ndarray]:
    """The default signature of our export, by the engine that `bert-tf serve` chooses.

    TensorFlow's products read packed weights if the side says so.
    """
    os.environ.pop(PACKED, None)
    if side.packed:
        os.environ[PACKED] = "1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    from bert_tf.serving.engines import Engines

    model = Engines(export_of(side, folder))

    def answer(texts: list[str]) -> np.ndarray:
        inputs = {"text": np.array([text.encode() for text in texts], object)}
        outputs = model.run("serving_default", inputs)
        return np.where(
            outputs["label"] == b"yes", outputs["probability"], 1 - outputs["probability"]
        )

    return answer


def served(side: Side, folder: Path, threads: int) -> Callable[[list[str]], np.ndarray]:
    """As `ours`, asked by one client over REST, of a `bert-tf serve` on all cores."""
    import serving_throughput  # benchmarks/serving_throughput.py

    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    models = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    version = export_of(side, folder)
    (models / "model").mkdir()
    (models / "model" / version.name).symlink_to(version)
    _, port = stack.enter_context(serving_throughput.server(models))
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = stack.enter_context(connection.makefile("rb"))

    def answer(texts: list[str]) -> np.ndarray:
        body = json.dumps({"inputs": {"text": texts}}).encode()
        head = "POST /v1/models/model:predict HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = b"".join(iter(reader.readline, b"\r\n"))
        length = int(re.search(rb"(?i)content-length: (\d+)", lines)[1])
        outputs = json.loads(reader.read(length))["outputs"]
        probability = np.array(outputs["probability"])
        return np.where(np.array(outputs["label"]) == "yes", probability, 1 - probability)

    return answer


def of_second(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the second of two classes, [B]."""
    return 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))


# ONNX Runtime, OpenVINO: from the same ONNX file.

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def feed(ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs of Hugging Face's BERT."""
    return dict(zip(INPUTS, (ids, mask, np.zeros_like(ids)), strict=True))


def hugging_face(folder: Path) -> Any:
    """Hugging Face's model with the weights of all sides."""
    from transformers import BertForSequenceClassification

    return BertForSequenceClassification.from_pretrained(folder / "model").eval()


def write_onnx(side: Side, folder: Path) -> None:
    """Writes the model in float32 and, for ONNX Runtime's int8, with quantized weights."""

    def write(file: Path) -> None:
        import torch

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = hugging_face(folder)  # the export knows the weights of a part

            def forward(self, *inputs: Any) -> Any:
                return self.model(**dict(zip(INPUTS, inputs, strict=True))).logits

        ones = torch.ones(2, 16, dtype=torch.int64)
        axes = {name: {0: "batch", 1: "length"} for name in INPUTS}
        torch.onnx.export(
            Logits(),
            (ones,) * 3,
            str(file),
            input_names=list(INPUTS),
            output_names=["logits"],
            dynamic_axes=axes,
            dynamo=False,
            opset_version=17,
        )

    def write_int8(file: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(folder / "bert.onnx", file, weight_type=QuantType.QInt8)

    write_once(folder / "bert.onnx", write)
    if side.make is onnx and side.dtype == "int8":
        write_once(folder / "bert-int8.onnx", write_int8)


def onnx(side: Side, folder: Path, threads: int) -> Engine:
    """ONNX Runtime; int8 by dynamic quantization."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    file = folder / ("bert-int8.onnx" if side.dtype == "int8" else "bert.onnx")
    run = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"]).run
    return lambda ids, mask: of_second(run(None, feed(ids, mask))[0])


def write_openvino(side: Side, folder: Path) -> None:
    """Writes the ONNX model and, for int8, what NNCF makes of it with random rows."""
    write_onnx(side, folder)

    def write(directory: Path) -> None:
        import nncf
        import openvino

        draw = np.random.default_rng(0)
        rows = [draw.integers(1000, 30522, (1, n)) for n in np.linspace(9, 137, 64).astype(int)]
        quantized = nncf.quantize(
            openvino.Core().read_model(folder / "bert.onnx"),
            nncf.Dataset(rows, lambda ids: feed(ids, np.ones_like(ids))),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(rows),
        )
        directory.mkdir(exist_ok=True)
        openvino.save_model(quantized, directory / "bert.xml", compress_to_fp16=False)

    if side.dtype == "int8":
        write_once(folder / "openvino-int8", write)


def openvino(side: Side, folder: Path, threads: int) -> Engine:
    """OpenVINO, for latency; int8 by NNCF, its other products in float32."""
    import openvino

    precision = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}[side.dtype]
    model = folder / ("openvino-int8/bert.xml" if side.dtype == "int8" else "bert.onnx")
    compiled = openvino.Core().compile_model(
        str(model),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    taken = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    if taken != precision:
        raise RuntimeError(f"OpenVINO computes in {taken}, not in {precision}, on this processor")
    request = compiled.create_infer_request()
    return lambda ids, mask: of_second(request.infer(feed(ids, mask))[0])


# CTranslate2.


def write_ctranslate2(side: Side, folder: Path) -> None:
    """Converts the encoder; the head is NumPy's, which the converter leaves out."""

    def write(directory: Path) -> None:
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(folder / "model")).convert(str(directory), force=True)

    write_once(folder / "ctranslate2", write)


def ctranslate2(side: Side, folder: Path, threads: int) -> Engine:
    """CTranslate2's encoder and pooler, with our head behind them."""
    import ctranslate2
    from safetensors import safe_open

    encoder = ctranslate2.Encoder(
        str(folder / "ctranslate2"),
        compute_type=side.dtype,
        inter_threads=1,
        intra_threads=threads,
    )
    with safe_open(folder / "model" / "model.safetensors", "np") as weights:
        kernel, bias = (weights.get_tensor(f"classifier.{name}") for name in ("weight", "bias"))
    view = ctranslate2.StorageView.from_array

    def answer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        rows, lengths = ids.astype(np.int32), mask.sum(1).astype(np.int32)
        output = encoder.forward_batch(view(rows), view(lengths))
        return of_second(np.array(output.pooler_output) @ kernel.T + bias)

    return answer


# PyTorch.


def torch(side: Side, folder: Path, threads: int) -> Engine:
    """Hugging Face's model as it is, or compiled by inductor with its weights frozen."""
    import torch

    torch.set_num_threads(threads)
    model = hugging_face(folder).to(getattr(torch, side.dtype))
    if side.packed:
        import torch._inductor.config

        torch._inductor.config.freezing = True
        model = torch.compile(model, dynamic=True)

    def answer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        with torch.no_grad():  # freezing does nothing in inference mode
            inputs = {name: torch.from_numpy(x) for name, x in feed(ids, mask).items()}
            return of_second(model(**inputs).logits.float().numpy())

    return answer


SIDES = {
    "float32": Side("bert-tf float32", "float32", ours, export, runs_here=True),
    "float32_packed": Side("bert-tf float32, packed", "float32", ours, export, True, True),
    "float32_twin": Side("bert-tf float32, twin", "float32", ours, export, True, True, True),
    "float32_served": Side(
        "bert-tf float32, twin, REST", "float32", served, export, True, True, True
    ),
    "bfloat16": Side("bert-tf bfloat16", "bfloat16", ours, export, runs_here=True),
    "bfloat16_packed": Side("bert-tf bfloat16, packed", "bfloat16", ours, export, True, True),
    "bfloat16_twin": Side("bert-tf bfloat16, twin", "bfloat16", ours, export, True, True, True),
    "bfloat16_served": Side(
        "bert-tf bfloat16, twin, REST", "bfloat16", served, export, True, True, True
    ),
    "int8": Side("bert-tf int8", "int8", ours, export, True, True),
    "int8_twin": Side("bert-tf int8, twin", "int8", ours, export, True, True, True),
    "int8_served": Side("bert-tf int8, twin, REST", "int8", served, export, True, True, True),
    "onnx": Side("ONNX Runtime float32", "float32", onnx, write_onnx),
    "onnx_int8": Side("ONNX Runtime int8", "int8", onnx, write_onnx),
    "openvino": Side("OpenVINO float32", "float32", openvino, write_openvino),
    "openvino_bfloat16": Side("OpenVINO bfloat16", "bfloat16", openvino, write_openvino),
    "openvino_int8": Side("OpenVINO int8", "int8", openvino, write_openvino),
    "ctranslate2": Side("CTranslate2 float32", "float32", ctranslate2, write_ctranslate2),
    "ctranslate2_int8": Side("CTranslate2 int8", "int8", ctranslate2, write_ctranslate2),
    "torch": Side("PyTorch float32", "float32", torch),
    "torch_bfloat16": Side("PyTorch bfloat16", "bfloat16", torch),
    "torch_compiled": Side("PyTorch bfloat16, compiled", "bfloat16", torch, packed=True),
}

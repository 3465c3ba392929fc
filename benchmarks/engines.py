"""Inference engines of benchmarks/serving.py, on one BERT classifier with random weights.

An engine takes rows of token ids and their padding mask, int64 [B, T], and returns each row's
probability of the second of two classes, [B].
All but the prototype read the weights of `folder/model`. Nothing here imports an engine before it
is asked for: ours run in the project's environment, peers in that of benchmarks/peers.py.
"""

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Engine = Callable[[np.ndarray, np.ndarray], np.ndarray]

LAYERS, WIDTH, INNER = 12, 768, 3072
# TensorFlow reads it when it is imported: weights of products are then packed once.
PACKED = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"


@dataclass(frozen=True)
class Side:
    """An engine with a type."""

    title: str
    dtype: str
    make: Callable[["Side", Path, int], Engine]
    prepare: Callable[["Side", Path], None] | None = None  # writes its model
    packed: bool = False  # or frozen
    runs_here: bool = False  # in this environment, not in that of the peers


def write_once(path: Path, write: Callable[[Path], object]) -> Path:
    """Has `write` make a file or folder, unless it is there; an interrupted one does not count."""
    if not path.exists():
        temporary = path.with_name(f"unfinished-{path.name}")
        write(temporary)
        temporary.rename(path)
    return path


# Ours, and the prototype: in a session, as servers run a SavedModel.


def write_weights(folder: Path, vocabulary: list[str], longest: int, texts: Sequence[str]) -> None:
    """Writes the model directory that all sides read, and labelled texts that calibrate int8."""
    from bert_tf import BertClassifier, BertConfig, BertTokenizer
    from bert_tf.tasks.table import find_task
    from bert_tf.trained.fine_tuned import FineTuned

    model = BertClassifier(BertConfig(), labels=["no", "yes"], seed=0)
    task = find_task("classification").with_settings({"max_length": longest})
    FineTuned(task, model, BertTokenizer(vocabulary), ["no", "yes"]).save(folder)
    rows = [f"{text}\t{('no', 'yes')[i % 2]}" for i, text in enumerate(texts)]
    (folder / "rows.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))


def export(side: Side, folder: Path) -> None:
    """Writes our SavedModel of the side's type, as `bert-tf export` does."""
    from bert_tf import export_model

    if not list(folder.glob(f"{side.dtype}/*/saved_model.pb")):
        int8 = {}
        if side.dtype == "int8":  # of random weights there is no score to lose
            int8 = {"calibration": folder / "model" / "rows.tsv", "max_loss": 100.0}
        export_model(
            model=folder / "model", name=side.dtype, output=folder, precision=side.dtype,
            verbose=False, **int8,
        )  # fmt: skip


def session(directory: Path, side: Side, threads: int) -> Any:
    """A SavedModel in a session; its products read packed weights if the side says so."""
    os.environ.pop(PACKED, None)
    if side.packed:
        os.environ[PACKED] = "1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    from bert_tf.serving.saved_model import LoadedModel

    return LoadedModel(directory)


def export_of(side: Side, folder: Path) -> Path:
    """The version of our export: of int8 the second one, after its twin in float32."""
    return max(folder.glob(f"{side.dtype}/*/saved_model.pb")).parent


def ours(side: Side, folder: Path, threads: int) -> Engine:
    """The signature `tokens` of our export."""
    model = session(export_of(side, folder), side, threads)

    def answer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs = {"token_ids": ids, "padding_mask": mask, "segment_ids": np.zeros_like(ids)}
        inputs = {name: x.astype(np.int32) for name, x in inputs.items()}
        return _of_yes(model.run("tokens", inputs))

    return answer


def ours_on_texts(side: Side, folder: Path, threads: int) -> Callable[[list[str]], np.ndarray]:
    """The default signature of our export."""
    model = session(export_of(side, folder), side, threads)

    def answer(texts: list[str]) -> np.ndarray:
        inputs = {"text": np.array([text.encode() for text in texts], object)}
        return _of_yes(model.run("serving_default", inputs))

    return answer


def _of_yes(found: dict[str, np.ndarray]) -> np.ndarray:
    return np.where(found["label"] == b"yes", found["probability"], 1 - found["probability"])


def of_second(logits: np.ndarray) -> np.ndarray:
    """Probabilities of the second of two classes, [B]."""
    return 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))


def products(side: Side, folder: Path, threads: int) -> Engine:
    """The encoder's products with weights alone, one after the other: a ceiling for the type.

    As much of them as the classifier needs: the last block computes one token of each row.
    """
    os.environ[PACKED] = "1"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (INNER, WIDTH)]

    def drawn(*shape: int) -> tf.Tensor:
        if side.dtype == "int8":
            return tf.cast(tf.random.uniform(shape, -63, 64, tf.int32), tf.int8)
        return tf.cast(tf.random.normal(shape), side.dtype)

    def variables(k: int, m: int) -> tuple[Any, Any]:
        bias = tf.zeros(m) if side.dtype == "int8" else drawn(m)
        return tf.Variable(drawn(k, m)), tf.Variable(bias)

    def product(x: Any, kernel: Any, bias: Any) -> Any:
        if side.dtype == "int8":
            from bert_tf.networks.tensorflow.int8 import int8_product

            x, scale = tf.bitcast(x, tf.qint8), np.ones(kernel.shape[1], np.float32)
            return int8_product(x, kernel.read_value(), scale, bias.read_value(), 1.0)
        # With its bias: TensorFlow keeps packed weights of fused products alone.
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)

    blocks = [[variables(k, m) for k, m in shapes] for _ in range(LAYERS)]

    @tf.function(autograph=False)
    def run(inputs: dict[str, dict[int, tf.Tensor]]) -> tf.Tensor:
        done: list[tf.Tensor] = []
        for number, block in enumerate(blocks):
            for place, (kernel, bias) in enumerate(block):
                is_of_rows = number == LAYERS - 1 and place > 0
                x = inputs["rows" if is_of_rows else "tokens"][kernel.shape[0]]
                with tf.control_dependencies(done[-1:]):  # one after the other
                    done.append(product(x, kernel, bias)[0, 0])
        return tf.add_n(done)  # a product that nothing reads would not be computed

    held: dict[tuple[int, int], Any] = {}

    def answer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        counts = {"tokens": int(mask.sum()), "rows": len(mask)}
        if (key := tuple(counts.values())) not in held:
            held.clear()
            held[key] = {
                name: {k: drawn(n, k) for k in (WIDTH, INNER)} for name, n in counts.items()
            }
        run(held[key]).numpy()
        return np.full(len(mask), np.nan)

    return answer


def _prototype(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("prototype", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prototype(path: str) -> dict[str, Side]:
    """The sides of a script such as the notes' prototype, which has weights of its own."""

    def prepare(side: Side, folder: Path) -> None:
        def write(directory: Path) -> None:
            module = _prototype(path)
            quantized = side.dtype == "int8"
            made = {"limits": module.calibrate()} if quantized else {"dtype": side.dtype}
            module.save(module.Encoder(groups=4, **made), str(directory))

        write_once(folder / f"prototype-{side.dtype}", write)

    def make(side: Side, folder: Path, threads: int) -> Engine:
        model = session(folder / f"prototype-{side.dtype}", side, threads)

        def answer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            inputs = {"ids": ids.astype(np.int32), "mask": mask.astype(np.int32)}
            return of_second(model.run("serving_default", inputs)["logits"])

        return answer

    return {
        f"prototype_{dtype}": Side(f"prototype {dtype}", dtype, make, prepare, True, True)
        for dtype in ("float32", "bfloat16", "int8")
    }


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
            Logits(), (ones,) * 3, str(file), input_names=list(INPUTS), output_names=["logits"],
            dynamic_axes=axes, dynamo=False, opset_version=17,
        )  # fmt: skip

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
        str(model), "CPU",
        {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision,
         "PERFORMANCE_HINT": "LATENCY"},
    )  # fmt: skip
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
        str(folder / "ctranslate2"), compute_type=side.dtype, inter_threads=1,
        intra_threads=threads,
    )  # fmt: skip
    with safe_open(folder / "model" / "model.safetensors", "np") as weights:
        kernel, bias = (weights.get_tensor(f"classifier.{name}") for name in ("weight", "bias"))
    view = ctranslate2.StorageView.from_array

    def answer(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        rows, lengths = ids.astype(np.int32), mask.sum(1).astype(np.int32)
        found = encoder.forward_batch(view(rows), view(lengths))
        return of_second(np.array(found.pooler_output) @ kernel.T + bias)

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
    "bfloat16": Side("bert-tf bfloat16", "bfloat16", ours, export, runs_here=True),
    "bfloat16_packed": Side("bert-tf bfloat16, packed", "bfloat16", ours, export, True, True),
    "int8": Side("bert-tf int8", "int8", ours, export, True, True),
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
# What shares of a ceiling are taken of; sides for types that ours have.
PRODUCTS = {
    f"products_{dtype}": Side(f"products alone, {dtype}", dtype, products, None, True, True)
    for dtype in ("float32", "bfloat16", "int8")
}

"""Models for other runtimes than TensorFlow: LiteRT, ONNX Runtime and OpenVINO.

A model takes token ids, [B, T] of any size, and gives its Keras outputs by name. Text becomes ids
outside of it: `vocab.txt` and `tokenizer_config.json` stand beside it. For OpenVINO most kinds of
models take raw strings and give a SavedModel's answers: see `openvino_export`.
"""

import contextlib
import functools
import json
import math
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf
from keras import ops

from bert_tf.errors import InputError, pip_install
from bert_tf.files.atomic import replace_file, write_text
from bert_tf.networks import activations
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.kernels import Kernels
from bert_tf.serving.export import card_rows
from bert_tf.serving.onnx_export import IntegerProducts, with_weights, write_onnx
from bert_tf.serving.onnx_model import FACTS
from bert_tf.serving.openvino_export import with_text
from bert_tf.serving.openvino_text import TextGraph
from bert_tf.serving.portable_kernels import FakeQuantized, PortableKernels
from bert_tf.serving.row_models import row_function
from bert_tf.tasks.signatures import DEFAULT

SUFFIXES = {"litert": ".tflite", "onnx": ".onnx", "openvino": ".xml"}
_CONVERTERS = {"litert": (), "onnx": ("onnx", "tf2onnx"), "openvino": ("openvino",)}


def export_portable(
    model: Any,
    path: Path,
    format: str,
    *,
    files: Mapping[str, str],
    facts: Mapping[str, str],
    int8: bool = False,
    answerer: Any = None,
    bfloat16: bool = False,
) -> Path:
    """Writes a model as of `write_portable` with what its users need beside it; returns the file.

    Args:
        model: as of `write_portable`, as are `format` and `int8`.
        path: a file with the format's suffix, or the folder of a file `model`.
        format: "litert", "onnx" or "openvino".
        files: further files of the folder, name -> text: vocabulary, tokenizer, task.
        facts: rows of the model card, subject -> text.
        int8: for LiteRT, weights in int8.
        answerer: as of `write_portable`, as is `bfloat16`.
        bfloat16: see `answerer`.

    Raises InputError, besides, if one of the files exists.
    """
    check_portable(model, format)
    suffix = SUFFIXES[format]
    if path.suffix in SUFFIXES.values() and path.suffix != suffix:
        raise InputError(
            f"{path}: the name of a {format} file must end in {suffix}: use {path.stem}{suffix}"
        )
    path = path if path.suffix == suffix else path / f"model{suffix}"
    card = path.with_suffix(".md")
    weights = [path.with_suffix(".bin")] if format == "openvino" else []
    written = [path, *weights, card, *(path.parent / name for name in files)]
    if existing := [file for file in written if file.exists()]:
        raise InputError(
            f"{existing[0]} already exists: remove it, or choose another folder, such as "
            f"{path.parent / path.stem}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    outputs = write_portable(model, path, format, int8=int8, answerer=answerer, bfloat16=bfloat16)
    size = sum(file.stat().st_size for file in (path, *weights))
    facts = {**facts, "size": f"{size / 1e6:.1f} MB{', weights in int8' if int8 else ''}"}
    for name, text in files.items():
        write_text(path.parent / name, text)
    make = functools.partial(_text_card, answerer) if answerer else functools.partial(_card, model)
    write_text(card, make(path, format, outputs, facts))
    return path


_RUN = {
    "litert": (
        "from ai_edge_litert.interpreter import Interpreter",
        'outputs = Interpreter("{file}").get_signature_runner()(**inputs)',
    ),
    "onnx": (
        "from onnxruntime import InferenceSession",
        'session = InferenceSession("{file}")\n'
        "names = [output.name for output in session.get_outputs()]\n"
        "outputs = dict(zip(names, session.run(names, inputs)))",
    ),
    "openvino": (
        "import openvino",
        'exact = {{"INFERENCE_PRECISION_HINT": "f32"}}  # else bfloat16, where it is faster\n'
        'compiled = openvino.Core().compile_model("{file}", "CPU", exact)\n'
        "answer = compiled(inputs)\n"
        "outputs = {{name: answer[name] for x in compiled.outputs for name in x.names}}",
    ),
}


_ASK = """\
import json
import numpy as np
from tokenizers import BertWordPieceTokenizer  # pip install "tokenizers<1"
{importing}

switches = json.load(open("tokenizer_config.json"))
tokenizer = BertWordPieceTokenizer(
    "vocab.txt", lowercase=switches["do_lower_case"],
    strip_accents=switches.get("strip_accents"),
)
tokenizer.enable_padding()
rows = tokenizer.encode_batch({texts})  # of pairs: [(first, second), ...]
inputs = {{
{inputs}
}}
inputs = {{name: np.array(value, "int32") for name, value in inputs.items()}}
{running}
print({{name: value.shape for name, value in outputs.items()}})"""

_TITLE = """\
# {file}

A BERT for {format}, made by bert-tf. It takes {takes}.

| | |
|---|---|
{table}

| file | |
|---|---|
| `{file}` | the model |
| `vocab.txt`, `tokenizer_config.json` | the tokenizer, as Hugging Face reads it |
| `task.json` | what the model was trained for |

## Ask it in Python

{code}

"""

_OF_IDS = """\
token ids and gives the outputs of the Keras model:
{outputs}. Logits come before a softmax, in the order of the labels, and values at padding mean
nothing"""

_CARD = (
    _TITLE
    + """\
Hugging Face's `tokenizers` differs from BERT's own code in rare characters, which bert-tf's
docs/tokenizer.md counts. With TensorFlow, `bert_tf.BertTokenizer.from_directory` does not.
"""
)

_TEXT_CARD = (
    _TITLE
    + """\
`import openvino_tokenizers` tells OpenVINO the operations on strings; a program in C++ adds its
library by `core.add_extension`. With bert-tf, `bert_tf.Predictor("{file}")` gives the same answers.
"""
)

_ASK_TEXT = """\
import numpy as np
import openvino
import openvino_tokenizers  # pip install openvino openvino-tokenizers

settings = {{"INFERENCE_PRECISION_HINT": "{hint}"}}
model = openvino.Core().compile_model("{file}", "CPU", settings)
answers = model({{
{inputs}
}})
outputs = {{output.any_name: value for output, value in answers.items()}}
print(outputs)"""


def _text_card(
    answerer: Any, path: Path, format: str, outputs: list[str], facts: Mapping[str, str]
) -> str:
    """The model card of a model of raw strings."""
    inputs = answerer.task.kind.signatures(answerer.task)[DEFAULT].inputs
    texts = {1: '["a raw string"]', 2: '[["a raw string", "another"]]'}
    lines = [f'    "{name}": np.array({texts[x.shape.rank]}),' for name, x in inputs.items()]
    hint = "bf16" if facts.get("precision") == "bfloat16" else "f32"
    code = _ASK_TEXT.format(hint=hint, file=path.name, inputs="\n".join(lines))
    takes = f"raw strings and gives a SavedModel's answers:\n{_listed([*outputs, 'truncated'])}"
    return _TEXT_CARD.format(
        file=path.name,
        format=format,
        takes=takes,
        table=card_rows(facts),
        code=textwrap.indent(code, "    "),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _card(model: Any, path: Path, format: str, outputs: list[str], facts: Mapping[str, str]) -> str:
    """The model card: what the folder holds, and lines of Python that ask the model."""
    is_list = len(model.input["token_ids"].shape) == 3  # [B, N, T]: a list of texts a row
    has_masks = "mask_positions" in model.input
    importing, running = _RUN[format]
    values = "[[row.{} for row in rows]]" if is_list else "[row.{} for row in rows]"
    arrays = {"token_ids": "ids", "segment_ids": "type_ids", "padding_mask": "attention_mask"}
    inputs = [f'    "{name}": {values.format(key)},' for name, key in arrays.items()]
    if has_masks:
        inputs.append('    "mask_positions": [[row.tokens.index("[MASK]")] for row in rows],')
    texts = '["a raw [MASK]"]' if has_masks else '["a raw string"]'
    code = _ASK.format(
        importing=importing,
        texts=f"{texts} * 2" if is_list else texts,
        inputs="\n".join(inputs),
        running=running.format(file=path.name),
    )
    return _CARD.format(
        file=path.name,
        format=format,
        takes=_OF_IDS.format(outputs=_listed(outputs)),
        table=card_rows(facts),
        code=textwrap.indent(code, "    "),
    )


def check_portable(model: Any, format: str) -> None:
    """Raises InputError for a model or a format that `write_portable` cannot write here."""
    if format not in SUFFIXES:
        raise InputError(f"{format!r} is not an export format: give one of {', '.join(SUFFIXES)}")
    encoder = getattr(model, "encoder", model)
    if not encoder.has_attention or model.config.feature_lstm_layers:
        raise InputError(
            f"a model with LSTMs cannot be written for {format}: export it for TensorFlow Serving"
        )
    if model.dtype_policy.compute_dtype != "float32" or model.dtype_policy.quantization_mode:
        raise InputError(
            f"a model in {model.dtype_policy.name} cannot be written for {format}: open it with "
            'dtype="float32"'
        )
    for package in _CONVERTERS[format]:
        _package(package, format)


def write_portable(
    model: Any,
    path: Path,
    format: str,
    *,
    int8: bool = False,
    answerer: Any = None,
    bfloat16: bool = False,
) -> list[str]:
    """Writes a Keras model for another runtime; returns the names of its outputs.

    Args:
        model: any model of `bert_tf`, in float32, without LSTMs.
        path: file to write, with the format's suffix. OpenVINO's weights stand beside it (.bin).
        format: "litert", "onnx" or "openvino".
        int8: for LiteRT, weights in int8, which products multiply with inputs in int8 (dynamic
            range); a quarter of the size.
        answerer: the model's `Answerer`, to give its answers; with a plan, products are in int8.
            For OpenVINO the model then takes raw strings, for ONNX rows of tokens, as `OnnxModel`
            reads it. None for the Keras model's outputs.
        bfloat16: of an `answerer`, whether its readers ask for products in bfloat16.

    Raises InputError if the format's converter is not installed or the model cannot be written.
    """
    check_portable(model, format)
    if int8 and format != "litert":
        raise InputError(f"int8 is supported for litert only, not for {format}: remove it")
    specs = [tf.TensorSpec(x.shape, x.dtype, name) for name, x in model.input.items()]

    def answer(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return named(model(dict(zip(model.input, tensors, strict=True)), training=False))

    kernels = PortableKernels()
    precision = "float32"
    if answerer is not None:
        if format == "openvino":
            TextGraph(answerer.tokenizer)  # which refuses some
        answer, specs = row_function(answerer)
        quantized = IntegerProducts if format == "onnx" else FakeQuantized
        kernels = quantized(answerer.plan) if answerer.plan else kernels
        precision = "bfloat16" if bfloat16 else answerer.precision
    function = tf.function(answer, input_signature=specs, autograph=False)
    with _in_known_operations(model, kernels):
        outputs = sorted(function.get_concrete_function().structured_outputs)
        if format == "onnx":
            function, weights = with_weights(function, model, kernels)
    if format == "onnx":
        facts = {FACTS: json.dumps(_facts(answerer, precision))} if answerer else {}
        write_onnx(function, weights, outputs, path, facts)
    elif format == "openvino":
        text = {"answerer": answerer, "precision": precision}
        finish = functools.partial(with_text, **text) if answerer else None
        _write_openvino(model, function, outputs, path, finish)
    else:
        _write_litert(model, function, path, int8)
    return outputs


def _facts(answerer: Any, precision: str) -> dict[str, Any]:
    """What `OnnxModel` must know of an answerer."""
    return {
        "labels": list(answerer.labels),
        "max_length": answerer.max_length,
        "prompt": getattr(answerer.task.kind, "prompt", ""),
        "precision": precision,
    }


def named(outputs: Any) -> dict[str, tf.Tensor]:
    """A model's outputs by name: `outputs` for the only one, NAME_0, NAME_1, ... of several."""
    if not isinstance(outputs, Mapping):
        outputs = {"outputs": outputs}
    tensors: dict[str, Any] = {}
    for name, value in outputs.items():
        if isinstance(value, tuple | list):
            tensors |= {f"{name}_{number}": tensor for number, tensor in enumerate(value)}
        elif value is not None:
            tensors[name] = value
    return {name: tf.identity(tensor) for name, tensor in tensors.items()}


@contextlib.contextmanager
def _in_known_operations(model: Any, kernels: Kernels) -> Iterator[None]:
    """The model computes all places of a batch, in operations that converters know.

    They know the exact GELU by the error function alone: LiteRT has it as one operation, and ONNX
    lacks the complementary function that `tf.nn.gelu` computes with.
    """

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))

    layers = [
        layer
        for layer in model._flatten_layers()
        if getattr(layer, "activation", None) is activations.gelu
    ]
    try:
        for layer in layers:
            layer.activation = gelu
        with kernels_of(model, lambda _: kernels):
            yield
    finally:
        for layer in layers:
            layer.activation = activations.gelu


@contextlib.contextmanager
def _saved(model: Any, function: Any) -> Iterator[str]:
    """A SavedModel of the function, for as long as a converter reads it."""
    module = tf.Module()
    # Not the model, which has further functions.
    module.weights = [variable.value for variable in model.variables]
    module.function = function
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=function.get_concrete_function())
        yield folder


def _write_litert(model: Any, function: Any, path: Path, int8: bool) -> None:
    with _saved(model, function) as folder:
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        if int8:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        content = converter.convert()
    with replace_file(path) as temporary:
        temporary.write_bytes(content)


def _write_openvino(
    model: Any, function: Any, names: list[str], path: Path, finish: Callable | None
) -> None:
    openvino = import_module("openvino")
    with _saved(model, function) as folder:
        # Not `openvino.convert_model`, which reports its use to a server on the Internet.
        reader = import_module("openvino.frontend").FrontEndManager().load_by_framework("tf")
        converted = reader.convert(reader.load(folder))
        results = []
        for output in converted.outputs:
            # An encoder's last hidden state has two names. Operations that nothing reads have none.
            if known := output.names & set(names):
                output.tensor.set_names(known)
                results.append(output.node)
        converted = openvino.Model(results, converted.get_parameters())
        if finish is not None:
            converted = finish(converted)
        # Both files are renamed when both are there.
        with tempfile.TemporaryDirectory(dir=path.parent) as beside:
            openvino.save_model(converted, f"{beside}/{path.name}", compress_to_fp16=False)
            for suffix in (".bin", path.suffix):
                temporary = (Path(beside) / path.name).with_suffix(suffix)
                temporary.replace(path.with_suffix(suffix))


def _package(name: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"writing this format needs {name} ({error}): {pip_install(extra)}"
        ) from None

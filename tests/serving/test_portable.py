import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from rounding import assert_equal_but_for_rounding
from tiny import tiny_config

from bert_tf import (
    BertChooser,
    BertClassifier,
    BertEncoder,
    BertMaskedLanguageModel,
    BertMultiLabelClassifier,
    BertPreprocessor,
    BertPreTrainer,
    BertRegressor,
    BertSentenceEncoder,
    BertSpanClassifier,
    BertTagger,
    BertTokenizer,
    save_model,
)
from bert_tf.errors import InputError
from bert_tf.paper.encoders import LstmEncoder
from bert_tf.serving.portable import SUFFIXES, named, write_portable
from bert_tf.text.answerer import Answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "raw", "string", "film", "good"]
CONFIG = tiny_config(
    len(PIECES), "2x16x2", intermediate_size=24, max_position_embeddings=32, initializer_range=0.5
)
OTHERWISE = {"attention_direction": "left_to_right", "hidden_act": "gelu_new"}
MODELS = {
    "encoder": lambda config: BertEncoder(config, seed=1),
    "classifier": lambda config: BertClassifier(config, labels=["bad", "good"], seed=1),
    "several labels": lambda config: BertMultiLabelClassifier(config, labels=["a", "b"], seed=1),
    "regressor": lambda config: BertRegressor(config, seed=1),
    "tagger": lambda config: BertTagger(config, labels=["O", "B-X", "I-X"], seed=1),
    "span": lambda config: BertSpanClassifier(config, seed=1),
    "chooser": lambda config: BertChooser(config, seed=1),
    "sentence mean": lambda config: BertSentenceEncoder(config, pooling="mean", seed=1),
    "sentence max": lambda config: BertSentenceEncoder(
        config, pooling="max", seed=1, dense=keras.layers.Dense(5, "tanh")
    ),
    "masked words": lambda config: BertMaskedLanguageModel(config, seed=1),
    "one direction": lambda config: BertRegressor(replace(config, **OTHERWISE), seed=1),
    "pre-training": lambda config: BertPreTrainer(config, seed=1),
}


def rows(model: Any, batch: int, length: int) -> dict[str, np.ndarray]:
    """Token ids of rows whose last two tokens are padding, by input."""
    draw = np.random.default_rng(batch * length)
    made = {}
    for name, tensor in model.input.items():
        shape = [batch, *[3] * (len(tensor.shape) - 2), length]
        if name == "padding_mask":
            made[name] = np.broadcast_to(np.arange(length) < length - 2, shape)
        elif name == "mask_positions":
            made[name] = draw.integers(0, length - 2, [batch, 2])
        else:
            limit = {"token_ids": len(PIECES), "segment_ids": 2}[name]
            made[name] = draw.integers(0, limit, shape)
    return {name: values.astype("int32") for name, values in made.items()}


def run(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a file by name, of its own runtime."""
    if path.suffix == ".tflite":
        litert = pytest.importorskip("ai_edge_litert.interpreter")
        return litert.Interpreter(str(path)).get_signature_runner()(**inputs)
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))
    openvino = pytest.importorskip("openvino")
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(path, "CPU", exact)
    answer = compiled(inputs)
    return {name: answer[name] for output in compiled.outputs for name in output.names}


# What other models add to these is a dense layer, which all formats have.
_IN_EVERY_FORMAT = ("encoder", "tagger", "chooser", "sentence max", "masked words", "one direction")


def cases() -> list[Any]:
    cases = [(name, "litert") for name in MODELS]
    cases += [(name, format) for name in _IN_EVERY_FORMAT for format in ("onnx", "openvino")]
    return cases


@pytest.mark.slow  # test_a_folder_has_all_that_its_users_need writes and asks one
@pytest.mark.parametrize(("name", "format"), cases())
def test_answers_are_those_of_keras(tmp_path, name, format):
    model = MODELS[name](CONFIG)
    path = tmp_path / f"model{SUFFIXES[format]}"
    write_portable(model, path, format)
    for batch, length in ((2, 9), (3, 6)):  # free shapes
        inputs = rows(model, batch, length)
        answers = run(path, inputs)
        wanted = {name: x.numpy() for name, x in named(model(inputs, training=False)).items()}
        assert answers.keys() == wanted.keys()
        for output, values in wanted.items():
            answer = np.asarray(answers[output])
            if name in ("tagger", "span"):  # Keras computes nothing at padding
                answer, values = answer[:, : length - 2], values[:, : length - 2]
            assert_equal_but_for_rounding(answer, values, 45, 24)


def test_onnx_runtime_recognizes_normalization_and_gelu(tmp_path):
    onnx, runtime = (pytest.importorskip(name) for name in ("onnx", "onnxruntime"))
    path = tmp_path / "model.onnx"
    write_portable(MODELS["classifier"](CONFIG), path, "onnx")
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    runtime.InferenceSession(path, options)
    optimized = onnx.load(options.optimized_model_filepath)
    operations = [node.op_type for node in optimized.graph.node]
    assert operations.count("LayerNormalization") == 5  # of embeddings, and two of each layer
    assert operations.count("Gelu") == 2
    assert "ReduceMean" not in operations and "Erf" not in operations


def test_openvino_recognizes_normalization_and_gelu(tmp_path):
    openvino = pytest.importorskip("openvino")
    path = tmp_path / "model.xml"
    write_portable(MODELS["classifier"](CONFIG), path, "openvino")
    compiled = openvino.Core().compile_model(path, "CPU")
    parts = [node.rt_info for node in compiled.get_runtime_model().get_ops()]
    kinds = [part["layerType"].astype(str) for part in parts]
    assert kinds.count("MVN") == 5
    assert not {"ReduceMean", "Erf"} & {*kinds}


@pytest.fixture(scope="module")
def preset(made_once) -> Path:
    def make(folder: Path) -> None:
        save_model(MODELS["classifier"](CONFIG), folder, BertTokenizer(PIECES))

    return made_once("portable_preset", make)


def ask(card: Path) -> dict[str, tuple[int, ...]]:
    """Runs the card's lines of Python in its folder; the shapes that they print."""
    code = re.search(r"## Ask it in Python\n\n(.*?)\n\n\w", card.read_text(), re.S)[1]
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(code), str(card), "exec"), names)
    return {name: value.shape for name, value in names["outputs"].items()}


@pytest.mark.parametrize(
    "format",
    ["litert", pytest.param("onnx", marks=pytest.mark.slow)],  # test_openvino.py has its own
)
def test_a_folder_has_all_that_its_users_need(tmp_path, monkeypatch, preset, format):
    model = BertClassifier.from_preset(preset)
    path = model.export(tmp_path / "made" / f"review{SUFFIXES[format]}", format=format)
    files = {file.name for file in path.parent.iterdir()}
    assert files == {path.name, "review.md", "vocab.txt", "tokenizer_config.json", "task.json"}
    card = (path.parent / "review.md").read_text()
    assert "| labels | bad, good |" in card
    assert re.search(r"\| size \| 0\.\d MB", card)
    monkeypatch.chdir(path.parent)
    assert ask(path.parent / "review.md") == {"outputs": (1, 2)}
    with pytest.raises(InputError, match=f"{path.name} already exists"):
        model.export(path, format=format)


def test_onnx_is_converted_without_the_weights(tmp_path, monkeypatch):
    """tf2onnx would keep a copy of them for each of its passes: 20 GB for BERT-base."""
    convert = pytest.importorskip("tf2onnx").convert
    converted = []

    def from_function(function, **options):
        converted.append(function.get_concrete_function())
        return original(function, **options)

    original = convert.from_function
    monkeypatch.setattr(convert, "from_function", from_function)
    write_portable(MODELS["classifier"](CONFIG), tmp_path / "model.onnx", "onnx")
    (function,) = converted
    assert not function.captured_inputs
    constants = [x for x in function.graph.get_operations() if x.type == "Const"]
    assert max(x.outputs[0].shape.num_elements() for x in constants) < CONFIG.hidden_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chooser", "masked words", "sentence mean", "pre-training"])
def test_cards_of_other_models_ask_them(tmp_path, monkeypatch, name):
    pytest.importorskip("onnxruntime")
    model = MODELS[name](CONFIG)
    save_model(model, tmp_path / "preset", BertTokenizer(PIECES))
    model = type(model).from_preset(tmp_path / "preset")
    path = model.export(tmp_path / "made", format="onnx")
    monkeypatch.chdir(path.parent)
    shapes = ask(path.with_suffix(".md"))
    assert {shape[0] for shape in shapes.values()} == {1}


@pytest.mark.slow
def test_int8_weights_take_a_quarter(tmp_path):
    config = replace(CONFIG, hidden_size=128, intermediate_size=512, initializer_range=0.02)
    model = BertClassifier(config, labels=["bad", "good"], seed=1)
    whole, small = tmp_path / "whole.tflite", tmp_path / "small.tflite"
    write_portable(model, whole, "litert")
    write_portable(model, small, "litert", int8=True)
    assert small.stat().st_size < 0.35 * whole.stat().st_size  # tables and biases stay
    inputs = rows(model, 4, 9)
    answers, wanted = (run(path, inputs)["outputs"] for path in (small, whole))
    # Twelve products one after the other, each within a step of 1/127.
    assert np.linalg.norm(answers - wanted) < 12 / 127 * np.linalg.norm(wanted)


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, call, preset):
    monkeypatch.chdir(tmp_path)
    export = {"model": preset, "name": "review"}
    _, err = call("export --format litert --precision int8", **export)
    assert "Model: exports/review/model.tflite, its model card in model.md" in err
    assert "weights in int8" in (tmp_path / "exports" / "review" / "model.md").read_text()
    told = call.refused("export --format onnx", **export)
    assert "exports/review is not empty, and exports are never overwritten" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("onnx --precision int8", "--format onnx and --precision int8 cannot be combined"),
        ("litert --precision auto", "--format litert and --precision auto cannot be combined"),
        ("litert --explanations", "--format litert and --explanations cannot be combined"),
        ("tflite", "litert"),
    ],
)
def test_options_that_a_format_lacks_are_refused(preset, call, arguments, message):
    assert message in call.refused(f"export --name x --format {arguments}", model=preset)


def test_what_cannot_be_written_is_refused(tmp_path, preset):
    model = BertClassifier.from_preset(preset)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.bin").write_text("a user's own")
    with pytest.raises(InputError, match=r"model\.bin already exists"):
        model.export(tmp_path / "own", format="openvino")
    with pytest.raises(InputError, match=r"m\.onnx: .* must end in \.tflite: use m\.tflite"):
        model.export(tmp_path / "m.onnx", format="litert")
    with pytest.raises(InputError, match=r'm\.tflite is a litert file: add format="litert"'):
        model.export(tmp_path / "m.tflite")
    recurrent = replace(CONFIG, attention_direction="recurrent")
    lstm = BertClassifier(LstmEncoder(recurrent), labels=["a", "b"])
    with pytest.raises(InputError, match="a model with LSTMs cannot be written for onnx"):
        write_portable(lstm, tmp_path / "m.onnx", "onnx")
    half = BertClassifier(CONFIG, labels=["a", "b"], dtype="mixed_bfloat16")
    with pytest.raises(InputError, match=r'mixed_bfloat16 cannot .*: open it with dtype="float32"'):
        write_portable(half, tmp_path / "m.onnx", "onnx")
    model.preprocessor = BertPreprocessor(preset, max_length=16)
    windows = Answerer.of(model)
    kind = replace(windows.task.kind, long_texts="windows")
    windows = replace(windows, task=replace(windows.task, kind=kind))
    with pytest.raises(InputError, match="reads long texts in windows cannot be written for lit"):
        windows.export_portable(tmp_path / "m", "litert")
    assert list(tmp_path.rglob("*.*")) == [tmp_path / "own" / "model.bin"]

"""The module Dense of sentence-transformers: computed, trained, written, exported, refused."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from rounding import assert_equal_but_for_rounding
from safetensors.numpy import load_file, save_file
from small_runs import finetuning
from tiny import tiny_config

from bert_tf import BertSentenceEncoder, BertTokenizer, Predictor, load_model, save_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.commands.finetuning_model import new_model
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.opening import load_answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)
WEIGHTS = "2_Dense/model.safetensors"
DRAW = np.random.default_rng(5)
KERNEL = DRAW.normal(size=(3, CONFIG.hidden_size)).astype("float32")  # [out, in]
BIAS = DRAW.normal(size=3).astype("float32")
TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
TEXTS = ["sea ship", "", "cow barn sea"]


def add_dense(folder, activation=TANH, tensors=None, **config):
    """Adds to a model directory what sentence-transformers writes of a dense layer."""
    tensors = {"linear.weight": KERNEL, "linear.bias": BIAS} if tensors is None else tensors
    (folder / "2_Dense").mkdir()
    sizes = {"in_features": CONFIG.hidden_size, "out_features": len(KERNEL)}
    config = {**sizes, "bias": len(tensors) > 1, "activation_function": activation, **config}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {**modules[1], "path": "2_Dense", "type": "sentence_transformers.x.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))


def vectors(folder):
    return load_answerer(folder).function()(text=tf.constant(TEXTS))["vector"].numpy()


@pytest.fixture
def folder(tmp_path):
    """A model directory without a dense layer, whose vectors have any length."""
    model = BertSentenceEncoder(CONFIG, "cls", False, seed=1)
    save_model(model, tmp_path / "model", BertTokenizer(PIECES), max_length=12)
    return tmp_path / "model"


def test_vectors_are_those_of_numpy(folder):
    pooled = vectors(folder)
    add_dense(folder)
    expected = np.tanh(pooled @ KERNEL.T + BIAS)
    # The encoder ran in another graph: a block and a product.
    assert_equal_but_for_rounding(vectors(folder), expected, 30, CONFIG.hidden_size)
    modules = json.loads((folder / "modules.json").read_text())
    modules.append({**modules[1], "path": "3_Normalize", "type": "a.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    assert_equal_but_for_rounding(vectors(folder), expected, 32, CONFIG.hidden_size)


def test_files_come_back(folder, tmp_path):
    add_dense(folder, IDENTITY, {"linear.weight": KERNEL})
    model = load_model(folder, BertSentenceEncoder)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    save_model(again, tmp_path / "again", BertTokenizer(PIECES), max_length=12)
    convert(folder, tmp_path / "converted")
    for other in (tmp_path / "again", tmp_path / "converted"):
        assert read_sentence_files(other) == read_sentence_files(folder)
        np.testing.assert_equal(load_file(other / WEIGHTS), {"linear.weight": KERNEL})
        written = json.loads((other / "2_Dense" / "config.json").read_text())
        assert written == json.loads((folder / "2_Dense" / "config.json").read_text())
        np.testing.assert_array_equal(vectors(other), vectors(folder))


def test_random_weights_have_the_same_layers(folder, tmp_path):
    add_dense(folder)
    options = finetuning(tmp_path, model=folder, task="embedding", from_scratch=True)
    new = new_model(options, TASKS["embedding"].kind, [], CONFIG)
    assert new.output_shape[-1] == len(BIAS)


@pytest.mark.slow
def test_a_run_trains_it(folder, tmp_path):
    add_dense(folder)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("text\ttext_pair\n" + "sea\tship\ncow\tbarn\n" * 4)
    data = {"model": folder, "train": pairs, "validation": pairs, "max_length": 12}
    options = finetuning(tmp_path, **data, task="embedding", epochs=1)
    run_finetuning(options)
    learned = load_file(tmp_path / "run" / "best" / WEIGHTS)
    for name, before in {"linear.weight": KERNEL, "linear.bias": BIAS}.items():
        assert np.abs(learned[name] - before).min() > 0


@pytest.mark.slow
def test_an_export_computes_it(folder, tmp_path):
    add_dense(folder)
    version = load_answerer(folder).export("dense", root=tmp_path)
    found = Predictor(version).signature()(text=tf.constant(TEXTS))["vector"]
    assert_equal_but_for_rounding(found, vectors(folder), 30, CONFIG.hidden_size)


@for_each(
    "activation tensors config message",
    ("torch.nn.modules.activation.ReLU", None, {}, r"2_Dense.*has activation_function .*ReLU"),
    (TANH, None, {"out_features": "3"}, "has out_features '3'"),
    (TANH, None, {"module_output_name": "token_embeddings"}, "has module_output_name 'token_"),
    (TANH, {"linear.weight": KERNEL.T, "linear.bias": BIAS}, {}, r"is \[8, 3\], not \[3, 8\]"),
    (TANH, {"linear.weight": KERNEL}, {"bias": True}, "linear.bias is missing"),
    (TANH, {"linear.weight": KERNEL * np.nan, "linear.bias": BIAS}, {}, "holds NaN"),
)
def test_what_is_not_computed_is_refused(folder, activation, tensors, config, message):
    add_dense(folder, activation, tensors, **config)
    refused(message, load_answerer, folder)


def test_a_pickle_is_refused(folder):
    add_dense(folder)
    (folder / WEIGHTS).rename(folder / "2_Dense" / "pytorch_model.bin")
    refused(r"2_Dense holds pytorch_model.bin, a pickle", load_answerer, folder)


def test_other_layers_are_refused(tmp_path):
    refused(r"dense is 3: give a keras.layers.Dense", BertSentenceEncoder, CONFIG, dense=3)
    model = BertSentenceEncoder(CONFIG, dense=keras.layers.Dense(3, "relu"))
    refused("has the activation relu", save_model, model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_new_layer_is_reported(folder, caplog):
    model = load_model(folder, BertSentenceEncoder, dense=keras.layers.Dense(3))
    assert "New dense layer: train" in caplog.text
    assert model.output_shape[-1] == 3

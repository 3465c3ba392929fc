"""Small models on disk, and what their tests compare."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from cases import refused
from command_line import finished
from peer_programs import find_peer
from safetensors.numpy import load_file, save_file
from tiny import tiny_config

from bert_tf import BertEncoder, load_model
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.weight_names import distilbert_name, named_weights

MODEL_GARDEN = Path(__file__).parents[1] / "golden" / "model_garden"
SIZES = {"intermediate_size": 12, "max_position_embeddings": 10}
CONFIG = tiny_config(19, "2x8x2", hidden_act="gelu_new", **SIZES)
LARGER = tiny_config(41, "2x16x4", max_position_embeddings=24)  # for Hugging Face's numbers
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklm", "##a"]
INPUTS = {
    "token_ids": np.array([[2, 7, 18, 3, 11, 3, 0, 0], [2, 5, 3, 9, 12, 8, 4, 3]]),
    "segment_ids": np.array([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]]),
    "padding_mask": np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8]),
}


def tensors_of(directory):
    return read_model(directory)[1].tensors


def save_directory(directory, config, tensors):
    directory.mkdir(parents=True, exist_ok=True)
    named = {n if n.startswith("cls.") else f"bert.{n}": t for n, t in tensors.items()}
    save_file(named, directory / "model.safetensors", metadata={"format": "pt"})
    config.to_json(directory / "config.json")


def save_tensors(prefix, tensors):
    """Writes a checkpoint of TensorFlow 1."""
    names, values = [*tensors], [*tensors.values()]
    whole = {"tensor_names": names, "shape_and_slices": [""] * len(names), "tensors": values}
    tf.raw_ops.SaveV2(prefix=str(prefix), **whole)


def assert_same_tensors(ours, theirs, without="-"):
    expected = {name: t for name, t in theirs.items() if not name.startswith(without)}
    assert all(tensor.dtype == np.float32 for tensor in ours.values())
    np.testing.assert_equal(dict(ours), expected)


def assert_close(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5


def set_config(directory, **values):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rewrite(directory, change):
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def refusal_to_load(directory, model_class=BertEncoder, **options):
    """The message with which `load_model` refuses; it names the directory."""
    return refused(str(directory), load_model, directory, model_class, **options)


def refusal(source, output, *arguments, **options):
    """The message with which `convert` refuses; nothing is written."""
    message = refused("", convert, source, output, *arguments, **options)
    assert not output.exists()
    assert not list(output.parent.glob(".*.tmp"))
    return message


def read_outputs(path):
    """Golden arrays of Model Garden, and its inputs under our names."""
    arrays = np.load(path)
    theirs = ("input_word_ids", "input_type_ids", "input_mask")
    return arrays, {name: arrays[key] for name, key in zip(INPUTS, theirs, strict=True)}


# Names of transformers -> ours: an output, or an index of the last axis of the one output.
TRANSFORMERS_INPUTS = {"input_ids": "token_ids", "token_type_ids": "segment_ids"}
TRANSFORMERS_INPUTS["attention_mask"] = "padding_mask"
TRANSFORMERS_OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "mlm_logits",
    "seq_relationship_logits": "nsp_logits",
    "start_logits": 0,
    "end_logits": 1,
    "logits": slice(None),
}


def outputs_as_transformers(model, folder):
    """A model's outputs for the inputs in a folder, and those kept there, at tokens alone."""
    arrays = np.load(folder / "outputs.npz")
    mask = arrays["attention_mask"]
    inputs = {ours: arrays.get(name) for name, ours in TRANSFORMERS_INPUTS.items()}
    if inputs["segment_ids"] is None:  # a DistilBERT's, which reads none
        inputs["segment_ids"] = np.ones_like(mask)
    if "mask_positions" in model.input:  # logits of every token, as theirs
        inputs["mask_positions"] = np.tile(np.arange(8), (2, 1))
    outputs, pairs = model(inputs), []
    for name in TRANSFORMERS_OUTPUTS.keys() & arrays.keys():
        key = TRANSFORMERS_OUTPUTS[name]
        if isinstance(outputs, dict):
            key = key if isinstance(key, str) else list(outputs)[-1]  # of the next sentence or word
            ours = np.asarray(outputs[key])
        else:
            ours = np.asarray(outputs)[..., key]
        assert ours.shape == arrays[name].shape
        at_tokens = mask > 0 if ours.shape[: mask.ndim] == mask.shape else ...
        pairs.append((ours[at_tokens], arrays[name][at_tokens]))
    return zip(*pairs, strict=True)


def assert_numbers_of_transformers(model, folder):
    """Compares with what float32 gave, of weights that make outputs of order 1."""
    for ours, theirs in zip(*outputs_as_transformers(model, folder), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def draw_weights(variables, scale):
    draw = np.random.RandomState(1)
    for variable in variables:
        center = 1.0 if "gamma" in variable.path else 0.0
        variable.assign(center + draw.normal(size=variable.shape, scale=scale))


def named_gradients(model, tape, loss):
    """The gradients of a loss, under Hugging Face's names and in its shapes."""
    weights = named_weights(model)
    gradients = tape.gradient(loss, [weight.variables[0].value for weight in weights])
    named = {}
    for weight, gradient in zip(weights, gradients, strict=True):
        name = distilbert_name(weight.name) if model.config.is_distilbert else weight.name
        array = np.asarray(tf.convert_to_tensor(gradient))
        named[f"gradient.{name}"] = array.T if weight.transposed else array
    return named


def run_peer(library, script, *arguments):
    """Runs a script in the Python of another library; returns the arrays of its last argument."""
    finished(find_peer(library), script, *arguments)
    return dict(np.load(arguments[-1]))

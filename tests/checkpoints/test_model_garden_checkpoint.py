"""Model Garden's checkpoints: model_garden_peer.py made tests/golden/model_garden."""

import numpy as np
import pytest
import tensorflow as tf
from stored_models import (
    CONFIG,
    MODEL_GARDEN,
    assert_close,
    assert_same_tensors,
    refusal,
    tensors_of,
)

from bert_tf import BertConfig, BertEncoder
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.models.language_model import BertPreTrainer


@pytest.mark.parametrize("encoder", ["v2", "functional"])
def test_model_garden_computed_the_same(out, encoder):
    done = convert(MODEL_GARDEN / encoder, out)
    assert done.source.format == "model_garden"
    golden = np.load(MODEL_GARDEN / encoder / "outputs.npz")
    inputs = {
        "token_ids": golden["input_word_ids"],
        "segment_ids": golden["input_type_ids"],
        "padding_mask": golden["input_mask"],
    }
    outputs = BertEncoder.from_directory(out)(inputs)
    assert_close(outputs["sequence_output"], golden["sequence_output"])
    if encoder == "functional":
        assert_close(outputs["pooled_output"], golden["encoder_pooled_output"])
    else:
        positions = {"mask_positions": golden["masked_lm_positions"]}
        logits = BertPreTrainer.from_directory(out)({**inputs, **positions})
        for name in ("mlm_logits", "nsp_logits"):
            assert_close(logits[name], golden[name])
        assert any("pooler is the next sentence head's" in note for note in done.model.notes)
    config = BertConfig.from_json(out / "config.json")
    expected = {**CONFIG.to_dict(), "vocab_size": 23}
    assert {name: config.to_dict()[name] for name in expected} == expected


def numbered_layers():
    """The encoder's variables, as before its layers had named attributes."""
    reader = tf.train.load_checkpoint(str(MODEL_GARDEN / "functional" / "bert_model.ckpt"))
    root: dict = {}
    for key in reader.get_variable_to_shape_map():
        *path, leaf = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        node = root
        for part in path:
            node = node.setdefault(part, {})
        if path:
            node[leaf] = tf.Variable(reader.get_tensor(key))
    return root


def write(node, folder):
    """Writes a graph of objects, given as dicts and variables."""

    def objects(node):
        if isinstance(node, tf.Variable):
            return node
        return tf.train.Checkpoint(**{name: objects(child) for name, child in node.items()})

    folder.mkdir()
    objects(node).write(str(folder / "ckpt"))


def test_layers_known_by_number_alone(tmp_path):
    write(numbered_layers(), tmp_path / "old")
    assert_same_tensors(tensors_of(tmp_path / "old"), tensors_of(MODEL_GARDEN / "functional"))


@pytest.mark.parametrize("head", ["next_sentence", "sentence_prediction"])
def test_heads_are_read_or_named(out, tmp_path, head):
    """A checkpoint of the model alone, as of `tf.train.Checkpoint(model=model)`."""

    def dense(name, units):
        values = {"kernel": tf.ones((8, units)), "bias": tf.ones(units)}
        return {key: tf.Variable(x, name=f"{head}/{name}/{key}") for key, x in values.items()}

    heads = {"dense": dense("pooler_dense", 8), "out_proj": dense("logits", 2)}
    network = numbered_layers()["encoder"]
    root = {
        "model": {"encoder_network": network, "classification_heads": {"0": heads}},
        "optimizer": {"iterations": tf.Variable(3.0, name="iter")},
    }
    write(root, tmp_path / "model")
    done = convert(tmp_path / "model", out)
    tensors = tensors_of(out)
    assert any("pre-LayerNorm" in note for note in done.model.notes)
    left_out = [note for note in done.model.notes if "Left out" in note]
    if head == "next_sentence":
        np.testing.assert_array_equal(tensors["cls.seq_relationship.weight"], np.ones((2, 8)))
        np.testing.assert_array_equal(tensors["pooler.dense.weight"], np.ones((8, 8)))
        assert not left_out
    else:
        assert_same_tensors(tensors, tensors_of(MODEL_GARDEN / "functional"))
        assert f"{head}/logits/bias, {head}/logits/kernel, {head}/pooler_dense/bias" in left_out[0]
        assert "iter" not in left_out[0]
    (tmp_path / "model" / "params.yaml").write_text("task: {model: {norm_first: true}}")
    assert "norm_first" in refusal(tmp_path / "model", tmp_path / "no")


def test_checkpoints_of_other_objects(out, tmp_path):
    write({"step": tf.Variable(3.0)}, tmp_path / "step")
    assert "no BERT encoder" in refusal(tmp_path / "step", out)
    write(numbered_layers(), tmp_path / "model")
    config = BertConfig(**{**vars(CONFIG), "vocab_size": 23, "num_attention_heads": 4})
    config.to_json(tmp_path / "model" / "bert_config.json")
    assert "num_attention_heads 4" in refusal(tmp_path / "model", out)

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import stored_models
import tensorflow as tf
from cases import for_each
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from bert_tf import BertConfig, BertEncoder, BertPreTrainer, save_model
from bert_tf.checkpoints.other_formats import tensorflow_checkpoint
from bert_tf.checkpoints.other_formats.conversion import convert


@for_each("encoder", "v2", "functional")
def test_model_garden_computed_the_same(out, encoder):
    conversion = convert(stored_models.MODEL_GARDEN / encoder, out)
    assert conversion.source.format == "model_garden"
    outputs = stored_models.MODEL_GARDEN / encoder / "outputs.npz"
    golden, inputs = stored_models.read_outputs(outputs)
    outputs = BertEncoder.from_directory(out)(inputs)
    stored_models.assert_close(outputs["sequence_output"], golden["sequence_output"])
    if encoder == "functional":
        stored_models.assert_close(outputs["pooled_output"], golden["encoder_pooled_output"])
    else:
        positions = {"mask_positions": golden["masked_lm_positions"]}
        logits = BertPreTrainer.from_directory(out)({**inputs, **positions})
        for name in ("mlm_logits", "nsp_logits"):
            stored_models.assert_close(logits[name], golden[name])
        assert any("pooler is the next sentence head's" in note for note in conversion.model.notes)
    config = BertConfig.from_json(out / "config.json")
    expected = {**stored_models.CONFIG.to_dict(), "vocab_size": 23}
    assert {name: config.to_dict()[name] for name in expected} == expected


FUNCTIONAL = stored_models.MODEL_GARDEN / "functional"


def variables():
    checkpoint = tensorflow_checkpoint.Checkpoint(FUNCTIONAL / "bert_model.ckpt")
    graph = TrackableObjectGraph()
    graph.ParseFromString(checkpoint.read(tensorflow_checkpoint.OBJECT_GRAPH))
    values = (attribute for node in graph.nodes for attribute in node.attributes)
    return [tf.Variable(checkpoint.read(x.checkpoint_key), name=x.full_name) for x in values]


def write(folder, **objects):
    folder.mkdir()
    tf.train.Checkpoint(**objects).write(str(folder / "ckpt"))


@for_each("head", "next_sentence", "sentence_prediction")
def test_heads_are_read_or_named(out, tmp_path, head):
    """A checkpoint of a model in a scope of its own, and of its optimizer."""
    dense = {"pooler_dense": 8, "logits": 2}
    heads = [tf.Variable(tf.ones((8, n)), name=f"{head}/{k}/kernel") for k, n in dense.items()]
    heads += [tf.Variable(tf.ones(n), name=f"{head}/{k}/bias") for k, n in dense.items()]
    slots = tf.train.Checkpoint(m=[tf.Variable(x, name=f"Adam/m/{x.name}") for x in variables()])
    write(tmp_path / "model", model=variables(), heads=heads, optimizer=slots)
    conversion = convert(tmp_path / "model", out)
    tensors = stored_models.tensors_of(out)
    assert any("pre-LayerNorm" in note for note in conversion.model.notes)
    left_out = [note for note in conversion.model.notes if "Left out" in note]
    if head == "next_sentence":
        np.testing.assert_array_equal(tensors["cls.seq_relationship.weight"], np.ones((2, 8)))
        np.testing.assert_array_equal(tensors["pooler.dense.weight"], np.ones((8, 8)))
        assert not left_out
    else:
        stored_models.assert_same_tensors(tensors, stored_models.tensors_of(FUNCTIONAL))
        assert f"{head}/logits/bias, {head}/logits/kernel, {head}/pooler_dense/bias" in left_out[0]
        assert "Adam" not in left_out[0]
    (tmp_path / "model" / "params.yaml").write_text("task: {model: {norm_first: true}}")
    assert "norm_first" in stored_models.refusal(tmp_path / "model", tmp_path / "no")


def test_checkpoints_of_other_objects(out, tmp_path):
    write(tmp_path / "step", step=tf.Variable(3.0))
    assert "no BERT encoder" in stored_models.refusal(tmp_path / "step", out)
    write(tmp_path / "half", model=variables()[:3])
    assert "holds only parts of a BERT encoder" in stored_models.refusal(tmp_path / "half", out)
    write(tmp_path / "two", model=variables(), teacher=variables())
    assert "holds word_embeddings/embeddings twice" in stored_models.refusal(tmp_path / "two", out)
    write(tmp_path / "model", model=variables())
    changed = {"vocab_size": 23, "num_attention_heads": 4}
    config = BertConfig(**{**vars(stored_models.CONFIG), **changed})
    config.to_json(tmp_path / "model" / "bert_config.json")
    assert "num_attention_heads 4" in stored_models.refusal(tmp_path / "model", out)


@pytest.mark.slow
@pytest.mark.peer("model-garden")
def test_its_converter_reads_our_tensorflow_1(tmp_path):
    model = BertPreTrainer(replace(stored_models.CONFIG, vocab_size=23), seed=1)
    stored_models.draw_weights(model.trainable_variables, scale=0.4)
    save_model(model, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "out", "tf1")
    script = Path(__file__).parents[1] / "model_garden_peer.py"
    inputs = stored_models.MODEL_GARDEN / "v2" / "outputs.npz"
    files = tmp_path / "out", inputs, tmp_path / "theirs.npz"
    stored_models.run_peer("model-garden", script, *files)
    theirs, inputs = stored_models.read_outputs(tmp_path / "theirs.npz")
    encoded = model.encoder(inputs)
    for name in ("sequence_output", "pooled_output"):
        stored_models.assert_close(encoded[name], theirs[name])
    positions = {"mask_positions": theirs["masked_lm_positions"]}
    stored_models.assert_close(model({**inputs, **positions})["mlm_logits"], theirs["mlm_logits"])

import json
import shutil
from dataclasses import replace

import numpy as np
import tensorflow as tf
from cases import for_each, refused
from safetensors.numpy import load_file
from stored_models import CONFIG, PIECES, assert_same_tensors, refusal, tensors_of

from bert_tf import BertConfig, BertEncoder, BertPreTrainer, BertTokenizer, load_model
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import write_tf1


def test_names_of_the_original(models, out):
    convert(models / "pretrainer", out, "tf1")
    reader = tf.train.load_checkpoint(str(out / "bert_model.ckpt"))
    shapes = reader.get_variable_to_shape_map()
    block = "bert/encoder/layer_1"
    expected = {
        "bert/embeddings/position_embeddings": [10, 8],
        "bert/embeddings/token_type_embeddings": [2, 8],
        "bert/embeddings/word_embeddings": [19, 8],
        "bert/embeddings/LayerNorm/beta": [8],
        f"{block}/attention/self/query/kernel": [8, 8],
        f"{block}/attention/output/dense/bias": [8],
        f"{block}/attention/output/LayerNorm/gamma": [8],
        f"{block}/intermediate/dense/kernel": [8, 12],
        f"{block}/output/dense/kernel": [12, 8],
        "bert/pooler/dense/kernel": [8, 8],
        "cls/predictions/transform/dense/kernel": [8, 8],
        "cls/predictions/transform/LayerNorm/beta": [8],
        "cls/predictions/output_bias": [19],
        "cls/seq_relationship/output_bias": [2],
        "cls/seq_relationship/output_weights": [2, 8],
    }
    assert {name: shapes.get(name) for name in expected} == expected
    ours = load_file(models / "pretrainer" / "model.safetensors")
    assert len(shapes) == len(ours)
    kernel = ours["bert.encoder.layer.1.attention.self.query.weight"].T
    heads = ours["cls.seq_relationship.weight"]
    arrays = {f"{block}/attention/self/query/kernel": kernel}
    for theirs, array in {**arrays, "cls/seq_relationship/output_weights": heads}.items():
        np.testing.assert_array_equal(reader.get_tensor(theirs), array)
    config = json.loads((out / "bert_config.json").read_text())
    assert config == {**{name: getattr(CONFIG, name) for name in config}, "hidden_act": "gelu"}
    assert len(config) == 11


def test_a_published_checkpoint(published, models, out):
    source = published()
    conversion = convert(source, out)
    assert_same_tensors(tensors_of(out), tensors_of(models / "pretrainer"))
    assert any("uncased_L-2_H-8_A-2" in note for note in conversion.model.notes)
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is True
    assert BertConfig.from_json(out / "config.json").hidden_act == "gelu"
    BertPreTrainer.from_directory(out)


def test_casing_is_never_guessed(published, out):
    source = published("showcased")
    assert "--do_lower_case" in refusal(source, out)
    for value in (True, False):
        conversion = convert(source, out, do_lower_case=value, overwrite=True)
        assert conversion.model.tokenizer.settings["do_lower_case"] is value
        assert conversion.model.notes == []
    # What the files say needs no guess, and gives way to the user's word.
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 9}')
    assert convert(source, out, overwrite=True).model.tokenizer.settings["do_lower_case"] is False
    conversion = convert(source, out, do_lower_case=True, overwrite=True)
    assert conversion.model.tokenizer.settings["do_lower_case"] is True


@for_each(
    "parts architecture",
    (["pooler"], "BertForPreTraining"),
    (["seq_relationship"], "BertForMaskedLM"),
    (["predictions"], "BertForNextSentencePrediction"),
    (["pooler", "seq_relationship", "predictions"], "BertModel"),
)
def test_missing_parts(published, out, parts, architecture):
    def drop(tensors):
        for name in list(tensors):
            if any(f"/{part}/" in name for part in parts):
                del tensors[name]

    conversion = convert(published(change=drop), out)
    assert not any(part in name for part in parts for name in conversion.model.tensors)
    assert json.loads((out / "config.json").read_text())["architectures"] == [architecture]
    BertEncoder.from_directory(out)


def test_the_heads_of_its_other_scripts(published, models, out):
    theirs = tensors_of(published("uncased_one", kind="classifier"))
    assert_same_tensors(theirs, tensors_of(models / "classifier"))

    def squad(tensors):
        tensors["cls/squad/output_weights"] = np.ones((2, 8), np.float32)
        tensors["cls/squad/output_bias"] = np.ones(2, np.float32)
        tensors["my/own/head"] = np.ones(3, np.float32)

    conversion = convert(published("uncased_two", kind="encoder", change=squad), out)
    assert conversion.model.notes[0] == "Left out, as no part of a BERT: my/own/head."
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    assert "qa_outputs.weight" in load_file(out / "model.safetensors")


def test_checkpoints_that_do_not_fit(published, out):
    def change(tensors):
        tensors["bert/encoder/embedding_hidden_mapping_in/kernel"] = np.ones((8, 8), np.float32)

    source = published(change=change)
    assert "embedding_hidden_mapping_in/kernel is unexpected" in refusal(source, out)
    path = source / "bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 1}))
    assert "layer_1/attention/output/LayerNorm/beta is unexpected" in refusal(source, out)
    path.unlink()
    assert "bert_config.json" in refusal(source, out)


def test_half_a_checkpoint(published, out):
    source = published()
    data = source / "bert_model.ckpt.data-00000-of-00001"
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2])
    assert "cannot be read" in refusal(source, out)
    data.unlink()
    assert str(source) in refusal(source, out)
    (source / "bert_model.ckpt.index").write_bytes(b"nonsense")
    assert "no complete TensorFlow checkpoint" in refusal(source, out)


def test_vocabularies_of_other_sizes(published, out):
    conversion = convert(published(pieces=PIECES[:17]), out)
    assert "the last 2 are padding" in conversion.model.notes[-1]
    load_model(out)
    source = published(pieces=[*PIECES, "x", "y"])
    assert "has 21 pieces, the model 19 embeddings" in refusal(source, out.with_name("other"))
    shutil.copy(source / "vocab.txt", out)
    refused("has 21 pieces", load_model, out)
    (source / "vocab.txt").unlink()
    conversion = convert(source, out, overwrite=True)
    assert "no vocabulary" in conversion.model.notes[-1]
    assert not (out / "vocab.txt").exists()


@for_each("epsilon", 1e-12, 1e-5)
def test_what_the_original_computes_differently_is_noted(models, out, epsilon):
    _, model = read_model(models / "classifier")
    model.config = replace(model.config, layer_norm_eps=epsilon, hidden_act="gelu")
    out.mkdir()
    write_tf1(model, out)
    notes = " ".join(model.notes)
    assert "tanh approximation" in notes and "in order: no, perhaps, yes" in notes
    assert ("1e-12 to variances, this one 1e-05" in notes) == (epsilon == 1e-5)
    model.config = replace(model.config, hidden_act="silu")
    refused("'silu'", write_tf1, model, out)

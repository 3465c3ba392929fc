"""Checkpoints of the original code (TensorFlow 1), read and written."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file
from stored_models import CONFIG, PIECES, assert_same_tensors, refusal, tensors_of

from bert_tf import BertConfig, BertEncoder, BertTokenizer, load_model
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import write_tf1
from bert_tf.errors import InputError
from bert_tf.models.language_model import BertPreTrainer


def test_names_of_the_original(models, out):
    convert(models / "pretrainer", out, "tf1")
    listed = dict(tf.train.list_variables(str(out / "bert_model.ckpt")))
    block = "bert/encoder/layer_1"
    dense = {
        f"{block}/attention/output/dense": [8, 8],
        f"{block}/attention/self/key": [8, 8],
        f"{block}/attention/self/query": [8, 8],
        f"{block}/attention/self/value": [8, 8],
        f"{block}/intermediate/dense": [8, 12],
        f"{block}/output/dense": [12, 8],
        "bert/pooler/dense": [8, 8],
        "cls/predictions/transform/dense": [8, 8],
    }
    norms = (
        "bert/embeddings/LayerNorm",
        f"{block}/attention/output/LayerNorm",
        f"{block}/output/LayerNorm",
        "cls/predictions/transform/LayerNorm",
    )
    assert {name: shape for name, shape in listed.items() if "layer_0" not in name} == {
        "bert/embeddings/position_embeddings": [10, 8],
        "bert/embeddings/token_type_embeddings": [2, 8],
        "bert/embeddings/word_embeddings": [19, 8],
        **{f"{name}/kernel": shape for name, shape in dense.items()},
        **{f"{name}/bias": shape[1:] for name, shape in dense.items()},
        **{f"{name}/{weight}": [8] for name in norms for weight in ("beta", "gamma")},
        "cls/predictions/output_bias": [19],
        "cls/seq_relationship/output_bias": [2],
        "cls/seq_relationship/output_weights": [2, 8],
    }
    reader = tf.train.load_checkpoint(str(out / "bert_model.ckpt"))
    ours = load_file(models / "pretrainer" / "model.safetensors")
    np.testing.assert_array_equal(
        reader.get_tensor(f"{block}/attention/self/query/kernel"),
        ours["bert.encoder.layer.1.attention.self.query.weight"].T,
    )
    np.testing.assert_array_equal(
        reader.get_tensor("cls/seq_relationship/output_weights"),
        ours["cls.seq_relationship.weight"],
    )
    config = json.loads((out / "bert_config.json").read_text())
    others = {"layer_norm_eps", "pad_token_id", "classifier_dropout", "extra", "id2label"}
    others |= {"feature_layers", "feature_lstm_layers", "attention_direction"}
    expected = {name: value for name, value in vars(CONFIG).items() if name not in others}
    assert config == {**expected, "hidden_act": "gelu"}


def test_a_published_checkpoint(published, models, out):
    source = published()
    conversion = convert(source, out)
    assert_same_tensors(tensors_of(out), tensors_of(models / "pretrainer"))
    assert any("uncased_L-2_H-8_A-2" in note for note in conversion.model.notes)
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is True
    assert BertConfig.from_json(out / "config.json").hidden_act == "gelu"
    BertPreTrainer.from_directory(out)


@pytest.mark.parametrize(
    ("folder", "pieces", "expected"),
    [
        ("uncased_L-12_H-768_A-12", PIECES, True),
        ("wwm_uncased_L-24_H-1024_A-16", PIECES, True),
        ("chinese_L-12_H-768_A-12", PIECES, True),
        ("multilingual_L-12_H-768_A-12", PIECES, True),
        ("cased_L-12_H-768_A-12", PIECES, False),
        ("multi_cased_L-12_H-768_A-12", PIECES, False),
        ("bert-base-german-cased", PIECES, False),
        ("mine", [*PIECES[:-1], "B"], False),
    ],
)
def test_casing(published, out, folder, pieces, expected):
    conversion = convert(published(folder, pieces=pieces), out)
    assert conversion.model.tokenizer.settings["do_lower_case"] is expected
    assert any("Taken to be" in note for note in conversion.model.notes)
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is expected


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


@pytest.mark.parametrize(
    ("parts", "architecture"),
    [
        (["pooler"], "BertForPreTraining"),
        (["seq_relationship"], "BertForMaskedLM"),
        (["predictions"], "BertForNextSentencePrediction"),
        (["pooler", "seq_relationship", "predictions"], "BertModel"),
    ],
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
    with pytest.raises(InputError, match=r"has no .*: train it first"):
        BertPreTrainer.from_directory(out)
    BertPreTrainer.from_directory(out, allow_new_head=True)


def test_the_heads_of_its_other_scripts(published, models, out):
    assert_same_tensors(
        tensors_of(published("uncased_one", kind="classifier")), tensors_of(models / "classifier")
    )

    def squad(tensors):
        tensors["cls/squad/output_weights"] = np.ones((2, 8), np.float32)
        tensors["cls/squad/output_bias"] = np.ones(2, np.float32)
        tensors["my/own/head"] = np.ones(3, np.float32)

    conversion = convert(published("uncased_two", kind="encoder", change=squad), out)
    assert conversion.model.tensors["qa_outputs.weight"].shape == (2, 8)
    assert conversion.model.notes[0] == "Left out, as no part of a BERT: my/own/head."
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    assert "qa_outputs.weight" in load_file(out / "model.safetensors")


def test_checkpoints_that_do_not_fit(published, out):
    def lose(tensors):
        del tensors["bert/encoder/layer_1/output/dense/bias"]
        tensors["bert/encoder/embedding_hidden_mapping_in/kernel"] = np.ones((8, 8), np.float32)

    message = refusal(published(change=lose), out)
    assert "encoder.layer.1.output.dense.bias is missing" in message
    assert "embedding_hidden_mapping_in/kernel is unexpected" in message

    source = published()
    path = source / "bert_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "and 11 more" in refusal(source, out)
    path.write_text(json.dumps({**config, "num_hidden_layers": 1}))
    assert "layer_1/attention/output/LayerNorm/beta is unexpected" in refusal(source, out)
    path.write_text(json.dumps({**config, "vocab_size": 30}))
    assert "word_embeddings.weight is [19, 8], not [30, 8]" in refusal(source, out)
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
    with pytest.raises(InputError, match="has 21 pieces"):
        load_model(out)
    (source / "vocab.txt").unlink()
    conversion = convert(source, out, overwrite=True)
    assert "no vocabulary" in conversion.model.notes[-1]
    assert not (out / "vocab.txt").exists()


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_what_the_original_computes_differently_is_noted(models, out, epsilon):
    _, model = read_model(models / "classifier")
    model.config = replace(model.config, layer_norm_eps=epsilon, hidden_act="gelu")
    out.mkdir()
    write_tf1(model, out)
    notes = " ".join(model.notes)
    assert "tanh approximation" in notes and "in order: no, perhaps, yes" in notes
    assert ("1e-12 to variances, this one 1e-05" in notes) == (epsilon == 1e-5)
    model.config = replace(model.config, hidden_act="silu")
    with pytest.raises(InputError, match="'silu'"):
        write_tf1(model, out)

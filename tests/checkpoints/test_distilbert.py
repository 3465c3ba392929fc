"""DistilBERT: what its classes save, what they compute, and what is saved of it here.

tests/golden/README.md says how they were made, in float32. Their weights are drawn with a standard
deviation of 0.4, so logits are of order 1. Ours are computed in float64, without such rounding.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from safetensors.numpy import load_file, save_file
from stored_models import assert_numbers_of_transformers, refusal, rewrite, set_config

import bert_tf
from bert_tf import BertConfig, BertSentenceEncoder, load_model, save_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.errors import InputError
from bert_tf.tasks.kinds.rows import checked_rows

# Their class -> ours, and the dropout rate of its head.
CLASSES = {
    "DistilBertModel": ("BertEncoder", None),
    "DistilBertForMaskedLM": ("BertMaskedLanguageModel", None),
    "DistilBertForSequenceClassification": ("BertClassifier", 0.3),
    "DistilBertForMultipleChoice": ("BertChooser", 0.3),
    "DistilBertForTokenClassification": ("BertTagger", 0.1),
    "DistilBertForQuestionAnswering": ("BertSpanClassifier", 0.25),
}


@pytest.fixture(scope="session")
def saved(unpacked):
    return unpacked("distilbert")


@pytest.fixture
def classifier(saved, tmp_path):
    folder = saved / "DistilBertForSequenceClassification" / "safetensors"
    return Path(shutil.copytree(folder, tmp_path / "model"))


FILES = [*((name, "safetensors") for name in CLASSES), *((name, "h5") for name in [*CLASSES][:3])]


@for_each("name kind", *FILES)
def test_the_numbers_of_transformers(saved, tmp_path, name, kind):
    theirs = saved / name / kind
    model = load_model(theirs, dtype="float64")
    ours, dropout = CLASSES[name]
    assert type(model).__name__ == ours
    assert dropout is None or model.head.dropout.rate == dropout
    assert_numbers_of_transformers(model, saved / name)
    if kind == "h5":
        return
    if ours == "BertChooser":  # nor does a Keras file lose anything
        model.save(tmp_path / "model.keras")
        again = tf.keras.models.load_model(tmp_path / "model.keras")
        assert again.config == model.config
        assert_numbers_of_transformers(again, saved / name)
    save_model(model, tmp_path)
    assert_numbers_of_transformers(load_model(tmp_path, dtype="float64"), saved / name)
    before, after = (load_file(path / "model.safetensors") for path in (theirs, tmp_path))
    pooler = {"pre_classifier.weight", "pre_classifier.bias"} if "Model" in name else set()
    assert after.keys() == before.keys() | pooler
    np.testing.assert_equal({key: after[key] for key in before}, before)
    before, after = (json.loads((path / "config.json").read_text()) for path in (theirs, tmp_path))
    assert after.keys() - {"problem_type", "id2label", "label2id"} <= before.keys()
    assert all(after[key] == before[key] for key in before.keys() - {"label2id"})


def test_a_folder_for_its_tokenizer(classifier, tmp_path):
    """Its own tokenizer gives no segments, which its models refuse in transformers 4."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqr"]
    tokenizer = bert_tf.BertTokenizer(pieces, do_lower_case=True)
    save_model(load_model(classifier), tmp_path / "out", tokenizer)
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "DistilBertTokenizer"
    again = bert_tf.BertTokenizer.from_directory(tmp_path / "out")
    assert again.vocabulary_hash == tokenizer.vocabulary_hash


def test_conversion(classifier, tmp_path):
    convert(classifier, tmp_path / "one", layers=1)
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert (config["model_type"], config["n_layers"]) == ("distilbert", 1)
    tensors = load_file(tmp_path / "one" / "model.safetensors")
    assert "distilbert.transformer.layer.0.ffn.lin1.weight" in tensors
    for to in ("tf1", "keras_hub"):
        message = refusal(classifier, tmp_path / to, to)
        assert f"is a DistilBERT, which {to} cannot represent: remove --to" in message


@for_each(
    "values message",
    ({"activation": "mish"}, "activation 'mish' is unknown: give one of gelu, "),
    ({"n_layers": 0}, "n_layers is 0: give a whole number from 1"),
    ({"dim": 9}, "dim 9 is not a multiple of n_heads 2"),
    ({"dim": 16}, "word_embeddings.weight is [23, 8], not [23, 16]"),
    ({"qa_dropout": "0.1"}, "qa_dropout is '0.1': give a share"),
    ({"seq_classif_dropout": 2}, "seq_classif_dropout is 2: give a share"),
    ({"is_decoder": True}, "attention_direction is 'left_to_right': give both"),
    ({"model_type": "bert"}, 'DistilBERT with "model_type": "distilbert"'),
)
def test_configs_that_are_refused(classifier, values, message):
    set_config(classifier, **values)
    refused(re.escape(message), load_model, classifier)


def test_what_it_does_not_compute(classifier):
    with pytest.raises(InputError, match="no next sentences: train its masked words in"):
        load_model(classifier, bert_tf.BertPreTrainer, allow_new_head=True)
    refused("layer_norm_eps is 1e-05: give 1e-12", load_model, classifier, layer_norm_eps=1e-5)
    with pytest.raises(InputError, match="type_vocab_size is 2: give 0, as of any DistilBERT"):
        BertConfig(extra={"model_type": "distilbert"})
    refused("size is 0: give a whole number from", BertConfig.from_dict, {"type_vocab_size": 0})


def test_segments_change_nothing_and_vectors_need_no_pooler(classifier, saved, caplog):
    """Nor are they refused: packing counts the texts of a pair."""
    model = load_model(classifier)
    model.config.check_fits(length=8, pairs=True)
    ids = tf.constant([[2, 7, 3, 5, 3]])
    inputs = {"token_ids": ids, "segment_ids": ids, "padding_mask": tf.ones_like(ids)}
    other = model({**inputs, "segment_ids": tf.zeros_like(ids)})
    np.testing.assert_array_equal(model(checked_rows(inputs, model)), other)
    load_model(saved / "DistilBertModel" / "safetensors", BertSentenceEncoder)
    assert "at random" not in caplog.text


def test_weights_that_do_not_fit(classifier, saved):
    def change(tensors):
        del tensors["pre_classifier.weight"], tensors["pre_classifier.bias"]
        tensors["distilbert.other"] = np.zeros(3, np.float32)

    rewrite(classifier, change)
    refused("has no pooler: train it first", load_model, classifier)
    refused("other is unexpected", load_model, classifier, allow_new_head=True)
    # They drop the first part of a name, which leaves "kernel:0" of each layer of the head.
    shutil.copy(saved / "DistilBertForMaskedLM" / "safetensors" / "config.json", classifier)
    save_file({"kernel:0": np.zeros((8, 8), np.float32)}, classifier / "model.safetensors")
    refused("or save it as tf_model", load_model, classifier)

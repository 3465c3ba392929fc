import shutil

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from stored_models import assert_same_tensors, read_outputs, refusal, save_tensors

from bert_tf import BertEncoder, BertMaskedLanguageModel, BertTokenizer, load_model
from bert_tf.checkpoints.formats import locate
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.other_formats.model_garden_checkpoint import current_name

# Values of order 1 that float32 computed, of weights with a standard deviation of 0.4; ours are in
# float64, without rounding of their own.
TOLERANCE = 1e-5


@pytest.fixture(scope="session")
def saved(unpacked):
    return unpacked("tfhub")


def test_the_numbers_of_tf_hub(saved, tmp_path):
    conversion = convert(saved / "encoder", tmp_path / "out")
    assert conversion.source.format == "tf_hub"
    assert conversion.model.config.hidden_act == "gelu_new"
    arrays, inputs = read_outputs(saved / "outputs.npz")
    model = load_model(tmp_path / "out", dtype="float64")
    assert isinstance(model, BertMaskedLanguageModel)
    logits = model({**inputs, "mask_positions": np.tile(np.arange(8), (2, 1))})
    encoded = BertEncoder.from_directory(tmp_path / "out", dtype="float64")(inputs)
    real = arrays["input_mask"] > 0
    for ours, name in (
        (encoded["sequence_output"].numpy()[real], "sequence_output"),
        (encoded["pooled_output"], "pooled_output"),
        (logits.numpy()[real], "mlm_logits"),
    ):
        theirs = arrays[name] if name == "pooled_output" else arrays[name][real]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)
    tokenizer = BertTokenizer.from_directory(tmp_path / "out")
    assert tokenizer.settings["do_lower_case"] is True
    assert tokenizer.tokenize(["A b"]).to_list() == [[5, 6]]


def test_older_versions_and_the_casing_that_is_given(saved, tmp_path):
    newer, older = (read_model(saved / name)[1] for name in ("encoder", "version_1"))
    assert_same_tensors(older.tensors, newer.tensors, without="cls.")  # it had no head
    assert older.config == newer.config
    assert older.tokenizer.settings == newer.tokenizer.settings
    _, model = read_model(saved / "encoder", do_lower_case=False)
    assert model.tokenizer.settings["do_lower_case"] is False
    shutil.copytree(saved / "encoder", tmp_path / "model")
    (tmp_path / "model" / "assets" / "vocab.txt").unlink()
    _, model = read_model(tmp_path / "model")
    assert any("put the model's vocab.txt beside it" in note for note in model.notes)


@for_each(
    "name current",
    ("keras_layer/bert_model/word_embeddings/embeddings", "word_embeddings/embeddings"),
    ("bert/cls/predictions/output_bias/bias", "cls/predictions/output_bias/bias"),
    ("bert_model/encoder/layer_11/output/bias", "transformer/layer_11/output/bias"),
    ("my/dense/kernel", "my/dense/kernel"),
)
def test_names(name, current):
    assert current_name(name) == current


def test_what_is_no_encoder(saved, tmp_path):
    refused("only a preprocessor of TF Hub: give", read_model, saved / "preprocessor")
    module = tf.Module()
    module.weight = tf.Variable([1.0], name="dense/kernel")
    tf.saved_model.save(module, tmp_path / "other")
    refused("no BERT encoder of TF Hub", read_model, tmp_path / "other")
    refused("bert-tf convert", load_model, saved / "encoder")
    message = refusal(saved / "encoder", tmp_path / "out", "tf_hub")
    assert "tf_hub can be read, not written" in message
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"")
    prefix = tmp_path / "variables" / "variables"
    save_tensors(prefix, {"bert/pooler/dense/bias": [1.0]})
    refused("module of TensorFlow 1's Hub: put the model's bert_config.json", read_model, tmp_path)
    assert locate(prefix).format == "tf1"

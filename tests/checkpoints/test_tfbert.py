"""What transformers 4 saves of its TensorFlow classes, and what they compute.

tests/golden/README.md says how the files were made, in float32. Their weights are drawn with a
standard deviation of 0.4, so logits are of order 1. Ours are computed in float64.
"""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from stored_models import assert_numbers_of_transformers, assert_same_tensors, set_config

import bert_tf
from bert_tf import load_model
from bert_tf.checkpoints.formats import content_hash
from bert_tf.checkpoints.model_directory import read_weights
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.weight_names import SEQUENCES

# Their class -> ours.
CLASSES = {
    "TFBertModel": "BertEncoder",
    "TFBertForPreTraining": "BertPreTrainer",
    "TFBertForMaskedLM": "BertMaskedLanguageModel",
    "TFBertLMHeadModel": "BertLanguageModel",
    "TFBertForNextSentencePrediction": "BertPreTrainer",
    "TFBertForSequenceClassification": "BertClassifier",
    "TFBertForMultipleChoice": "BertChooser",
    "TFBertForTokenClassification": "BertTagger",
    "TFBertForQuestionAnswering": "BertSpanClassifier",
}
TABLE = "bert/bert/embeddings/word_embeddings/weight:0"


@pytest.fixture(scope="session")
def saved(unpacked):
    return unpacked("tfbert")


@pytest.fixture
def copied(saved, tmp_path):
    def copy(name):
        return Path(shutil.copytree(saved / name, tmp_path / "model"))

    return copy


@for_each("name", *CLASSES)
def test_the_numbers_of_transformers(saved, name):
    folder = saved / name / "h5"
    if name == "TFBertForNextSentencePrediction":
        refused("holds a BertForNextSentencePrediction", load_model, folder)
        model = load_model(folder, bert_tf.BertPreTrainer, allow_new_head=True, dtype="float64")
    else:
        model = load_model(folder, dtype="float64")
    assert type(model).__name__ == CLASSES[name]
    assert_numbers_of_transformers(model, saved / name)


@for_each("name", *CLASSES)
def test_every_tensor_is_read(saved, name):
    homes = sorted(path.parent for path in (saved / name).rglob("config.json"))
    model = read_weights(homes[0])
    assert not model.notes
    for home in homes[1:]:
        assert_same_tensors(read_weights(home).tensors, model.tensors)


@for_each(
    "home architecture labels",
    ("TFBertForSequenceClassification/several_h5", SEQUENCES, ["no", "perhaps", "yes"]),
    ("TFBertLMHeadModel/h5", "BertLMHeadModel", None),
)
def test_conversion_keeps_labels_and_bits(saved, tmp_path, home, architecture, labels):
    convert(saved / home, tmp_path / "out")
    model = read_weights(tmp_path / "out")
    assert (model.architecture, model.labels) == (architecture, labels)
    assert_same_tensors(model.tensors, read_model(saved / home)[1].tensors)


def test_names_of_older_versions(copied):
    """Theirs had the class between, with a number where a script made several models."""
    folder = copied("TFBertForPreTraining/h5")
    _, model = read_model(folder)
    with h5py.File(folder / "tf_model.h5", "a") as file:
        for group in ("bert", "mlm___cls", "nsp___cls"):
            file.create_group(f"{group}/tf_bert_for_pre_training_1")
            for child in list(file[group]):
                if child != "tf_bert_for_pre_training_1":
                    file.move(f"{group}/{child}", f"{group}/tf_bert_for_pre_training_1/{child}")
    again = read_model(folder)[1]
    assert again.tensors.keys() == model.tensors.keys()
    assert again.notes == model.notes


def test_safetensors_come_first_and_a_pickle_is_not_read(copied):
    folder = copied("TFBertForSequenceClassification/h5")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    of_h5 = content_hash(folder)
    read_model(folder)
    with h5py.File(folder / "tf_model.h5", "a") as file:
        file[TABLE][0, 0] = 5
    assert content_hash(folder) != of_h5
    convert(folder, folder.parent / "other")
    shutil.copy(folder.parent / "other" / "model.safetensors", folder)
    (folder / "tf_model.h5").write_bytes(b"never read")
    assert read_model(folder)[1].tensors["embeddings.word_embeddings.weight"][0, 0] == 5


def test_weights_under_another_name(copied):
    """As `save_weights("any.h5")` and `save("any.h5")` write them, beside a config.json."""
    folder = copied("TFBertForSequenceClassification/h5")
    expected = read_model(folder)[1].tensors
    (folder / "tf_model.h5").rename(folder / "any.h5")
    with h5py.File(folder / "any.h5", "a") as file:
        file["optimizer_weights/Adam/iter:0"] = np.int64(7)
        file["optimizer_weights/Adam/bert/pooler/dense/kernel/m:0"] = np.zeros((8, 8), "f4")
    assert_same_tensors(read_model(folder)[1].tensors, expected)
    shutil.copy(folder / "any.h5", folder / "other.h5")
    refused("rename the one to read to tf_model.h5", read_model, folder)
    (folder / "any.h5").unlink()
    with h5py.File(folder / "other.h5", "a") as file:
        file.copy("bert", "bert_1")
        file["bert_1/bert/pooler/dense/bias:0"][0] = 5
    names = "bert/bert/pooler/dense/bias:0 and bert_1/bert/pooler/dense/bias:0"
    refused(f"twice, as {names}", read_model, folder)


def test_files_of_keras_3_name_no_variables(copied):
    folder = copied("TFBertModel/h5")
    (folder / "tf_model.h5").unlink()
    with h5py.File(folder / "model.weights.h5", "w") as file:
        file["layers/bert/encoder/layers/dense/vars/0"] = np.zeros((8, 8), "f4")
    told = r"model.weights.h5 does not name its variables \(files of Keras 3 do not\): open"
    refused(told, read_model, folder)


@for_each("name is_saved_model", ("TFBertModel", True), ("TFBertForTokenClassification", False))
def test_tensorflows_format(saved, tmp_path, name, is_saved_model):
    home = saved / name / "h5"
    root = tf.train.Checkpoint(optimizer=tf.train.Checkpoint(step=tf.Variable(1, name="iter")))
    root.layers = []
    with h5py.File(home / "tf_model.h5") as file:
        paths: list[str] = []
        file.visit(paths.append)
        for path in paths:
            if path.endswith(":0"):
                name = path.partition("/")[2].removesuffix(":0")
                root.layers.append(tf.Variable(file[path][()], name=name))
    prefix = tmp_path / "variables" / "variables" if is_saved_model else tmp_path / "model"
    root.write(str(prefix))
    if is_saved_model:
        (tmp_path / "saved_model.pb").write_bytes(b"never read")
    refused("lacks config.json", read_model, tmp_path)
    shutil.copy(home / "config.json", tmp_path)
    ours, theirs = read_model(tmp_path)[1], read_model(home)[1]
    assert ours.kind == theirs.kind
    assert_same_tensors(ours.tensors, theirs.tensors)


def test_files_that_cannot_be_used(copied, tmp_path):
    folder = copied("TFBertForSequenceClassification/h5")
    path = folder / "tf_model.h5"
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"PK"):
        path.write_bytes(damaged)
        refused("tf_model.h5 is damaged or cut short", read_model, folder)

    def with_table(message, **options):
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            del file[TABLE]
            file.create_dataset(TABLE, **options)
        refused(message, read_model, folder)

    (tmp_path / "raw").write_bytes(bytes(23 * 8 * 4))
    for outside in (
        {"shape": (23, 8)},  # never written
        {"shape": (10**9, 8), "chunks": (10**6, 8), "compression": "gzip"},
        {"shape": (23, 8), "external": [(str(tmp_path / "raw"), 0, 23 * 8 * 4)]},
    ):
        with_table("is stored outside the file", dtype="f4", **outside)
    with_table("int8, not a float", data=np.zeros((23, 8), np.int8))
    with_table(r"is \[22, 8\], not \[23, 8\]", data=np.zeros((22, 8), np.float32))
    path.write_bytes(whole)
    with h5py.File(path, "a") as file:
        del file[TABLE]
        file[TABLE] = h5py.ExternalLink(str(tmp_path / "other.h5"), "table")
    refused("word_embeddings.weight is missing", read_model, folder)


def test_safetensors_without_the_name_of_their_class(copied):
    folder = copied("TFBertForQuestionAnswering/safetensors")
    set_config(folder, architectures=None)
    refused(r'"architectures": \["BertForSequenceClassification"\]', read_model, folder)

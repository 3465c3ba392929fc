import json
import logging
import shutil

import keras
import numpy as np
import pytest
from cases import for_each, refused
from safetensors.numpy import load_file
from stored_models import refusal_to_load, rewrite, set_config
from tiny import tiny_config

from bert_tf import BertEncoder, load_model
from bert_tf.checkpoints.weight_names import named_weights
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.loading import about_to_train
from bert_tf.models.saving import save_model
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertTagger,
)

CONFIG = tiny_config(19, max_position_embeddings=12)
LABELS = ["no", "perhaps", "yes"]
MAKE = {
    BertEncoder: lambda: BertEncoder(CONFIG, seed=1),
    BertPreTrainer: lambda: BertPreTrainer(CONFIG, seed=1),
    BertClassifier: lambda: BertClassifier(CONFIG, labels=LABELS, seed=1),
    BertRegressor: lambda: BertRegressor(CONFIG, seed=1),
}
INPUTS = {"token_ids": np.array([[3, 4, 5, 0]]), "segment_ids": np.array([[0, 1, 1, 0]])}
INPUTS |= {"padding_mask": np.array([[1, 1, 1, 0]]), "mask_positions": np.array([[1]])}
INPUTS_OF_ENCODER = {name: INPUTS[name] for name in ("token_ids", "segment_ids", "padding_mask")}


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "model"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A classifier in a directory, which nothing changes."""
    return saved(BertClassifier, tmp_path_factory.mktemp("models") / "classifier")


def saved(kind, directory):
    model = MAKE[kind]()
    # Biases and LayerNorms too get values that a mix-up would show.
    random = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape))
    save_model(model, directory)
    model.directory = directory
    return model


def assert_same_weights(one, two):
    for left, right in zip(one.trainable_variables, two.trainable_variables, strict=True):
        assert left.path.split("/")[-2:] == right.path.split("/")[-2:]
        np.testing.assert_array_equal(left, right)


@for_each("kind", BertEncoder, BertPreTrainer)
def test_round_trip_is_exact_and_other_files_stay(kind, directory):
    directory.mkdir()
    (directory / "mine").touch()
    model = saved(kind, directory)
    loaded = load_model(directory)
    assert type(loaded) is kind
    assert_same_weights(model, loaded)
    inputs = {name: INPUTS[name] for name in model.input}
    keras.tree.map_structure(np.testing.assert_array_equal, loaded(inputs), model(inputs))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    save_model(loaded, directory)
    assert before == {path.name: path.read_bytes() for path in directory.iterdir()}
    assert before.keys() == {"mine", "config.json", "model.safetensors"}


def test_a_save_that_fails_leaves_no_mixture(directory, monkeypatch):
    saved(BertEncoder, directory)
    weights = (directory / "model.safetensors").read_bytes()

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("bert_tf.checkpoints.weights_files.save_file", fail)
    same = BertEncoder(CONFIG, seed=2)
    with pytest.raises(OSError, match="disk full"):
        save_model(same, directory)
    assert (directory / "model.safetensors").read_bytes() == weights
    load_model(directory)  # the old model, whole
    with pytest.raises(OSError, match="disk full"):
        save_model(BertClassifier(CONFIG, 2), directory)
    assert not (directory / "config.json").exists()  # no config that lies about the weights
    assert [p.name for p in directory.iterdir()] == ["model.safetensors"]


def test_quantized_layers_are_refused(directory):
    model = MAKE[BertClassifier]()
    model.head.dense.quantize("int8")
    refused("layers are quantized", save_model, model, directory)
    assert not directory.exists()


def test_a_tagger_has_no_pooler_on_disk_and_needs_none(directory, tmp_path):
    """As BertForTokenClassification of Hugging Face; an encoder's pooler is left where it is."""
    save_model(BertEncoder(CONFIG, seed=3), tmp_path / "encoder")
    model = load_model(tmp_path / "encoder", BertTagger, labels=LABELS, allow_new_head=True)
    save_model(model, directory)
    config = json.loads((directory / "config.json").read_text())
    assert config["architectures"] == ["BertForTokenClassification"]
    assert config["id2label"] == {"0": "no", "1": "perhaps", "2": "yes"}
    again = load_model(directory)
    assert isinstance(again, BertTagger) and again.labels == LABELS
    names = [weight.name for weight in named_weights(again)]
    assert "classifier.weight" in names and not any("pooler" in name for name in names)
    for ours, theirs in zip(named_weights(again), named_weights(model), strict=True):
        np.testing.assert_array_equal(ours.to_tensor(), theirs.to_tensor())


def test_missing_heads_and_poolers_are_named(directory, caplog):
    saved(BertEncoder, directory)
    with caplog.at_level(logging.WARNING):
        BertPreTrainer.from_directory(directory, allow_new_head=True)
    heads = "New masked language model head and next sentence head: train the model before"
    assert heads in caplog.text and "cls." not in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), about_to_train():
        BertPreTrainer.from_directory(directory, allow_new_head=True)
    assert not caplog.text
    model = saved(BertEncoder, directory)
    rewrite(directory, lambda ts: [ts.pop(name) for name in list(ts) if name.startswith("pooler")])
    with caplog.at_level(logging.WARNING):
        loaded = load_model(directory, seed=1)
    assert "New pooler: train the model before you use its answers" in caplog.text
    assert "model.safetensors has none" in caplog.text
    states = [x(INPUTS_OF_ENCODER)["sequence_output"] for x in (loaded, model)]
    np.testing.assert_array_equal(*states)
    message = refusal_to_load(directory, BertClassifier, num_classes=2)
    assert "holds a BertModel, which has no classifier and no pooler: train it first" in message


@for_each("source", BertEncoder, BertPreTrainer)
def test_new_classifier_on_what_was_pretrained(directory, source):
    model = saved(source, directory)
    encoder = model if source is BertEncoder else model.encoder
    assert_same_weights(load_model(directory, BertEncoder), encoder)
    for options in ({}, {"labels": LABELS}):
        message = refusal_to_load(directory, BertClassifier, **options)
        assert "which has no classifier: train it first (bert-tf finetune --model" in message
    loaded = load_model(directory, BertClassifier, labels=LABELS, allow_new_head=True, seed=3)
    assert_same_weights(loaded.encoder, encoder)
    again = load_model(directory, BertClassifier, labels=LABELS, allow_new_head=True, seed=3)
    assert_same_weights(loaded, again)


def test_only_what_a_file_lacks_is_drawn(classifier, monkeypatch, caplog):
    """Drawing BERT-base takes seconds."""
    drawn = []
    draw = keras.initializers.TruncatedNormal.__call__

    def counted(self, shape, dtype=None):
        drawn.append(tuple(shape))
        return draw(self, shape, dtype)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", counted)
    options = {"labels": ["a", "b"], "allow_new_head": True}
    loaded = load_model(classifier.directory, BertClassifier, **options)
    assert drawn == [(8, 8), (8, 2)]  # the pooler, which the file may lack, and the new head
    assert np.asarray(loaded.head.dense.kernel).any()
    assert "its head is for other classes or another task: replaced" in caplog.text


def test_classifier_from_a_classifier(classifier):
    head = np.asarray(classifier.head.dense.kernel)

    def kernel(**options):
        loaded = load_model(classifier.directory, BertClassifier, **options)
        return list(loaded.labels or []), np.asarray(loaded.head.dense.kernel)

    labels, same = kernel()
    assert labels == LABELS
    np.testing.assert_array_equal(same, head)
    np.testing.assert_array_equal(kernel(num_classes=3)[1], head)
    np.testing.assert_array_equal(kernel(labels=LABELS, allow_new_head=True)[1], head)
    # Given names without leave to start anew only rename.
    labels, renamed = kernel(labels=["a", "b", "c"])
    assert labels == ["a", "b", "c"]
    np.testing.assert_array_equal(renamed, head)
    # Other classes: a new head, also if there are as many.
    assert not np.array_equal(kernel(labels=["a", "b", "c"], allow_new_head=True)[1], head)
    assert kernel(num_classes=5, allow_new_head=True)[1].shape == (8, 5)
    message = refusal_to_load(classifier.directory, BertClassifier, num_classes=2)
    assert "a head of 3 classes, not 2: give as many, or allow_new_head=True" in message


@for_each("allow_new_head", False, True)
def test_labels_in_another_order_keep_the_head(classifier, allow_new_head, caplog):
    own = classifier.head.dense
    options = {"labels": ["yes", "no", "perhaps"], "allow_new_head": allow_new_head}
    loaded = BertClassifier.from_directory(classifier.directory, **options)
    assert loaded.labels == options["labels"]
    np.testing.assert_array_equal(loaded.head.dense.kernel, np.asarray(own.kernel)[:, [2, 0, 1]])
    np.testing.assert_array_equal(loaded.head.dense.bias, np.asarray(own.bias)[[2, 0, 1]])
    assert not caplog.text


def test_unnamed_classes_are_counted(classifier, directory):
    shutil.copytree(classifier.directory, directory)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    del config["id2label"], config["label2id"]
    path.write_text(json.dumps(config))
    loaded = load_model(directory, BertClassifier)
    assert (loaded.num_classes, loaded.labels) == (3, None)
    save_model(loaded, directory)
    assert json.loads(path.read_text())["id2label"] == {str(i): f"LABEL_{i}" for i in range(3)}


def test_keywords(classifier):
    keywords = {"name": "mine", "dropout": 0.25, "seed": 3, "dtype": "mixed_bfloat16"}
    keywords["hidden_dropout_prob"] = 0.5
    model = BertClassifier.from_directory(classifier.directory, **keywords)
    assert (model.name, model.dropout, model.seed) == ("mine", 0.25, 3)
    assert model.encoder.embeddings.dropout.rate == model.config.hidden_dropout_prob == 0.5
    assert model.encoder.embeddings.compute_dtype == "bfloat16"
    refused("BertEncoder takes no 'sede': did you mean seed", BertEncoder, CONFIG, sede=1)


@for_each(
    "kind keywords line",
    (BertEncoder, {"dropuot": 0.5, "dtyp": "x"}, "takes no 'dropuot': give one of allow"),
    (BertEncoder, {"dtyp": "x"}, "BertEncoder takes no 'dtyp': did you mean dtype?"),
    (BertEncoder, {"hidden_dropout": 0.5}, "did you mean hidden_dropout_prob?"),
    (BertClassifier, {"lables": LABELS}, "takes no 'lables': did you mean labels?"),
    (BertClassifier, {"num_labels": 2}, "'num_labels': did you mean num_classes?"),
    (BertClassifier, {"attention_probabilities": True}, "takes no 'attention_probabilities'"),
    (BertEncoder, {"labels": LABELS}, "BertEncoder takes no 'labels'"),
    (BertRegressor, {"num_classes": 2}, "BertRegressor takes no 'num_classes'"),
)
def test_unknown_keywords_are_refused_by_name(classifier, kind, keywords, line):
    options = {"allow_new_head": True, **keywords}
    assert line in refused("", kind.from_directory, classifier.directory, **options)


def one_output(tensors):
    for name in ("classifier.weight", "classifier.bias"):
        tensors[name] = tensors[name][:1]


@for_each(
    "values tensors expected",
    ({"problem_type": None, "id2label": {"0": "LABEL_0"}}, one_output, BertRegressor),
    ({"problem_type": "regression", "id2label": {"0": "x"}}, one_output, BertRegressor),
    ({"problem_type": None}, None, BertClassifier),
    ({"problem_type": "multi_label_classification"}, None, BertMultiLabelClassifier),
    ({"architectures": ["BertForTokenClassification"]}, None, BertTagger),
    ({"architectures": ["BertForMultipleChoice"]}, one_output, BertChooser),
    ({"problem_type": 5}, None, "a BertForSequenceClassification for 5"),
)
def test_problem_type_and_architectures_count(classifier, directory, values, tensors, expected):
    """They all keep their weights under `classifier.`, and are no softmax over sentences."""
    shutil.copytree(classifier.directory, directory)
    set_config(directory, **values)
    if tensors:
        rewrite(directory, tensors)
    if isinstance(expected, str):
        message = refusal_to_load(directory, None)
        assert f"holds {expected}, which cannot be used as it is" in message
    else:
        assert type(load_model(directory)) is expected
    if expected is not BertClassifier:
        message = refusal_to_load(directory, BertClassifier)
        assert "not a BertForSequenceClassification for single_label" in message
        new = load_model(directory, BertClassifier, labels=LABELS, allow_new_head=True)
        head = np.asarray(new.head.dense.kernel).T
        kept = load_file(directory / "model.safetensors")["classifier.weight"]
        assert not np.array_equal(head[: len(kept)], kept)
    if expected is not BertRegressor:
        refusal_to_load(directory, BertRegressor)
    load_model(directory, BertEncoder)


def test_hdf5_which_keras_could_not_read_is_refused_before_training(tmp_path):
    model = BertClassifier(CONFIG, labels=LABELS)
    for name in ("model.h5", "model.hdf5"):
        refused(r"save it as model\.keras", model.save, tmp_path / name)
        assert not (tmp_path / name).exists()
        cure = rf"own{name}: .*save it as model\.keras"
        refused(cure, keras.saving.save_model, model, tmp_path / f"own{name}")
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "best.h5")
    for callbacks in ([checkpoint], checkpoint, keras.callbacks.CallbackList([checkpoint])):
        for optimizer in ("auto", "sgd"):
            model.compile(optimizer)
            refused(r"best.h5: .*model\.keras", model.fit, np.zeros((2, 2)), callbacks=callbacks)


def test_a_model_around_an_encoder_is_opened_from_hdf5(tmp_path):
    encoder = BertEncoder(CONFIG)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in encoder.input}
    model = keras.Model(inputs, keras.layers.Dense(1)(encoder(inputs)["pooled_output"]))
    model.save(tmp_path / "own.h5")
    ids = {name: np.ones((2, 3), "int32") for name in inputs}
    opened = keras.saving.load_model(tmp_path / "own.h5")
    np.testing.assert_array_equal(opened(ids), model(ids))


@for_each(
    "kind loss",
    (BertClassifier, "binary_crossentropy"),
    (BertTagger, keras.losses.BinaryCrossentropy(from_logits=True)),
    (BertClassifier, [keras.losses.BinaryFocalCrossentropy(from_logits=True)]),
    (BertClassifier, keras.losses.binary_crossentropy),
)
def test_independent_labels_are_not_saved_as_one_label(directory, kind, loss):
    """A model directory's classifier answers with a softmax."""
    model = kind(CONFIG, labels=LABELS)
    model.compile(loss=loss)
    refused(r"independent of each other.*model\.save", save_model, model, directory)
    assert not directory.exists()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    save_model(model, directory)


@for_each("target", BertEncoder, BertPreTrainer, BertClassifier)
def test_what_no_longer_holds_is_not_written(classifier, directory, target):
    """`problem_type` and an untied decoder would be wrong of the new head."""
    shutil.copytree(classifier.directory, directory)
    gone = {"tie_word_embeddings": False, "num_labels": 7, "torch_dtype": "float16"}
    set_config(directory, problem_type="multi_label_classification", **gone)
    options = {} if target is BertEncoder else {"allow_new_head": True}
    if target is BertClassifier:
        options["labels"] = ["a", "b"]
    save_model(load_model(directory, target, **options), directory.with_name("new"))
    config = json.loads((directory.with_name("new") / "config.json").read_text())
    assert not gone.keys() & config.keys()
    assert config.get("problem_type") == {BertClassifier: "single_label_classification"}.get(target)

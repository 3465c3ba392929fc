"""What `compile` makes of metrics and losses: names mean what Keras means by them."""

import keras
import numpy as np
import pytest
from tiny import tiny_config

from bert_tf import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertSpanClassifier,
    BertTagger,
)
from bert_tf.errors import InputError
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.networks.losses import LabelAccuracy, SpanAccuracy

CONFIG = tiny_config(11, max_position_embeddings=6)
RNG = np.random.default_rng(0)
E, T, C = 32, 4, 3
IDS = {
    "token_ids": RNG.integers(1, 11, (E, T)),
    "segment_ids": np.zeros((E, T), "int32"),
    "padding_mask": np.ones((E, T), "int32"),
}
CLASSES = RNG.integers(0, C, E)
WEIGHTS = RNG.uniform(0.1, 5, E)
TOKENS = RNG.integers(0, C, (E, T))
IS_WORD = (RNG.random((E, T)) < 0.5).astype("float32")
MARKS = RNG.integers(0, 2, (E, C))
SPANS = RNG.integers(0, T, (E, 2))


def rows(model_class, **arguments):
    """A model whose outputs differ between examples."""
    model = model_class(CONFIG, seed=1, **arguments)
    keras.utils.set_random_seed(3)
    for variable in model.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, stddev=0.7))
    return model


def evaluated(model, y, weights=None, **arguments):
    """The metrics of a model compiled with `arguments`, and its outputs."""
    if arguments:
        model.compile(run_eagerly=True, **arguments)
    model.run_eagerly = True
    found = model.test_on_batch(IDS, y, weights, return_dict=True)
    # Before Keras 3.14, arrays of shape [].
    return {name: float(value) for name, value in found.items()}, model.predict_on_batch(IDS)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


BOTH = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}


@pytest.mark.parametrize("arguments", [{}, BOTH, {"metrics": ["acc"]}])
def test_accuracy_is_unweighted_and_the_loss_is_over_the_rows(arguments):
    found, logits = evaluated(rows(BertClassifier, num_classes=C), CLASSES, WEIGHTS, **arguments)
    hits = logits.argmax(-1) == CLASSES
    assert found["acc" if arguments.get("metrics") == ["acc"] else "accuracy"] == hits.mean()
    if arguments is BOTH:
        weighted = np.average(hits, weights=WEIGHTS)
        assert found["weighted_accuracy"] == pytest.approx(weighted, rel=1e-6)
    losses = -np.log(softmax(logits)[np.arange(E), CLASSES])
    assert found["loss"] == pytest.approx((losses * WEIGHTS).sum() / E, rel=1e-5)


@pytest.mark.parametrize("arguments", [{}, BOTH])
def test_words_without_padding(arguments):
    weights = IS_WORD * WEIGHTS[:, None]
    found, logits = evaluated(rows(BertTagger, num_classes=C), TOKENS, weights, **arguments)
    hits = logits.argmax(-1) == TOKENS
    assert found["accuracy"] == pytest.approx(np.average(hits, weights=IS_WORD), rel=1e-6)
    if arguments is BOTH:
        weighted = np.average(hits, weights=weights)
        assert found["weighted_accuracy"] == pytest.approx(weighted, rel=1e-6)
    losses = -np.log(np.take_along_axis(softmax(logits), TOKENS[..., None], -1)[..., 0])
    assert found["loss"] == pytest.approx((losses * weights).sum() / IS_WORD.sum(), rel=1e-5)


def test_accuracy_of_several_labels_and_of_spans():
    model = rows(BertMultiLabelClassifier, num_classes=C)
    found, logits = evaluated(model, MARKS, metrics=["accuracy"])
    assert found["accuracy"] == pytest.approx(((logits > 0) == MARKS).mean(), rel=1e-6)
    found, logits = evaluated(rows(BertSpanClassifier), SPANS, metrics=["accuracy"])
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == SPANS).mean(), rel=1e-6)


def test_metrics_of_older_files():
    logits = np.array([[0.3, -0.3, 2.0]], "float32")
    assert LabelAccuracy.right(np.array([[1, 0, 0]]), logits) == np.float32(2 / 3)
    spans = np.array([[[0.0, 2.0], [1.0, 3.0], [0.5, 1.0]]], "float32")
    assert SpanAccuracy.right(np.array([[1, 0]]), spans) == 0.5


def test_outputs_by_name():
    model = rows(BertPreTrainer)
    own = {**IDS, "mask_positions": np.tile([1, 2], (E, 1))}
    y = {"mlm_logits": TOKENS[:, :2], "nsp_logits": CLASSES % 2}
    weights = {"mlm_logits": IS_WORD[:, :2], "nsp_logits": np.ones(E)}
    for metrics in ({n: ["accuracy"] for n in y}, [["accuracy"], ["accuracy"]]):
        model.compile(metrics=metrics, run_eagerly=True)
        found = model.test_on_batch(own, y, weights, return_dict=True)
        logits = model.predict_on_batch(own)
        hits = logits["mlm_logits"].argmax(-1) == TOKENS[:, :2]
        expected = np.average(hits, weights=IS_WORD[:, :2])
        assert found["mlm_logits_accuracy"] == pytest.approx(expected, rel=1e-6)


def test_keras_metrics_get_probabilities_and_one_hot_labels():
    def own():
        yield keras.metrics.F1Score(average="macro", name="f1")
        yield keras.metrics.AUC(multi_label=True, name="auc")
        yield keras.metrics.Precision(class_id=1, name="precision")

    more = ["sparse_categorical_crossentropy", "categorical_accuracy"]
    metrics = [*own(), keras.metrics.SparseTopKCategoricalAccuracy(2), *more]
    found, logits = evaluated(rows(BertClassifier, num_classes=C), CLASSES, metrics=metrics)
    for metric in own():
        expected = metric(np.eye(C)[CLASSES], softmax(logits))
        assert found[metric.name] == pytest.approx(float(expected), rel=1e-5)
    assert found["categorical_accuracy"] == (logits.argmax(-1) == CLASSES).mean()
    assert found["sparse_categorical_crossentropy"] == pytest.approx(found["loss"], rel=1e-5)


def test_of_two_labels_the_second_is_the_positive_one():
    names = ["AUC", "Precision", "Recall"]
    y = CLASSES % 2
    found, logits = evaluated(rows(BertClassifier, num_classes=2), y, metrics=names)
    for name in names:
        expected = getattr(keras.metrics, name)()(y, softmax(logits)[:, 1])
        assert found[name] == pytest.approx(float(expected), rel=1e-5)


def test_keras_metrics_of_words_and_of_several_labels():
    f1 = {"metrics": [keras.metrics.F1Score(average="macro", name="f1")]}
    found, logits = evaluated(rows(BertTagger, num_classes=C), TOKENS, IS_WORD, **f1)
    is_word = IS_WORD > 0
    expected = keras.metrics.F1Score(average="macro")(
        np.eye(C)[TOKENS[is_word]], softmax(logits[is_word])
    )
    assert found["f1"] == pytest.approx(float(expected), rel=1e-5)
    found, logits = evaluated(rows(BertMultiLabelClassifier, num_classes=C), MARKS, metrics=["AUC"])
    expected = keras.metrics.AUC()(MARKS, 1 / (1 + np.exp(-logits)))
    assert found["AUC"] == pytest.approx(float(expected), rel=1e-5)


def test_a_function_of_ones_own_gets_logits():
    model = rows(BertClassifier, num_classes=C)
    found, logits = evaluated(model, CLASSES, metrics=[lambda y, x: x[:, 0]])
    assert found["<lambda>"] == pytest.approx(logits[:, 0].mean(), rel=1e-5)


def test_metrics_come_back_from_a_file(tmp_path):
    model = rows(BertTagger, num_classes=C)
    model.compile(metrics=["accuracy", keras.metrics.F1Score(average="macro", name="f1")])
    model.save(tmp_path / "model.keras")
    weights = IS_WORD * WEIGHTS[:, None]
    expected, _ = evaluated(model, TOKENS, weights)
    found, _ = evaluated(keras.saving.load_model(tmp_path / "model.keras"), TOKENS, weights)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        "SparseCategoricalCrossentropy",
        "crossentropy",
    ],
)
def test_names_of_losses_are_of_logits(loss):
    model = rows(BertClassifier, num_classes=C)
    expected, _ = evaluated(model, CLASSES)
    found, _ = evaluated(model, CLASSES, loss=loss)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)


@pytest.mark.parametrize(
    "model_class, loss, told",
    [
        (BertClassifier, keras.losses.SparseCategoricalCrossentropy(), "from_logits=False"),
        (BertMultiLabelClassifier, keras.losses.BinaryCrossentropy(), "from_logits=False"),
        (BertClassifier, "kl_divergence", "compares probabilities"),
        (BertClassifier, keras.losses.Dice(), "compares probabilities"),
    ],
)
def test_losses_of_probabilities_are_refused(model_class, loss, told):
    with pytest.raises(InputError, match=told):
        model_class(CONFIG, num_classes=C).compile(loss=loss)


def test_others_are_as_keras_takes_them():
    found, _ = evaluated(rows(BertRegressor), WEIGHTS, loss="mae", metrics=["mse"])
    assert found.keys() == {"loss", "mse"}
    assert BertChooser(CONFIG).output_kind == "classes"

import functools

import keras
import numpy as np
import pytest
from cases import for_each
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
IDS = {"token_ids": RNG.integers(1, 11, (E, T))}
IDS |= {"segment_ids": np.zeros((E, T), "int32"), "padding_mask": np.ones((E, T), "int32")}
CLASSES = RNG.integers(0, C, E)
WEIGHTS = RNG.uniform(0.1, 5, E)
TOKENS = RNG.integers(0, C, (E, T))
IS_WORD = (RNG.random((E, T)) < 0.5).astype("float32")
MARKS = RNG.integers(0, 2, (E, C))
SPANS = RNG.integers(0, T, (E, 2))
CROSS_ENTROPY = keras.losses.categorical_crossentropy


def rows(model_class, **arguments):
    model = model_class(CONFIG, seed=1, **arguments)
    keras.utils.set_random_seed(3)
    for variable in model.trainable_variables:
        variable.assign(keras.random.normal(variable.shape, stddev=0.7))
    return model


def evaluated(model, y, weights=None, **arguments):
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


@for_each("arguments", {}, BOTH, {"metrics": ["acc"]})
def test_accuracy_is_unweighted_and_the_loss_is_over_the_rows(arguments):
    found, logits = evaluated(rows(BertClassifier, num_classes=C), CLASSES, WEIGHTS, **arguments)
    hits = logits.argmax(-1) == CLASSES
    assert found["acc" if arguments.get("metrics") == ["acc"] else "accuracy"] == hits.mean()
    if arguments is BOTH:
        weighted = np.average(hits, weights=WEIGHTS)
        assert found["weighted_accuracy"] == pytest.approx(weighted, rel=1e-6)
    losses = -np.log(softmax(logits)[np.arange(E), CLASSES])
    assert found["loss"] == pytest.approx((losses * WEIGHTS).sum() / E, rel=1e-5)


@for_each("arguments", {}, BOTH)
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


def cross_entropy(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def test_words_without_padding_in_another_loss():
    model = rows(BertTagger, num_classes=C)
    partial = functools.partial(keras.losses.sparse_categorical_crossentropy, from_logits=True)
    kinds = ["sparse_categorical_crossentropy", cross_entropy, partial]
    kinds.append(keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # Weights of words, or of texts.
    for weights, losses in ((IS_WORD * WEIGHTS[:, None], kinds), (WEIGHTS, kinds[-1:])):
        expected, _ = evaluated(model, TOKENS, weights, loss="auto")
        for loss in losses:
            found, _ = evaluated(model, TOKENS, weights, loss=loss)
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5), loss
    single = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    summed, _ = evaluated(model, TOKENS, WEIGHTS, loss=single)
    assert summed["loss"] == pytest.approx(found["loss"] * E * T, rel=1e-5)


def test_words_without_a_label_are_labelled_minus_100():
    model = rows(BertTagger, num_classes=C)
    arguments = {"metrics": ["accuracy", keras.metrics.F1Score(average="macro", name="f1")]}
    expected, _ = evaluated(model, TOKENS, IS_WORD, **arguments)
    labels = np.where(IS_WORD > 0, TOKENS, -100)
    assert evaluated(model, labels, **arguments)[0] == pytest.approx(expected, rel=1e-6)
    assert evaluated(model, labels, IS_WORD)[0] == pytest.approx(expected, rel=1e-6)
    weighted = []
    for y, w in ((labels, None), (TOKENS, IS_WORD)):
        model = rows(BertTagger, num_classes=C)
        model.compile(run_eagerly=True)
        weighted.append(model.train_on_batch(IDS, y, w, class_weight={0: 3.0}))
    assert weighted[0] == pytest.approx(weighted[1], rel=1e-6)


def test_numbers_are_columns_to_metrics():
    metrics = [keras.metrics.R2Score(), keras.metrics.PearsonCorrelation(name="r"), "mse"]
    weights = CLASSES + 0.5
    model = rows(BertRegressor)
    both = {"metrics": metrics, "weighted_metrics": ["mse", keras.metrics.R2Score()]}
    found, numbers = evaluated(model, WEIGHTS, weights, **both)
    errors = (numbers - WEIGHTS) ** 2
    mean = np.average(WEIGHTS, weights=weights)
    spread = np.average((WEIGHTS - mean) ** 2, weights=weights)
    expected = {
        "r2_score": 1 - errors.mean() / WEIGHTS.var(),
        "r": np.corrcoef(numbers, WEIGHTS)[0, 1],
        "mse": errors.mean(),
        "weighted_mse": np.average(errors, weights=weights),
        "weighted_r2_score": 1 - np.average(errors, weights=weights) / spread,
        "loss": (errors * weights).mean(),
    }
    assert found == pytest.approx(expected, rel=1e-4)
    absolute, _ = evaluated(model, WEIGHTS, weights, loss="mae")
    assert absolute["loss"] == pytest.approx((np.sqrt(errors) * weights).mean(), rel=1e-4)


def test_accuracy_of_several_labels_and_of_spans():
    model = rows(BertMultiLabelClassifier, num_classes=C)
    found, logits = evaluated(model, MARKS, metrics=["accuracy"])
    assert found["accuracy"] == pytest.approx(((logits > 0) == MARKS).mean(), rel=1e-6)
    found, logits = evaluated(rows(BertSpanClassifier), SPANS, metrics=["accuracy"])
    assert found["accuracy"] == pytest.approx((logits.argmax(1) == SPANS).mean(), rel=1e-6)
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


def test_two_labels_functions_of_ones_own_and_losses():
    names = ["AUC", "Precision", "Recall"]
    y = CLASSES % 2
    found, logits = evaluated(rows(BertClassifier, num_classes=2), y, metrics=names)
    for name in names:
        expected = getattr(keras.metrics, name)()(y, softmax(logits)[:, 1])
        assert found[name] == pytest.approx(float(expected), rel=1e-5)
    model = rows(BertClassifier, num_classes=C)
    found, logits = evaluated(model, CLASSES, metrics=[lambda y, x: x[:, 0]])
    assert found["<lambda>"] == pytest.approx(logits[:, 0].mean(), rel=1e-5)
    found, _ = evaluated(rows(BertRegressor), WEIGHTS, loss="mae", metrics=["mse"])
    assert found.keys() == {"loss", "mse"}
    assert BertChooser(CONFIG).output_kind == "classes"


def test_keras_metrics_of_words_and_of_several_labels():
    f1 = {"metrics": [keras.metrics.F1Score(average="macro", name="f1")]}
    found, logits = evaluated(rows(BertTagger, num_classes=C), TOKENS, IS_WORD, **f1)
    is_word = IS_WORD > 0
    shares = softmax(logits[is_word])
    expected = keras.metrics.F1Score(average="macro")(np.eye(C)[TOKENS[is_word]], shares)
    assert found["f1"] == pytest.approx(float(expected), rel=1e-5)
    found, logits = evaluated(rows(BertMultiLabelClassifier, num_classes=C), MARKS, metrics=["AUC"])
    expected = keras.metrics.AUC()(MARKS, 1 / (1 + np.exp(-logits)))
    assert found["AUC"] == pytest.approx(float(expected), rel=1e-5)


def test_metrics_come_back_from_a_file(tmp_path):
    model = rows(BertTagger, num_classes=C)
    model.compile(metrics=["accuracy", keras.metrics.F1Score(average="macro", name="f1")])
    model.save(tmp_path / "model.keras")
    weights = IS_WORD * WEIGHTS[:, None]
    expected, _ = evaluated(model, TOKENS, weights)
    found, _ = evaluated(keras.saving.load_model(tmp_path / "model.keras"), TOKENS, weights)
    assert found == pytest.approx(expected, rel=1e-6)


def test_names_of_losses_are_of_logits():
    model = rows(BertClassifier, num_classes=C)
    expected, _ = evaluated(model, CLASSES)
    names = ["sparse_categorical_crossentropy", "SparseCategoricalCrossentropy", "crossentropy"]
    for loss in (*names, keras.losses.sparse_categorical_crossentropy):
        found, _ = evaluated(model, CLASSES, loss=loss)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6), loss


@for_each(
    "model_class loss told",
    (BertClassifier, keras.losses.SparseCategoricalCrossentropy(), "from_logits=False"),
    (BertMultiLabelClassifier, keras.losses.BinaryCrossentropy(), "from_logits=False"),
    (BertClassifier, functools.partial(keras.losses.binary_crossentropy), "from_logits=False"),
    (BertTagger, functools.partial(CROSS_ENTROPY, from_logits=False), "from_logits=False"),
    (BertClassifier, "kl_divergence", "compares probabilities"),
    (BertClassifier, keras.losses.Dice(), "compares probabilities"),
)
def test_losses_of_probabilities_are_refused(model_class, loss, told):
    with pytest.raises(InputError, match=told):
        model_class(CONFIG, num_classes=C).compile(loss=loss)

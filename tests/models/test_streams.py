import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from small_data import LABELS, TAGS, TEXTS, WORDS

from bert_tf import BertMultiLabelClassifier, BertTagger
from bert_tf.errors import InputError

NUMBERS = np.array([int(label == "good") for label in LABELS])


@pytest.fixture
def model(opened):
    return opened()


def ids_of(model, texts=TEXTS):
    return {name: np.asarray(x) for name, x in model.preprocessor(texts).items()}


class Items(keras.utils.PyDataset):
    """Two batches of token ids, or of texts, that count how often they are asked for."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.asked = x, y, []

    def __len__(self):
        return 2

    def __getitem__(self, index):
        self.asked.append(index)
        part = slice(4 * index, 4 * index + 4)
        x = {n: each[part] for n, each in self.x.items()} if isinstance(self.x, dict) else self.x
        return x, self.y[part]


def test_validation_data_from_a_generator_is_whole(model):
    ids, seen = ids_of(model), []

    def batches():
        for number in range(6):
            seen.append(number)
            yield ids, NUMBERS

    counted = []
    count = keras.callbacks.LambdaCallback(on_test_batch_end=lambda n, logs: counted.append(n))
    options = {"epochs": 2, "verbose": 0, "callbacks": [count]}
    model.fit(ids, NUMBERS, validation_data=batches(), validation_steps=3, **options)
    assert counted == [0, 1, 2] * 2
    assert seen == list(range(6))


def test_streams_of_token_ids_are_keras_own(model):
    ids = ids_of(model)
    history = model.fit(((ids, NUMBERS) for _ in range(3)), verbose=0, steps_per_epoch=3)
    assert np.isfinite(history.history["loss"]).all()
    assert model.predict(((ids,) for _ in range(2)), verbose=0).shape == (16, 2)
    refused("come from a generator", model.fit, ((TEXTS, NUMBERS) for _ in range(3)))
    refused("come from a generator", model.fit, Items(TEXTS[:4], NUMBERS), verbose=0)
    own, plain = Items(ids_of(model), NUMBERS), Items(ids_of(model), NUMBERS)
    model.fit(own, epochs=2, verbose=0, shuffle=False)
    model.preprocessor = None
    model.fit(plain, epochs=2, verbose=0, shuffle=False)
    assert own.asked == plain.asked


PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@for_each("class_weight preprocessor", ({"good": 3.0}, "auto"), ({1: 3.0}, None))
def test_weights_of_classes_of_token_ids(opened, class_weight, preprocessor):
    model = opened(**PLAIN)
    ids = ids_of(model)
    model = opened(**PLAIN, preprocessor=preprocessor)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    expected = model.evaluate(ids, NUMBERS, sample_weight=1.0 + 2.0 * NUMBERS, verbose=0)[0]
    data = tf.data.Dataset.from_tensors((ids, NUMBERS))
    given = {"class_weight": class_weight, "verbose": 0}
    losses = [
        *model.fit(ids, NUMBERS, **given).history["loss"],
        *model.fit(ids, NUMBERS[:, None], **given).history["loss"],
        *model.fit(data, **given).history["loss"],
        model.train_on_batch(ids, NUMBERS, class_weight=class_weight, return_dict=True)["loss"],
    ]
    assert losses == pytest.approx([expected] * 4, rel=1e-5)


def test_balanced_classes(opened):
    model = opened(**PLAIN)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    numbers = np.array([1] * 6 + [0] * 2)
    texts = (TEXTS, [["bad", "good"][number] for number in numbers])
    ids = (ids_of(model), numbers)
    weights = np.where(numbers == 1, 8 / (2 * 6), 8 / (2 * 2))
    for x, y in (texts, ids):
        expected = model.fit(x, y, sample_weight=weights * 2, verbose=0).history["loss"]
        twice = {"class_weight": "balanced", "sample_weight": np.full(8, 2.0)}
        found = model.fit(x, y, **twice, verbose=0).history["loss"]
        assert found == pytest.approx(expected, rel=1e-5)
        data = tf.data.Dataset.from_tensors((x, y))
        with pytest.raises(InputError, match="counts the labels of texts that have one each"):
            model.fit(data, class_weight="balanced", verbose=0)
    with pytest.raises(InputError, match="counts the labels of texts that have one each"):
        opened(BertTagger).fit(WORDS, TAGS, class_weight="balanced", verbose=0)


def test_weights_of_classes_in_data_sets_of_texts(opened):
    model = opened(**PLAIN)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    weights, weighted = 1.0 + 2.0 * NUMBERS, {"class_weight": {"good": 3.0}, "verbose": 0}
    losses = model.fit(TEXTS, LABELS, **weighted).history["loss"]
    losses += model.fit(TEXTS, LABELS, sample_weight=weights, verbose=0).history["loss"]
    for dtype in ("float32", "int8", "uint8"):
        data = tf.data.Dataset.from_tensors((TEXTS, NUMBERS.astype(dtype)))
        losses += model.fit(data, **weighted).history["loss"]
    assert losses == pytest.approx(losses[:1] * 5, rel=1e-5)


def test_labels_in_data_sets_of_texts_are_places_and_numbers_those_of_labels(model, opened):
    def fit(y):
        model.fit(tf.data.Dataset.from_tensors((TEXTS, y)), verbose=0)

    fit(NUMBERS[:, None])
    refused("of the data set: label 0 is 7: the mode", fit, np.array([7, 0, 1, 0, 1, 0, 1, 0]))
    refused(r"label 0 is \[0, 1\]: .*labels.argmax\(-1\), or compile", fit, np.eye(2)[NUMBERS])
    # Where labels are numbers, these are meant, of token ids as of texts.
    model = opened(labels=[1, 5])
    assert model._weights(NUMBERS, None, {5: 9})[0].tolist() == [1 + 8 * x for x in NUMBERS]


def test_weights_of_words_of_token_ids(opened):
    tagger = opened(BertTagger)
    made = tagger.preprocessor.batches(tagger, WORDS, TAGS, class_weight={"O": 0.5})
    _, y, expected = next(iter(made.dataset))
    _, y, weights = next(iter(tagger.preprocessor.batches(tagger, WORDS, TAGS).dataset))
    found, left = tagger._weights(y, weights, {"O": 0.5})
    assert left is None
    np.testing.assert_array_equal(found, expected)
    refused("class_weight of words is for arrays", tagger._weights, None, None, {"O": 0.5})


@for_each(
    "weights told",
    ({"class_weight": {"odd": 1.0}}, "a label of class_weight is 'odd', none of"),
    ({"class_weight": {"good": -1.0}}, "class_weight of 'good' is -1.0: give a number of at"),
    ({"sample_weight": np.array([1.0] * 7 + [-2.0])}, "sample_weight 7 is -2.0: give"),
    ({"sample_weight": np.array([1.0] * 7 + [np.inf])}, "sample_weight 7 is inf: give"),
)
def test_weights_that_are_refused(model, weights, told):
    for x in (TEXTS, ids_of(model)):
        for train in (model.fit, model.train_on_batch):
            refused(told, train, x, NUMBERS, **weights)


def test_several_labels_have_no_class_weight(opened):
    model = opened(BertMultiLabelClassifier)
    with pytest.raises(InputError, match="for labels that are classes"):
        model.fit(ids_of(model), np.ones((8, 3)), class_weight={"good": 2.0})

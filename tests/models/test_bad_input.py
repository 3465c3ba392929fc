import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from cases import for_each, refused
from rounding import rounding
from small_data import ANSWERS, CONTEXTS, LABELS, QUESTIONS, TAGS, TEXTS, WORDS

from bert_tf import BertChooser, BertClassifier, BertSpanClassifier, BertTagger
from bert_tf.models.language_model import BertMaskedLanguageModel

PAIRS = (TEXTS, TEXTS[::-1])
WHO = (["who"], ["anna"])


class Splits(dict):
    column_names = {"train": ["text"], "test": ["text"]}  # noqa: RUF012


class Stream:
    column_names = ("text", "label")

    def __iter__(self):
        yield {"text": "a", "label": "good"}


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


FIT = {
    "fewer labels": (TEXTS, LABELS[:3], "3 labels for 8 examples: give a label for each"),
    "no labels": (TEXTS, None, "there are no labels: give y"),
    "unknown label": (["a"], ["god"], r"data, example 0: the label 'god' is not .* \(bad, good\);"),
    "number too large": (["a"], [2], "label 0 is 2: the model's 2 labels .* numbers 0 to 1"),
    "boolean": (["a", "b"], [True, False], "label 0 is True, the value of none of .*: give one of"),
    "label None": (["a", "b"], ["good", None], "label 1 is None: give the example a label"),
    "labels NaN": (["a", "b"], [np.nan] * 2, "2 rows cannot be used, such as label 0 is nan"),
    "label NaN": (["a", "b"], [1.0, float("nan")], "label 1 is nan: give the example a label,"),
    "float ids": (["a", "b"], np.array([0.0, 1.0]), r"label 0 is 0.0: .*labels.astype\(int\)"),
    "text None": (["a", None], LABELS[:2], "the data, example 1: 'text' is None; it must be text"),
    "all texts None": ([None] * 2, LABELS[:2], "example 0: 'text' is None; .* leave the example"),
    "text NaN": (["a", np.nan], LABELS[:2], "example 1: 'text' is nan; it must be text or a num"),
    "true": (["a", True], LABELS[:2], "example 1: 'text' is True; it must be text or a number"),
    "single string": ("a good film", "good", r"a single string: give a list, such as \[text\]"),
    "single label": (TEXTS, "good", "labels is a single string: give a list of them"),
    "no text": ([], [], "there is no example: give at least one text"),
    "numbers": ([1, 2], LABELS[:2], "example 0 is 1: give texts, or token ids as a dict of arrays"),
    "lists of ids": ([[2, 5, 3]], ["good"], r"example 0 is \[2, 5, 3\]: give texts, or token ids"),
    "lists of texts": ([["a", "b"]], ["good"], "it must be text or a number: for pairs give a t"),
    "one-hot": (["a"], np.eye(2)[:1], r"label 0 is \[1.0, 0.0\]: .*labels.argmax\(-1\), or"),
    "half a character": (["a \ud800 b"], ["good"], "example 0: 'text' has half of a surrogate p"),
    "Latin-1": (["caf\xe9".encode("latin-1")], ["good"], "text 0 is not valid UTF-8 .*: decode it"),
    "sides": ((TEXTS, TEXTS[:3]), LABELS, "8 of text, 3 of text_pair.*: give as many of each"),
    "three columns": ((TEXTS, TEXTS, TEXTS), LABELS, "the inputs are 3 columns: give a list"),
    "uneven tuples": ([("a", "b"), ("a",)], LABELS[:2], r"tuples of \[1, 2\] texts: give all as"),
    "columns": ({"a": TEXTS, "b": TEXTS}, LABELS, "columns a, b: name one text, or two text and"),
    "splits": (Splits(train=[], test=[]), None, r"splits train, test: give one, such as data\['tr"),
    "stream": (lambda: Stream(), None, "streamed: load it without streaming=True, or give list"),
    "unbatched": (lambda: dataset(TEXTS, LABELS), None, r"batch it, dataset.batch\(32\)"),
    "label of a data set": (
        lambda: dataset(TEXTS, ["goodish"] * 8).batch(4),
        None,
        r"^a batch of the data set: .*example 0: the label 'goodish' is not .* \(bad, good\)",
    ),
    "generator": (lambda: (text for text in TEXTS), LABELS, "generator: give them as a list, list"),
    "two columns of labels": (TEXTS, {"a": 1}, "labels for 8 examples: give a label for each"),
}


@pytest.fixture(scope="module")
def classifier(opened):
    return opened()


@for_each("fault", *FIT)
def test_a_classifier_refuses(classifier, fault):
    x, y, message = FIT[fault]
    x = x() if callable(x) else x
    refused(message, classifier.fit, x, y, verbose=0)


def test_weights_and_shares(classifier):
    for arguments, message in (
        ({"sample_weight": [1.0, 2.0]}, "2 numbers for 8 examples: give a weight for each"),
        ({"sample_weight": [1.0, None] * 4}, "sample_weight 1 is None: give a number"),
        ({"class_weight": {"good": None}}, "class_weight of 'good' is None: give a number"),
        ({"class_weight": [1.0, 2.0]}, "class_weight is .*: give a dict, such as {'bad': 2.0}"),
        ({"validation_data": TEXTS}, "there are no labels: give y"),
        ({"batch_size": 0}, "batch_size is 0: give a whole number, at least 1"),
        ({"batch_size": "8"}, "batch_size is '8': give a whole number"),
        ({"validation_split": 0.99}, "leaves one side empty: give another share"),
        ({"validation_split": 1.0}, "leaves one side empty: give another share"),
        (
            {"callbacks": [keras.callbacks.ReduceLROnPlateau()]},
            "ReduceLROnPlateau sets the learning rate, .*: give compile an optimizer",
        ),
    ):
        refused(message, lambda given=arguments: classifier.fit(TEXTS, LABELS, verbose=0, **given))
    data = dataset(TEXTS, LABELS).batch(4)
    refused("use dataset.take and .skip", classifier.fit, data, validation_split=0.5)


def test_ids_that_are_floats(opened, classifier):
    """A model would cut them off."""
    ids = {name: np.ones((2, 3), "float32") for name in classifier.input}
    for model in (classifier, opened(preprocessor=None)):
        refused(r"token_ids are float32: .*.astype\('int32'\)", lambda m=model: m.fit(ids, [0, 1]))
        refused("token_ids are .*float32", lambda m=model: m.predict(dataset(ids).batch(2)))


def test_predictions(opened, classifier, tmp_path):
    refused("there is no example: give at least one text", classifier.predict, [])
    refused("a single string: give a list", classifier.predict, "a text")
    refused(r"generator: .* list\(texts\)", lambda: classifier.predict(text for text in TEXTS))
    refused("example 1: 'text' is None", classifier.predict, ["a", None])
    without = opened(preprocessor=None)
    refused("classify needs the model's vocabulary: open", without.classify, TEXTS)
    refused("export needs .*: open the model with", without.export, "m.onnx", format="onnx")
    columns = (np.array(TEXTS), pd.Series(TEXTS), tf.constant(TEXTS), dataset(TEXTS, LABELS))
    for x in (TEXTS, (TEXTS, TEXTS), {"text": TEXTS}, *columns):
        refused("raw text needs the model's vocabulary: open", lambda x=x: without.predict(x))
    refused("save_to_preset needs the model's vocab", without.save_to_preset, "nowhere")
    refused("wants a number: give models/latest/1", classifier.export, "models/latest")
    for version in (1, 3):
        (tmp_path / "review" / str(version)).mkdir(parents=True)
    refused("already exists: the next free version is 4", classifier.export, tmp_path / "review/1")


@pytest.mark.slow
def test_pairs_where_there_were_none_and_the_reverse(opened, tmp_path):
    """Before it is trained a model takes either; afterwards what it was trained on."""
    model = opened()
    assert model.predict(PAIRS, verbose=0).shape == (8, 2)
    model.fit(TEXTS, LABELS, verbose=0)
    refused("reads single texts, and these are pairs: leave", model.predict, PAIRS)
    model.fit(PAIRS, LABELS, verbose=0)
    refused("the inputs have no text_pair: give a tuple of lists", model.predict, TEXTS)
    model.save_to_preset(tmp_path)
    reopened = BertClassifier.from_preset(tmp_path)
    refused("the inputs have no text_pair", reopened.classify, TEXTS)
    one, other = reopened.predict(PAIRS, verbose=0), model.predict(PAIRS, verbose=0)
    np.testing.assert_allclose(one, other, rtol=0, atol=rounding(24, 32))


def test_an_empty_string_is_answered_and_noted_in_fit(classifier):
    with pytest.warns(UserWarning, match="1 examples have a blank text, the first in example 1"):
        classifier.fit(["a film", " "], ["good", "bad"], verbose=0)
    (answer,) = classifier.classify([""])
    assert answer["label"] in ("bad", "good")


def test_labels_are_counted_once_before_the_first_fit(preset, capsys):
    model = BertClassifier.from_preset(preset, labels=["bad", "good", "bad|good"])
    ask = functools.partial(model.preprocessor.batches, model, is_training=True)
    with pytest.warns(UserWarning, match="contain '|': did you mean --task multi_label"):
        ask(["a", "b", "c"], ["bad", "good", "bad|good"], reports_labels=True)
    *_, counts, line = capsys.readouterr().out.splitlines()
    assert counts == "3 training examples: bad 1, good 1, bad|good 1"
    assert line == "always answering 'bad' has an accuracy of 33.3% on the training examples"
    ask(["a", "b"], ["bad", "good"], reports_labels=True)
    assert capsys.readouterr().out == ""


@for_each(
    "model_class x y message",
    (BertTagger, [["in bern"]], [["O"]], "example 0: the word 'in bern' is empty or holds whi"),
    (BertTagger, WORDS, [TAGS[0]] * 8, "example 1: 3 words but 4 labels; give each word one"),
    (BertTagger, ["in bern"], ["O"], "example 0: 2 words but 1 labels"),
    (BertTagger, [["anna"]], [["B-ORG"]], "example 0: the word 'anna' has the label 'B-ORG'"),
    (BertTagger, [["anna"]], [[9]], "label 0 is 9: the model's 5 labels"),
    (BertSpanClassifier, QUESTIONS, ANSWERS, "one column: give a tuple of lists .question, c"),
    (BertSpanClassifier, WHO, ["bern"], "no answer is in its context; check answer_start"),
    (BertSpanClassifier, WHO, [""], "example 0: the question 0 has no answer; give"),
    (BertChooser, (["a"], [["b"]]), [0], "example 0: 1 choices .*; give all examples the same"),
    (BertChooser, (["a", "a"], [["b", "c"], ["b", "c", "a"]]), [0, 0], "example 1: 3 choices"),
    (BertChooser, (["a"], [["b", "c"]]), [2], "the label '2' is no choice; give a number"),
    (BertMaskedLanguageModel, TEXTS, LABELS, "their own labels: leave the labels out"),
)
def test_other_models_refuse(opened, model_class, x, y, message):
    model = opened(model_class)
    refused(message, model.fit, x, y, verbose=0)


def test_weights_of_taggers_and_questions_and_data_sets_without_end(opened):
    tagger, answerer = opened(BertTagger), opened(BertSpanClassifier)
    refused("an answer per example", tagger.fit, WORDS, TAGS, sample_weight=[1.0] * 8)
    questions = (QUESTIONS, CONTEXTS)
    refused("models with labels", answerer.fit, questions, ANSWERS, class_weight={0: 1.0})
    tagger = opened(BertTagger)
    data = dataset([" ".join(words) for words in WORDS]).batch(2).repeat()
    refused(r"repeats without end: leave .repeat\(\) out", tagger.predict, data)

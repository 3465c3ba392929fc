import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from rounding import rounding
from small_data import DATA, LABEL_SETS, LABELS, TAG_NAMES, TAGS, TEXTS, WORDS

import bert_tf
from bert_tf.models.language_model import BertMaskedLanguageModel
from bert_tf.text import batches
from bert_tf.text.batches import BatchOptions, make_batches

PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))


def frame(**columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def stream(columns, size=8):
    return tf.data.Dataset.from_tensor_slices(columns).batch(size), None


def batches_of(model, x, y=None, weights=None, **options):
    """All batches of an epoch, joined, as arrays."""
    made = model.preprocessor.batches(model, x, y, weights, batch_size=8, **options)
    (batch,) = made.dataset.take(1)
    return keras.tree.map_structure(np.asarray, batch)


def rows_of(model, x, y):
    """The strings and targets of the rows that an epoch's batches are made of."""

    def kept(columns, *_, targets, **__):
        return dict(columns), [each.tolist() for each in targets]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "example_batches", kept)
        return model.preprocessor.batches(model, x, y).dataset


def check_form(model, x, y, lists, batch):
    """A form has the rows of the lists; a data set that is streamed has their batch."""
    if isinstance(x, tf.data.Dataset) and model.text_output == "rows":
        same(batches_of(model, x, y), batch)
    else:
        np.testing.assert_equal(rows_of(model, x, y), rows_of(model, *lists))


def same(one, other):
    keras.tree.map_structure(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def of_lists(opened):
    @functools.cache
    def make(model_class):
        model = opened(model_class)
        return model, batches_of(model, *DATA[model_class][1:])

    return make


ONE_TEXT = {
    "list": lambda: (TEXTS, LABELS),
    "tuple of one column": lambda: ((TEXTS,), LABELS),
    "array of str": lambda: (np.array(TEXTS), np.array(LABELS)),
    "array of objects": lambda: (np.array(TEXTS, object), np.array(LABELS, object)),
    "array of bytes": lambda: (np.array(TEXTS, "S"), LABELS),
    "tensor": lambda: (tf.constant(TEXTS), tf.constant(LABELS)),
    "labels by number": lambda: (TEXTS, [["bad", "good"].index(x) for x in LABELS]),
    "array of numbers": lambda: (TEXTS, np.array([x == "good" for x in LABELS], np.int64)),
    "column of numbers": lambda: (TEXTS, np.array([[x == "good"] for x in LABELS], np.int32)),
    "dict": lambda: ({"text": TEXTS}, LABELS),
    "dict with labels": lambda: ({"text": TEXTS, "label": LABELS}, None),
    "dict of another name": lambda: ({"review": TEXTS}, LABELS),
    "series": lambda: (frame(t=TEXTS)["t"], frame(y=LABELS)["y"]),
    "frame": lambda: (frame(text=TEXTS, label=LABELS, more=TEXTS), None),
    "pyarrow": lambda: tuple(map(pytest.importorskip("pyarrow").array, (TEXTS, LABELS))),
    "frames of one column": lambda: (frame(t=TEXTS), frame(y=LABELS)),
    "data set": lambda: stream((TEXTS, LABELS)),
    "data set with numbers": lambda: stream((TEXTS, [int(x == "good") for x in LABELS])),
    "data set of dicts": lambda: stream({"text": TEXTS, "label": LABELS}),
}


def test_a_batch_of_one_text_and_of_pairs(of_lists):
    _, (inputs, numbers) = of_lists(bert_tf.BertClassifier)
    np.testing.assert_array_equal(numbers, [x == "good" for x in LABELS])
    assert inputs["token_ids"].shape == (8, 8)  # [CLS] it is a very good story [SEP]
    classifier, _ = of_lists(bert_tf.BertClassifier)
    pair = tuple(map(tf.constant, (TEXTS, TEXTS[::-1])))
    inputs, _ = batches_of(classifier, (TEXTS, TEXTS[::-1]), LABELS)
    same(inputs, keras.tree.map_structure(np.asarray, classifier.preprocessor(pair)))
    assert inputs["segment_ids"].max() == 1
    same(batches_of(classifier, *stream((pair, LABELS)))[0], inputs)


TWO_TEXTS = {
    "tuple of lists": lambda: (TEXTS, TEXTS[::-1]),
    "tuple of arrays": lambda: (np.array(TEXTS), np.array(TEXTS[::-1])),
    "list of tuples": lambda: PAIRS,
    "dict": lambda: {"text": TEXTS, "text_pair": TEXTS[::-1]},
    "frame": lambda: frame(text=TEXTS, text_pair=TEXTS[::-1]),
    "tuple of series": lambda: tuple(frame(a=TEXTS, b=TEXTS[::-1])[name] for name in "ab"),
}


@for_each("form", *TWO_TEXTS)
def test_forms_of_pairs(of_lists, form):
    model, pair = of_lists(bert_tf.BertClassifier)[0], (TEXTS, TEXTS[::-1])
    np.testing.assert_equal(rows_of(model, TWO_TEXTS[form](), LABELS), rows_of(model, pair, LABELS))


ANSWER_COLUMNS = ("label", "answer", "answers")


def questions(name):
    (question, context), answers = DATA[bert_tf.BertSpanClassifier][1:]
    return frame(question=question, context=context, **{name: answers}), None


SQUADS_ANSWERS = [{"text": ["anna"], "answer_start": [0]}, {"text": ["bern"], "answer_start": [11]}]
SQUADS_ANSWERS *= 4
CHOICE, CHOSEN = ("context", "choices"), DATA[bert_tf.BertChooser][1]
MARKED = ["bad", "good", "film"]
MARKS = np.array([[name in row for name in MARKED] for row in LABEL_SETS], int)

FORMS = {
    bert_tf.BertClassifier: ONE_TEXT,
    bert_tf.BertTagger: {
        "strings": lambda: ([" ".join(x) for x in WORDS], [" ".join(y) for y in TAGS]),
        "numbers": lambda: (WORDS, [[TAG_NAMES.index(tag) for tag in y] for y in TAGS]),
        "dict": lambda: ({"words": WORDS, "labels": TAGS}, None),
        "frame": lambda: (frame(words=WORDS), frame(y=TAGS)["y"]),
        "data set": lambda: stream(tuple(map(tf.ragged.constant, (WORDS, TAGS))), 3),
    },
    bert_tf.BertSpanClassifier: {
        "list of tuples": lambda: (
            list(zip(*DATA[bert_tf.BertSpanClassifier][1], strict=True)),
            "as is",
        ),
        "SQuAD's answers": lambda: (DATA[bert_tf.BertSpanClassifier][1], SQUADS_ANSWERS),
        **{f"frame with {name}": functools.partial(questions, name) for name in ANSWER_COLUMNS},
        "data set": lambda: stream(DATA[bert_tf.BertSpanClassifier][1:], 3),
    },
    bert_tf.BertChooser: {
        "dict of arrays": lambda: (dict(zip(CHOICE, map(np.array, CHOSEN), strict=True)), "as is"),
        "data set": lambda: stream(DATA[bert_tf.BertChooser][1:]),
    },
    bert_tf.BertMultiLabelClassifier: {
        "strings": lambda: (TEXTS, [", ".join(row) for row in LABEL_SETS]),
        "sets": lambda: (TEXTS, [set(row) for row in LABEL_SETS]),
        "numbers": lambda: (TEXTS, [[MARKED.index(name) for name in row] for row in LABEL_SETS]),
        "zeros and ones": lambda: (np.array(TEXTS), MARKS),
        "floats in lists": lambda: (TEXTS, MARKS.astype(float).tolist()),
        "frame": lambda: (frame(text=TEXTS), frame(**dict(zip(MARKED, MARKS.T, strict=True)))),
        "data set of strings": lambda: stream((TEXTS, [",".join(row) for row in LABEL_SETS])),
        "data set of names": lambda: stream((TEXTS, tf.ragged.constant(LABEL_SETS))),
        "data set of zeros and ones": lambda: stream((TEXTS, MARKS.astype("float32"))),
    },
    bert_tf.BertRegressor: {
        "array": lambda: (np.array(TEXTS), np.array(DATA[bert_tf.BertRegressor][2], np.float32)),
        "data set": lambda: stream(DATA[bert_tf.BertRegressor][1:]),
    },
}


@for_each("model_class form", *[(each, form) for each, forms in FORMS.items() for form in forms])
def test_forms(of_lists, model_class, form):
    model, batch = of_lists(model_class)
    lists = DATA[model_class][1:]
    x, y = FORMS[model_class][form]()
    check_form(model, x, lists[1] if isinstance(y, str) else y, lists, batch)


@for_each("model_class", *FORMS)
def test_a_preprocessor_makes_the_same_ids(of_lists, model_class):
    model, (ids, *_) = of_lists(model_class)
    x = DATA[model_class][1]
    same(keras.tree.map_structure(np.asarray, model.preprocessor(x)), ids)
    if model_class is bert_tf.BertTagger:
        x = [" ".join(words) for words in x]
    columns = keras.tree.map_structure(tf.constant, x) if isinstance(x, tuple) else x
    strings = tf.data.Dataset.from_tensors(columns)
    (found,) = strings.map(lambda *columns: model.preprocessor(columns))
    same(keras.tree.map_structure(np.asarray, found), ids)


# An answer a row, a masked piece; the others in the slow suite.
OF_EACH_SORT = (bert_tf.BertClassifier, bert_tf.BertPreTrainer)


@for_each("model_class", *[each if each in OF_EACH_SORT else slow(each) for each in DATA])
def test_every_model_trains_and_answers(opened, model_class):
    model = opened(model_class)
    _, x, y = DATA[model_class]
    if model_class is not bert_tf.BertEncoder:
        before = [np.array(weight) for weight in model.get_weights()]
        history = model.fit(x, y, batch_size=4, verbose=0).history
        assert np.isfinite(history["loss"][0])
        assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
        scores = model.evaluate(x, y, verbose=0, return_dict=True)
        assert np.isfinite(scores["loss"])
        if "mask_positions" in model.input:  # the same words each time
            assert model.evaluate(x, y, verbose=0, return_dict=True) == scores
    if model_class is bert_tf.BertPreTrainer:
        x = x[0]
    found = model.predict(x, verbose=0)
    if model_class is bert_tf.BertTagger:
        assert [len(labels) for labels in found] == [len(words) for words in WORDS]
        assert {label for labels in found for label in labels} <= set(TAG_NAMES)
    elif model_class is bert_tf.BertSpanClassifier:
        assert all(text in context for text, context in zip(found, x[1], strict=True))
    elif model_class in (BertMaskedLanguageModel, bert_tf.BertPreTrainer):
        assert found == [[]] * 8
        assert len(model.predict(["a [MASK] film"])[0]) == 1
    elif model_class is bert_tf.BertEncoder:
        assert found["sequence_output"].shape == (8, 8, 16)
    else:
        ids = model.preprocessor(x)
        np.testing.assert_allclose(found, model(ids), rtol=0, atol=rounding(24, 32))


def assert_close(one, other):
    """Equal but for rounding in batches of other lengths; states are normalized."""
    np.testing.assert_allclose(one, other, rtol=0, atol=rounding(24, 32, np.abs(other).max()))


def test_few_texts_are_predicted_without_a_pipeline_as_many_with_one(opened, monkeypatch):
    model = opened()
    pairs = (TEXTS, TEXTS[::-1])
    several = [model.predict(x, batch_size=3, verbose=0) for x in (TEXTS, pairs)]
    assert model.predict(TEXTS, batch_size=2, steps=2, verbose=0).shape == (4, 2)
    monkeypatch.delattr(tf.data.Dataset, "map")
    for x, expected in zip((TEXTS, pairs), several, strict=True):
        assert_close(model.predict(x, verbose=0), expected)
    assert_close(model.predict(TEXTS[5:], verbose=0), several[0][5:])


@pytest.mark.slow
def test_pipelines_of_strings_are_predicted(opened):
    for model_class in (bert_tf.BertClassifier, bert_tf.BertTagger, bert_tf.BertEncoder):
        model, x = opened(model_class), DATA[model_class][1]
        strings = [" ".join(words) for words in x] if model_class is bert_tf.BertTagger else x
        dataset, _ = stream(strings, 3)
        one, other = model.predict(dataset, verbose=0), model.predict(x, verbose=0)
        if model_class is bert_tf.BertTagger:
            assert one == other
            continue
        keras.tree.map_structure(assert_close, one, other)


def test_token_ids_as_ever(opened, preset):
    with_one, without = opened(), opened(preprocessor=None)
    assert without.preprocessor is None
    ids = {name: np.asarray(x) for name, x in bert_tf.BertPreprocessor(preset)(TEXTS).items()}
    y = np.array([x == "good" for x in LABELS], "int32")
    np.testing.assert_array_equal(with_one.predict(ids, verbose=0), without.predict(ids, verbose=0))
    assert_close(with_one.predict(TEXTS, verbose=0), without.predict(ids, verbose=0))
    options = {"batch_size": 4, "shuffle": False, "verbose": 0, "validation_split": 0.25}
    losses = [model.fit(ids, y, **options).history for model in (with_one, without)]
    assert losses[0] == losses[1]
    assert with_one.optimizer.learning_rate == 0  # after the decay of its 2 steps
    assert int(with_one.optimizer.iterations) == 2


@pytest.mark.slow
def test_tagged_strings_have_words_of_their_own(opened):
    model = opened(bert_tf.BertTagger)
    (row,) = model.tag(["anna lives in bern."])
    assert [word["text"] for word in row["words"]] == ["anna", "lives", "in", "bern", "."]
    (row,) = model.tag([["anna", "lives", "in", "bern."]])
    assert [word["text"] for word in row["words"]] == ["anna", "lives", "in", "bern."]


def test_missing_cells_of_a_frame_are_empty_texts(of_lists):
    classifier, _ = of_lists(bert_tf.BertClassifier)
    x = frame(text=["a film", float("nan")], label=LABELS[:2])
    expected = batches_of(classifier, ["a film", ""], LABELS[:2])
    for found in (batches_of(classifier, x), batches_of(classifier, x["text"], x["label"])):
        same(found, expected)


def test_masks_are_others_in_each_step_of_training(opened):
    model = opened(BertMaskedLanguageModel)

    def masks(**options):
        _, made = make_batches(model, TEXTS, None, None, BatchOptions(batch_size=8, **options))
        return [inputs["mask_positions"].numpy().tolist() for inputs, *_ in made.dataset.take(2)]

    keras.utils.set_random_seed(7)
    first, second = masks(shuffle=True, is_training=True)
    assert first != second
    keras.utils.set_random_seed(7)
    assert masks(shuffle=True, is_training=True) == [first, second]
    assert masks(shuffle=True, is_training=True)[0] != first
    assert masks() == masks()

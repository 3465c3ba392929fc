import inspect
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from preloaded import run_code
from rounding import rounding
from small_data import DATA, LABELS, NUMBERS, TAGS, TEXTS, WORDS, arrays, fit

from bert_tf import (
    BertClassifier,
    BertEncoder,
    BertMultiLabelClassifier,
    BertPreprocessor,
    BertTagger,
)
from bert_tf.errors import InputError
from bert_tf.models.language_model import BertMaskedLanguageModel
from bert_tf.models.text_model import TextModel

ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")


@for_each("name", "compile", "fit", "evaluate", "predict", *ON_BATCH)
def test_arguments_stand_where_keras_has_them(name):
    functions = (getattr(owner, name) for owner in (TextModel, keras.Model))
    own, keras_own = (list(inspect.signature(each).parameters) for each in functions)
    expected = sorted(keras_own, key=lambda x: x == "kwargs")
    assert own[: len(keras_own)] == expected
    if name == "fit":
        assert all(f"{argument}:" in TextModel.fit.__doc__ for argument in own[1:])


def test_single_batches(opened):
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    looped, fitted = opened(**plain), opened(**plain)
    for model in (looped, fitted):
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    weights = {"good": 2.0, "bad": 0.5}
    found = looped.train_on_batch(TEXTS, LABELS, class_weight=weights, return_dict=True)
    history = fit(fitted, batch_size=len(TEXTS), class_weight=weights)
    # The mean of eight losses, and a step of SGD, of sums in another order.
    close = {"rtol": 0, "atol": rounding(100, 64)}
    np.testing.assert_allclose(found["loss"], history["loss"][0], **close)
    for one, other in zip(arrays(looped), arrays(fitted), strict=True):
        np.testing.assert_allclose(one, other, **close)
    looped.reset_metrics()  # before 3.15, Keras goes on with those of training
    tested = looped.test_on_batch(TEXTS, LABELS)
    np.testing.assert_allclose(tested, looped.evaluate(TEXTS, LABELS, verbose=0), **close)
    expected = looped.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(looped.predict_on_batch(TEXTS), expected, **close)
    refused("the label 'odd' is not one of", looped.train_on_batch, TEXTS, ["odd"] * len(TEXTS))
    ids, looped.preprocessor = looped.preprocessor(TEXTS), None
    again = looped.test_on_batch(ids, np.array(NUMBERS))
    np.testing.assert_allclose(again, tested, **close)
    looped.train_on_batch(ids, np.array(NUMBERS))


@for_each(
    "model_class label never majority",
    (BertClassifier, "bad", "'good' (0 of 2 right)", "50.0%, no better than always answering"),
    slow(*(BertMultiLabelClassifier, None, "'bad' (0 of 2 right), 'film' (0 of 2 right)", "")),
    (BertTagger, "O", "'B-PER' (0 of 4 right), 'B-LOC' (0 of 2 right)", "57.1%, no better"),
)
def test_fit_ends_with_what_it_has_not_learned(opened, capsys, model_class, label, never, majority):
    _, x, y = DATA[model_class]
    model = opened(model_class)
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    names = model.label_names
    kernel, bias = model.head.dense.weights
    kernel.assign(keras.ops.zeros_like(kernel))
    bias.assign([9.0 if name == label else -9.0 for name in names])
    validation = (x[:4], y[:4])
    fit(model, x, y, validation_data=validation, verbose=2)
    *_, last = lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"never predicted: {never}") for line in lines)
    assert any(majority in line for line in lines)
    weights = 'class_weight="balanced"' if model_class is BertClassifier else "class_weight"
    assert last.startswith(f"Try {weights} if you have not, more") and "my-score-is-bad.md" in last
    fit(model, x, y, validation_data=validation)
    assert not capsys.readouterr().out
    none = tf.data.Dataset.from_tensor_slices((TEXTS, NUMBERS)).take(0).batch(2)
    assert not model.preprocessor.unlearned_classes(model, none, None)


def test_labels_of_ids_that_are_no_classes_are_named(opened):
    model = opened()
    ids = {n: np.ones((2, 3), "int32") for n in ("token_ids", "segment_ids", "padding_mask")}
    for fault, use in itertools.product((-100, -1, 7), (*ON_BATCH[:2], "fit", "evaluate")):
        message = f"label of example 1 is {fault}: the model's 2 classes have the numbers 0 to 1"
        with pytest.raises(InputError, match=message):
            getattr(model, use)(ids, np.array([1, fault]))


@pytest.mark.slow
def test_validation_data(opened):
    model = opened()
    model.compile(keras.optimizers.SGD(0.0), run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((TEXTS[6:], LABELS[6:])).batch(2)
    histories = [
        fit(model, validation_split=0.25),
        fit(model, TEXTS[:6], LABELS[:6], validation_data=(TEXTS[6:], LABELS[6:])),
        fit(model, TEXTS[:6], LABELS[:6], validation_data=[TEXTS[6:], NUMBERS[6:]]),
        fit(model, TEXTS[:6], LABELS[:6], validation_data=data),
    ]
    losses = [history["val_loss"][0] for history in histories]
    found = model.evaluate(TEXTS[6:], LABELS[6:], verbose=0)[0]
    assert losses == pytest.approx([found] * 4, rel=rounding(24, 32))
    words = opened(BertMaskedLanguageModel)
    found = fit(words, TEXTS, None, validation_data=TEXTS[:3])
    expected = words.evaluate(TEXTS[:3], verbose=0)[0]
    assert found["val_loss"][0] == pytest.approx(expected, rel=rounding(24, 32))


@pytest.mark.slow
def test_seeds(opened):
    def trained(model_class, seed):
        keras.utils.set_random_seed(seed)
        model = opened(model_class, seed=None)
        _, x, y = DATA[model_class]
        fit(model, x, y, epochs=2, batch_size=8)
        return arrays(model)

    for model_class in (BertClassifier, BertMaskedLanguageModel):
        one, two, other = (trained(model_class, seed) for seed in (3, 3, 4))
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_no_warning_of_poolers_and_of_others_as_ever(opened):
    tagger = opened(BertTagger)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        fit(tagger, WORDS, TAGS)
    pooled = opened()
    pooled.compile(loss=lambda y, logits: keras.ops.mean(pooled.head.dense.kernel**2))
    pooled.run_eagerly = True
    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        fit(pooled)


@pytest.mark.slow
def test_answers_see_what_lora_adds(opened):
    model = opened()
    before = model.classify(TEXTS[:1])
    layer = model.head.dense
    layer.enable_lora(1)
    layer.lora_kernel_a.assign(np.ones(layer.lora_kernel_a.shape))
    layer.lora_kernel_b.assign(np.full(layer.lora_kernel_b.shape, 2.0) * [[-1.0, 1.0]])
    after = model.classify(TEXTS[:1])
    assert after != before
    logits = model.predict(TEXTS[:1], verbose=0)
    share = float(keras.ops.softmax(logits)[0, 1])
    found = after[0]["probabilities"]["good"]
    assert found == pytest.approx(share, abs=rounding(24, 32))


@pytest.mark.slow
def test_an_encoder_in_a_model_of_ones_own(preset):
    """The preprocessor maps strings in tf.data; or stands before the model by itself."""
    encoder = BertEncoder.from_preset(preset)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in encoder.input}
    stars = keras.layers.Dense(1)(encoder(inputs)["pooled_output"])
    model = keras.Model(inputs, stars)
    model.compile("adam", "mse", run_eagerly=True)
    pack = BertPreprocessor(preset, max_length=16)
    data = tf.data.Dataset.from_tensor_slices((TEXTS, np.arange(8.0))).batch(4)
    history = model.fit(data.map(lambda text, y: (pack(text), y)), epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert model.predict(pack(TEXTS), verbose=0).shape == (8, 1)


def test_a_preprocessor_says_where_words_begin(preset):
    pack = BertPreprocessor(preset, task="tags", max_length=16)
    inputs = pack(TEXTS, first_pieces=True)
    assert {*inputs} == {*pack(TEXTS), "first_pieces"}
    text = keras.Input((), dtype="string", name="text")
    symbolic = pack(text, first_pieces=True)["first_pieces"]
    assert (symbolic.shape, symbolic.dtype) == ((None, None), "int32")
    found = keras.Model(text, symbolic)(tf.constant(TEXTS)).numpy()
    np.testing.assert_array_equal(found, inputs["first_pieces"])
    assert (found > 0).sum(-1).tolist() == [len(text.split()) for text in TEXTS]
    with pytest.raises(InputError, match=r"classification has no words .* task=.tags"):
        BertPreprocessor(preset, max_length=16)(TEXTS, first_pieces=True)


MIRRORED = """
import sys
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from bert_tf import BertClassifier
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = BertClassifier.from_preset(sys.argv[1], labels=["bad", "good"], seed=1)
texts, labels = ["a good film", "the bad book"] * 8, ["good", "bad"] * 8
history = model.fit(texts, labels, 4, 2, validation_split=0.25, verbose=0).history
assert np.isfinite(history["loss"] + history["val_loss"]).all(), history
assert int(model.optimizer.iterations.numpy()) == 2 * 3
assert model.predict(texts, verbose=0).shape == (16, 2)
assert len(model.classify(texts)) == 16
"""


@pytest.mark.slow
def test_a_mirrored_strategy(preset):
    run_code(MIRRORED, [str(preset)], check=True)

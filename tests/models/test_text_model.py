"""`fit` and `compile` on raw text, as Keras users know them: each use is an example."""

import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from preloaded import run_code
from rounding import rounding
from small_data import DATA, LABELS, NUMBERS, TAGS, TEXTS, WORDS, arrays, fit

from bert_tf import BertClassifier, BertEncoder, BertPreprocessor, BertTagger
from bert_tf.errors import InputError
from bert_tf.models.language_model import BertMaskedLanguageModel
from bert_tf.models.text_model import TextModel

ON_BATCH = ("train_on_batch", "test_on_batch", "predict_on_batch")


@pytest.mark.parametrize("name", ["compile", "fit", "evaluate", "predict", *ON_BATCH])
def test_arguments_stand_where_keras_has_them(name):
    own, keras_own = (
        list(inspect.signature(getattr(owner, name)).parameters)
        for owner in (TextModel, keras.Model)
    )
    expected = sorted(keras_own, key=lambda x: x == "kwargs")
    assert own[: len(keras_own)] == expected
    if name == "fit":
        assert all(f"{argument}:" in TextModel.fit.__doc__ for argument in own[1:])


def test_single_batches(opened):
    """A loop of one's own: as `fit`, `evaluate` and `predict` of one batch."""
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
    np.testing.assert_allclose(
        looped.predict_on_batch(TEXTS), looped.predict(TEXTS, verbose=0), **close
    )
    with pytest.raises(InputError, match="example 0: the label 'odd' is not one of"):
        looped.train_on_batch(TEXTS, ["odd"] * len(TEXTS))
    ids, looped.preprocessor = looped.preprocessor(TEXTS), None
    again = looped.test_on_batch(ids, np.array(NUMBERS))
    np.testing.assert_allclose(again, tested, **close)
    looped.train_on_batch(ids, np.array(NUMBERS))


@pytest.mark.slow
def test_validation_data(opened):
    """The last examples, as Keras takes them; or pairs of lists, or a data set."""
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
    """The same seed, the same weights: order, masks and dropout."""

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

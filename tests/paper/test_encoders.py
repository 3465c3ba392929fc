from dataclasses import replace

import keras
import numpy as np
import pytest
from cases import for_each, refused, slow
from small_data import CONFIG, LABELS, TEXTS, VOCABULARY

from bert_tf import BertClassifier, BertEncoder, BertPreprocessor, BertTokenizer, save_model
from bert_tf.models.encoder import encoder_for
from bert_tf.paper.encoders import LstmEncoder, TwoEncoders
from bert_tf.paper.feature_encoder import FeatureEncoder
from bert_tf.paper.language_model import BertLanguageModel
from bert_tf.text.opening import load_answerer

DIRECTIONS = {TwoEncoders: "left_to_right+right_to_left", LstmEncoder: "recurrent"}


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("presets"), BertTokenizer(VOCABULARY)
    for model_class, direction in {BertEncoder: "both", **DIRECTIONS}.items():
        config = replace(CONFIG, attention_direction=direction)
        encoder, _ = encoder_for(config, seed=1, dtype=None)
        save_model(encoder, folder / model_class.__name__, tokenizer)
    return {each: folder / each.__name__ for each in (BertEncoder, *DIRECTIONS)}


def eager(model):
    model.compile(run_eagerly=True)
    return model


def saved_and_loaded(model, folder):
    """What a Keras file and a model directory hold, with the model's weights in both.

    A directory has no pooler where the model reads none.
    """
    model.save(folder / "model.keras")
    model.save_to_preset(folder / "preset")
    opened = eager(type(model).from_preset(folder / "preset"))
    loaded = [keras.saving.load_model(folder / "model.keras"), opened]
    for again in loaded:
        assert type(again.encoder) is type(model.encoder)
    for one, *others in zip(*(x.weights for x in (model, *loaded)), strict=True):
        np.testing.assert_array_equal(one, others[0])
        if "pooler" not in one.path:
            np.testing.assert_array_equal(one, others[1])
    return loaded


# Encoder under the classifier, the preset's, and arguments that make the rest.
CLASSIFIERS = {
    "two encoders": (TwoEncoders, TwoEncoders, {}),
    "LSTMs": (LstmEncoder, LstmEncoder, {}),
    "a mix of frozen layers under an LSTM": (
        FeatureEncoder,
        BertEncoder,
        {"feature_layers": ["mix"], "feature_lstm_layers": 1},
    ),
    "two frozen encoders": (FeatureEncoder, TwoEncoders, {"feature_layers": ["last"]}),
}


@for_each("name", *[x if x == "LSTMs" else slow(x) for x in CLASSIFIERS])
def test_a_classifier_is_trained_saved_and_loaded(name, presets, tmp_path):
    expected, held, settings = CLASSIFIERS[name]
    model = BertClassifier.from_preset(presets[held], labels=["bad", "good"], seed=1, **settings)
    assert type(model.encoder) is expected
    before = [np.array(weight) for weight in model.encoder.get_weights()]
    history = eager(model).fit(TEXTS, LABELS, verbose=0).history
    assert np.isfinite(history["loss"][0]) and "accuracy" in history
    pairs = zip(before, model.encoder.get_weights(), strict=True)
    is_changed = [not np.array_equal(one, other) for one, other in pairs]
    # A frozen encoder keeps its weights; the layers on top of it learn.
    assert any(is_changed) != (settings.get("feature_layers") not in (None, ["mix"]))
    answers = model.predict(TEXTS, verbose=0)
    assert answers.shape == (8, 2)
    for other in saved_and_loaded(model, tmp_path):
        np.testing.assert_array_equal(other.predict(TEXTS, verbose=0), answers)


@for_each("held", *DIRECTIONS)
def test_an_encoder_predicts_and_is_saved_and_loaded(held, presets, tmp_path):
    """`BertEncoder` stands for each, as in `load_model`; outputs are twice as wide."""
    model = eager(BertEncoder.from_preset(presets[held]))
    assert type(model) is held
    assert type(held.from_preset(presets[held])) is held
    pooled = model.predict(TEXTS, verbose=0)["pooled_output"]
    assert pooled.shape == (8, 32)
    model.save(tmp_path / "model.keras")
    loaded = eager(keras.saving.load_model(tmp_path / "model.keras"))
    np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0)["pooled_output"], pooled)
    model.save_to_preset(tmp_path / "preset")
    again = load_answerer(tmp_path / "preset")  # as commands open it
    assert type(again.model) is held and again.task.name == "vectors"


def test_encoders_that_do_not_fit(presets):
    plain = presets[BertEncoder]
    refused("BertEncoder, not LstmEncoder: open it with", LstmEncoder.from_preset, plain)
    refused("LstmEncoder, not TwoEncoders", TwoEncoders.from_preset, presets[LstmEncoder])
    refused("BertEncoder, not FeatureEncoder: open", FeatureEncoder.from_preset, plain)
    encoder = BertEncoder.from_preset(presets[LstmEncoder])
    refused("LstmEncoder is an encoder, which learns no", encoder.fit, TEXTS, LABELS)
    refused("learns no labels: put the model of a task on", encoder.evaluate, TEXTS, LABELS)
    words = BertLanguageModel.from_preset(presets[TwoEncoders])
    for ask in (words.fit, words.evaluate, words.predict):
        refused("takes token ids, not texts: train it with bert-tf pre", lambda ask=ask: ask(TEXTS))


def test_a_feature_encoder_without_a_task(presets, tmp_path):
    preprocessor = BertPreprocessor(presets[BertEncoder], "vectors", max_length=24)
    encoder = BertEncoder.from_preset(presets[BertEncoder])
    model = eager(FeatureEncoder(encoder, ["last", "0"], preprocessor=preprocessor))
    pooled = model.predict(TEXTS, verbose=0)["pooled_output"]
    assert pooled.shape == (8, 32)
    model.save(tmp_path / "model.keras")
    loaded = eager(keras.saving.load_model(tmp_path / "model.keras"))
    np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0)["pooled_output"], pooled)
    refused("save a model with a head", model.save_to_preset, tmp_path / "preset")
    assert not (tmp_path / "preset").exists()
    refused("FeatureEncoder alone cannot be saved as a model directory: save", model.embed, TEXTS)

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertConfig, BertEncoder
from bert_tf.models.language_model import BertMaskedLanguageModel, BertPreTrainer
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertRegressor,
    BertSentenceEncoder,
    BertTagger,
)

B, T, P, V, H = 3, 7, 2, 19, 16
CONFIG = tiny_config(V, f"1x{H}x4", max_position_embeddings=12)


@pytest.fixture
def batch():
    random = np.random.default_rng(3)
    lengths = np.array([7, 5, 2])
    mask = (np.arange(T) < lengths[:, None]).astype("int32")
    ids, segments = random.integers(1, V, (B, T)), random.integers(2, size=(B, T))
    inputs = {"token_ids": ids * mask, "segment_ids": segments * mask, "padding_mask": mask}
    inputs["mask_positions"] = np.array([[1, 3], [2, 0], [1, 0]])
    return {name: x.astype("int32") for name, x in inputs.items()}


def same(one, other):
    keras.tree.map_structure(np.testing.assert_array_equal, one, other)


def without_positions(batch):
    return {name: x for name, x in batch.items() if name != "mask_positions"}


MODELS = {
    "encoder": lambda **kw: BertEncoder(CONFIG, **kw),
    "pretrainer": lambda **kw: BertPreTrainer(CONFIG, **kw),
    "classifier": lambda **kw: BertClassifier(CONFIG, labels=["a", "b", "c"], **kw),
    "regressor": lambda **kw: BertRegressor(CONFIG, **kw),
    "chooser": lambda **kw: BertChooser(CONFIG, **kw),
    "tagger": lambda **kw: BertTagger(CONFIG, labels=["a", "b", "c"], **kw),
}


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


HALF = [*((name, "mixed_bfloat16") for name in MODELS), ("pretrainer", "mixed_float16")]
in_half_precision = for_each("make half", *HALF, indirect=["make"])


def inputs_of(model, batch):
    """A batch; for a chooser one example whose choices are the rows of the batch."""
    extra = isinstance(model, BertChooser)
    return {name: batch[name][None] if extra else batch[name] for name in model.input}


def test_inputs_go_by_name(make, batch):
    """Keras would take the first ones in the order of their names."""
    model = make()
    ids = inputs_of(model, batch)
    for name in ("input_ids", "position_ids"):
        if name in model.optional_inputs:
            continue
        refused(f"takes no {name}: give a dict of", model, {**ids, name: ids["token_ids"]})
        refused(f"takes no {name}", model.predict, {**ids, name: ids["token_ids"]}, verbose=0)
    refused("takes no input_ids", model.predict, {"input_ids": ids["token_ids"]}, verbose=0)
    # It would take a list in that order, too.
    symbols = [keras.Input((None,), dtype="int32") for _ in model.input]
    for inputs in (list(batch.values()), tuple(batch.values()), symbols, ["a raw text"]):
        refused("give a dict of token_ids, segm", model, inputs)


def test_positions_of_an_encoder_in_a_model_of_ones_own(batch):
    encoder = BertEncoder(CONFIG, seed=1)
    names = ("token_ids", "segment_ids", "padding_mask", "position_ids")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    model = keras.Model(inputs, encoder(inputs)["sequence_output"])
    ids = {name: batch[name] for name in encoder.input}
    places = np.broadcast_to(np.arange(T), ids["token_ids"].shape)
    is_token = ids["padding_mask"] > 0
    usual = encoder(ids)["sequence_output"][is_token]
    found = model({**ids, "position_ids": places})[is_token]
    np.testing.assert_allclose(found, usual, rtol=0, atol=rounding(40, 32, np.abs(usual).max()))
    assert np.abs(model({**ids, "position_ids": places + 1})[is_token] - usual).max() > 1e-3


def test_parameters_counted_by_hand_and_summary_shows_shapes(make):
    """BERT-base has 110 million (paper, section 3); here the same sum for a small one."""
    model = make()
    tables = (V + 12 + 2) * H
    block = 4 * (H * H + H) + 2 * (2 * H) + (H * 32 + 32) + (32 * H + H)
    encoder = tables + 2 * H + block + (H * H + H)
    heads = {
        BertEncoder: 0,
        BertPreTrainer: (H * H + H) + 2 * H + V + (2 * H + 2),
        BertClassifier: 3 * H + 3,
        BertRegressor: H + 1,
        BertTagger: 3 * H + 3,
        BertChooser: H + 1,
    }
    assert model.count_params() == encoder + heads[type(model)]
    lines = []
    model.summary(print_fn=lines.append, line_length=200)
    text = "\n".join(lines)
    assert "?" not in text
    assert f"None, {H})" in text


@in_half_precision
def test_keras_file_and_dtype_policy(make, half, batch, tmp_path):
    """The model's own policy, which Keras forgets, and that of every layer."""
    model = make(seed=1, dtype=half)
    inputs = inputs_of(model, batch)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert loaded.config.to_dict() == model.config.to_dict()
    same(loaded(inputs), model(inputs))
    if isinstance(model, BertClassifier):
        assert list(loaded.labels) == ["a", "b", "c"]
    if isinstance(model, BertPreTrainer):
        tied = loaded.masked_language_model.word_embeddings
        assert tied is loaded.encoder.embeddings.word_embeddings
    copies = {"model": model, "reloaded": loaded}
    copies["from its config"] = type(model).from_config(model.get_config())
    for name, copy in copies.items():
        assert copy.dtype_policy.name == half, name
        encoder = copy if isinstance(copy, BertEncoder) else copy.encoder
        layers = [copy, encoder, *encoder.layers, encoder.blocks[0].attention.query]
        layers = [layer for layer in layers if not isinstance(layer, keras.layers.InputLayer)]
        assert {layer.compute_dtype for layer in layers} == {half.removeprefix("mixed_")}, name
        copy.compile("sgd", "mse")
        scales = isinstance(copy.optimizer, keras.optimizers.LossScaleOptimizer)
        assert scales == (half == "mixed_float16"), name


@for_each("model_class", BertPreTrainer, BertMaskedLanguageModel, BertSentenceEncoder, BertTagger)
def test_clones_share_what_the_model_shares(model_class, batch):
    head = {"num_classes": 2} if model_class is BertTagger else {}
    # Keras makes the clone itself a plain `keras.Model`, which has the global policy.
    half = keras.models.clone_model(model_class(CONFIG, dtype="mixed_bfloat16", **head))
    policies = {layer.dtype_policy.name for layer in half.layers if layer.weights}
    assert policies == {"mixed_bfloat16"}
    model = model_class(CONFIG, seed=1, **head)
    clone = keras.models.clone_model(model)
    assert [v.shape for v in clone.weights] == [v.shape for v in model.weights]
    assert not {id(v) for v in clone.weights} & {id(v) for v in model.weights}
    for variable in model.weights:
        variable.assign(variable + 0.1)
    clone.set_weights(model.get_weights())
    several = isinstance(model, BertSentenceEncoder)
    ids = {name: batch[name][None] if several else batch[name] for name in model.input}
    same(clone(ids), model(ids))


def test_heads_around_one_encoder_share_it_and_its_policy():
    encoder = BertEncoder(CONFIG, seed=1, dtype="mixed_bfloat16")
    for model in (BertPreTrainer(encoder), BertClassifier(encoder, 2), BertRegressor(encoder)):
        assert model.encoder is encoder and model.config == CONFIG
        assert model.dtype_policy.name == "mixed_bfloat16"
    assert BertClassifier(encoder, 2).head.dense.compute_dtype == "bfloat16"
    assert BertClassifier(encoder, 2, dtype="float32").dtype_policy.name == "float32"


def test_attention_probabilities(batch, tmp_path):
    """On request alone: those that `test_inference.py` compares with the formulae."""
    inputs = without_positions(batch)
    plain = BertEncoder(CONFIG, seed=1)
    assert "attention_probabilities" not in plain(inputs)
    encoder = BertEncoder(CONFIG, seed=1, attention_probabilities=True)
    outputs = encoder(inputs)
    np.testing.assert_array_equal(outputs["sequence_output"], plain(inputs)["sequence_output"])
    assert len(outputs["attention_probabilities"]) == 1
    encoder.save(tmp_path / "encoder.keras")
    loaded = keras.saving.load_model(tmp_path / "encoder.keras")
    same(loaded(inputs)["attention_probabilities"], outputs["attention_probabilities"])
    encoder.rematerialize = True
    assert encoder(inputs, training=True)["attention_probabilities"][0].shape == (B, 4, T, T)


def test_masked_positions_never_read_another_example(batch):
    model = BertPreTrainer(CONFIG, seed=1)
    others = batch["token_ids"].copy()
    others[1:] = (others[1:] + 3) % V
    for position in (T, T + 2, 2 * T, -1):
        positions = np.array([[1, position], [2, 0], [1, 0]], "int32")
        before = np.asarray(model({**batch, "mask_positions": positions})["mlm_logits"])
        after = model({**batch, "mask_positions": positions, "token_ids": others})["mlm_logits"]
        np.testing.assert_array_equal(before[0], np.asarray(after)[0])


def test_precision_and_dropout_by_default(batch):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = BertClassifier(CONFIG, 2)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.encoder.blocks[0].attention.query.compute_dtype == "bfloat16"
    assert model(without_positions(batch)).dtype == tf.float32
    assert BertClassifier(CONFIG, 2).dropout == 0.1
    config = BertConfig.from_dict({**CONFIG.to_dict(), "classifier_dropout": 0.3})
    assert BertClassifier(config, 2).dropout == 0.3
    assert BertClassifier(config, 2, dropout=0.0).dropout == 0.0


@for_each(
    "arguments message",
    ({}, "needs its classes: give labels"),
    ({"labels": ["a", "a"]}, "comes twice"),
    ({"labels": ["a", "b"], "num_classes": 3}, "2 labels for 3 classes"),
    ({"num_classes": 1}, "always gives the same answer: .* use BertRegressor"),
)
def test_classifier_refuses(arguments, message):
    refused(message, BertClassifier, CONFIG, **arguments)


def test_every_weight_gets_a_gradient(batch):
    model = BertPreTrainer(CONFIG, seed=1)
    with tf.GradientTape() as tape:
        outputs = model(batch, training=True)
        loss = sum(tf.reduce_sum(x**2) for x in outputs.values())
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        if variable.path.endswith("attention/key/bias"):
            continue  # adds the same to every score of a row: softmax takes it out again
        assert float(tf.reduce_max(tf.abs(tf.convert_to_tensor(gradient)))) > 0, variable.path

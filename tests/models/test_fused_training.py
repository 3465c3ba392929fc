"""The encoder in fused operations: in training it gives what its layers give."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertConfig, BertEncoder
from bert_tf.fused import attention, dropout, elementwise, passes, vocabulary_loss
from bert_tf.fused.training import fuse
from bert_tf.models.feature_encoder import FeatureEncoder
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertRegressor,
    BertSpanClassifier,
    BertTagger,
)

PLAIN = {
    "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 10, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
CONFIG = BertConfig(**PLAIN)
MASK = (np.arange(7) < np.array([7, 3, 1, 5])[:, np.newaxis]).astype(np.int32)
# On the way to a gradient are about 40 products, forwards and backwards, of sums of up to 28 terms
# (the tokens of a batch); each addition rounds by half a unit of float32.
ROUNDING = 40 * 28 * 2.0**-24
LEFT_TO_RIGHT = replace(CONFIG, attention_direction="left_to_right")
MODELS = {
    "left-to-right classifier": lambda **options: BertClassifier(
        LEFT_TO_RIGHT, labels=["a", "b"], **options
    ),
    "right-to-left tagger": lambda **options: BertTagger(
        replace(CONFIG, attention_direction="right_to_left"), labels=["a", "b"], **options
    ),
    "classifier": lambda **options: BertClassifier(CONFIG, labels=["a", "b"], **options),
    "tagger": lambda **options: BertTagger(CONFIG, labels=["a", "b"], **options),
    "span": lambda **options: BertSpanClassifier(CONFIG, **options),
    "choice": lambda **options: BertChooser(CONFIG, **options),
    "bilstm": lambda **options: BertRegressor(replace(CONFIG, feature_lstm_layers=1), **options),
    "pre-training": lambda **options: BertPreTrainer(CONFIG, **options),
}


def randomize(model):
    """Weights that no formula can get right by their being 0 or 1."""
    random = np.random.default_rng(7)
    for variable in model.weights:
        variable.assign(random.normal(size=variable.shape) * 0.5)
    return model


def batch(kind="encoder", mask=MASK):
    random = np.random.default_rng(3)
    mask = mask.reshape(2, -1, mask.shape[-1]) if kind == "choice" else mask
    drawn = {"token_ids": random.integers(0, 13, mask.shape), "padding_mask": mask}
    drawn["segment_ids"] = random.integers(0, 2, mask.shape)
    if kind == "pre-training":
        drawn["mask_positions"] = np.array([[6, 1], [2, 0], [0, 0], [4, 3]])
    return {name: tf.constant(x, tf.int32) for name, x in drawn.items()}


def loss_and_gradients(model, inputs, *, static=False, is_token=None):
    """A function that gives a loss, which weighs every output otherwise, and its gradients.

    Its argument is a seed of signs for the outputs' weights; 0 changes none. The graph has static
    or unknown shapes.
    """

    def step(inputs, seed):
        with tf.GradientTape() as tape:
            loss = 0.0
            for place, value in enumerate(tf.nest.flatten(model(inputs, training=True))):
                value = tf.cast(value, tf.float32)
                weights = tf.sin(tf.range(tf.size(value), dtype=tf.float32))
                drawn = tf.random.stateless_uniform(tf.shape(weights), [seed, place], -1, 1)
                weights = tf.where(seed > 0, weights * tf.sign(drawn), weights)
                weights = tf.reshape(weights, tf.shape(value))
                if is_token is not None and value.shape.rank == 3:
                    weights *= tf.cast(is_token[:, :, np.newaxis], tf.float32)
                loss += tf.reduce_sum(weights * value)
        gradients = tape.gradient(loss, [v.value for v in model.trainable_weights])
        return loss, [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    shapes = tf.nest.map_structure(
        lambda x: tf.TensorSpec(x.shape if static else [None] * x.shape.rank, x.dtype), inputs
    )
    signature = [shapes, tf.TensorSpec([], tf.int32)]
    graph = tf.function(step, input_signature=signature, autograph=False)
    return lambda seed=0: graph(inputs, seed)


def compare(model, kind, static):
    """Holds the fused model's loss and gradients against those of the layers.

    Rounding is a share of the terms of a sum, not of what is left when they cancel. With random
    signs the squares of sums are, on average, sums of the squares of their terms.
    """
    inputs = batch(kind)
    is_token = MASK if "tagger" in kind else None
    layers = loss_and_gradients(model, inputs, static=static, is_token=is_token)
    loss, gradients = layers()
    drawn = [tf.nest.flatten(layers(seed)) for seed in range(1, 9)]
    fuse(model)
    found = loss_and_gradients(model, inputs, static=static, is_token=is_token)()
    assert [g is None for g in found[1]] == [g is None for g in gradients]
    pairs = [
        (ours, theirs, np.sqrt(np.mean([np.square(x).max() for x in terms])))
        for ours, theirs, *terms in zip(
            tf.nest.flatten(found), [loss, *gradients], *drawn, strict=True
        )
        if theirs is not None
    ]
    # Some are 0 but for rounding: a bias of the keys changes no probability.
    least = 1e-2 * max(size for *_, size in pairs[1:])
    for ours, theirs, size in pairs:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=ROUNDING * max(size, least))
    return len(pairs) - 1


@pytest.mark.parametrize(
    ("kind", "static", "compiled"),
    [
        ("pre-training", True, True),
        ("pre-training", False, False),
        ("classifier", False, False),
        ("tagger", True, False),
        ("span", False, False),
        ("choice", False, False),
        ("bilstm", False, False),
        ("left-to-right classifier", False, False),
        ("right-to-left tagger", True, False),
    ],
)
def test_gradients_are_those_of_the_layers(kind, static, compiled, monkeypatch):
    monkeypatch.setattr(passes, "_WORTH_COMPILING", 0 if compiled else 2**30)
    model = randomize(MODELS[kind](seed=0))
    assert compare(model, kind, static) > 30


def test_a_frozen_encoder_computes_features():
    encoder = FeatureEncoder(randomize(BertEncoder(CONFIG)), ["sum_all", "-2"], 0)
    tagger = BertTagger(encoder, labels=["a", "b"], seed=0)
    assert compare(tagger, "tagger", False) == 2


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_is_near_float32(policy):
    """As near as the layers' own half precision."""
    models = [BertPreTrainer(CONFIG, seed=0, dtype=dtype) for dtype in (None, policy, policy)]
    for model in models:
        randomize(model)
    fuse(models[2])
    found = [loss_and_gradients(m, batch("pre-training"))()[1] for m in models]
    wanted, layers, fused = (np.concatenate([np.ravel(g) for g in each]) for each in found)
    scale = np.linalg.norm(wanted)
    assert np.linalg.norm(fused - wanted) < 1.5 * np.linalg.norm(layers - wanted) + 1e-4 * scale


def dropped(seed, shape, rate=0.1):
    drawn = dropout.draw_dropout(tf.constant(seed), shape, rate)
    return drawn.numbers.numpy() < drawn.threshold


def test_dropout_has_its_rate_and_is_independent(monkeypatch):
    rate, seeds = 6554 / 2**16, [[7, 0], [7, 1], [8, 0]]
    first, *others = (dropped(seed, [997, 1001]) for seed in seeds)
    monkeypatch.setattr(passes, "_WORTH_COMPILING", 2**30)
    np.testing.assert_array_equal(first, dropped(seeds[0], [997, 1001]))
    sigma = np.sqrt(rate * (1 - rate) / first.size)
    assert abs(first.mean() - rate) < 5 * sigma
    # Neither with neighbours, within a draw of 64 bits or beyond, nor from one seed to the next.
    shifted = [np.roll(first, by, axis) for axis in (0, 1) for by in (1, 2, 3, 4, 8)]
    for other in (*shifted, *others):
        assert abs((first & other).mean() - rate**2) < 5 * rate / np.sqrt(first.size)
    assert dropout.draw_dropout(tf.constant([7, 0]), [2, 2], 0.0) is None


def with_dropout(numbers, threshold, x):
    return tf.where(numbers < threshold, 0.0, x * (2**16 / (2**16 - threshold)))


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_with_dropout(compiled, monkeypatch):
    """As automatic differentiation of the formulae."""
    monkeypatch.setattr(passes, "_WORTH_COMPILING", 0 if compiled else 2**30)
    random = np.random.default_rng(5)

    def normal(*shape):
        return tf.constant(random.normal(size=shape), tf.float32)

    x, y, gamma, beta, weights = (normal(*s) for s in ([6, 8], [6, 8], [8], [8], [6, 8]))
    heads = [normal(2, 3, 5, 4) for _ in range(4)]
    mask = tf.constant([[0.0, 0, 0, 0, 0], [0, 0, 0, -1e4, -1e4]])[:, None, None]
    of_rows = dropout.draw_dropout(tf.constant([1, 2]), [6, 8], 0.4)
    of_scores = dropout.draw_dropout(tf.constant([3, 4]), [2, 3, 5, 5], 0.4)

    def fused():
        rows = dropout.drop(x, of_rows) + elementwise.add_and_normalize(
            x, y, of_rows, gamma, beta, 1e-12, "float32"
        )
        context = attention.attention(*heads[:3], mask, of_scores)
        return tf.reduce_sum(rows * weights) + tf.reduce_sum(context * heads[3])

    def formulae():
        total = x + with_dropout(*of_rows, y)
        mean, variance = tf.nn.moments(total, -1, keepdims=True)
        rows = (total - mean) / tf.sqrt(variance + 1e-12) * gamma + beta
        rows += with_dropout(*of_rows, x)
        probabilities = tf.nn.softmax(tf.matmul(*heads[:2], transpose_b=True) + mask)
        context = tf.matmul(with_dropout(*of_scores, probabilities), heads[2])
        return tf.reduce_sum(rows * weights) + tf.reduce_sum(context * heads[3])

    results = []
    for function in (fused, formulae):
        with tf.GradientTape() as tape:
            sources = [x, y, gamma, beta, *heads]
            tape.watch(sources)
            value = function()
        results.append([value, *tape.gradient(value, sources)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cross_entropy_and_argmax(dtype, monkeypatch):
    random = np.random.default_rng(5)
    vectors, table = (tf.cast(random.normal(size=s) * 5, dtype) for s in ([2, 3, 4], [11, 4]))
    bias = tf.constant(random.normal(size=[11]), tf.float32)
    table = tf.concat([table[:10], table[9:10]], 0)
    bias = tf.concat([bias[:10], bias[9:10]], -1)  # a tie, which the first wins
    labels, weights = random.integers(0, 11, [2, 3]), tf.constant(random.normal(size=[2, 3]))
    results = []
    for least in (0, 2**30):
        monkeypatch.setattr(passes, "_WORTH_COMPILING", least)
        with tf.GradientTape() as tape:
            tape.watch([vectors, table, bias])
            logits = vocabulary_loss.word_logits(vectors, table, bias)
            losses = vocabulary_loss.cross_entropy(labels, logits)
            total = tf.reduce_sum(losses * tf.cast(weights, tf.float32))
        gradients = [tf.cast(g, tf.float32) for g in tape.gradient(total, [vectors, table, bias])]
        results.append(
            [
                losses,
                tf.convert_to_tensor(logits),
                tf.cast(vocabulary_loss.argmax(logits), tf.float32),
                *gradients,
            ]
        )
    assert np.any(results[0][2] == 9)
    for compiled, plain in zip(*results, strict=True):
        rounding = 1e-5 if dtype == "float32" else 2**-7
        np.testing.assert_allclose(compiled, plain, rtol=rounding, atol=rounding)
    plain = vocabulary_loss.cross_entropy(labels, results[0][1])
    np.testing.assert_allclose(plain, results[0][0], rtol=1e-5)


def test_attention_probabilities_are_the_layers_in_training_too():
    encoder = randomize(BertEncoder(CONFIG, attention_probabilities=True))
    wanted = encoder(batch(), training=True)["attention_probabilities"]
    fuse(encoder)
    found = encoder(batch(), training=True)["attention_probabilities"]
    np.testing.assert_allclose(found, wanted, atol=1e-6)

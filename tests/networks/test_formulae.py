"""A block and activations against their formulae; test_hugging_face_numbers.py has all layers."""

import math
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from tiny import tiny_config

from bert_tf.models.language_model import BertPreTrainer
from bert_tf.networks import BertEmbeddings, Pooler, SelfAttention, TransformerBlock
from bert_tf.networks.activations import ACTIVATIONS
from bert_tf.networks.bert_layer import child_seed
from bert_tf.networks.kernels import FusedAttention

B, T, H, N, V = 3, 6, 8, 2, 13
CONFIG = tiny_config(V, max_position_embeddings=10, type_vocab_size=3, layer_norm_eps=0.1)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def random():
    return np.random.default_rng(7)


@pytest.fixture
def states(random):
    return random.normal(size=(B, T, H)).astype("float32")


def randomize(layer, random):
    """Weights that no formula can get right by their being 0 or 1."""
    for variable in layer.trainable_variables:
        variable.assign(random.normal(size=variable.shape))


def dense(x, layer):
    return x @ np.asarray(layer.kernel, "float64") + np.asarray(layer.bias, "float64")


def layer_norm(x, layer):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + CONFIG.layer_norm_eps)
    return scaled * np.asarray(layer.gamma, "float64") + np.asarray(layer.beta, "float64")


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def attention(x, mask, layer):
    def heads(y):  # (B, T, H) -> (B, N, T, H / N)
        return y.reshape(B, T, N, H // N).transpose(0, 2, 1, 3)

    q, k, v = (heads(dense(x, part)) for part in (layer.query, layer.key, layer.value))
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(H // N)
    scores = np.where(mask[:, None, None, :] == 0, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return dense((weights @ v).transpose(0, 2, 1, 3).reshape(B, T, H), layer.output_dense)


MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]])


def test_too_long_inputs_and_segments_and_masks_by_default(states):
    layer = BertEmbeddings(CONFIG)
    assert layer(np.zeros((1, 10), "int32")).shape == (1, 10, H)
    with pytest.raises(ValueError, match="11 tokens long, the model takes 10"):
        layer(np.zeros((1, 11), "int32"))
    embeddings, ids = BertEmbeddings(CONFIG), np.arange(B * T).reshape(B, T) % V
    np.testing.assert_array_equal(embeddings(ids), embeddings(ids, np.zeros_like(ids)))
    layer = SelfAttention(CONFIG)
    np.testing.assert_array_equal(layer(states), layer(states, np.ones_like(MASK)))


def test_attention_in_one_operation(random, states):
    layer = SelfAttention(CONFIG)
    layer.build((B, T, H))
    randomize(layer, random)
    own = MASK[:, None, :] * np.tri(T, dtype=int)  # [B, T, T]
    usual = [np.asarray(layer(states, mask)) for mask in (MASK, own, None)]
    layer.kernels = FusedAttention
    for mask, expected in zip((MASK, own, None), usual, strict=True):
        np.testing.assert_allclose(layer(states, mask), expected, **CLOSE)
        _, probabilities = layer(states, mask, return_probabilities=True)
        np.testing.assert_allclose(np.sum(probabilities, -1), 1, **CLOSE)


@for_each("half", "mixed_bfloat16", "mixed_float16")
def test_padding_is_masked_in_half_precision(random, states, half):
    layer = SelfAttention(CONFIG, dtype=half)
    layer.build((B, T, H))
    randomize(layer, random)
    other = np.where(MASK[..., None] == 0, 3.0, states).astype("float32")
    tokens = MASK.astype(bool)
    one, two = (keras.ops.cast(layer(x, MASK), "float32") for x in (states, other))
    assert np.isfinite(one).all()
    np.testing.assert_array_equal(np.asarray(one)[tokens], np.asarray(two)[tokens])


def test_block_normalizes_after_each_sum(random, states):
    layer = TransformerBlock(CONFIG)
    layer.build((B, T, H))
    randomize(layer, random)
    x = layer_norm(states + attention(states, MASK, layer.attention), layer.attention_layer_norm)
    inner = layer.feed_forward
    x = x + dense(gelu(dense(x, inner.intermediate)), inner.output_dense)
    expected = layer_norm(x, layer.feed_forward_layer_norm)
    np.testing.assert_allclose(layer(states, MASK), expected, rtol=1e-5, atol=5e-5)


def test_dropout_is_where_the_original_has_it(states):
    """A share of 0 at one place at a time: training then differs, inference never."""
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    layer = TransformerBlock(replace(CONFIG, **off), seed=1)
    assert np.array_equal(layer(states, training=True), layer(states))
    for position in off:
        layer = TransformerBlock(replace(CONFIG, **{**off, position: 0.5}), seed=1)
        assert not np.array_equal(layer(states, training=True), layer(states))
        assert np.array_equal(layer(states), layer(states))
    layer = BertPreTrainer(CONFIG, seed=1).next_sentence
    assert np.array_equal(layer(states[:, 0], training=True), layer(states[:, 0]))


@for_each("name", *ACTIVATIONS)
def test_activations(name):
    x = np.linspace(-6, 6, 101)
    tanh_gelu = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    approximate = dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), tanh_gelu)
    swish = dict.fromkeys(("silu", "swish"), x / (1 + np.exp(-x)))
    others = {"gelu": gelu(x), "relu": np.maximum(x, 0), "tanh": np.tanh(x)}
    expected = {**approximate, **swish, **others}[name]
    np.testing.assert_allclose(ACTIVATIONS[name](x.astype("float32")), expected, **CLOSE)


@for_each("half digits", ("bfloat16", 8), ("float16", 11))
def test_gelu_of_negative_numbers_in_half_precision(half, digits):
    """1 + erf(x) keeps no digit of a bfloat16 below -2.5: it is computed in float32."""
    x = tf.cast(tf.linspace(-4.0, -1.0, 301), half)
    wide = tf.cast(x, tf.float64).numpy()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = ACTIVATIONS["gelu"](x)
    assert y.dtype == half
    np.testing.assert_allclose(tf.cast(y, tf.float64), gelu(wide), rtol=2.0**-digits, atol=1e-6)
    expected = (gelu(wide + 1e-5) - gelu(wide - 1e-5)) / 2e-5
    gradient = tf.cast(tape.gradient(y, x), tf.float64)
    np.testing.assert_allclose(gradient, expected, rtol=2 * 2.0**-digits, atol=4e-4)


def test_weights_start_truncated_normal_by_seeds_of_their_own():
    layer = Pooler(replace(CONFIG, hidden_size=200), seed=1)
    layer.build((B, T, 200))
    weights = np.asarray(layer.dense.kernel)
    assert np.abs(weights).max() <= 0.04
    # A normal cut at two deviations keeps 0.88 of its deviation, in TensorFlow as here.
    assert weights.std() == pytest.approx(0.88 * 0.02, rel=0.02)
    assert child_seed(None, "a") is None
    assert child_seed(1, "a") == child_seed(1, "a")
    assert len({child_seed(seed, name) for seed in range(50) for name in "abcdef"}) == 300

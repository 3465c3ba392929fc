import inspect

import keras
import numpy as np
import pytest
from cases import for_each
from rounding import half_rounding
from tiny import tiny_config

from bert_tf.networks import (
    BertEmbeddings,
    ClassificationHead,
    FeedForward,
    MaskedLanguageModelHead,
    Pooler,
    SelfAttention,
    TransformerBlock,
)
from bert_tf.paper.lstm import LstmBlock, WordEmbeddings

B, T, P, H, V = 2, 5, 3, 8, 11
STATES = np.linspace(-1, 1, B * T * H, dtype="float32").reshape(B, T, H)
WIDE = STATES.repeat(2, -1)
IDS = np.array([[1, 2, 3, 4, 0], [5, 6, 0, 0, 0]])
MASK = (IDS > 0).astype("int32")
POSITIONS = np.array([[1, 3, 0], [1, 0, 0]])
CONFIG = tiny_config(V, max_position_embeddings=6)


def masked_language_model(dtype=None, **options):
    table = keras.layers.Embedding(V, H, dtype=dtype, name="word_embeddings")
    table.build()
    return MaskedLanguageModelHead(CONFIG, table, dtype=dtype, **options)


# name -> (how to make it, its inputs, its output's shape)
LAYERS = {
    "embeddings": (lambda **kw: BertEmbeddings(CONFIG, **kw), (IDS, MASK), (B, T, H)),
    "word_embeddings": (lambda **kw: WordEmbeddings(CONFIG, **kw), (IDS,), (B, T, H)),
    "lstm_block": (lambda **kw: LstmBlock(CONFIG, **kw), (WIDE, MASK), (B, T, 2 * H)),
    "self_attention": (lambda **kw: SelfAttention(CONFIG, **kw), (STATES, MASK), (B, T, H)),
    "feed_forward": (lambda **kw: FeedForward(CONFIG, **kw), (STATES,), (B, T, H)),
    "block": (lambda **kw: TransformerBlock(CONFIG, **kw), (STATES, MASK), (B, T, H)),
    "pooler": (lambda **kw: Pooler(CONFIG, **kw), (STATES,), (B, H)),
    "masked_language_model": (masked_language_model, (STATES, POSITIONS), (B, P, V)),
    "classification": (lambda **kw: ClassificationHead(CONFIG, 4, **kw), (STATES[:, 0],), (B, 4)),
}
LOGITS = ("masked_language_model", "classification")


@pytest.fixture(params=LAYERS)
def case(request):
    return request.param, *LAYERS[request.param]


def test_shapes_are_known_before_a_batch_is(case):
    _, make, inputs, shape = case
    layer = make()
    symbols = [keras.Input(x.shape[1:], dtype=str(x.dtype)) for x in inputs]
    assert layer(*symbols).shape == (None, *shape[1:])
    assert layer(*inputs).shape == shape


def test_config_makes_the_same_layer(case):
    _, make, inputs, _ = case
    layer = make(seed=3)
    expected = layer(*inputs)
    twin = keras.layers.deserialize(keras.layers.serialize(layer))
    twin(*inputs)
    assert twin.get_config() == layer.get_config()
    assert [v.path for v in twin.trainable_variables] == [v.path for v in layer.trainable_variables]
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(twin(*inputs), expected)


@for_each("half", "bfloat16", "float16")
def test_half_precision(case, half):
    name, make, inputs, _ = case
    exact = make(seed=1)
    expected = np.asarray(exact(*inputs))
    layer = make(seed=1, dtype=f"mixed_{half}")
    layer(*inputs)
    layer.set_weights(exact.get_weights())
    output = layer(*inputs)
    # Logits stay float32: a softmax over 30,000 half-precision numbers is no use.
    assert keras.backend.standardize_dtype(output.dtype) == ("float32" if name in LOGITS else half)
    assert {v.dtype for v in layer.trainable_variables} == {"float32"}
    difference = keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")) - expected
    assert np.linalg.norm(difference) < half_rounding(20, half) * np.linalg.norm(expected)


def test_equal_seeds_equal_weights_and_dropout(case):
    _, make, inputs, _ = case
    outputs = []
    for seed in (5, 5, 6):
        keras.utils.set_random_seed(0)  # the table that the MLM head shares is not its to seed
        layer = make(seed=seed)
        drops = "training" in inspect.signature(layer.call).parameters
        outputs.append(np.asarray(layer(*inputs, **({"training": True} if drops else {}))))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[0], outputs[2])
    # No two weights start alike.
    kernels = [np.asarray(v) for v in layer.trainable_variables if len(v.shape) == 2]
    for i, one in enumerate(kernels):
        assert np.abs(one).max() > 0
        for other in kernels[i + 1 :]:
            n = min(one.size, other.size)
            assert not np.array_equal(one.ravel()[:n], other.ravel()[:n])

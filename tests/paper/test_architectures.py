"""Models that see one side: no token depends on one that it must not see."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertEncoder
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.kernels import Kernels
from bert_tf.paper.encoders import TwoEncoders
from bert_tf.paper.summary import SummaryFirst, summary

V, T = 13, 7
CONFIG = tiny_config(V, "2x8x2", max_position_embeddings=10, dropout=0.0)
IDS = st.lists(st.integers(1, V - 1), min_size=T, max_size=T)


def random_encoder(direction):
    encoder = BertEncoder(replace(CONFIG, attention_direction=direction))
    random = np.random.default_rng(7)
    for variable in encoder.weights:
        variable.assign(random.normal(size=variable.shape) * 0.5)
    return encoder


def assert_close(one, other, message=""):
    """Equal but for rounding in two blocks; values are at most as large as the largest state."""
    atol = rounding(40, 16, np.abs(other).max())
    np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=message)


def graph(encoder, *, training, static=False, padding="zeros"):
    spec = tf.TensorSpec([2, T] if static else [None, None], tf.int32)
    names = ("token_ids", "segment_ids", "padding_mask")
    function = tf.function(
        lambda inputs: encoder(inputs, training=training, padding=padding)["hidden_states"],
        input_signature=[dict.fromkeys(names, spec)],
        autograph=False,
    )
    function.get_concrete_function()
    return function


@pytest.fixture(scope="module", params=["left_to_right", slow("right_to_left")])
def computed(request):
    encoder = random_encoder(request.param)
    ways = {
        f"{'training' if training else 'inference'}, static={static}, {padding}": graph(
            encoder, training=training, static=static, padding=padding
        )
        for training in (False, True)
        for static, padding in ((False, "zeros"), (False, "states"), (True, "zeros"))
    }
    with kernels_of(encoder, lambda usual: Kernels(usual.training)):
        ways["keras.ops"] = graph(encoder, training=True)
    return request.param, ways


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    ids=IDS, others=IDS, position=st.integers(0, T - 1), ends=st.tuples(*[st.integers(1, T)] * 2)
)
def test_tokens_that_must_not_be_seen_change_nothing(computed, ids, others, position, ends):
    direction, ways = computed
    positions = np.arange(T)
    is_seen = positions <= position if direction == "left_to_right" else positions >= position
    lengths = np.maximum(ends, position + 1) if direction == "left_to_right" else np.array([T, T])
    rows = np.array([ids, np.where(is_seen, ids, others)])
    segments = np.array([[0] * T, np.where(is_seen, 0, 1)])
    mask = positions < lengths[:, np.newaxis]
    inputs = {"token_ids": rows, "segment_ids": segments, "padding_mask": mask}
    inputs = {name: tf.constant(x, tf.int32) for name, x in inputs.items()}
    for way, function in ways.items():
        for states in function(inputs):
            one, other = states.numpy()
            assert_close(one[is_seen], other[is_seen], way)


def test_what_may_be_seen_counts(computed):
    """Neither does a model ignore its tokens, nor its direction."""
    direction, ways = computed
    ends = [0, T - 1] if direction == "left_to_right" else [T - 1, 0]
    rows = np.full([2, T], 5)
    rows[1, ends[0]] = 6
    inputs = {"token_ids": rows, "segment_ids": rows * 0, "padding_mask": rows * 0 + 1}
    for function in ways.values():
        one, other = function({n: tf.constant(x, tf.int32) for n, x in inputs.items()})[-1].numpy()
        assert np.abs(one - other).max(axis=-1).min() > 1e-3
    both = graph(random_encoder("both"), training=False)
    inputs["token_ids"] = np.where(np.arange(T) == ends[1], [[5], [6]], 5)
    one, other = both({n: tf.constant(x, tf.int32) for n, x in inputs.items()})[-1].numpy()
    assert np.abs(one - other).max(axis=-1).min() > 1e-3


@for_each("direction", "left_to_right", "right_to_left")
def test_the_pooled_output_is_of_the_token_that_has_seen_all(direction):
    encoder = random_encoder(direction)
    mask = np.arange(T) < np.array([[4], [T], [1]])
    inputs = {"token_ids": np.full([3, T], 5), "segment_ids": mask * 0, "padding_mask": mask}
    inputs = {name: tf.constant(x, tf.int32) for name, x in inputs.items()}
    for outputs in (encoder(inputs), encoder(inputs, padding="zeros")):
        position = [3, T - 1, 0] if direction == "left_to_right" else [0, 0, 0]
        read = tf.gather(outputs["sequence_output"], position, batch_dims=1)
        wanted = encoder.pooler.dense(read)
        assert_close(outputs["pooled_output"], wanted)
    for training in (False, True):
        (pooled,) = encoder(inputs, training=training, only="pooled_output").values()
        assert_close(pooled, wanted)


def test_two_encoders_are_one_of_each_direction():
    config = replace(CONFIG, attention_direction="left_to_right+right_to_left")
    encoder = TwoEncoders(config, seed=1, attention_probabilities=True)
    assert len({variable.path for variable in encoder.variables}) == len(encoder.variables)
    mask = np.arange(T) < np.array([[4], [T]])
    inputs = {"token_ids": np.full([2, T], 5), "segment_ids": mask * 0, "padding_mask": mask}
    inputs = {name: tf.constant(x, tf.int32) for name, x in inputs.items()}
    outputs, parts = encoder(inputs), [tower(inputs) for tower in encoder.towers()]
    of_tokens = encoder(inputs, padding="zeros")
    assert not np.allclose(*(part["pooled_output"] for part in parts), atol=0.01)
    for part in (outputs, of_tokens):
        for name in ("pooled_output", "sequence_output"):
            wanted = np.concatenate([part[name] for part in parts], axis=-1)
            kept = mask if name == "sequence_output" else slice(None)
            assert_close(part[name].numpy()[kept], wanted[kept])
        heads = part["attention_probabilities"][1].numpy()
        assert heads.shape == (2, 4, T, T)
        assert not np.triu(heads[1, :2], 1).any() and not np.tril(heads[1, 2:], -1).any()
    states = outputs["sequence_output"]
    read = summary(states, inputs["padding_mask"], config.attention_direction).numpy()
    ahead, back = states.numpy()[[0, 1], [3, T - 1], :8], states.numpy()[:, 0, 8:]
    np.testing.assert_array_equal(read, np.concatenate([ahead, back], axis=-1))
    first = SummaryFirst(config.attention_direction)(states, inputs["padding_mask"]).numpy()
    np.testing.assert_array_equal(first[:, 0], read)
    np.testing.assert_array_equal(first[:, 1:, 8:], states.numpy()[:, 1:, 8:])
    refused("is of another encoder", BertEncoder, config)

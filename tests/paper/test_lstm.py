import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding
from tiny import tiny_config

from bert_tf.paper.encoders import LstmEncoder

H, T = 4, 6
SIZES = {"intermediate_size": 4, "max_position_embeddings": T, "initializer_range": 0.5}
CONFIG = tiny_config(13, f"2x{H}x1", **SIZES)
# In two layers, each of 6 steps: two products of 4 terms, three gates, the cell and the output. No
# output of an LSTM is above 1, nor is a token's vector, whose draws are cut at two deviations.
CLOSE = rounding(2 * T * 7, 2 * H, size=2)
IDS = st.lists(st.integers(1, 12), min_size=T, max_size=T).map(np.array)


def assert_close(one, other):
    np.testing.assert_allclose(one, other, rtol=0, atol=CLOSE)


@pytest.fixture(scope="module")
def encoder():
    return LstmEncoder(CONFIG, seed=1)


def run(encoder, ids, ends):
    """Hidden states [L + 1, 2, T, 2 H] and the pooled output for rows that end there."""
    mask = (np.arange(T) < np.array(ends)[:, np.newaxis]).astype(np.int32)
    inputs = {"token_ids": np.array(ids), "segment_ids": mask * 0, "padding_mask": mask}
    outputs = encoder.predict_on_batch(inputs)
    return np.array(outputs["hidden_states"]), outputs["pooled_output"]


@settings(max_examples=25, deadline=None)
@given(ids=IDS, others=IDS, place=st.integers(0, T - 1), end=st.integers(1, T))
def test_no_direction_sees_what_it_predicts(encoder, ids, others, place, end):
    """The forward part sees nothing that follows, the backward part nothing before, padding none.

    Both rows hold the same tokens, one of them other tokens behind `place`, or up to it.
    """
    place = min(place, end - 1)
    for changes, same in (
        (np.arange(T) > place, np.s_[: place + 1, :H]),
        (np.arange(T) < place, np.s_[place:end, H:]),
    ):
        states, _ = run(encoder, [ids, np.where(changes, others, ids)], [end, end])
        assert_close(states[:, 1][:, *same], states[:, 0][:, *same])
    # Other padding, and none at all.
    padded = np.where(np.arange(T) >= end, others, ids)
    (states, pooled), (short, short_pooled) = (
        run(encoder, [ids, padded], [end, end]),
        run(encoder, [ids, ids], [end, T]),
    )
    assert_close(states[:, 1, :end], states[:, 0, :end])
    assert_close(pooled[1], pooled[0])
    assert_close(short[:, 0, :end], states[:, 0, :end])
    assert_close(short[:, 1, :end, :H], states[:, 0, :end, :H])
    # A sequence is summed up where each direction has read all of it.
    last = np.concatenate([states[-1, 0, end - 1, :H], states[-1, 0, 0, H:]])
    assert_close(short_pooled[0], last)


def test_each_direction_sees_its_own_side(encoder):
    ids = np.arange(1, T + 1)
    changed = np.where(np.arange(T) == 2, 12, ids)
    states, _ = run(encoder, [ids, changed], [T, T])
    differs = np.abs(states[1:, 1] - states[1:, 0]).max(axis=0) > CLOSE  # (T, 2 H)
    assert differs[:, :H].any(axis=1).tolist() == [False, False, True, True, True, True]
    assert differs[:, H:].any(axis=1).tolist() == [True, True, True, False, False, False]


def test_numbers_are_those_of_keras(encoder):
    """Two plain LSTMs on each other with a residual connection, on the tokens or their reverse."""
    ids = np.array([[3, 1, 4, 1, 5, 9]])
    states, _ = run(encoder, np.repeat(ids, 2, 0), [T, T])
    for half, step in (("forward", 1), ("backward", -1)):
        x = first = encoder.embeddings(ids[:, ::step])
        for number, block in enumerate(encoder.blocks):
            plain = keras.layers.LSTM(H, return_sequences=True)
            plain.build(x.shape)
            plain.set_weights(getattr(block, half).get_weights())
            x = plain(x) + (x if number else 0)
        place = np.s_[:H] if half == "forward" else np.s_[H:]
        assert_close(states[-1, 0][::step, place], x[0])
        assert_close(states[0, 0][::step, place], first[0])

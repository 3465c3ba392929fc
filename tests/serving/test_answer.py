"""The loop over batches that `predict` and `evaluate` share."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.predictor import answer


class Signature:
    """Gives the lengths of its texts, after `begun` was told of them."""

    structured_input_signature = ((), {"text": tf.TensorSpec([None], tf.string, "text")})

    def __init__(self, begun):
        self._begun = begun

    def __call__(self, text):
        self._begun(text.numpy())
        return {"length": tf.strings.length(text)}


TEXTS = ["ccc", "a", "dddd", "bb", "eeeee"]


def test_two_batches_at_a_time_and_answers_in_order():
    """Each batch waits for the other one of its pair."""
    pair = threading.Barrier(2, timeout=60)
    answered = []
    found = answer(
        Signature(lambda texts: pair.wait()), {"text": TEXTS[:4]}, 1, answered=answered.append
    )
    np.testing.assert_array_equal(found["length"], [3, 1, 4, 2])
    assert answered == [1, 2, 3, 4]
    answered.clear()
    found = answer(Signature(len), {"text": TEXTS}, 2, answered=answered.append)
    np.testing.assert_array_equal(found["length"], [3, 1, 4, 2, 5])
    assert answered == [2, 4, 5]


def test_a_failure_ends_the_loop():
    asked = []

    def begun(texts):
        asked.append(len(texts))
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        answer(Signature(begun), {"text": TEXTS * 100}, 1)
    assert len(asked) < 100

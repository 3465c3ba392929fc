"""The loop over batches that `predict` and `evaluate` share."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.predictor import answer, answer_rows


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
        time.sleep(0.01)  # a batch takes longer than the loop to see the failure
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        answer(Signature(begun), {"text": TEXTS * 100}, 1)
    assert len(asked) < 100


class Words:
    """Gives the words of its texts, as a tagger does: lists padded to the longest of the batch."""

    structured_input_signature = Signature.structured_input_signature
    widest = 0

    def __call__(self, text):
        words = tf.strings.split(text)
        self.widest = max(self.widest, words.bounding_shape()[1].numpy() * len(text))
        return {
            "words_text": words.to_tensor(),
            "words_count": tf.cast(words.row_lengths(), "int32"),
        }


def test_rows_are_not_padded_to_the_longest_of_all(monkeypatch):
    """One text of 1,000 words among 200 of one: joined, 200,000 places."""

    def joined(batches):
        raise AssertionError("joined")

    monkeypatch.setattr("bert_tf.serving.predictor._join", joined)
    texts = ["a"] * 100 + ["b " * 1000] + ["c"] * 100
    signature = Words()
    found = answer_rows(signature, {"text": texts}, 8)
    assert [len(row["words"]) for row in found] == [1] * 100 + [1000] + [1] * 100
    assert found[0] == {"words": [{"text": "a"}]} and found[-1] == {"words": [{"text": "c"}]}
    assert signature.widest <= 8 * 1000


def test_too_little_memory_is_said_in_one_line():
    def begun(texts):
        tf.zeros([2**62])  # more bytes than 64 bits can count: refused without a retry

    with pytest.raises(InputError, match=r"too little memory .*: give a smaller --batch_size"):
        answer(Signature(begun), {"text": TEXTS}, 2)

"""The loop over batches that `predict` and `evaluate` share, and SavedModels that answer."""

import threading
import time
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
from rounding import rounding

from bert_tf.errors import InputError
from bert_tf.serving.predictor import Predictor, answer, answer_rows

# A block, whose sums have up to 16 terms; weights as large as its make scores of up to 40.
CLOSE = rounding(24, 16, size=40)


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
    answers = answer(
        Signature(lambda texts: pair.wait()), {"text": TEXTS[:4]}, 1, answered=answered.append
    )
    np.testing.assert_array_equal(answers["length"], [3, 1, 4, 2])
    assert answered == [1, 2, 3, 4]


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
    answers = answer_rows(signature, {"text": texts}, 8)
    assert [len(row["words"]) for row in answers] == [1] * 100 + [1000] + [1] * 100
    assert answers[0] == {"words": [{"text": "a"}]} and answers[-1] == {"words": [{"text": "c"}]}
    assert signature.widest <= 8 * 1000


def test_too_little_memory_is_said_in_one_line():
    def begun(texts):
        tf.zeros([2**62])  # more bytes than 64 bits can count: refused without a retry

    with pytest.raises(InputError, match=r"too little memory .*: give a smaller --batch_size"):
        answer(Signature(begun), {"text": TEXTS}, 2)


def test_answers_come_in_the_order_of_the_texts_from_batches_of_like_length():
    class Echo:
        structured_input_signature = Signature.structured_input_signature
        batches: ClassVar = []

        def __call__(self, text):
            self.batches.append([len(value) for value in text.numpy()])
            return {"text": text, "letters": tf.strings.bytes_split(text).to_tensor()}

    texts = ["x" * n for n in np.random.default_rng(0).permutation(23)]
    done = []
    answers = answer(Echo(), {"text": texts}, 5, answered=done.append)
    assert [text.decode() for text in answers["text"]] == texts
    assert [b"".join(row).decode() for row in answers["letters"]] == texts
    # Two are computed at the same time, so either may be noted first.
    assert sorted(Echo.batches) == [list(range(23))[i : i + 5] for i in range(0, 23, 5)]
    assert done == [5, 10, 15, 20, 23]
    lengths = [-len(text) for text in texts]
    again = answer(Echo(), {"text": texts}, 5, lengths=lengths)
    np.testing.assert_array_equal(again["letters"], answers["letters"])
    assert [22, 21, 20, 19, 18] in Echo.batches[5:]


def answers_of(predictor, **strings) -> list[dict]:
    return answer_rows(predictor.signature(), strings, 2)


def test_the_predictor_takes_the_newest_version(export_of):
    predictor = Predictor(export_of("classification").parent)
    assert predictor.directory == export_of("classification")
    texts = ["the ship left", "", "crew " * 50, "é海", "at dawn"]
    answers = answers_of(predictor, text=texts)
    for text, together in zip(texts, answers, strict=True):
        (alone,) = answers_of(predictor, text=[text])
        assert alone["label"] == together["label"] == next(iter(together["probabilities"]))
        assert alone["probability"] == pytest.approx(together["probability"], abs=CLOSE)
    assert answers_of(predictor, text=[]) == []
    with pytest.raises(InputError, match="takes single strings"):
        answers_of(predictor, text=texts, text_pair=texts)
    with pytest.raises(InputError, match="not valid Unicode"):
        answers_of(predictor, text=["\ud800"])


def test_a_folder_without_a_saved_model(tmp_path):
    with pytest.raises(InputError, match="holds no SavedModel"):
        Predictor(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot be loaded"):
        Predictor(tmp_path)

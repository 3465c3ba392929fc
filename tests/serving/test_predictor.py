import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from rounding import rounding

from bert_tf.errors import InputError
from bert_tf.serving.predictor import Predictor, answer, answer_rows

# A block, whose sums have up to 16 terms; weights as large as its make scores of up to 40.
CLOSE = rounding(24, 16, size=40)


class Signature:
    structured_input_signature = ((), {"text": tf.TensorSpec([None], tf.string, "text")})

    def __init__(self, function):
        self._function = function

    def __call__(self, text):
        return self._function(text)


TEXTS = ["ccc", "a", "dddd", "bb", "eeeee"]


def test_two_batches_at_a_time_and_answers_in_order():
    """Each batch waits for the other one of its pair."""
    pair, answered = threading.Barrier(2, timeout=60), []

    def lengths(text):
        pair.wait()
        return {"length": tf.strings.length(text)}

    answers = answer(Signature(lengths), {"text": TEXTS[:4]}, 1, answered=answered.append)
    np.testing.assert_array_equal(answers["length"], [3, 1, 4, 2])
    assert answered == [1, 2, 3, 4]


def test_a_failure_ends_the_loop_and_too_little_memory_is_said():
    asked = []

    def fail(text):
        asked.append(len(text))
        time.sleep(0.01)  # a batch takes longer than the loop to see the failure
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        answer(Signature(fail), {"text": TEXTS * 100}, 1)
    assert len(asked) < 100
    # More bytes than 64 bits can count: refused without a retry.
    signature = Signature(lambda text: {"zeros": tf.zeros([2**62])})
    with pytest.raises(InputError, match=r"too little memory .*: give a smaller --batch_size"):
        answer(signature, {"text": TEXTS}, 2)


def test_rows_are_not_padded_to_the_longest_of_all(monkeypatch):
    """One text of 1,000 words among 200 of one: joined, 200,000 places."""
    sizes = []

    def words(text):  # as a tagger does: lists padded to the longest of the batch
        words = tf.strings.split(text).to_tensor()
        sizes.append(words.shape.num_elements())
        return {"words_text": words, "words_count": tf.reduce_sum(tf.cast(words != "", "int32"), 1)}

    monkeypatch.setattr("bert_tf.serving.predictor._join", lambda batches: pytest.fail("joined"))
    texts = ["a"] * 100 + ["b " * 1000] + ["c"] * 100
    answers = answer_rows(Signature(words), {"text": texts}, 8)
    assert [len(row["words"]) for row in answers] == [1] * 100 + [1000] + [1] * 100
    assert answers[0] == {"words": [{"text": "a"}]} and answers[-1] == {"words": [{"text": "c"}]}
    assert max(sizes) <= 8 * 1000


def test_answers_come_in_the_order_of_the_texts_from_batches_of_like_length():
    batches, done = [], []

    def echo(text):
        batches.append([len(value) for value in text.numpy()])
        return {"text": text, "letters": tf.strings.bytes_split(text).to_tensor()}

    texts = ["x" * n for n in np.random.default_rng(0).permutation(23)]
    answers = answer(Signature(echo), {"text": texts}, 5, answered=done.append)
    assert [text.decode() for text in answers["text"]] == texts
    assert [b"".join(row).decode() for row in answers["letters"]] == texts
    # Two are computed at the same time, so either may be noted first.
    assert sorted(batches) == [list(range(23))[i : i + 5] for i in range(0, 23, 5)]
    assert done == [5, 10, 15, 20, 23]
    lengths = [-len(text) for text in texts]
    again = answer(Signature(echo), {"text": texts}, 5, lengths=lengths)
    np.testing.assert_array_equal(again["letters"], answers["letters"])
    assert [22, 21, 20, 19, 18] in batches[5:]


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
    with pytest.raises(InputError, match="contains no SavedModel"):
        Predictor(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot be loaded"):
        Predictor(tmp_path)

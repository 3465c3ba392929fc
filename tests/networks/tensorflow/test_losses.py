import numpy as np
import pytest
import tensorflow as tf
from cases import for_each

from bert_tf.networks.tensorflow.embedding_losses import (
    cosent,
    in_batch_accuracy,
    in_batch_cross_entropy,
    losses_of_vectors,
    squared_cosine_error,
)
from bert_tf.networks.tensorflow.losses import (
    CLASSES,
    LABELS,
    NUMBERS,
    SPANS,
    WORDS,
    smoothed_cross_entropy,
    span_accuracy,
    span_cross_entropy,
)


def test_label_smoothing_and_spans():
    logits, labels = np.array([[1.0, 2.0, 4.0]], np.float32), np.array([2], np.int32)
    logs = logits - np.log(np.exp(logits).sum())
    expected = -(logs * [0.1 / 3, 0.1 / 3, 0.9 + 0.1 / 3]).sum()
    assert smoothed_cross_entropy(0.1)(labels, logits).numpy()[0] == pytest.approx(expected)
    logits = np.log(np.array([[[0.5, 0.1], [0.25, 0.8], [0.25, 0.1]]], np.float32))
    targets = tf.constant([[0, 2]])
    expected = [[-np.log(0.5), -np.log(0.1)]]
    np.testing.assert_allclose(span_cross_entropy(targets, logits), expected, 1e-5)
    assert span_accuracy(targets, logits).numpy().tolist() == [[1, 0]]
    assert losses_of_vectors("infonce", 20.0).soft is None


_LOSSES = {"cola": CLASSES, "multi_label": LABELS, "stsb": NUMBERS, "squad": SPANS, "tags": WORDS}


@for_each("name", *_LOSSES)
def test_a_teachers_own_outputs_cost_nothing_and_others_something(name):
    shape = {"stsb": [2], "squad": [2, 5, 2], "tags": [2, 5, 3]}.get(name, [2, 3])
    outputs = tf.random.stateless_normal(shape, [1, 2])
    mask = tf.constant([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    losses = _LOSSES[name]
    taught = losses.teacher_outputs(outputs, {"padding_mask": mask})
    loss = losses.soft(2.0)
    own = loss(taught, taught)
    assert own.shape == {"squad": [2, 2], "tags": [2, 5], "multi_label": [2, 3]}.get(name, [2])
    np.testing.assert_allclose(own, 0, atol=1e-5)
    other = loss(taught, -taught if name != "squad" else outputs)
    if name in ("cola", "multi_label"):  # T^2 KL(teacher, student) of the probabilities at T
        logits = taught / 2 if name == "cola" else tf.stack([taught / 2, 0 * taught], -1)
        p, q = tf.nn.softmax(logits).numpy(), tf.nn.softmax(-logits).numpy()
        np.testing.assert_allclose(other, 4 * np.sum(p * np.log(p / q), -1), atol=1e-5)
    # Of SQuAD: the probability that the student gives to padding, which the teacher does not.
    assert np.max(other) > 0.1 and np.all(np.isfinite(other))


def drawn(texts=2, rows=5):
    return np.random.default_rng(1).normal(size=(rows, texts, 4)).astype(np.float32)


def cosines(one, others):
    one, others = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (one, others))
    return one @ others.T


def entropies(logits, right):
    return np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(logits)), right]


@for_each("texts", 2, 4)
def test_infonce_is_cross_entropy_over_the_batch(texts):
    """With wrong answers of every example as further candidates, in one direction."""
    x, numbers = drawn(texts), np.arange(5 * texts).reshape(5, texts)
    further = x[:, 2:].reshape(-1, 4)
    forward = 20 * cosines(x[:, 0], np.concatenate([x[:, 1], further]))
    back = 20 * cosines(x[:, 1], x[:, 0])
    found = in_batch_cross_entropy(20.0)(numbers, x).numpy()
    expected = np.stack([entropies(each, np.arange(5)) for each in (forward, back)], 1)
    more = np.mean(expected, 1, keepdims=True).repeat(texts - 2, 1)
    expected = np.concatenate([expected, more], 1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    right = np.stack([each.argmax(1) == np.arange(5) for each in (forward, back)], 1)
    hits = in_batch_accuracy(numbers, x).numpy()
    assert hits[:, :2].tolist() == right.astype(float).tolist()
    assert hits.mean() == pytest.approx(right.mean())


def test_equal_texts_are_no_wrong_answers():
    x = drawn()
    numbers = np.array([[0, 1], [2, 1], [0, 3], [4, 5], [6, 7]])  # 0 shares with 1 and with 2
    logits = 20 * cosines(x[:, 0], x[:, 1])
    logits[[0, 1, 0, 2], [1, 0, 2, 0]] = -1e9
    found = in_batch_cross_entropy(20.0)(numbers, x).numpy()[:, 0]
    np.testing.assert_allclose(found, entropies(logits, np.arange(5)), rtol=1e-4, atol=1e-5)


def test_wrong_answers_that_are_right_do_not_count():
    """Of others, and of the example itself, which has too few; all else stays a candidate."""
    x = drawn(3)
    numbers = np.array([[0, 1, 3], [2, 3, 3], [4, 5, 0], [6, 7, 8], [9, 10, 8]])
    logits = 20 * cosines(x[:, 0], np.concatenate([x[:, 1], x[:, 2]]))
    logits[[0, 1, 1], [7, 5, 6]] = -1e9
    found = in_batch_cross_entropy(20.0)(numbers, x).numpy()[:, 0]
    np.testing.assert_allclose(found, entropies(logits, np.arange(5)), rtol=1e-4, atol=1e-5)


def test_cosent_and_cosine_are_their_formulae():
    x, scores = drawn(rows=4), np.array([0.0, 3.0, 3.0, 5.0], np.float32)
    found = np.array([cosines(a[:1], a[1:])[0, 0] for a in x])
    pairs = [(i, j) for i in range(4) for j in range(4) if scores[i] > scores[j]]
    expected = np.log(1 + sum(np.exp(20 * (found[j] - found[i])) for i, j in pairs))
    np.testing.assert_allclose(cosent(20.0)(scores, x), [expected] * 4, rtol=1e-5)
    shares = scores / 5
    errors = squared_cosine_error(shares, x)
    np.testing.assert_allclose(errors, (found - shares) ** 2, rtol=1e-4, atol=1e-6)

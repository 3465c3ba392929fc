"""Scores against cases worked by hand and against scikit-learn's."""

import numpy as np
import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from bert_tf.tasks.scoring.metrics import (
    LabelSets,
    accuracy,
    average_precision,
    best_thresholds,
    f1,
    logits_of,
    macro_f1,
    matthews_correlation,
    pearson,
    retrieval_scores,
    spearman,
)

TRUTH, PREDICTED = [1, 1, 1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1, 0, 1]


@for_each(
    "score truth predicted expected",
    (accuracy, TRUTH, PREDICTED, 6 / 8),
    (f1, TRUTH, PREDICTED, 2 * 3 / (4 + 4)),
    (f1, [1, 0, 0, 0], [1, 1, 0, 0], 2 / 3),  # of class 1, not of 0
    (f1, [0, 0], [0, 0], 0),  # which never occurs
    (matthews_correlation, TRUTH, PREDICTED, (3 * 3 - 1 * 1) / 16),
    (matthews_correlation, [0, 1], [0, 0], 0),  # one class predicted
    (macro_f1, [0, 0, 1, 2], [0, 0, 1, 1], (1 + 2 / 3 + 0) / 3),
    (macro_f1, [0, 0, 2], [0, 0, 2], 1),  # a class neither met nor predicted counted as 0
    # Deviations -1.5 -.5 .5 1.5 and -3 -1 -2 6; ranks differ by 0 1 1 0.
    (pearson, [1.0, 2, 3, 4], [1.0, 3, 2, 10], 13 / np.sqrt(5 * 50)),
    (spearman, [1.0, 2, 3, 4], [1.0, 3, 2, 10], 1 - 6 * 2 / (4 * 15)),
)
def test_scores_by_hand(score, truth, predicted, expected):
    assert score(np.array(truth), np.array(predicted)) == pytest.approx(expected)


def test_correlations_with_a_constant_are_undefined():
    for constant in (np.array([2.0, 2, 2]), np.array([1.0])):
        other = np.arange(len(constant), dtype=float)
        for score in (pearson, spearman):
            assert score(other, constant) is None
            assert score(constant, other) is None


@settings(deadline=None)  # the first call imports scikit-learn
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2))
def test_matthews_is_pearsons_for_two_classes(pairs):
    truth, predicted = np.array(pairs).T
    if truth.std() and predicted.std():
        expected = np.corrcoef(truth, predicted)[0, 1]
        assert matthews_correlation(truth, predicted) == pytest.approx(expected, abs=1e-9)


# Any number of labels.


def drawn(seed: int, examples: int = 60, labels: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Truth, with rare labels, and probabilities with ties."""
    random = np.random.default_rng(seed)
    truth = random.random((examples, labels)) < [0.5, 0.3, 0.1, 0.05][:labels]
    shares = 0.5 * random.random(truth.shape) + 0.4 * truth
    return truth, shares.round(2).astype(np.float32)


@for_each("seed", *range(3))
def test_scores_are_scikit_learn_s(seed):
    truth, shares = drawn(seed)
    truth[:2, 3] = True  # where a label lacks examples, scikit-learn counts 0 and we leave it out
    predicted = shares >= 0.45
    found = LabelSets(list("abcd"), truth, predicted, shares).scores()
    expected = metrics.average_precision_score(truth, shares, average="macro")
    assert found["average_precision"] == pytest.approx(expected)
    for average in ("micro", "macro"):
        expected = metrics.f1_score(truth, predicted, average=average)
        assert found[f"f1_{average}"] == pytest.approx(expected)
    assert found["exact_match"] == pytest.approx(metrics.accuracy_score(truth, predicted))
    by_label = metrics.f1_score(truth, predicted, average=None)
    assert [found[f"f1_{label}"] for label in "abcd"] == pytest.approx(by_label.tolist())


def test_labels_without_examples_or_without_counterexamples():
    truth = np.array([[1, 0], [0, 0]], bool)
    found = LabelSets(["a", "b"], truth, truth, truth.astype(float)).scores()
    assert found["f1_b"] is None
    assert found["f1_macro"] == found["average_precision"] == 1
    nothing = np.zeros((2, 1), bool)
    assert LabelSets(["a"], nothing, nothing, nothing).scores()["f1_micro"] is None
    assert average_precision(nothing[:, 0], np.ones(2)) is None
    truth = np.array([[1, 0, 1], [1, 0, 0]], bool)
    shares = np.array([[0.2, 0.9, 0.3], [0.1, 0.8, 0.1]])
    assert best_thresholds(truth, shares) == pytest.approx([0.5, 0.5, 0.2])


@for_each("seed", *range(2))
def test_thresholds_have_the_best_f1_of_all_when_logits_are_rounded(seed):
    truth, shares = drawn(seed)
    truth[:2] = True
    for label, limit in enumerate(best_thresholds(truth, shares)):
        has, probabilities = truth[:, label], shares[:, label]
        off = 2.0**-6 * np.where(has, -1, 1)  # the worst for F1
        rounded = 1 / (1 + np.exp(-logits_of(probabilities) - off))
        middles = np.convolve(np.unique(np.append(probabilities, 0)), [0.5, 0.5], "valid")
        every = [metrics.f1_score(has, rounded >= cut) for cut in middles]
        assert metrics.f1_score(has, rounded >= limit) == pytest.approx(max(every))
        assert limit not in probabilities


@for_each(
    "shares limit",
    ([0.8, 0.6, 0.5999, 0.2], 0.39995),  # 0.59995 has a better F1, until rounding
    ([0.8, 0.5000, 0.4999, 0.4998], 0.65),  # 0.49995 has a better F1, until rounding
    ([0.4998, 0.5001, 0.4999, 0.5], 0.2499),  # nothing is apart: all get it
    ([0.9, 0.6, 0.8, 0.7], 0.3),  # F1 is 2/3 at 0.85, too, which is farther from 0.5
    ([0.6, 0.1, 0.5, 0.2], 0.55),  # and at 0.05 here
)
def test_thresholds_keep_a_distance_from_probabilities(shares, limit):
    truth = np.array([[True], [True], [False], [False]])
    assert best_thresholds(truth, np.array([shares]).T) == pytest.approx([limit])


def test_retrieval_counts_equal_texts_once():
    questions = np.eye(3)
    answers = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [1.0, 0, 0]])
    found = retrieval_scores(questions, answers, ["a", "b", "c"], ["x", "y", "x"])
    # Candidates are x and y. b finds y; c is as far from both.
    assert found["mrr"] == pytest.approx((1 + 1 + 1 / 1.5) / 3)
    assert found["recall_at_1"] == pytest.approx(2 / 3)
    several = retrieval_scores(questions[:1].repeat(2, 0), np.eye(3)[1:], ["a"] * 2, ["x", "y"])
    assert several["recall_at_10"] == 1

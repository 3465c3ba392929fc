"""Scores against cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.tasks.scoring.metrics import (
    accuracy,
    f1,
    macro_f1,
    matthews_correlation,
    pearson,
    spearman,
)


def test_two_classes_by_hand():
    truth = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    predicted = np.array([1, 1, 0, 0, 0, 1, 0, 1])
    assert accuracy(truth, predicted) == 6 / 8
    assert f1(truth, predicted) == pytest.approx(2 * 3 / (4 + 4))
    assert f1(1 - truth, 1 - predicted) == pytest.approx(2 * 3 / (4 + 4))
    assert matthews_correlation(truth, predicted) == pytest.approx((3 * 3 - 1 * 1) / 16)


def test_f1_is_of_class_1_and_0_where_that_never_occurs():
    assert f1(np.array([1, 0, 0, 0]), np.array([1, 1, 0, 0])) == pytest.approx(2 / 3)
    assert f1(np.zeros(4), np.zeros(4)) == 0


def test_macro_f1_counts_every_class_that_occurs_once():
    assert macro_f1(np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1])) == pytest.approx(
        (1 + 2 / 3 + 0) / 3
    )


def test_macro_f1_leaves_out_a_class_that_never_occurs():
    """A class neither met nor predicted counted as 0."""
    assert macro_f1(np.array([0, 0, 2]), np.array([0, 0, 2])) == 1


def test_one_class_predicted_has_no_correlation():
    assert matthews_correlation(np.array([0, 1]), np.array([0, 0])) == 0


def test_correlations_by_hand():
    truth, predicted = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 10])
    # Deviations -1.5 -.5 .5 1.5 and -3 -1 -2 6; ranks differ by 0 1 1 0.
    assert pearson(truth, predicted) == pytest.approx(13 / np.sqrt(5 * 50))
    assert spearman(truth, predicted) == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_correlations_with_a_constant_are_undefined():
    for constant in (np.array([2.0, 2, 2]), np.array([1.0])):
        other = np.arange(len(constant), dtype=float)
        for score in (pearson, spearman):
            assert score(other, constant) is None
            assert score(constant, other) is None


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2))
def test_matthews_is_pearsons_for_two_classes(pairs):
    truth, predicted = np.array(pairs).T
    if truth.std() and predicted.std():
        expected = np.corrcoef(truth, predicted)[0, 1]
        assert matthews_correlation(truth, predicted) == pytest.approx(expected, abs=1e-9)
    assert accuracy(truth, predicted) == pytest.approx(np.mean(truth == predicted))

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.tasks.metrics import classification_scores, confusion_matrix, matthews_correlation


def test_two_classes_by_hand():
    truth = np.array([1, 1, 1, 0, 0, 0, 0, 1])
    predicted = np.array([1, 1, 0, 0, 0, 1, 0, 1])
    scores = classification_scores(truth, predicted, 2)
    assert scores["accuracy"] == 6 / 8
    assert scores["f1"] == pytest.approx(2 * 3 / (4 + 4))
    assert scores["matthews_correlation"] == pytest.approx((3 * 3 - 1 * 1) / 16)


def test_macro_f1_counts_every_class_once():
    scores = classification_scores(np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1]), 3)
    assert scores["macro_f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)


def test_one_class_predicted_has_no_correlation():
    assert matthews_correlation(confusion_matrix(np.array([0, 1]), np.array([0, 0]), 2)) == 0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2))
def test_matthews_is_pearsons_for_two_classes(pairs):
    truth, predicted = np.array(pairs).T
    scores = classification_scores(truth, predicted, 2)
    if truth.std() and predicted.std():
        expected = np.corrcoef(truth, predicted)[0, 1]
        assert scores["matthews_correlation"] == pytest.approx(expected, abs=1e-9)
    assert scores["accuracy"] == pytest.approx(np.mean(truth == predicted))

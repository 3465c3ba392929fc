import numpy as np
import pytest
from cases import for_each, refused

from bert_tf.models.class_weights import class_weights


@for_each("targets", np.array([0.5, 1]), np.array([[0, 1], [2, -1]]))
def test_class_weights_need_one_class_for_each_example(targets):
    refused("--class_weights is for", class_weights, targets)


def test_weights_give_classes_and_both_decisions_of_a_label_the_same_total():
    weights = class_weights(np.array([0, 0, 0, 1], np.int32))
    assert weights.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 2])
    targets = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 0]], np.float32)
    weights = class_weights(targets)
    assert weights[:, 0].tolist() == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    assert weights[:, 1].tolist() == [1, 1, 1, 1]  # no example has it: nothing to balance
    assert weights[targets == 1].sum() == pytest.approx(2 + 3 * 2 / 3)

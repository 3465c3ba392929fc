import numpy as np
import pytest
from cases import for_each, refused

from bert_tf.tasks.balance import baseline, class_weights, label_counts, listed_counts

IDS = np.array([0, 1, 1, 1], np.int32)
WORDS = np.array([[0, 0, 1], [1, -1, -1]], np.int32)
MARKS = np.array([[1, 1], [0, 1]], np.float32)


@for_each("ids counts", (IDS, [1, 3, 0]), (WORDS, [2, 2, 0]), (MARKS, [1, 2]))
def test_labels_are_counted(ids, counts):
    assert label_counts(ids, ["a", "b", "c"]) == counts
    assert label_counts(ids, []) == []


def test_counts_and_the_baseline():
    assert listed_counts(["no", "yes"], [1, 1200]) == "no 1, yes 1,200"
    labels = [*"abcdefgh"]
    listed = "b 9, d 8, a 7, c 6, 3 more, rarest g 1"
    assert listed_counts(labels, [7, 9, 6, 8, 5, 4, 1, 3]) == listed
    (line,) = baseline(["no", "yes"], IDS, np.array([0, 0, 0, 1], np.int32), "texts")
    assert line == "always answering 'yes' has an accuracy of 25.0% on the texts"
    (line,) = baseline(["O", "B-LOC"], WORDS, WORDS, "words")
    assert "'O' has an accuracy of 50.0%" in line  # without the padding
    assert baseline(["a", "b"], MARKS, MARKS, "texts") == []
    assert baseline([], np.array([0.5], np.float32), np.array([0.5], np.float32), "texts") == []


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

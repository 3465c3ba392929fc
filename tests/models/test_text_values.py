import numpy as np
import pytest
from cases import for_each

from bert_tf.errors import InputError
from bert_tf.tasks.task_table import find_task
from bert_tf.text.inputs import named_labels

TASK = find_task("classification")


@for_each(
    "labels values names",
    (["1.0", "2.0", "3.0"], [1, 3, np.float64(2)], ["1.0", "3.0", "2.0"]),
    (["True", "False"], [True, np.bool_(False), 1], ["True", "False", "True"]),
    (["false", "true"], [True, False], ["true", "false"]),
    (["+1", "-1"], [1, -1], ["+1", "-1"]),
    (["0", "1"], [True, 0.0], ["1", "0"]),
    (["1.0", "1"], [1, 1.0], ["1", "1.0"]),
    (["1", "other"], [1, "other"], ["1", "other"]),
)
@for_each("by_place", True, False)
def test_a_number_is_the_label_of_this_value(labels, values, names, by_place):
    assert named_labels(values, TASK, labels, by_place=by_place) == names


def test_other_numbers_are_places_where_they_may_be():
    assert named_labels([1, 0], TASK, ["a", "b"], by_place=True) == ["b", "a"]
    with pytest.raises(InputError, match="which other data number otherwise: give their names"):
        named_labels([1, 0], TASK, ["a", "b"], by_place=False)


MISSING = [(["1.0", "2.0"], 0), (["1", "other"], 0), (["0", "1", "2"], 1.5)]


@for_each("labels value", *MISSING, (["true", "false"], 2))
def test_a_number_without_a_label_of_its_value_is_refused(labels, value):
    with pytest.raises(InputError, match=f"label 0 is {value}, the value of none of the model's"):
        named_labels([value], TASK, labels, by_place=True)

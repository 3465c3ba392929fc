import numpy as np
import tensorflow as tf
from cases import for_each, refused

from bert_tf.pipelines.examples.memory import as_list, columns_in


@for_each(
    "values expected",
    (np.array(["a", "b"]), ["a", "b"]),
    ([np.str_("a"), b"\xc3\xa9"], ["a", "é"]),
    (tf.constant(["a", "b"]), ["a", "b"]),
    ([np.float32(3.8), np.int64(2), np.bool_(True)], [3.8, 2, True]),
    ([np.array([[3.8]], np.float32), {"x": np.float16([0.1])}], [[[3.8]], {"x": [0.1]}]),
    (np.array([3.8, np.inf], np.float32), [3.8, np.inf]),
    ([("a", b"b"), {"c", "b"}, np.array([1, 2])], [["a", "b"], ["b", "c"], [1, 2]]),
    ([{"text": np.array(["sea"]), 1: None}], [{"text": ["sea"], "1": None}]),
)
def test_values_of_a_column(values, expected):
    found = as_list("text", values)
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@for_each(
    "values message",
    ("a text", "text is a single string: give a list of them"),
    (7, "text is 7: give a list"),
    (["a", "caf\xe9".encode("latin-1")], "text 1 is not valid UTF-8 .*: decode it"),
)
def test_what_is_no_column_is_refused(values, message):
    refused(message, as_list, "text", values)


def test_columns_of_records_and_of_nothing_with_names():
    records = [{"a": 1}, {"a": 2, "b": "x"}]
    assert columns_in(records) == {"a": [1, 2], "b": [None, "x"]}
    assert columns_in(["a", "b"]) is None and columns_in([]) is None

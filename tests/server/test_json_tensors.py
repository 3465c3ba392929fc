"""The cases of tensorflow_serving/util/json_tensor_test.cc, and what it leaves out."""

import json
import math
import time
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.server import json_tensors
from bert_tf.server.errors import ServingError

ESCAPED = '😀 \\ud800 \0"/'
TEXT = {"text": tf.string}
PAIR = {"text": tf.string, "text_pair": tf.string}


def tensors(body: str | bytes, inputs) -> dict[str, np.ndarray]:
    document = json_tensors.parse(body if isinstance(body, bytes) else body.encode())
    return json_tensors.tensors(document, inputs)


def refusal(body: str | bytes, inputs) -> str:
    with pytest.raises(ServingError) as raised:
        tensors(body, inputs)
    assert raised.value.code.name == "INVALID_ARGUMENT"
    return raised.value.message


@for_each(
    "body dtype expected",
    ('{"instances": [[1,2],[3,4],[5,6]]}', tf.int32, [[1, 2], [3, 4], [5, 6]]),
    ('{"instances": [1, 2.0, 5.25]}', tf.float32, [1.0, 2.0, 5.25]),
    ('{"instances": [{"b64": "aGVsbG8="}, "w"]}', tf.string, [b"hello", b"w"]),
    ('{"instances": [{"x": [[{"b64": "aGk"}]]}]}', tf.string, [[[b"hi"]]]),
    ('{"instances": [true, false]}', tf.bool, [True, False]),
    (f'{{"instances": [{2**63 - 1}, {-(2**63)}]}}', tf.int64, [2**63 - 1, -(2**63)]),
    ('{"inputs": {"x": [[[1,2],[3,4]]]}}', tf.int32, [[[1, 2], [3, 4]]]),
    ('{"inputs": [[[1,2],[3,4]]]}', tf.int32, [[[1, 2], [3, 4]]]),
    ('{"inputs": {"b64": "aGVsbG8="}}', tf.string, b"hello"),
    ('{"inputs": []}', tf.string, []),
    ('{"inputs": ["\\ud83d\\ude00 \\\\ud800 \\u0000\\"\\/"]}', tf.string, [ESCAPED.encode()]),
)
def test_row_and_column_format(body, dtype, expected):
    (array,) = tensors(body, {"x": dtype}).values()
    assert array.dtype == dtype.as_numpy_dtype
    assert array.tolist() == expected


def test_several_inputs():
    for body, expected in (
        ('{"instances": [{"text": "a", "text_pair": "é"}]}', [[b"a"], ["é".encode()]]),
        ('{"inputs": {"text_pair": ["c"], "text": ["a", "b"], "x": 1}}', [[b"a", b"b"], [b"c"]]),
    ):
        arrays = tensors(body, PAIR)
        assert [arrays[name].tolist() for name in PAIR] == expected


def test_what_is_not_json():
    bodies = ["", '{"a": 1 "b": 2}', '{"a": "\\x"}', b'{"a": "\xff"}', '{"a": "\\\\\\ud800"}']
    bodies += ['{"\\udc00": 1}', '{"é": 1e999}', f'{{"a": {"9" * 5000}}}', "[" * 100_000]
    deep = '{"a":' * 50_000 + "1" + "}" * 50_000
    for body in (*bodies, f'{{"a":{"[" * 99_999}{"]" * 99_999}}}', deep):
        assert refusal(body, TEXT).startswith("JSON Parse error: "), body[:20]


def test_refusing_a_large_body_takes_linear_time_and_little_memory():
    start = time.monotonic()
    rows = [*["a"] * 10**5, 1]
    assert refusal(json.dumps({"instances": rows}), TEXT).startswith("Input text, row 100000: ")
    assert time.monotonic() - start < 10  # quadratic time is minutes
    text = "a" * 10**6
    tracemalloc.start()
    try:
        assert "(char 1000009)" in refusal(f'{{"a": "{text}" "b": 1}}', TEXT)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(text)
    finally:
        tracemalloc.stop()


@for_each(
    "body inputs message",
    ("[]", TEXT, "The body is []: send an object"),
    ("{}", TEXT, "Missing key: give 'inputs' or 'instances'"),
    ('{"instances": [1], "inputs": [1]}', TEXT, "Two keys: give 'inputs' or 'instances'"),
    ('{"instances": 1}', TEXT, "'instances' must be a list of one row or more"),
    ('{"inputs": 1}', PAIR, "'inputs' is missing text, text_pair: give each input"),
    (
        '{"instances": [{"text": "a", "text_pair": "b"}, {"text": "a"}]}',
        PAIR,
        'Row 1 is {"text": "a"}: give an object with the keys text, text_pair',
    ),
    ('{"instances": [{"text": "a", "x": 1}]}', TEXT, "give an object with the keys text"),
    ('{"instances": ["a"]}', PAIR, 'Row 0 is "a": give an object with the keys'),
    ('{"instances": [{"text": "a"}, "b"]}', TEXT, 'Row 1 is "b": give an object'),
    ('{"instances": ["a", {"text": "b"}]}', TEXT, "row 1: {"),
    ('{"instances": ["a", 1]}', TEXT, "Input text, row 1: 1 is not of the type string"),
    ('{"inputs": 1}', TEXT, "Input text: 1 is not of the type string"),
    ('{"inputs": [1, true]}', {"x": tf.int32}, "row 1: true is not of the type int32"),
    ('{"inputs": [1.0]}', {"x": tf.int32}, "1.0 is not of the type int32"),
    (f'{{"inputs": [{2**31}]}}', {"x": tf.int32}, "is not of the type int32"),
    (f'{{"inputs": [{2**63}]}}', {"x": tf.int64}, "is not of the type int64"),
    ('{"inputs": [-1]}', {"x": tf.uint8}, "is not of the type uint8"),
    ('{"inputs": [0]}', {"x": tf.bool}, "0 is not of the type bool"),
    ('{"inputs": [true]}', {"x": tf.float32}, "true is not of the type float32"),
    ('{"inputs": [{"b64": "a"}]}', TEXT, "is not of the type string"),
    ('{"inputs": [{"b64": "äöü="}]}', TEXT, "is not of the type string"),
    ('{"inputs": [1.7e308]}', {"x": tf.float32}, "1.7e+308 is not of the type float32"),
    ('{"inputs": [[1,2],[3]]}', {"x": tf.int32}, "row 1: [3] is not a list of 2 values"),
    ('{"inputs": [1,[2]]}', {"x": tf.int32}, "row 1: [2] is not of the type int32"),
    ('{"inputs": [[[1],[1]],[[1],[]]]}', {"x": tf.int32}, "row 1: [] is not a list of 1"),
    (f'{{"inputs": {"[" * 60}1{"]" * 60}}}', {"x": tf.int32}, "is not of the type int32"),
)
def test_bodies_that_do_not_fit(body, inputs, message):
    assert message in refusal(body, inputs)


def test_signature_names_and_messages():
    assert json_tensors.signature_name({}) == "serving_default"
    assert json_tensors.signature_name({"signature_name": "embed"}) == "embed"
    with pytest.raises(ServingError, match="'signature_name' is 5: give a string"):
        json_tensors.signature_name({"signature_name": 5})
    with pytest.raises(ServingError, match="complex64 have no JSON form") as raised:
        tensors('{"inputs": [1]}', {"x": tf.complex64})
    assert raised.value.code.name == "UNIMPLEMENTED"
    assert len(refusal(json.dumps({"inputs": ["é" * 10_000]}), {"x": tf.int32})) < 400
    nested = '[{"a":' * 20 + "1" + "}]" * 20
    assert len(refusal(f'{{"inputs": {nested}}}', {"x": tf.int32})) < 400


def test_numbers_have_the_fewest_digits_and_floats_a_point():
    numbers = [9e6, 0.5, 3, -0.0, 0.1, 1 / 3, 3.4028235e38, 1e-45, 123456789]
    digits = "9000000.0,0.5,3.0,-0.0,0.1,0.33333334,3.4028235e+38,1e-45,123456790.0"
    for array, text in [
        (np.array(numbers, np.float32), digits),
        (
            np.array([*numbers, math.nan, math.inf, -math.inf], np.float32),
            f"{digits},NaN,Infinity,-Infinity",
        ),
        (np.array([1 / 3, 0.2]), "0.3333333333333333,0.2"),
        (np.array([0.1, math.inf], np.float16), "0.099975586,Infinity"),
        (np.array([2**63 - 1]), str(2**63 - 1)),
    ]:
        assert json_tensors.outputs({"x": array}).decode() == f'{{"outputs": [{text}]}}'
    assert json_tensors.outputs({"x": np.array(math.nan)}) == b'{"outputs": NaN}'


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(max_examples=50)
def test_floats_come_back_as_they_went(numbers):
    array = np.array(numbers, np.float32)
    body = json_tensors.outputs({"x": array})
    again = tensors(body.replace(b'"outputs"', b'"inputs"'), {"x": tf.float32})
    np.testing.assert_array_equal(again["x"], array)


def test_answers_in_row_format():
    table = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert json.loads(json_tensors.predictions({"x": table})) == {"predictions": table.tolist()}
    text = json_tensors.predictions(
        {
            "label": np.array([b"\xc3", 'é"\n\x01'.encode()], object),  # cut within a character
            "raw_bytes": np.array([[b"tf"], [b"\xff"]], object),
            "count": np.array([1, 2**62]),
            "score": np.array([1, 0.25], np.float32),
            "is": np.array([True, False]),
            "none": np.zeros((2, 0, 3), np.float32),
        }
    ).decode()
    assert '"score":1.0,' in text
    names = ("label", "raw_bytes", "count", "score", "is", "none")
    rows = [["\ufffd", [{"b64": "dGY="}], 1, 1.0, True, []]]
    rows.append(['é"\n\x01', [{"b64": "/w=="}], 2**62, 0.25, False, []])
    expected = [dict(zip(names, row, strict=True)) for row in rows]
    assert json.loads(text) == {"predictions": expected}
    empty = {"x": np.zeros((0, 3)), "y": np.zeros(0, object)}
    assert json.loads(json_tensors.predictions(empty)) == {"predictions": []}


def test_answers_in_column_format():
    assert json.loads(json_tensors.outputs({"x": np.array(3.0)})) == {"outputs": 3.0}
    text = json_tensors.outputs({"x": np.array([[1], [2]]), "y": np.array([b"a"], object)})
    assert json.loads(text) == {"outputs": {"x": [[1], [2]], "y": ["a"]}}
    empty = {"x": np.zeros((0, 3)), "y": np.zeros(0, object)}
    assert json.loads(json_tensors.outputs(empty)) == {"outputs": {"x": [], "y": []}}


@for_each("shape", (2, 5, 70, 70), (9000, 3), (20_000,), (40, 2, 10_000))
def test_large_answers_are_written_in_blocks(shape):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    tracemalloc.start()
    body = json_tensors.outputs({"x": array})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert json.loads(body) == {"outputs": array.tolist()}
    assert array.ndim == 1 or peak < 6 * len(body) + 2**21
    names = array.astype(str).astype("S").astype(object)
    rows = json.loads(json_tensors.predictions({"x": array, "name": names}))["predictions"]
    assert [row["x"] for row in rows] == array.tolist()
    assert json.dumps([row["name"] for row in rows]).replace('"', "") == json.dumps(array.tolist())


@for_each("write", json_tensors.predictions, json_tensors.outputs)
def test_a_large_answer_is_given_up_at_its_deadline(write):
    large = {"x": np.zeros((4, 2, 10**6), bool)}  # a second of writing
    with pytest.raises(ServingError, match="Deadline exceeded"):
        write(large, time.monotonic() + 0.01)


@for_each(
    "outputs message",
    ({"x": np.array(1)}, "no rows in common (x []): send 'inputs'"),
    ({"x": np.zeros((2, 3)), "y": np.zeros((1, 3))}, "(x [2, 3], y [1, 3]): send 'inputs'"),
    ({"x": np.zeros(1, np.complex64)}, "Output x of type complex64 has no JSON form"),
)
def test_outputs_that_rows_cannot_hold(outputs, message):
    with pytest.raises(ServingError) as raised:
        json_tensors.predictions(outputs)
    assert message in raised.value.message

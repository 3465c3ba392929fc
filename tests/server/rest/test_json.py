"""The cases of tensorflow_serving/util/json_tensor_test.cc, and what it leaves out."""

import json
import math
import re
import time
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.server import json_answers, json_requests
from bert_tf.server.errors import ServingError

TEXT = {"text": tf.string}
PAIR = {"text": tf.string, "text_pair": tf.string}


def tensors(body: str | bytes, inputs) -> dict[str, np.ndarray]:
    document = json_requests.parse(body if isinstance(body, bytes) else body.encode())
    return json_requests.tensors(document, inputs)


def refusal(body: str | bytes, inputs) -> str:
    with pytest.raises(ServingError) as raised:
        tensors(body, inputs)
    assert raised.value.code.name == "INVALID_ARGUMENT"
    return raised.value.message


def values(body: str, dtype: tf.DType) -> list:
    (array,) = tensors(body, {"x": dtype}).values()
    assert array.dtype == dtype.as_numpy_dtype
    return array.tolist()


def test_row_format():
    assert values('{"instances": [[1,2],[3,4],[5,6]]}', tf.int32) == [[1, 2], [3, 4], [5, 6]]
    assert values('{"instances": [1, 2.0, 5.25]}', tf.float32) == [1.0, 2.0, 5.25]
    assert values('{"instances": [{"b64": "aGVsbG8="}, "w"]}', tf.string) == [b"hello", b"w"]
    assert values('{"instances": [[{"b64": "aGVsbG8="}]]}', tf.string) == [[b"hello"]]
    assert values('{"instances": [{"x": [[{"b64": "aGk"}]]}]}', tf.string) == [[[b"hi"]]]
    assert values('{"instances": [true, false]}', tf.bool) == [True, False]
    assert values(f'{{"instances": [{2**63 - 1}, {-(2**63)}]}}', tf.int64) == [
        2**63 - 1,
        -(2**63),
    ]
    found = tensors('{"instances": [{"text": "a", "text_pair": "é"}]}', PAIR)
    assert {name: value.tolist() for name, value in found.items()} == {
        "text": [b"a"],
        "text_pair": ["é".encode()],
    }


def test_column_format():
    assert values('{"inputs": {"x": [[[1,2],[3,4]]]}}', tf.int32) == [[[1, 2], [3, 4]]]
    assert values('{"inputs": [[[1,2],[3,4]]]}', tf.int32) == [[[1, 2], [3, 4]]]
    assert values('{"inputs": {"b64": "aGVsbG8="}}', tf.string) == b"hello"
    assert values('{"inputs": []}', tf.string) == []
    found = tensors('{"inputs": {"text": ["a", "b"], "text_pair": ["c"], "more": 1}}', PAIR)
    assert {name: value.tolist() for name, value in found.items()} == {
        "text": [b"a", b"b"],
        "text_pair": [b"c"],
    }


def test_numbers_without_a_json_form_are_bare_tokens():
    found = values('{"instances": [NaN, Infinity, -Infinity, 1e3]}', tf.float32)
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, 1000.0]


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        ("{", 1),
        ('{"a" 1}', 5),
        ('{"a": 1 "b": 2}', 8),
        ('{"é": [1 2]}', 10),
        ('{"a": 01}', 7),
        ('{"é": tru}', 7),
        ('{"a": "b', 6),
        ('{"a": "\\x"}', 7),
        ('{"a": "\n"}', 7),
        (b'{"a": "\xff"}', 7),
        ('{"a": "\\\\\\ud800"}', 9),
        ('{"\\udc00": 1, "\\udc00": 1}', 2),
        ("{} {}", 3),
        ('{"é": 1e999}', 7),
        (f'{{"a": {"9" * 5000}}}', 6),
        ("[" * 100_000, 0),
        (f'{{"a":{"[" * 99_999}{"]" * 99_999}}}', 0),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, 0),
    ],
)
def test_what_is_not_json(body, offset):
    assert re.fullmatch(f"JSON Parse error: .+ at offset: {offset}", refusal(body, TEXT))


@pytest.mark.parametrize("body", [" \n", '{"a": [1, ]}', '{"a": 1, \n}', '{"a": "\\u12g4"}'])
def test_what_is_not_json_at_an_offset_that_depends_on_python(body):
    assert re.fullmatch(r"JSON Parse error: .+ at offset: \d+", refusal(body, TEXT))


def test_an_empty_body():
    assert refusal("", TEXT) == "JSON Parse error: The document is empty"


def test_refusing_a_large_body_takes_linear_time():
    keys = ",".join(f'"{number}": 0' for number in range(40_000))
    start = time.monotonic()
    assert refusal(f'{{{keys}, "39999": 1}}', TEXT).endswith("duplicate key: 39999")
    assert time.monotonic() - start < 5  # quadratic time is half a minute


@pytest.mark.parametrize("bad", [0, 1, 2, 3, 499, 998, 999])
def test_the_first_row_that_does_not_fit_is_named(bad):
    rows = [{"text": "a", "text_pair": "b"} for _ in range(1000)]
    for number in {bad, min(bad + 5, 999), 999}:
        rows[number] = {"text": "a"}
    reason = refusal(json.dumps({"instances": rows}), PAIR)
    assert reason.startswith(f"Failed to process element: {bad} of 'instances' list.")
    rows[bad] = {"text": 1, "text_pair": "b"}
    reason = refusal(json.dumps({"instances": rows}), PAIR)
    assert reason.startswith(f"Failed to process element: {bad} key: text of 'instances' list.")


def test_finding_the_row_that_does_not_fit_converts_each_value_about_twice(monkeypatch):
    converted, rows = [], 10_000
    converter = json_requests._converter
    monkeypatch.setattr(
        json_requests,
        "_converter",
        lambda dtype: lambda value: converted.append(value) or converter(dtype)(value),
    )
    made, tensor = [], json_requests._tensor
    monkeypatch.setattr(
        json_requests, "_tensor", lambda *arguments: made.append(1) or tensor(*arguments)
    )
    reason = refusal(json.dumps({"instances": ["a"] * rows + [1]}), TEXT)
    assert reason.startswith(f"Failed to process element: {rows} of 'instances' list.")
    assert len(converted) < 2.1 * rows
    assert len(made) < 40


def test_refusing_a_large_body_takes_little_memory():
    text = "a" * 10**6
    tracemalloc.start()
    try:
        assert "at offset: 1000009" in refusal(f'{{"a": "{text}" "b": 1}}', TEXT)
        assert tracemalloc.get_traced_memory()[1] < 16 * len(text)
    finally:
        tracemalloc.stop()


def test_escapes_that_are_json():
    text = '{"instances": ["\\ud83d\\ude00 \\\\ud800 \\u0000\\"\\/"]}'
    assert values(text, tf.string) == ['😀 \\ud800 \0"/'.encode()]


@pytest.mark.parametrize(
    ("body", "inputs", "message"),
    [
        ("[]", TEXT, "JSON Value: [] Is not object"),
        ("{}", TEXT, "Missing 'inputs' or 'instances' key"),
        (
            '{"instances": [1], "inputs": [1]}',
            TEXT,
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ",
        ),
        ('{"instances": 1}', TEXT, "Excepting 'instances' to be an list/array"),
        ('{"instances": []}', TEXT, "No values in 'instances' array"),
        ('{"inputs": 1, "inputs": 2}', TEXT, "Not formatted correctly, duplicate key: inputs"),
        ('{"inputs": ["a"]}', PAIR, "inputs is a plain value/list, but expecting an object as"),
        ('{"inputs": {"text_pair": ["a"]}}', PAIR, "Missing named input: text in 'inputs' object."),
        ('{"instances": ["a"]}', PAIR, "instances is a plain list, but expecting list of objects"),
        (
            '{"instances": [{"text": "a", "text_pair": "b"}, {"text": "a"}]}',
            PAIR,
            "Failed to process element: 1 of 'instances' list. JSON object: "
            '{\n    "text": "a"\n} keys must be equal to: text,text_pair',
        ),
        (
            '{"instances": [{"text": "a", "more": "b"}]}',
            TEXT,
            "Failed to process element: 0 key: more of 'instances' list. Error: INVALID_ARGUMENT: "
            "JSON object: does not have named input: more",
        ),
        ('{"instances": [{"text": "a"}, "b"]}', TEXT, "Expecting object but got list at item 1"),
        ('{"instances": ["a", {"x": 1}]}', TEXT, "Expecting value/list but got object at item 1"),
        (
            '{"instances": ["a", 1]}',
            TEXT,
            "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
            "JSON Value: 1 Type: Number is not of expected type: string",
        ),
        ('{"inputs": [1]}', TEXT, "JSON Value: 1 Type: Number is not of expected type: string"),
        ('{"inputs": [null]}', TEXT, "JSON Value: null Type: Null is not of expected type: string"),
        ('{"inputs": [true]}', {"x": tf.int32}, "Type: True is not of expected type: int32"),
        ('{"inputs": [1.0]}', {"x": tf.int32}, "JSON Value: 1.0 Type: Number is not of expected"),
        ('{"inputs": ["1"]}', {"x": tf.int64}, 'JSON Value: "1" Type: String is not of expected'),
        (f'{{"inputs": [{2**31}]}}', {"x": tf.int32}, "is not of expected type: int32"),
        (f'{{"inputs": [{2**63}]}}', {"x": tf.int64}, "is not of expected type: int64"),
        ('{"inputs": [-1]}', {"x": tf.uint8}, "is not of expected type: uint8"),
        ('{"inputs": [0]}', {"x": tf.bool}, "JSON Value: 0 Type: Number is not of expected type"),
        ('{"inputs": [{"a": 1}]}', {"x": tf.float32}, "Type: Object is not of expected type"),
        ('{"inputs": [{"a": 1}]}', TEXT, "not formatted correctly for base64 data"),
        ('{"inputs": [{"b64": "a"}]}', TEXT, "Unable to base64 decode"),
        ('{"inputs": [{"b64": "äöü="}]}', TEXT, "Unable to base64 decode"),
        ('{"inputs": [16777217]}', {"x": tf.float32}, "16777217 to float without loss of"),
        ('{"inputs": [1.7e308]}', {"x": tf.float32}, "1.7e+308 to float without loss"),
        (f'{{"inputs": [{2**53 + 1}]}}', {"x": tf.float64}, "to double without loss of precision."),
        (
            '{"inputs": [[1,2],[3]]}',
            {"x": tf.int32},
            "Encountered list at unexpected size: 1 at level: 1 expected size: 2",
        ),
        (
            '{"inputs": [[1,2],3]}',
            {"x": tf.int32},
            "JSON Value: 3 found at incorrect level: 2 in the JSON DOM. Expected at level: 2",
        ),
        (
            '{"inputs": [1,[2]]}',
            {"x": tf.int32},
            "Encountered list at unexpected level: 1 expected < 1",
        ),
        ('{"instances": [[1,2],[3]]}', {"x": tf.int32}, "Expecting tensor size: 2 but got: 1"),
        ('{"instances": [[1,2],[[3,4]]]}', {"x": tf.int32}, "Expecting shape [2] but got: [1,2]"),
        (
            f'{{"inputs": {"[" * 60}1{"]" * 60}}}',
            {"x": tf.int32},
            "Encountered list at unexpected level: 32 expected < 32",
        ),
    ],
)
def test_bodies_that_do_not_fit(body, inputs, message):
    assert message in refusal(body, inputs)


def test_a_signature_name_is_a_string():
    assert json_requests.signature_name({}) == ""
    assert json_requests.signature_name({"signature_name": "embed"}) == "embed"
    with pytest.raises(ServingError, match="'signature_name' key must be a string value"):
        json_requests.signature_name({"signature_name": 5})


def test_a_type_that_json_has_no_form_for_is_unimplemented():
    with pytest.raises(ServingError) as raised:
        tensors('{"inputs": [1]}', {"x": tf.complex64})
    assert raised.value.code.name == "UNIMPLEMENTED"
    assert raised.value.message == "Conversion of JSON Value: 1 to type: complex64"


def test_values_in_messages_are_cut_within_256_bytes_between_characters():
    message = refusal(json.dumps({"inputs": ["é" * 10_000]}, ensure_ascii=False), {"x": tf.int32})
    shown = message.removeprefix("JSON Value: ").partition(" Type:")[0]
    assert shown == '"' + "é" * 127
    message = refusal('{"inputs": %s}' % ('[{"a":' * 20 + "1" + "}]" * 20), {"x": tf.int32})
    assert len(message) < 400


def test_numbers_have_the_fewest_digits_and_floats_a_point():
    given = [9e6, 0.5, 3, -0.0, 0.1, 1 / 3, 3.4028235e38, 1e-45, 123456789]
    digits = "9000000.0,0.5,3.0,-0.0,0.1,0.33333334,3.4028235e+38,1e-45,123456790.0"
    for array, text in [
        (np.array(given, np.float32), digits),
        (
            np.array([*given, math.nan, math.inf, -math.inf], np.float32),
            f"{digits},NaN,Infinity,-Infinity",
        ),
        (np.array([1 / 3, 0.2]), "0.3333333333333333,0.2"),
        (np.array([0.1, math.inf], np.float16), "0.099975586,Infinity"),
        (np.array([2**63 - 1]), str(2**63 - 1)),
    ]:
        assert json_answers.outputs({"x": array}).decode() == f'{{"outputs": [{text}]}}'
    assert json_answers.outputs({"x": np.array(math.nan)}) == b'{"outputs": NaN}'


@given(st.lists(st.floats(width=32)))
@settings(max_examples=50, deadline=None)
def test_floats_come_back_as_they_went(numbers):
    array = np.array(numbers, np.float32)
    body = json_answers.outputs({"x": array})
    np.testing.assert_array_equal(np.array(json.loads(body)["outputs"], np.float32), array)
    again = tensors(body.replace(b'"outputs"', b'"inputs"'), {"x": tf.float32})
    np.testing.assert_array_equal(again["x"], array)


def test_answers_in_row_format():
    table = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])
    assert json.loads(json_answers.predictions({"x": table})) == {"predictions": table.tolist()}
    found = json_answers.predictions(
        {
            "label": np.array([b"a", 'é"\n\x01'.encode()], object),
            "raw_bytes": np.array([[b"tf"], [b"\xff"]], object),
            "count": np.array([1, 2**62]),
            "score": np.array([1, 0.25], np.float32),
            "is": np.array([True, False]),
            "none": np.zeros((2, 0, 3), np.float32),
        }
    )
    text = found.decode()
    assert '"label":"é\\"\\n\\u0001",' in text
    assert '"score":1.0,' in text
    assert json.loads(text) == {
        "predictions": [
            {
                "label": "a",
                "raw_bytes": [{"b64": "dGY="}],
                "count": 1,
                "score": 1.0,
                "is": True,
                "none": [],
            },
            {
                "label": 'é"\n\x01',
                "raw_bytes": [{"b64": "/w=="}],
                "count": 2**62,
                "score": 0.25,
                "is": False,
                "none": [],
            },
        ]
    }


@pytest.mark.parametrize("shape", [(2, 5, 70, 70), (9000, 3), (20_000,), (40, 2, 10_000)])
def test_large_answers(shape):
    """They are written in blocks, as each value is a string for a moment."""
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    tracemalloc.start()
    body = json_answers.outputs({"x": array})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert json.loads(body) == {"outputs": array.tolist()}
    assert array.ndim == 1 or peak < 6 * len(body) + 2**21
    assert json.loads(json_answers.predictions({"x": array})) == {"predictions": array.tolist()}
    both = json_answers.predictions(
        {"x": array, "name": array.astype(str).astype("S").astype(object)}
    )
    rows = json.loads(both)["predictions"]
    assert [row["x"] for row in rows] == array.tolist()
    assert json.dumps([row["name"] for row in rows]).replace('"', "") == json.dumps(array.tolist())


@pytest.mark.parametrize("write", [json_answers.predictions, json_answers.outputs])
def test_a_large_answer_is_given_up_at_its_deadline(write):
    large = {"x": np.zeros((4, 2, 10**6), bool)}  # a second of writing
    with pytest.raises(ServingError, match="Deadline exceeded"):
        write(large, time.monotonic() + 0.01)


def test_answers_in_column_format():
    assert json.loads(json_answers.outputs({"x": np.array(3.0)})) == {"outputs": 3.0}
    found = json_answers.outputs({"x": np.array([[1], [2]]), "y": np.array([b"a"], object)})
    assert json.loads(found) == {"outputs": {"x": [[1], [2]], "y": ["a"]}}


def test_answers_without_rows():
    empty = {"x": np.zeros((0, 3)), "y": np.zeros(0, object)}
    assert json.loads(json_answers.predictions(empty)) == {"predictions": []}
    assert json.loads(json_answers.outputs(empty)) == {"outputs": {"x": [], "y": []}}


def test_a_string_cut_within_a_character_does_not_spoil_the_answer():
    found = json_answers.predictions({"x": np.array(["é".encode()[:1], b"b"], object)})
    assert json.loads(found.decode()) == {"predictions": ["\ufffd", "b"]}


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "Cannot convert empty tensor map to JSON"),
        ({"x": np.array(1)}, "Tensor name: x has no shape information "),
        (
            {"x": np.zeros((2, 3)), "y": np.zeros((1, 3))},
            "Tensor name: y has inconsistent batch size: 1 expecting: 2",
        ),
        (
            {"x": np.zeros(1, np.complex64)},
            "Failed to write JSON value for tensor type: complex64",
        ),
    ],
)
def test_outputs_that_rows_cannot_hold(outputs, message):
    with pytest.raises(ServingError) as raised:
        json_answers.predictions(outputs)
    assert raised.value.message == message


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("b64"), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), JSON),
    st.sampled_from([TEXT, PAIR, {"x": tf.int32}, {"x": tf.float32}, {"x": tf.bool}]),
)
@settings(max_examples=60, deadline=None)
def test_any_json_is_tensors_or_a_refusal(document, inputs):
    try:
        found = tensors(json.dumps(document), inputs)
    except ServingError as error:
        assert error.code.name == "INVALID_ARGUMENT"
        error.message.encode()
    else:
        assert found.keys() == inputs.keys()


@given(st.binary(max_size=64))
@settings(max_examples=50, deadline=None)
def test_any_bytes_are_refused_in_words(body):
    try:
        json_requests.parse(body)
    except ServingError as error:
        assert error.code.name == "INVALID_ARGUMENT"
        error.message.encode()

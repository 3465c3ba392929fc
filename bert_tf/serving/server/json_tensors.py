"""Bodies of TensorFlow Serving's REST API: JSON to tensors and back.

Messages, and the order in which a body is checked, are those of tensorflow_serving/util/
json_tensor.cc, which clients match on. Where it takes what nobody means (keys given twice, strings
that are not UTF-8), the body is refused.
"""

import base64
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, NoReturn

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.example.example_pb2 import Example
from tensorflow.core.example.feature_pb2 import Feature
from tensorflow_serving.apis.classification_pb2 import ClassificationResult
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.regression_pb2 import RegressionResult

from bert_tf.serving.server.errors import ServingError, invalid

_SHOWN_BYTES = 256  # of a value in a message
_MOST_DIMENSIONS = 32  # of a tensor; NumPy has 64

# Python's word for a JSON error -> RapidJSON's, which TensorFlow Serving parses with.
_PARSE_ERRORS = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Illegal trailing comma before end of object": "Missing a name for object member.",
    "Illegal trailing comma before end of array": "Invalid value.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Invalid control character at": "Invalid encoding in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Extra data": "The document root must not be followed by other values.",
}
_MISSING_COMMA = {
    "{": "Missing a comma or } after an object member.",
    "[": "Missing a comma or ] after an array element.",
}
_JSON_TYPES = {
    type(None): "Null", str: "String", int: "Number", float: "Number", dict: "Object", list: "Array"
}  # fmt: skip


class _Number(Exception):
    """A number that no double holds; its text."""


def parse(body: bytes) -> dict[str, Any]:
    """Reads the body of a request.

    Raises:
        ServingError: it is not JSON (`JSON Parse error: ... at offset: N`, in bytes), not an
            object, or an object in it has a key twice.
    """
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse("Invalid encoding in string.", error.start)
    try:
        document = json.loads(
            text, parse_int=_integer, parse_float=_decimal, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        before = text[: error.pos]
        if not text.strip(" \t\r\n"):
            reason = "The document is empty."
        elif error.msg == "Expecting ',' delimiter":
            reason = _MISSING_COMMA[_open_brackets(before)[-1][0]]
        else:
            reason = _PARSE_ERRORS.get(error.msg, error.msg)
        _refuse(reason, len(before.encode()))
    except _Number as error:
        offset = len(text[: text.index(str(error))].encode())
        _refuse("Number too big to be stored in double.", offset)
    except RecursionError:
        _, place = _open_brackets(text, most=_MOST_DIMENSIONS)[-1]
        _refuse("Nested too deeply.", len(text[:place].encode()))
    if "\\u" in text:
        _refuse_lone_surrogates(text)
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {shown(document)} Is not object")
    return document


def _refuse(reason: str, offset: int) -> NoReturn:
    raise invalid(f"JSON Parse error: {reason} at offset: {offset}")


def _integer(token: str) -> int | float:
    """Integers beyond 64 bits are doubles, as RapidJSON reads them."""
    if len(token) <= 20 and -(2**63) <= (value := int(token)) < 2**64:
        return value
    return _decimal(token)


def _decimal(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        raise _Number(token)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise invalid(f"JSON Value: {shown(found)} Not formatted correctly, duplicate key: {twice}")
    return found


def _open_brackets(text: str, most: float = math.inf) -> list[tuple[str, int]]:
    """The brackets that are open at the end of `text`, or where they get more than `most`.

    Returns:
        Each bracket and its place, the outermost first.
    """
    found: list[tuple[str, int]] = []
    for token in re.finditer(r'"(?:\\.|[^"\\])*"|[][{}]', text, re.DOTALL):
        if len(found) > most:
            break
        if token[0] in "[{":
            found.append((token[0], token.start()))
        elif token[0] in "]}":
            found.pop()
    return found


def _refuse_lone_surrogates(text: str) -> None:
    """Python's parser takes half a pair of escapes for a character, which no UTF-8 holds."""
    pair = r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w"
    for escape in re.finditer(rf"{pair}|(\\u[dD][89a-fA-F])|\\.", text, re.DOTALL):
        if escape[1]:
            offset = len(text[: escape.start()].encode())
            _refuse("The surrogate pair in string is invalid.", offset)


def shown(value: Any) -> str:
    """A JSON value as a message shows it: its first 256 bytes."""
    if type(value) is float:
        return decimals(np.array([value]))[0]
    encoder = json.JSONEncoder(ensure_ascii=False, indent=4)
    parts: list[str] = []
    for part in encoder.iterencode(value):
        parts.append(part)
        if sum(map(len, parts)) >= _SHOWN_BYTES:
            break
    return "".join(parts).encode()[:_SHOWN_BYTES].decode(errors="ignore")


def _type_error(value: Any, dtype: tf.DType) -> ServingError:
    kind = str(value) if isinstance(value, bool) else _JSON_TYPES[type(value)]
    expected = _name(dtype)
    return invalid(f"JSON Value: {shown(value)} Type: {kind} is not of expected type: {expected}")


def _name(dtype: tf.DType) -> str:
    """A type's name as TensorFlow Serving's messages have it."""
    return {tf.float32: "float", tf.float64: "double", tf.float16: "half"}.get(dtype, dtype.name)


def signature_name(document: Mapping[str, Any]) -> str:
    """The signature that a body asks for; empty for the default one."""
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"JSON Value: {shown(document)} not formatted correctly. 'signature_name' key must be "
            "a string value."
        )
    return name


def is_row_format(document: Mapping[str, Any]) -> bool:
    """Whether a body gives `instances`, not `inputs`.

    Raises:
        ServingError: it gives both or neither, or no rows.
    """
    if "instances" not in document:
        if "inputs" not in document:
            raise invalid("Missing 'inputs' or 'instances' key")
        return False
    for has_failed, reason in (
        (
            "inputs" in document,
            "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ",
        ),
        (
            not isinstance(document["instances"], list),
            "Excepting 'instances' to be an list/array",
        ),
        (document["instances"] == [], "No values in 'instances' array"),
    ):
        if has_failed:
            raise invalid(f"JSON Value: {shown(document)} {reason}")
    return True


def tensors(document: Mapping[str, Any], inputs: Mapping[str, tf.DType]) -> dict[str, np.ndarray]:
    """The tensors that the body of a predict request gives, in row or column format.

    Args:
        document: parsed body.
        inputs: name -> type of the signature's inputs.

    Returns:
        Name -> array; strings are bytes in an array of objects.

    Raises:
        ServingError: the values do not fit the inputs, or each other.
    """
    if is_row_format(document):
        return _from_rows(document["instances"], inputs)
    given = document["inputs"]
    if isinstance(given, dict) and not _is_base64(given):
        for name in sorted(inputs):
            if name not in given:
                raise invalid(f"Missing named input: {name} in 'inputs' object.")
        return {name: _tensor(given[name], dtype) for name, dtype in sorted(inputs.items())}
    if len(inputs) > 1:
        raise invalid(
            "inputs is a plain value/list, but expecting an object as multiple input tensors "
            "required as per tensorinfo_map"
        )
    ((name, dtype),) = inputs.items()
    return {name: _tensor(given, dtype)}


def _from_rows(instances: Sequence[Any], inputs: Mapping[str, tf.DType]) -> dict[str, np.ndarray]:
    names = sorted(inputs)
    if len(names) > 1 and not isinstance(instances[0], dict):
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    are_objects = _is_object(instances[0])
    rows = [_named(row, number, are_objects, names) for number, row in enumerate(instances)]
    if any(row.keys() != inputs.keys() for row in rows):
        _check_rows(rows, inputs, are_objects)
    try:
        return {name: _tensor([row[name] for row in rows], inputs[name]) for name in names}
    except ServingError:
        _check_rows(rows, inputs, are_objects)
        raise


def _named(row: Any, number: int, are_objects: bool, names: Sequence[str]) -> Mapping[str, Any]:
    if _is_object(row) != are_objects:
        expected, got = ("object", "list") if are_objects else ("value/list", "object")
        raise invalid(f"Expecting {expected} but got {got} at item {number} of input list")
    return row if are_objects else {names[0]: row}


def _check_rows(
    rows: Sequence[Mapping[str, Any]], inputs: Mapping[str, tf.DType], are_objects: bool
) -> None:
    """Refuses, by its number, the first row that has no tensors like those of the row before it."""
    before: dict[str, np.ndarray] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            try:
                if name not in inputs:
                    raise invalid(f"JSON object: does not have named input: {name}")
                tensor = _tensor(value, inputs[name])
                _check_same_shape(before.setdefault(name, tensor), tensor)
            except ServingError as error:
                where = f"{number} key: {name}" if are_objects else str(number)
                raise invalid(
                    f"Failed to process element: {where} of 'instances' list. "
                    f"Error: {error.code.name}: {error.message}"
                ) from None
        if row.keys() != inputs.keys():
            raise invalid(
                f"Failed to process element: {number} of 'instances' list. JSON object: "
                f"{shown(row)} keys must be equal to: {','.join(sorted(inputs))}"
            )


def _check_same_shape(first: np.ndarray, tensor: np.ndarray) -> None:
    if first.size != tensor.size:
        raise invalid(f"Expecting tensor size: {first.size} but got: {tensor.size}")
    if first.shape != tensor.shape:
        wanted, found = (",".join(map(str, each.shape)) for each in (first, tensor))
        raise invalid(f"Expecting shape [{wanted}] but got: [{found}]")


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _tensor(value: Any, dtype: tf.DType) -> np.ndarray:
    """A value, or a list of lists of values, as an array; its shape is that of first elements."""
    shape: list[int] = []
    first = value
    while isinstance(first, list) and len(shape) < _MOST_DIMENSIONS:
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    values = [value]
    for level, size in enumerate(shape):
        for each in values:
            if not isinstance(each, list):
                raise invalid(
                    f"JSON Value: {shown(each)} found at incorrect level: {level + 1} in the JSON "
                    f"DOM. Expected at level: {len(shape)}"
                )
            if len(each) != size:
                raise invalid(
                    f"Encountered list at unexpected size: {len(each)} at level: {level} "
                    f"expected size: {size}"
                )
        values = list(itertools.chain.from_iterable(values))
    if any(isinstance(each, list) for each in values):
        rank = len(shape)
        raise invalid(f"Encountered list at unexpected level: {rank} expected < {rank}")
    convert = _converter(dtype)
    array = np.empty(len(values), dtype.as_numpy_dtype)
    array[:] = [convert(each) for each in values]
    return array.reshape(shape)


def _converter(dtype: tf.DType) -> Callable[[Any], Any]:
    """Makes the function that turns a JSON value into one of this type."""
    if dtype == tf.string:
        return _bytes
    if dtype == tf.bool:
        return lambda value: _checked(value, (bool,), dtype)
    if dtype in (tf.float32, tf.float64):
        return functools.partial(_float, dtype=dtype)
    if dtype.is_integer and not dtype.is_quantized:
        limits = np.iinfo(dtype.as_numpy_dtype)
        smallest, largest = int(limits.min), int(limits.max)

        def integer(value: Any) -> int:
            if not smallest <= _checked(value, (int,), dtype) <= largest:
                raise _type_error(value, dtype)
            return value

        return integer

    def unknown(value: Any) -> NoReturn:
        message = f"Conversion of JSON Value: {shown(value)} to type: {_name(dtype)}"
        raise ServingError(grpc.StatusCode.UNIMPLEMENTED, message)

    return unknown


def _checked(value: Any, types: tuple[type, ...], dtype: tf.DType) -> Any:
    if type(value) not in types:  # a bool is an int to `isinstance`
        raise _type_error(value, dtype)
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, dict):
        return _checked(value, (str,), tf.string).encode()
    if not _is_base64(value):
        raise invalid(f"JSON Value: {shown(value)} not formatted correctly for base64 data")
    digits = "".join(value["b64"].split())
    if "=" not in digits:  # padding may be left out
        digits += "=" * (-len(digits) % 4)
    try:
        return base64.b64decode(digits, validate=True)
    except ValueError:
        raise invalid("Unable to base64 decode") from None


# Integers from here on are refused, although the first is exact, and numbers beyond the range. The
# largest float32 may come as it goes out, rounded to nine digits.
_LARGEST = {tf.float32: (2**24, 3.40282347e38), tf.float64: (2**53, float(tf.float64.max))}


def _float(value: Any, dtype: tf.DType) -> float:
    _checked(value, (int, float), dtype)
    integer, largest = _LARGEST[dtype]
    if abs(value) >= integer if type(value) is int else largest < abs(value) < math.inf:
        raise invalid(
            f"Cannot convert JSON value: {shown(value)} to {_name(dtype)} without loss of "
            "precision."
        )
    return float(value)


def examples(document: Mapping[str, Any]) -> Input:
    """The examples of a classify or regress request, and the context that they share.

    Raises:
        ServingError: `examples` is missing or empty, or a feature mixes types.
    """
    found = Input()
    listed = found.example_list.examples
    if "context" in document:
        listed = found.example_list_with_context.examples
        found.example_list_with_context.context.CopyFrom(_example(document["context"]))
    if "examples" not in document:
        reason = "When method is classify, key 'examples' is expected and was not found"
        raise invalid(f"JSON Value: {shown(document)} {reason}")
    given = document["examples"]
    if not isinstance(given, list):
        reason = "Expecting 'examples' value to be an list/array"
        raise invalid(f"JSON Value: {shown(document)} {reason}")
    if not given:
        raise invalid(f"JSON Value: {shown(document)} 'examples' value is an empty array")
    listed.extend(map(_example, given))
    return found


def _example(value: Any) -> Example:
    if not isinstance(value, dict):
        kind = str(value) if isinstance(value, bool) else _JSON_TYPES[type(value)]
        raise invalid(f"Example must be JSON object but got JSON {kind}")
    example = Example()
    for name, content in value.items():
        feature = example.features.feature[name]
        for each in content if isinstance(content, list) else [content]:
            _add_value(feature, name, each)
    return example


def _add_value(feature: Feature, name: str, value: Any) -> None:
    if value is None or isinstance(value, list) or _is_object(value):
        kind = _JSON_TYPES[type(value)]
        raise invalid(f"Feature: {name} has element with unexpected JSON type: {kind}")
    kind = {bool: "int64_list", int: "int64_list", float: "float_list"}.get(
        type(value), "bytes_list"
    )
    given = feature.WhichOneof("kind")
    if given not in (None, kind):
        expected = given.removesuffix("_list")
        raise invalid(f"Unexpected element type in feature: {name} expecting type: {expected}")
    if kind == "int64_list":
        if value >= 2**63:
            raise invalid(f"Feature: {name} has uint64 element. Only int64 is supported.")
        feature.int64_list.value.append(int(value))
    elif kind == "float_list":
        feature.float_list.value.append(_float(value, tf.float32))
    else:
        feature.bytes_list.value.append(_bytes(value))


def predictions(outputs: Mapping[str, np.ndarray]) -> bytes:
    """The answer to a request in row format; one output's values stand bare.

    Args:
        outputs: name -> array, batch first.

    Raises:
        ServingError: the outputs are not of one batch, or of a type that JSON has no form for.
    """
    _refuse_none(outputs)
    size = None
    for name, value in outputs.items():
        if not value.ndim:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if size not in (None, len(value)):
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: {len(value)} expecting: {size}"
            )
        size = len(value)
    columns = {name: _nested(name, value, 1) for name, value in outputs.items()}
    if len(columns) == 1:
        ((_, rows),) = columns.items()
        return _body("predictions", f"[{', '.join(rows)}]")
    keys = [encode_basestring(name) for name in columns]
    objects = [
        ",".join(f"\n            {key}: {each}" for key, each in zip(keys, row, strict=True))
        for row in zip(*columns.values(), strict=True)
    ]
    listed = ",".join(f"\n        {{{each}\n        }}" for each in objects)
    return _body("predictions", f"[{listed}\n    ]" if objects else "[]")


def outputs(values: Mapping[str, np.ndarray]) -> bytes:
    """The answer to a request in column format; one output's values stand bare."""
    _refuse_none(values)
    columns = {name: _nested(name, value, 0)[0] for name, value in values.items()}
    if len(columns) == 1:
        ((_, column),) = columns.items()
        return _body("outputs", column)
    listed = ",".join(
        f"\n        {encode_basestring(name)}: {column}" for name, column in columns.items()
    )
    return _body("outputs", f"{{{listed}\n    }}")


def classifications(result: ClassificationResult) -> bytes:
    """The answer to a classify request: label and score of each class."""
    rows = [
        ", ".join(
            f"[{encode_basestring(each.label)}, {_decimal_float32(each.score)}]"
            for each in classes.classes
        )
        for classes in result.classifications
    ]
    return _body("results", f"[{', '.join(f'[{row}]' for row in rows)}]")


def regressions(result: RegressionResult) -> bytes:
    """The answer to a regress request."""
    values = np.array([each.value for each in result.regressions], np.float32)
    return _body("results", f"[{', '.join(decimals(values))}]")


def _decimal_float32(value: float) -> str:
    return decimals(np.array([value], np.float32))[0]


def _refuse_none(values: Mapping[str, np.ndarray]) -> None:
    if not values:
        raise invalid("Cannot convert empty tensor map to JSON")


def _body(key: str, value: str) -> bytes:
    return f'{{\n    "{key}": {value}\n}}'.encode()


def _nested(name: str, array: np.ndarray, outer: int) -> list[str]:
    """JSON of the arrays that the `outer` first dimensions of an array hold."""
    parts = _leaves(name, array)
    for dimension in range(array.ndim - 1, outer - 1, -1):
        size = array.shape[dimension]
        count = math.prod(array.shape[:dimension])
        parts = [f"[{', '.join(parts[i * size : (i + 1) * size])}]" for i in range(count)]
    return parts


def _leaves(name: str, array: np.ndarray) -> list[str]:
    flat = array.ravel()
    if array.dtype == object:
        if name.endswith("_bytes"):
            return [f'{{"b64": "{base64.b64encode(each).decode()}"}}' for each in flat]
        # A string cut within a character would make the whole answer unreadable.
        return [encode_basestring(each.decode(errors="replace")) for each in flat]
    if array.dtype == bool:
        return ["true" if each else "false" for each in flat]
    if array.dtype.kind in "iu":
        return list(map(str, flat.tolist()))
    if array.dtype in (np.float32, np.float64):
        return decimals(flat)
    if tf.as_dtype(array.dtype) in (tf.float16, tf.bfloat16):
        return decimals(flat.astype(np.float32))
    raise invalid(f"Failed to write JSON value for tensor type: {_name(tf.as_dtype(array.dtype))}")


def decimals(values: np.ndarray) -> list[str]:
    """Floats as TensorFlow Serving writes them.

    Six digits where they give the value back, as many as it takes otherwise; a whole number ends
    in .0; NaN, Infinity and -Infinity are bare.

    Args:
        values: [N], float32 or float64.
    """
    digits = 9 if values.dtype == np.float32 else 17
    texts = _formatted("%g", values)
    with np.errstate(over="ignore"):  # six digits of the largest float round up to infinity
        differ = np.flatnonzero(np.array(texts, float).astype(values.dtype) != values)
    for place, text in zip(differ, _formatted(f"%.{digits}g", values[differ]), strict=True):
        texts[place] = text
    for place in np.flatnonzero(~np.isfinite(values) | (values == np.rint(values))):
        if not {".", "e"} & set(texts[place]):
            texts[place] = _NON_FINITE.get(texts[place]) or f"{texts[place]}.0"
    return texts


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _formatted(form: str, values: np.ndarray) -> list[str]:
    return (f"{form} " * len(values) % tuple(values.tolist())).split()

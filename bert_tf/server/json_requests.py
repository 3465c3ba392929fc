"""Bodies of requests to TensorFlow Serving's REST API: JSON to tensors.

Messages and the order of checks are those of tensorflow_serving/util/json_tensor.cc, which clients
match on. Keys given twice and strings that are not UTF-8, which it accepts, are refused.
"""

import base64
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from grpc import StatusCode

from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.json_answers import dtype_name

_SHOWN_BYTES = 256  # of a value in a message
_DEEPEST = 32  # dimensions of a tensor; NumPy has 64
_Types = Mapping[str, tf.DType]  # of inputs by name


def parse(body: bytes) -> dict[str, Any]:
    """Reads a body; raises ServingError if it is no JSON object, or one in it has a key twice."""
    if not body:
        raise invalid("JSON Parse error: The document is empty")

    def decimal(token: str) -> float:
        value = float(token)
        if math.isinf(value):
            raise json.JSONDecodeError("Number too big for a double", text, text.index(token))
        return value

    def integer(token: str) -> int | float:
        """Integers beyond 64 bits are doubles, as in TensorFlow Serving."""
        is_short = len(token) <= 20  # longer ones take Python quadratic time
        return value if is_short and -(2**63) <= (value := int(token)) < 2**64 else decimal(token)

    try:
        text = body.decode("utf-8-sig")
        if "\\u" in text:
            _refuse_lone_surrogates(text)
        found = json.loads(text, parse_int=integer, parse_float=decimal, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise _parse_error("Invalid UTF-8", error.start) from None
    except json.JSONDecodeError as error:
        raise _parse_error(error.msg, len(text[: error.pos].encode())) from None
    except RecursionError:
        raise _parse_error("The document is nested too deeply", 0) from None
    if not isinstance(found, dict):
        raise _refused(found, "Is not object")
    return found


def _parse_error(reason: str, offset: int) -> ServingError:
    return invalid(f"JSON Parse error: {reason}. at offset: {offset}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        places = {key: place for place, (key, _) in enumerate(pairs)}
        twice = next(key for place, (key, _) in enumerate(pairs) if places[key] != place)
        raise invalid(f"JSON Value: {shown(found)} Not formatted correctly, duplicate key: {twice}")
    return found


def _refuse_lone_surrogates(text: str) -> None:
    """Python's parser takes half a pair of escapes for a character, which no UTF-8 holds."""
    pair = r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w"
    for escape in re.finditer(rf"{pair}|(\\u[dD][89a-fA-F])|\\.", text, re.DOTALL):
        if escape[1]:
            raise json.JSONDecodeError("Half of a surrogate pair", text, escape.start())


def shown(value: Any) -> str:
    """A JSON value as a message shows it: its first 256 bytes."""
    parts = json.JSONEncoder(ensure_ascii=False, indent=4).iterencode(value)
    text = "".join(itertools.islice(parts, _SHOWN_BYTES))
    return text.encode()[:_SHOWN_BYTES].decode(errors="ignore")


def _refused(value: Any, reason: str) -> ServingError:
    return invalid(f"JSON Value: {shown(value)} {reason}")


def signature_name(document: Mapping[str, Any]) -> str:
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        reason = "not formatted correctly. 'signature_name' key must be a string value."
        raise _refused(document, reason)
    return name


def _is_row_format(document: Mapping[str, Any]) -> bool:
    keys = "'inputs' or 'instances' key"
    if not document.keys() & {"instances", "inputs"}:
        raise invalid(f"Missing {keys}")
    if "instances" not in document:
        return False
    if "inputs" in document:
        raise _refused(document, f"Not formatted correctly expecting only one of {keys}s to exist ")
    if not isinstance(document["instances"], list):
        raise _refused(document, "Excepting 'instances' to be an list/array")
    if not document["instances"]:
        raise _refused(document, "No values in 'instances' array")
    return True


def tensors(document: Mapping[str, Any], inputs: _Types) -> dict[str, np.ndarray]:
    """Returns a predict request's arrays by name; strings are bytes in arrays of objects."""
    if _is_row_format(document):
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


def _from_rows(instances: Sequence[Any], inputs: _Types) -> dict[str, np.ndarray]:
    names = sorted(inputs)
    if len(names) > 1 and not isinstance(instances[0], dict):
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map"
        )
    are_objects = _is_object(instances[0])
    for number, row in enumerate(instances):
        if _is_object(row) != are_objects:
            expected, got = ("object", "list") if are_objects else ("value/list", "object")
            raise invalid(f"Expecting {expected} but got {got} at item {number} of input list")
    rows = instances if are_objects else [{names[0]: row} for row in instances]
    try:
        return _columns(rows, inputs)
    except ServingError:
        _refuse_row(rows, inputs, are_objects)
        raise


def _columns(rows: Sequence[Mapping[str, Any]], inputs: _Types) -> dict[str, np.ndarray]:
    if any(row.keys() != inputs.keys() for row in rows):
        raise invalid("A row has other keys")
    return {name: _tensor([row[name] for row in rows], inputs[name]) for name in sorted(inputs)}


def _refuse_row(rows: Sequence[Mapping[str, Any]], inputs: _Types, are_objects: bool) -> None:
    """Refuses, by its number, the first row that does not fit the inputs or the rows before it."""
    number, end = 0, len(rows)  # the rows before `number` fit, those before `end` do not
    while end - number > 1:
        middle = (number + end) // 2
        try:
            _columns([rows[0], *rows[number:middle]], inputs)
            number = middle
        except ServingError:
            end = middle
    row = rows[number]
    for name, value in row.items():
        try:
            if name not in inputs:
                raise invalid(f"JSON object: does not have named input: {name}")
            tensor = _tensor(value, inputs[name])
            first = _tensor(rows[0][name], inputs[name]) if number else tensor
            if first.size != tensor.size:
                raise invalid(f"Expecting tensor size: {first.size} but got: {tensor.size}")
            if first.shape != tensor.shape:
                wanted, found = (",".join(map(str, each.shape)) for each in (first, tensor))
                raise invalid(f"Expecting shape [{wanted}] but got: [{found}]")
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


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _tensor(value: Any, dtype: tf.DType) -> np.ndarray:
    """A value, or a list of lists of values, as an array; its shape is that of first elements."""
    shape: list[int] = []
    first = value
    while isinstance(first, list) and len(shape) < _DEEPEST:
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
    if dtype == tf.string:
        return _bytes
    if dtype in (tf.float32, tf.float64):
        return functools.partial(_float, dtype=dtype)
    if dtype == tf.bool or (dtype.is_integer and not dtype.is_quantized):
        is_bool = dtype == tf.bool
        smallest, largest = (0, 1) if is_bool else (int(dtype.min), int(dtype.max))
        kind = bool if is_bool else int

        def whole(value: Any) -> int:
            if type(value) is not kind or not smallest <= value <= largest:
                raise _type_error(value, dtype)
            return value

        return whole

    def unknown(value: Any) -> NoReturn:
        message = f"Conversion of JSON Value: {shown(value)} to type: {dtype_name(dtype)}"
        raise ServingError(StatusCode.UNIMPLEMENTED, message)

    return unknown


def _json_type(value: Any) -> str:
    kinds = {type(None): "Null", str: "String", dict: "Object", list: "Array"}
    return str(value) if isinstance(value, bool) else kinds.get(type(value), "Number")


def _type_error(value: Any, dtype: tf.DType) -> ServingError:
    found, expected = _json_type(value), dtype_name(dtype)
    return _refused(value, f"Type: {found} is not of expected type: {expected}")


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, dict):
        raise _type_error(value, tf.string)
    if not _is_base64(value):
        raise _refused(value, "not formatted correctly for base64 data")
    digits = "".join(value["b64"].split())
    if "=" not in digits:  # padding may be left out
        digits += "=" * (-len(digits) % 4)
    try:
        return base64.b64decode(digits, validate=True)
    except ValueError:
        raise invalid("Unable to base64 decode") from None


# Integers from here on are refused, although the first is exact, and numbers beyond the range. The
# largest float32 may come as it goes out, in its shortest digits.
_LARGEST = {tf.float32: (2**24, 3.4028235e38), tf.float64: (2**53, float(tf.float64.max))}


def _float(value: Any, dtype: tf.DType) -> float:
    if type(value) not in (int, float):  # a bool is an int to `isinstance`
        raise _type_error(value, dtype)
    integer, largest = _LARGEST[dtype]
    if abs(value) >= integer if type(value) is int else largest < abs(value) < math.inf:
        raise invalid(
            f"Cannot convert JSON value: {shown(value)} to {dtype_name(dtype)} without loss of "
            "precision."
        )
    return float(value)

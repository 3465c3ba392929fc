"""JSON of TensorFlow Serving's REST API: bodies of requests to arrays, and arrays to answers."""

import base64
import codecs
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import orjson
import tensorflow as tf
from grpc import StatusCode

from bert_tf.server.errors import ServingError, invalid
from bert_tf.tasks.signatures import DEFAULT

_SHOWN = 256  # characters of a value in a message
_DEEPEST = 32  # dimensions of a tensor; NumPy has 64
# Values that are written at a time: orjson holds Python's lock for about a millisecond.
_BLOCK = 2**15
# orjson writes null, as standard JSON has no form for these.
_NON_FINITE = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
# The largest float32 may come as it goes out, in its shortest digits.
_LARGEST = {tf.float32: 3.4028235e38, tf.float64: float(tf.float64.max)}
_Types = Mapping[str, tf.DType]  # of inputs by name


def parse(body: bytes) -> dict[str, Any]:
    """Reads a body; raises ServingError if it is no JSON object in UTF-8."""
    try:
        document = orjson.loads(body.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error}") from None
    if not isinstance(document, dict):
        raise invalid(f"The body is {shown(document)}: send an object")
    return document


def shown(value: Any) -> str:
    """The beginning of a JSON value, for a message."""
    parts = json.JSONEncoder(ensure_ascii=False).iterencode(value)
    text = "".join(itertools.islice(parts, _SHOWN))[:_SHOWN]
    return text.encode(errors="replace").decode()


def signature_name(document: Mapping[str, Any]) -> str:
    name = document.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(f"'signature_name' is {shown(name)}: give a string")
    return name or DEFAULT


def tensors(document: Mapping[str, Any], inputs: _Types) -> dict[str, np.ndarray]:
    """Returns a predict request's arrays by name; strings are bytes in arrays of objects."""
    formats = document.keys() & {"instances", "inputs"}
    if len(formats) != 1:
        raise invalid(f"{'Two keys' if formats else 'Missing key'}: give 'inputs' or 'instances'")
    if "instances" in document:
        columns = _columns(document["instances"], inputs)
    else:
        columns = document["inputs"]
        if not _is_object(columns) and len(inputs) == 1:
            columns = dict.fromkeys(inputs, columns)
        missing = inputs.keys() - columns if _is_object(columns) else inputs
        if missing:
            raise invalid(f"'inputs' is missing {', '.join(sorted(missing))}: give each input")
    return {name: _array(name, columns[name], dtype) for name, dtype in sorted(inputs.items())}


def _columns(rows: Any, inputs: _Types) -> dict[str, Any]:
    if not isinstance(rows, list) or not rows:
        raise invalid("'instances' must be a list of one row or more")
    if len(inputs) == 1 and not _is_object(rows[0]):
        return dict.fromkeys(inputs, rows)
    for number, row in enumerate(rows):
        if not _is_object(row) or row.keys() != inputs.keys():
            keys = ", ".join(sorted(inputs))
            raise invalid(f"Row {number} is {shown(row)}: give an object with the keys {keys}")
    return {name: [row[name] for row in rows] for name in inputs}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not _is_base64(value)


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _array(name: str, value: Any, dtype: tf.DType) -> np.ndarray:
    """A value, or a list of lists of values, as an array; first elements give its shape."""
    shape: list[int] = []
    first = value
    while isinstance(first, list) and len(shape) < _DEEPEST:
        shape.append(len(first))
        first = first[0] if first else None

    def misfit(number: int, item: Any, expected: str) -> ServingError:
        row = f", row {number * shape[0] // len(values)}" if shape else ""
        return invalid(f"Input {name}{row}: {shown(item)} is not {expected}")

    values = [value]
    for size in shape:
        for number, item in enumerate(values):
            if not isinstance(item, list) or len(item) != size:
                raise misfit(number, item, f"a list of {size} values, as the first one is")
        values = list(itertools.chain.from_iterable(values))
    converted: list[Any] = []
    try:
        converted.extend(map(_converter(dtype), values))
    except ValueError:
        number = len(converted)  # of the value that failed
        raise misfit(number, values[number], f"of the type {dtype.name}") from None
    array = np.empty(len(values), dtype.as_numpy_dtype)
    array[:] = converted
    return array.reshape(shape)


def _converter(dtype: tf.DType) -> Callable[[Any], Any]:
    """A function from a JSON value to one of this type, which raises ValueError for any other."""
    if dtype == tf.string:
        return _bytes
    if dtype in _LARGEST:
        return functools.partial(_float, _LARGEST[dtype])
    if dtype == tf.bool:
        return functools.partial(_whole, bool, 0, 1)
    if dtype.is_integer and not dtype.is_quantized:
        return functools.partial(_whole, int, int(dtype.min), int(dtype.max))
    raise ServingError(StatusCode.UNIMPLEMENTED, f"Inputs of type {dtype.name} have no JSON form")


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not _is_base64(value):
        raise ValueError
    digits = "".join(value["b64"].split())
    if "=" not in digits:  # padding may be left out
        digits += "=" * (-len(digits) % 4)
    return base64.b64decode(digits, validate=True)


def _float(largest: float, value: Any) -> float:
    if type(value) not in (int, float) or abs(value) > largest:
        raise ValueError
    return float(value)


def _whole(kind: Any, smallest: int, largest: int, value: Any) -> Any:
    if type(value) is not kind or not smallest <= value <= largest:
        raise ValueError
    return value


def predictions(outputs: Mapping[str, np.ndarray], deadline: float = math.inf) -> bytes:
    """The answer to a request in row format: arrays by name, batch first."""
    sizes = {len(value) if value.ndim else -1 for value in outputs.values()}
    if len(sizes) > 1 or -1 in sizes:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in outputs.items())
        raise invalid(f"The outputs have no rows in common ({shapes}): send 'inputs'")
    rows = _only(outputs, deadline) or _rows(outputs, max(sizes, default=0), deadline)
    return b'{"predictions": %b}' % rows


def outputs(values: Mapping[str, np.ndarray], deadline: float = math.inf) -> bytes:
    """The answer to a request in column format."""
    return b'{"outputs": %b}' % (_only(values, deadline) or _columns_text(values, deadline))


def _only(outputs: Mapping[str, np.ndarray], deadline: float) -> bytes | None:
    """The value of an output that stands alone, without its name; None for several."""
    if len(outputs) != 1:
        return None
    ((name, value),) = outputs.items()
    return _text(name, value, deadline)


def _rows(columns: Mapping[str, np.ndarray], size: int, deadline: float) -> bytes:
    at_once = _BLOCK * size // max(1, sum(column.size for column in columns.values()))
    blocks = []
    for start in range(0, size, max(1, at_once)):
        if at_once:
            part = slice(start, start + at_once)
            block = [_leaves(name, column[part]) for name, column in columns.items()]
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*block, strict=True)]
            blocks.append(_written(rows, deadline)[1:-1])
        else:  # even one row is large
            row = {name: column[start, ...] for name, column in columns.items()}
            blocks.append(_columns_text(row, deadline))
    return b"[%b]" % b",".join(blocks)


def _columns_text(values: Mapping[str, np.ndarray], deadline: float) -> bytes:
    pairs = (b"%b:%b" % (orjson.dumps(key), _text(key, x, deadline)) for key, x in values.items())
    return b"{%b}" % b",".join(pairs)


def _text(name: str, array: np.ndarray, deadline: float) -> bytes:
    """JSON of an array, written in blocks."""
    if array.size <= _BLOCK:
        return _written(_leaves(name, array), deadline)
    at_once = _BLOCK * len(array) // array.size
    if at_once:
        starts = range(0, len(array), at_once)
        blocks = [_text(name, array[start : start + at_once], deadline)[1:-1] for start in starts]
    else:
        blocks = [_text(name, row, deadline) for row in array]
    return b"[%b]" % b",".join(blocks)


def _written(value: Any, deadline: float = math.inf) -> bytes:
    if time.monotonic() > deadline:
        raise ServingError(StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded")
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _leaves(name: str, array: Any) -> Any:
    """An array, or its values in lists, as orjson writes them."""
    if array.dtype == object:
        if name.endswith("_bytes"):
            leaves: list[Any] = [{"b64": base64.b64encode(x).decode()} for x in array.flat]
        else:  # a string cut within a character would make the whole answer unreadable
            leaves = [text.decode(errors="replace") for text in array.flat]
    else:
        dtype = tf.as_dtype(array.dtype)
        if dtype in (tf.float16, tf.bfloat16):
            array = array.astype(np.float32)
        elif array.dtype.kind not in "biuf":
            raise invalid(f"Output {name} of type {dtype.name} has no JSON form")
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return np.asarray(array, order="C")[()]  # a scalar of NumPy, not an array without axes
        leaves = list(array.ravel())
        for number in np.flatnonzero(~np.isfinite(array)):
            leaves[number] = orjson.Fragment(_NON_FINITE[str(leaves[number])])
    return np.array(leaves, object).reshape(array.shape).tolist()

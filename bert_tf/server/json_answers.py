"""Answers of TensorFlow Serving's REST API: tensors to JSON."""

import base64
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import tensorflow as tf
from grpc import StatusCode

from bert_tf.server.errors import ServingError, invalid

# Values that are written at a time: orjson holds Python's lock for about a millisecond.
_BLOCK = 2**15
# orjson writes null, as standard JSON has no form for these.
_NON_FINITE = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}


def predictions(outputs: Mapping[str, np.ndarray], deadline: float = math.inf) -> bytes:
    """The answer to a request in row format: arrays by name, batch first."""
    size = None
    for name, value in outputs.items():
        if not value.ndim:
            raise invalid(f"Tensor name: {name} has no shape information ")
        if size not in (None, len(value)):
            raise invalid(
                f"Tensor name: {name} has inconsistent batch size: {len(value)} expecting: {size}"
            )
        size = len(value)
    return _body("predictions", _only(outputs, deadline) or _rows(outputs, size or 0, deadline))


def outputs(values: Mapping[str, np.ndarray], deadline: float = math.inf) -> bytes:
    return _body("outputs", _only(values, deadline) or _object(values, deadline))


def _only(outputs: Mapping[str, np.ndarray], deadline: float) -> bytes | None:
    """The value of an output that stands alone, without its name; None for several."""
    if not outputs:
        raise invalid("Cannot convert empty tensor map to JSON")
    if len(outputs) > 1:
        return None
    ((name, value),) = outputs.items()
    return _text(name, value, deadline)


def _body(key: str, value: bytes) -> bytes:
    return b'{"%b": %b}' % (key.encode(), value)


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
            blocks.append(_object(row, deadline))
    return b"[%b]" % b",".join(blocks)


def _object(values: Mapping[str, np.ndarray], deadline: float) -> bytes:
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
            leaves: list[Any] = [{"b64": base64.b64encode(each).decode()} for each in array.flat]
        else:  # a string cut within a character would make the whole answer unreadable
            leaves = [each.decode(errors="replace") for each in array.flat]
    else:
        dtype = tf.as_dtype(array.dtype)
        if dtype in (tf.float16, tf.bfloat16):
            array = array.astype(np.float32)
        elif array.dtype.kind not in "biuf":
            raise invalid(f"Failed to write JSON value for tensor type: {dtype_name(dtype)}")
        if array.dtype.kind != "f" or np.isfinite(array).all():
            return np.asarray(array, order="C")[()]  # a scalar of NumPy, not an array without axes
        leaves = list(array.ravel())
        for place in np.flatnonzero(~np.isfinite(array)):
            leaves[place] = orjson.Fragment(_NON_FINITE[str(leaves[place])])
    return np.array(leaves, object).reshape(array.shape).tolist()


def dtype_name(dtype: tf.DType) -> str:
    return {tf.float32: "float", tf.float64: "double", tf.float16: "half"}.get(dtype, dtype.name)

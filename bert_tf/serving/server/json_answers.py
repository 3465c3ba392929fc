"""Answers of TensorFlow Serving's REST API: tensors to JSON, in the form of its json_tensor.cc."""

import base64
import math
import time
from collections.abc import Mapping
from json.encoder import encode_basestring

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis.classification_pb2 import ClassificationResult
from tensorflow_serving.apis.regression_pb2 import RegressionResult

from bert_tf.serving.server.errors import ServingError, invalid

# Values that are strings of Python's at a time: some 60 bytes each.
_BLOCK = 2**14


def predictions(outputs: Mapping[str, np.ndarray], deadline: float = math.inf) -> bytes:
    """The answer to a request in row format; one output's values stand bare.

    Args:
        outputs: name -> array, batch first.
        deadline: moment of `time.monotonic()` at which to give up.

    Raises:
        ServingError: the outputs are not of one batch, or of a type that JSON has no form for, or
            the deadline has passed.
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
    columns = {name: _rows(name, value, deadline) for name, value in outputs.items()}
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


def outputs(values: Mapping[str, np.ndarray], deadline: float = math.inf) -> bytes:
    """The answer to a request in column format; arguments and errors as of `predictions`."""
    _refuse_none(values)
    columns = {name: _text(name, value, deadline) for name, value in values.items()}
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


def _text(name: str, array: np.ndarray, deadline: float) -> str:
    return f"[{', '.join(_rows(name, array, deadline))}]" if array.ndim else _leaves(name, array)[0]


def _rows(name: str, array: np.ndarray, deadline: float) -> list[str]:
    """JSON of each row of an array."""
    if time.monotonic() > deadline:
        raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded")
    if array.size > _BLOCK:
        rows = _BLOCK * len(array) // array.size  # of a block
        if not rows:
            return [_text(name, row, deadline) for row in array]
        blocks = (array[start : start + rows] for start in range(0, len(array), rows))
        return [row for block in blocks for row in _rows(name, block, deadline)]
    parts = _leaves(name, array)
    for dimension in range(array.ndim - 1, 0, -1):
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
    dtype = tf.as_dtype(array.dtype)
    if dtype in (tf.float16, tf.bfloat16):
        return decimals(flat.astype(np.float32))
    raise invalid(f"Failed to write JSON value for tensor type: {dtype_name(dtype)}")


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


def dtype_name(dtype: tf.DType) -> str:
    """A type's name as TensorFlow Serving's messages have it."""
    return {tf.float32: "float", tf.float64: "double", tf.float16: "half"}.get(dtype, dtype.name)

"""Columns of data in memory, whatever library holds them: lists of Python's own values."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from bert_tf.errors import InputError

_PLAIN = (str, int, float, bool, type(None))


def is_frame(data: Any) -> bool:
    """Whether it is a data frame, or a `datasets.Dataset`."""
    return hasattr(data, "column_names") or (
        hasattr(data, "columns") and hasattr(data, "__getitem__")
    )


def is_sequence(data: Any) -> bool:
    return isinstance(data, Iterable) and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or what pandas has for these."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def columns_in(data: Any, *, names_classes: bool = False) -> dict[str, Any] | None:
    """The columns of a dict, a data frame, records or a `datasets.Dataset`; None for other data.

    With `names_classes` the classes of a `datasets.Dataset` have their names there.
    """
    if hasattr(data, "column_names"):
        _check_dataset(data)
        features = (getattr(data, "features", None) or {}) if names_classes else {}
        return {name: _named(data[name], features.get(name)) for name in data.column_names}
    if isinstance(data, Mapping):
        return dict(data.items())
    if is_frame(data):
        return {name: data[name] for name in data.columns}
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return {name: [row.get(name) for row in data] for name in names}
    return None


def _named(values: Any, feature: Any) -> Any:
    if names := getattr(feature, "names", None):
        return [None if number is None or number < 0 else names[number] for number in values]
    if names := getattr(getattr(feature, "feature", None), "names", None):  # labels of words
        return [[names[number] for number in numbers] for numbers in values]
    return values


def _check_dataset(data: Any) -> None:
    """Refuses a `datasets.DatasetDict`, and data sets that are streamed."""
    if isinstance(data, Mapping):
        raise InputError(
            f"the data has the splits {', '.join(map(str, data))}: give one, such as "
            f"data[{next(iter(data), 'train')!r}]"
        )
    if not hasattr(data, "__getitem__"):
        raise InputError(
            "the data set is streamed: load it without streaming=True, or give list(texts)"
        )


def as_list(name: str, values: Any) -> list[Any]:
    """A column as a list of `plain` values; `name` is for messages."""
    if isinstance(values, str | bytes):
        raise InputError(f"{name} is a single string: give a list of them")
    if hasattr(values, "numpy"):  # a tensor
        values = values.numpy()
    values = _with_short_decimals(values)
    for convert in ("to_list", "tolist", "to_pylist"):
        if hasattr(values, convert):
            values = getattr(values, convert)()
    try:
        cells = list(values)
    except TypeError:
        raise InputError(f"{name} is {values!r:.40}: give a list") from None
    for index, cell in enumerate(cells):
        if type(cell) not in _PLAIN:
            try:
                cells[index] = plain(cell)
            except UnicodeDecodeError:
                raise InputError(
                    f"{name} {index} is not valid UTF-8 ({cell!r:.40}): decode it with its own "
                    "encoding"
                ) from None
    return cells


def plain(value: Any, errors: str = "strict") -> Any:
    """A value that JSON has, for one of NumPy, pandas or a tensor; others stay.

    `errors` says what becomes of invalid UTF-8, as `bytes.decode` does.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", errors)
    if isinstance(value, np.generic):
        return plain(_with_short_decimals(value).item(), errors)
    if hasattr(value, "numpy"):
        value = value.numpy()
    if hasattr(value, "tolist"):
        value = _with_short_decimals(value).tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(x, errors) for name, x in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [x if type(x) in _PLAIN else plain(x, errors) for x in value]
    return None if is_missing(value) else value


def _with_short_decimals(values: Any) -> Any:
    """Floats below float64 as the float64 of their text: 3.8, not 3.799999952316284; others stay.

    `values` are an array, a number of NumPy or a column of a data frame.
    """
    if getattr(getattr(values, "dtype", None), "kind", "") != "f" or values.dtype.itemsize >= 8:
        return values
    return np.asarray(values).astype(str).astype(np.float64)

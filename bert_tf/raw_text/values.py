"""Values of data in memory as Python lists and strings, whatever library holds them."""

import math
import re
from collections.abc import Iterable
from typing import Any

from bert_tf.errors import InputError


def is_frame(x: Any) -> bool:
    """Whether it is a data frame, or a `datasets.Dataset`."""
    return hasattr(x, "column_names") or (hasattr(x, "columns") and hasattr(x, "__getitem__"))


def columns_of(frame: Any) -> list[Any]:
    return list(getattr(frame, "column_names", None) or frame.columns)


def is_sequence(x: Any) -> bool:
    return isinstance(x, Iterable) and hasattr(x, "__getitem__") and hasattr(x, "__len__")


def as_list(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes):
        raise InputError(f"{name} is a single string: give a list of them")
    if hasattr(values, "numpy"):  # a tensor
        values = values.numpy()
    for convert in ("to_list", "tolist", "to_pylist"):
        if hasattr(values, convert):
            values = getattr(values, convert)()
    try:
        return list(values)
    except TypeError:
        raise InputError(f"{name} is {values!r:.40}: give a list") from None


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or what pandas has for these."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def as_text(value: Any, name: str) -> str:
    if is_missing(value):
        raise InputError(f"{name} is {value}: leave the example out, or give it a text")
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(
                f"{name} is no valid UTF-8 ({value!r:.40}): decode it by its own encoding"
            ) from None
    if not isinstance(value, str):
        cure = f"give texts, such as str({value!r:.20})"
        if isinstance(value, list | tuple):
            cure = "give a string; for pairs a tuple of two lists, or a list of tuples"
        raise InputError(f"{name} is {value!r:.40}, no string: {cure}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is no valid Unicode (it has half of a surrogate pair, "
            f"{value[error.start]!a}): remove it, or write the whole character"
        ) from None
    return str(value)


def as_texts(value: Any, name: str) -> list[str]:
    return [as_text(each, f"{name}, number {i}") for i, each in enumerate(as_list(name, value))]


def split_words(words: str) -> list[str]:
    """Words between ASCII white space, as `words_between_spaces` finds them."""
    return [word for word in re.split("[ \t-\r]+", words) if word]

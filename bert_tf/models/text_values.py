"""Texts and labels in memory, whatever library holds them, as the strings of a file."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.squad import is_impossible, locate
from bert_tf.tasks.kinds.multi_label import listed
from bert_tf.tasks.task import Task


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


def label_list(y: Any, *, many: bool = False) -> list[Any]:
    """Labels as a list [E], also of a column [E, 1]; rows of `many` columns become dicts."""
    if is_frame(y) or (many and isinstance(y, Mapping)):
        names = list(y) if isinstance(y, Mapping) else columns_of(y)
        if len(names) > 1 and many:
            rows = zip(*(as_list(name, y[name]) for name in names), strict=True)
            return [dict(zip(map(str, names), row, strict=True)) for row in rows]
        if len(names) > 1:
            listed = ", ".join(map(str, names))
            raise InputError(f"the labels have the columns {listed}: give one column")
        y = y[names[0]]
    if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1 and not many:
        y = y[:, 0]
    return as_list("labels", y)


def class_of(value: Any, task: Task, labels: Sequence[str], name: str) -> str:
    """A label's name, by its name, or by the number that is its value or else its place.

    A number is a place only where no label has a value, and a boolean never.
    """
    known = ", ".join(labels)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, bool | int | float | np.number | np.bool_):
        worth = values_of(labels)
        found = [label for label, own in zip(labels, worth, strict=True) if own == float(value)]
        if found:  # of labels of one value, such as 1 and 1.0, that which is written in this way
            return str(value) if str(value) in found else found[0]
        is_flag = isinstance(value, bool | np.bool_)
        if is_flag or not np.isnan(worth).all():
            raise InputError(
                f"{name} is {value}, the value of none of the model's labels ({known}): give one "
                "of their names"
            )
        if isinstance(value, int | np.integer):
            if 0 <= value < len(labels):
                return labels[int(value)]
            raise InputError(
                f"{name} is {value}: the model's {len(labels)} labels ({known}) have the numbers "
                f"0 to {len(labels) - 1}"
            )
    if not isinstance(value, str):
        cure = "labels.astype(int)"
        if isinstance(value, list | tuple | np.ndarray):
            cure = "labels.argmax(-1), or compile the model with a loss of such targets"
        raise InputError(
            f"{name} is {value!r:.40}: give a label's name or its number as an integer, such as "
            f"{cure}"
        )
    value = task.label_aliases.get(value, value)
    if value not in labels:
        raise InputError(
            f"{name} is {value!r}, none of the model's ({known}): correct it, or open the model "
            "with these labels"
        )
    return value


def values_of(labels: Sequence[str]) -> np.ndarray:
    """The numbers that labels are names of, such as 1.0 or +1, True being 1: float64 [C] with NaN.

    A number in place of a label means the label of this value.
    """
    flags = {"true": 1.0, "false": 0.0}
    names = [label.strip().lower() for label in labels]
    number = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?")
    found = [float(x) if number.fullmatch(x) else flags.get(x, math.nan) for x in names]
    return np.array(found, np.float64)


def are_marks(given: Sequence[Any], labels: Sequence[str]) -> bool:
    """Whether each text's labels are a 0 or 1 for every label of the model."""
    return bool(labels) and all(
        is_sequence(row)
        and not isinstance(row, str | bytes | Mapping)
        and len(row) == len(labels)
        and all(isinstance(x, int | float | np.number | np.bool_) and x in (0, 1) for x in row)
        for row in given
    )


def labels_of_text(
    value: Any, is_marks: bool, task: Task, labels: Sequence[str], name: str
) -> str | list[str]:
    """The labels of a text: a string of them, or names."""
    if isinstance(value, Mapping):
        odd = {label: x for label, x in value.items() if is_missing(x) or x not in (0, 1)}
        if odd:
            label, x = next(iter(odd.items()))
            raise InputError(f"{name}: {label} is {x!r:.40}: give 1 if it has the label, else 0")
        value = [label for label, x in value.items() if x]
    elif isinstance(value, str | bytes) or is_missing(value):
        value = listed(as_text(value, name), name)
        value = task.kind.parts(value) if isinstance(value, str) else value
    elif is_marks:
        value = [label for label, x in zip(labels, value, strict=True) if x]
    else:
        value = list(value) if isinstance(value, set | frozenset) else as_list(name, value)
    if not labels:  # those of a new model
        return [as_text(each, name) for each in value]
    return [class_of(each, task, labels, name) for each in value]


def number_text(value: Any, name: str) -> str:
    is_number = isinstance(value, int | float | np.number) and math.isfinite(value)
    if not is_number and not isinstance(value, str | bytes | np.bool_):
        raise InputError(f"{name} is {value!r:.40}: give a number, or leave the example out")
    return value.decode() if isinstance(value, bytes) else str(value)


def labels_of_words(value: Any, words: str, task: Task, labels: Sequence[str], name: str) -> str:
    if isinstance(value, str | bytes):
        value = split_words(as_text(value, name))
    given = [
        # Names are compared by the kind, which knows other schemes of them.
        x if isinstance(x, str) else class_of(x, task, labels, f"{name}, word {i}")
        for i, x in enumerate(as_list(name, value))
    ]
    count = len(words.split(" ")) if words else 0
    if len(given) != count:
        raise InputError(f"{name}: {len(given)} labels for {count} words: give a label for each")
    return " ".join(given)


def add_answers(task: Task, columns: dict[str, list[Any]], given: Sequence[Any]) -> None:
    """Adds the columns of answers and of the first one's place to questions."""
    columns["answers"], columns["span"] = [], []
    for number, (context, value) in enumerate(zip(columns["context"], given, strict=True)):
        name = f"answer {number}"
        texts, starts = _answers(value, name)
        columns["answers"].append(texts)
        if not texts:
            if not task.kind.unanswerable:
                raise InputError(
                    f'{name} is empty: give it a text, or open the model with task="squad2", '
                    "where questions may have no answer"
                )
            columns["span"].append([])
            continue
        start = starts[0] if starts else context.find(texts[0])
        place = locate(context, texts[0], start) if start >= 0 else None
        if place is None:
            raise InputError(f"{name} ({texts[0]!r:.60}) is not in its context: correct it")
        columns["span"].append(place)


def answered(answers: Any, impossible: Any) -> list[Any]:
    """Answers [E], None where SQuAD's `is_impossible` [E] says that there is none."""
    flags = [False if is_missing(x) else x for x in as_list("is_impossible", impossible)]
    pairs = enumerate(zip(as_list("answers", answers), flags, strict=False))
    return [None if is_impossible(x, f"question {i}") else answer for i, (answer, x) in pairs]


def _answers(value: Any, name: str) -> tuple[list[str], list[int]]:
    """Texts and starts: of an answer's text, or of SQuAD's `answers`, a dict of lists or dicts."""
    if is_missing(value) or (isinstance(value, str) and not value):
        return [], []
    if isinstance(value, list | tuple | np.ndarray) and all(isinstance(x, Mapping) for x in value):
        value = {key: [x[key] for x in value if key in x] for key in ("text", "answer_start")}
    if isinstance(value, Mapping):
        texts, starts = value.get("text", []), value.get("answer_start", [])
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        if len(starts) not in (0, len(texts)):
            raise InputError(
                f"{name} has {len(texts)} texts and {len(starts)} times an answer_start: give each "
                "text one"
            )
        return as_texts(texts, name), [int(start) for start in starts]
    return [as_text(value, name)], []

"""Labels in memory, by name or by number, as the names that files have."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.models.class_weights import class_of
from bert_tf.pipelines.examples.memory import as_list, columns_in, is_frame, is_missing, is_sequence
from bert_tf.tasks.task import Task


def label_list(y: Any, *, many: bool = False) -> list[Any]:
    """Labels as a list [E], also of a column [E, 1]; rows of `many` columns become dicts."""
    is_wide = is_frame(y) or (many and isinstance(y, Mapping))
    columns = columns_in(y) if is_wide else None
    if columns is not None:
        if len(columns) > 1 and many:
            rows = zip(*(as_list(str(name), x) for name, x in columns.items()), strict=True)
            return [dict(zip(map(str, columns), row, strict=True)) for row in rows]
        if len(columns) > 1:
            listed = ", ".join(map(str, columns))
            raise InputError(f"the labels have the columns {listed}: give one column")
        (y,) = columns.values()
    if getattr(y, "ndim", 1) == 2 and y.shape[1] == 1 and not many:
        y = y[:, 0]
    return as_list("labels", y)


def named_labels(
    labels: Sequence[Any], task: Task, names: Sequence[str], *, by_place: bool
) -> list[Any]:
    """Labels in memory with the model's `names` in place of their numbers, also within lists.

    Marks 0 and 1 for every name become lists of names. With `by_place` a number may be the place of
    a name; other data may number the same names in another order.
    """
    if task.many_labels and are_marks(labels, names):
        marked = (zip(names, marks, strict=True) for marks in labels)
        return [[name for name, mark in row if mark] for row in marked]
    has_lists = task.many_labels or "words" in task.inputs

    def named(value: Any, place: str) -> Any:
        if isinstance(value, Mapping) and task.many_labels:
            return _marked(value, place)
        if isinstance(value, list) and has_lists:
            return [named(x, place) for x in value]
        if not names or isinstance(value, str) or is_missing(value):
            return value
        return class_of(value, names, place, by_place=by_place)

    return [named(value, f"label {i}") for i, value in enumerate(labels)]


def _marked(marks: Mapping[str, Any], place: str) -> list[str]:
    """The labels with a mark 1."""
    for label, mark in marks.items():
        if mark not in (0, 1):
            raise InputError(
                f"{place}: {label} is {mark!r:.40}: give 1 if it has the label, else 0"
            )
    return [label for label, mark in marks.items() if mark]


def are_marks(rows: Sequence[Any], labels: Sequence[str]) -> bool:
    """Whether each text's labels are a 0 or 1 for every label of the model."""
    return bool(labels) and all(
        is_sequence(row)
        and not isinstance(row, str | bytes | Mapping)
        and len(row) == len(labels)
        and all(isinstance(x, int | float | np.number | np.bool_) and x in (0, 1) for x in row)
        for row in rows
    )

"""Texts and labels in memory become a table, and examples."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from bert_tf.errors import InputError
from bert_tf.models.class_weights import class_of
from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.memory import (
    as_list,
    columns_in,
    is_frame,
    is_missing,
    is_sequence,
)
from bert_tf.pipelines.examples.table import MEMORY, Examples, Source, Table
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.task import Task

SINGLE_TEXTS = (
    "the model reads single texts, and these are pairs: leave the second texts out, or train it on "
    "pairs"
)
_LOOKED_AT = 1000  # values, to find a string among missing ones


def is_raw(x: Any) -> bool:
    """Whether inputs hold strings, in any of the forms that `given_examples` takes."""
    if isinstance(x, str | bytes) or is_frame(x):
        return True
    if isinstance(x, keras.utils.PyDataset):  # which would be read to be looked at
        return False
    if isinstance(x, Mapping):
        return any(is_raw(values) for values in x.values())
    if hasattr(x, "to_pylist"):  # of pyarrow
        x = x[:_LOOKED_AT].to_pylist()
    dtype = getattr(x, "dtype", None)
    kind = getattr(dtype, "kind", None)
    if kind in ("U", "S", "T") or getattr(dtype, "name", None) in ("string", "str"):
        return True
    if hasattr(dtype, "as_numpy_dtype") or kind not in (None, "O") or not is_sequence(x):
        return False
    # None among the texts is a text that is missing.
    values = list(itertools.islice(x, _LOOKED_AT))
    present = [value for value in values if not is_missing(value)]
    return any(map(is_raw, present[:8])) or bool(values and not present)


def checked_stream(x: Any) -> Any:
    """Inputs for Keras; InputError for streams of raw text, and for lists of nothing or numbers.

    Batches of a stream are looked at when Keras takes them: none is read for it.
    """
    if isinstance(x, Iterator):
        return (_of_ids(batch) for batch in x)
    if isinstance(x, keras.utils.PyDataset):
        return x if isinstance(x, _OfIds) else _OfIds(x)
    has_arrays = not isinstance(x, list | tuple) or any(hasattr(value, "shape") for value in x)
    if not has_arrays:
        if not x:
            raise InputError("there is no example: give at least one text")
        raise InputError(
            f"example 0 is {x[0]!r:.40}: give texts, or token ids as a dict of arrays (token_ids, "
            "segment_ids, padding_mask)"
        )
    return x


class _OfIds(keras.utils.PyDataset):
    """Batches of another data set, which hold no texts."""

    def __init__(self, batches: keras.utils.PyDataset):
        super().__init__(batches.workers, batches.use_multiprocessing, batches.max_queue_size)
        self._batches = batches

    def __getitem__(self, index: int) -> Any:
        return _of_ids(self._batches[index])

    @property
    def num_batches(self) -> int | None:
        return self._batches.num_batches

    def on_epoch_begin(self) -> None:
        self._batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._batches.on_epoch_end()


def _of_ids(batch: Any) -> Any:
    if is_raw(batch[0] if isinstance(batch, tuple) and batch else batch):
        raise InputError(
            "the texts come from a generator: give them as a list, list(texts), or as a "
            "tf.data.Dataset"
        )
    return batch


def with_columns(
    task: Task, x: Any, y: Any = None, *, names_classes: bool = False
) -> tuple[Task, dict[str, list[Any]], Any]:
    """The inputs by role, as lists, and the labels; the task has pairs where the inputs have.

    `x` are texts [E], for several texts of an example a tuple of such or a list of tuples; or a
    dict, a data frame, a data set or records with a column for each, by the kind's names or the
    task's. `y` are labels [E]; without, a column has them, if any. InputError if a column is
    missing or lengths differ.
    """
    columns = columns_in(x, names_classes=names_classes)
    if columns is None:
        inputs = by_role(task, _parts(x, task))
    else:
        inputs = by_role(task, columns)
        names = (task.label, "label", *(["answer"] if "question" in inputs else []))
        present = [name for name in names if name in columns and name not in inputs]
        several = [name.strip() for name in task.label.split(",")]
        if y is None and present:
            y = columns[present[0]]
        elif y is None and task.many_labels and all(name in columns for name in several):
            y = {name: columns[name] for name in several}
    for role in {"text", "text_pair"} & inputs.keys():
        column = inputs[role]
        if hasattr(column, "isna") or hasattr(column, "is_null"):  # of a frame: an empty cell
            inputs[role] = ["" if is_missing(value) else value for value in as_list(role, column)]
    if "text_pair" in inputs and task.pair is None:
        task = replace(task, pair="text_pair")
    missing = [name for name in inputs_of(task) if name not in inputs]
    if missing:
        raise InputError(
            f"the inputs have no {' and no '.join(missing)}: give {_forms(inputs_of(task))}"
        )
    lists = {name: as_list(name, values) for name, values in inputs.items()}
    sizes = {name: len(values) for name, values in lists.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise InputError(f"the inputs differ in number ({listed}): give as many of each")
    if not next(iter(sizes.values())):
        raise InputError("there is no example: give at least one text")
    return task, lists, y


def given_table(
    task: Task,
    x: Any,
    y: Any = None,
    labels: Sequence[str] = (),
    *,
    by_place: bool = True,
    labelled: bool = True,
) -> tuple[Task, Table, str | None]:
    """A table of inputs and labels, and the name of the column of labels, None without any.

    See `with_columns` for `x` and `y`. Labels are names or numbers of classes; for any number of
    labels a list of them for each text, a string of them, or a row or columns of 0 and 1; numbers
    for regression and choices, a list of labels for the words of a text, for questions the answer's
    text or SQuAD's `answers`. `labels` are the model's, in the order of its outputs. With
    `by_place` numbers may be places there, else classes of a `datasets.Dataset` have their names.
    Unless `labelled`, labels are not read. Columns have the names that the task has for files.
    """
    task, lists, y = with_columns(task, x, y, names_classes=not by_place)
    cells = {_column_of(task, role, lists): values for role, values in lists.items()}
    count = len(next(iter(cells.values())))
    columns = columns_in(x) or {}
    for name, values in _further_columns(task, columns, lists).items():
        cells[name] = [None if is_missing(x) else x for x in as_list(name, values)]
    if "question" in lists:
        cells.setdefault("id", list(map(str, range(count))))
    if opening := getattr(task.kind, "opening", None):  # the role's own choices begin with it
        cells.setdefault(opening, [""] * count)
    label = None
    if y is not None and labelled:
        y_cells = label_list(y, many=task.many_labels)
        label = task.label
        if "question" in lists:  # a question may have no answer
            y_cells = [None if is_missing(x) else x for x in y_cells]
        else:  # first: beside NaN, numbers of classes are floats
            cure = "give the example a label, or leave it out (of pandas: data.dropna())"
            missing = (i for i, x in enumerate(y_cells) if is_missing(x))
            refuse([InputError(f"label {i} is {y_cells[i]}: {cure}") for i in missing])
        values = named_labels(y_cells, task, labels, by_place=by_place)
        cells |= _label_columns(task, values) if task.many_labels else {label: values}
        if len(y_cells) != count:
            raise InputError(f"{len(y_cells)} labels for {count} examples: give a label for each")
    if odd := [name for name, values in cells.items() if len(values) != count]:
        raise InputError(
            f"{odd[0]} has {len(cells[odd[0]])} values for {count} examples: give one for each"
        )
    named = names_by_role(task, columns) if columns else {}
    named |= {"id": "id"} if "id" in cells else {}
    source = Source(MEMORY, columns={role: [str(column)] for role, column in named.items()})
    return task, Table(cells, range(count), source), label


def given_examples(
    task: Task,
    x: Any,
    y: Any = None,
    labels: Sequence[str] = (),
    *,
    reads_labels: bool = True,
) -> tuple[Task, Examples]:
    """Examples from inputs and labels, as `given_table` takes them.

    Without `reads_labels` only the number of `y` is checked. InputError names the example that
    cannot be used.
    """
    task, table, label = given_table(task, x, y, labels if reads_labels else ())
    columns = task.columns(labelled=False)
    if "text_pair" in columns and not table.has(columns["text_pair"]):  # where it is optional
        del columns["text_pair"]
    if label is not None and reads_labels:
        columns["label"] = label
    return task, task.examples(table, columns)


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


def _label_columns(task: Task, values: Sequence[Any]) -> dict[str, list[Any]]:
    """The column of labels [E], or columns of 0 and 1 where the task names one for each label."""
    names = [name.strip() for name in task.label.split(",")]
    if len(names) == 1:
        return {task.label: [*values]}
    rows = [{*task.kind.parts(x)} if isinstance(x, str) else {*x} for x in values]
    if odd := set().union(*rows) - {*names}:
        raise InputError(
            f"the label {min(odd)!r} is none of the columns {task.label}: correct it, or name its "
            "column with label_column"
        )
    return {name: [int(name in row) for row in rows] for name in names}


def _column_of(task: Task, role: str, roles: Collection[str]) -> str:
    """The name that the column of a role, among other roles, has in the task's files."""
    if role == "text" or (role == "context" and "choices" in roles):
        return task.text
    if role == "text_pair":
        return task.pair or role
    if role == "choices":
        return (task.pair or role).removesuffix("*")
    return task.text if role == "words" and task.text != "text" else role


def _further_columns(
    task: Task, columns: Mapping[str, Any], roles: Collection[str]
) -> dict[str, Any]:
    """What else a kind reads, where the data has it: ids, openings of choices, wrong answers."""
    if "question" in roles:
        further = ("id", "is_impossible", "answer_start")
        return {name: columns[name] for name in further if name in columns}
    opening: Any = getattr(task.kind, "opening", None)
    if opening in columns and task.pair and _named(columns).has(task.pair):
        return {opening: columns[opening]}
    if not (negatives := getattr(task.kind, "negatives", None)):
        return {}
    source = Source(columns={"negatives": [negatives]})
    return {name: x for name, x in columns.items() if source.role_of(str(name))}


def inputs_of(task: Task) -> list[str]:
    """Names of the strings that evaluation gives a task; a tagger reads words."""
    default = task.kind.signatures(task)[DEFAULT].inputs
    suffices = default.keys() <= set(task.inputs)  # vectors take single texts, too
    return list(default) if suffices or not task.kind.is_trained else task.inputs


def _roles(task: Task) -> list[str]:
    """What the strings of a task may be: a single text may turn out to be a pair."""
    names = inputs_of(task)
    return ["text", "text_pair"] if names == ["text"] else names


def text_columns(task: Task, examples: Examples) -> dict[str, list[Any]]:
    """The columns that a row is made of."""
    return {name: examples.columns[name] for name in _roles(task) if name in examples.columns}


def by_role(task: Task, x: Any) -> dict[str, Any]:
    """Role -> its strings, from one column, a tuple in their order, or columns by either name."""
    if not isinstance(x, Mapping):
        return dict(zip(_roles(task), x if isinstance(x, tuple) else (x,), strict=False))
    return {role: _column(x, role, name) for role, name in names_by_role(task, x).items()}


def _column(x: Mapping[Any, Any], role: str, name: str) -> Any:
    """A column by its name; of "ending*" lists from the columns ending0, ending1 and so on."""
    lists = name.removesuffix("*")
    if name in x or lists in x:
        return x[name if name in x else lists]
    columns = {key: as_list(key, x[key]) for key in _named(x).keys(role, name)}
    if len({*map(len, columns.values())}) > 1:
        sizes = ", ".join(f"{len(values)} of {key}" for key, values in columns.items())
        raise InputError(f"the {role} differ in number ({sizes}): give as many of each")
    return [list(row) for row in zip(*columns.values(), strict=True)]


def _named(columns: Iterable[Any]) -> Table:
    """A table without rows that has columns of these names, to find the columns of "ending*"."""
    return Table({name: () for name in columns if isinstance(name, str)}, (), Source(MEMORY))


def names_by_role(task: Task, x: Collection[Any]) -> dict[str, Any]:
    """Role -> the name of its column; the task's names go before the roles'."""
    roles = _roles(task)
    known = {*x}
    by_task = {"text": task.text, "text_pair": task.pair}
    if task.pair and _named(x).has(task.pair):  # lists, or a column for each choice
        by_task["choices"] = task.pair
        known.add(task.pair)
    if roles[0] not in (*x, *by_task) and task.text in x:  # tokens for words, for one
        by_task[roles[0]] = task.text
    names = {role: name for role in roles for name in (role, by_task.get(role)) if name in known}
    if not names and len(x) == 1 and roles[0] in ("text", "words"):
        names = {roles[0]: next(iter(x))}
    if not names:
        named = "one text, or two text and text_pair" if roles[0] == "text" else " and ".join(roles)
        raise InputError(f"the inputs have the columns {', '.join(map(str, x))}: name {named}")
    return names


def _parts(x: Any, task: Task) -> tuple[Any, ...]:
    """The columns of inputs without names; a list with a tuple for each example is transposed."""
    names = inputs_of(task)
    roles = _roles(task)
    if isinstance(x, str | bytes):
        raise InputError("the input is a single string: give a list, such as [text]")
    if isinstance(x, tuple):
        if len(x) > len(roles):
            raise InputError(f"the inputs are {len(x)} columns: give {_forms(names)}")
        return x
    if isinstance(x, list) and x and all(isinstance(row, tuple) for row in x):
        sizes = {len(row) for row in x}
        if len(sizes) > 1:
            raise InputError(f"the inputs are tuples of {sorted(sizes)} texts: give all as many")
        return tuple(list(column) for column in zip(*x, strict=True))
    if len(roles) > 1 and roles[0] != "text":
        raise InputError(f"the inputs are one column: give {_forms(names)}")
    return (x,)


def _forms(names: Sequence[str]) -> str:
    if list(names) == ["text"]:
        return "a list of texts, or for pairs a tuple of two lists"
    return f"a tuple of lists ({', '.join(names)}), or a dict of them"

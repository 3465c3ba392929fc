"""Texts and labels in memory become `Examples`: lists, arrays, tensors, data frames, data sets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.serving.signatures import DEFAULT
from bert_tf.tasks.task import Task
from pipelines.examples.labelled_text import Examples
from pipelines.examples.squad import Questions, locate

SOURCE = "the data"  # as messages name it


def is_raw(x: Any) -> bool:
    """Whether inputs hold strings, in any of the forms that `given_examples` takes."""
    if isinstance(x, str | bytes):
        return True
    if _is_frame(x):
        return True
    if isinstance(x, Mapping):
        return any(is_raw(values) for values in x.values())
    kind = getattr(getattr(x, "dtype", None), "kind", None)
    if kind in ("U", "S", "T"):
        return True
    if getattr(getattr(x, "dtype", None), "name", None) in ("string", "str"):
        return True
    if kind is not None and kind != "O":
        return False
    if isinstance(x, Iterable):
        # None among the texts is a text that is missing.
        return any(is_raw(value) for value in _first_values(x))
    return False


def with_columns(task: Task, x: Any, y: Any = None) -> tuple[Task, dict[str, list[Any]], Any]:
    """The inputs by role, as lists, and the labels; the task has pairs where the inputs have.

    Args:
        task: what the model reads.
        x: texts [E], for text pairs and other tasks of several texts a tuple of such or a list of
            tuples; or a dict or a data frame with a column for each, by the kind's names or the
            task's.
        y: labels [E]; None where a data frame has a column of them, or there are none.

    Raises:
        InputError: a column is missing, or their lengths differ.
    """
    names = inputs_of(task)
    if _is_frame(x) or isinstance(x, Mapping):
        columns = dict(x.items()) if isinstance(x, Mapping) else {n: x[n] for n in _columns_of(x)}
        given = {role: columns[found] for role, found in _roles(task, columns).items()}
        if y is None and (label := task.label) in columns:
            y = columns[label]
    else:
        parts = _parts(x, names)
        given = dict(zip([*names, "text_pair"], parts, strict=False))
    if "text_pair" in given and task.pair is None:
        task = replace(task, pair="text_pair")
    missing = [name for name in inputs_of(task) if name not in given]
    if missing:
        raise InputError(
            f"the inputs have no {' and no '.join(missing)}: give {_forms(inputs_of(task))}"
        )
    lists = {name: _list(name, values) for name, values in given.items()}
    sizes = {name: len(values) for name, values in lists.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise InputError(f"the inputs differ in number ({told}): give as many of each")
    if not next(iter(sizes.values())):
        raise InputError("there is no example: give at least one text")
    return task, lists, y


def given_examples(
    task: Task, x: Any, y: Any = None, labels: Sequence[str] = ()
) -> tuple[Task, Examples]:
    """Examples from inputs and labels; see `with_columns`.

    Args:
        task: what the model reads.
        x: the inputs.
        y: labels; by name or by number for classes, numbers for regression and choices, a list of
            labels for the words of a text, for questions the answer's text or SQuAD's `answers`.
        labels: the names of the model's labels, in the order of its outputs.

    Raises:
        InputError: an input or a label cannot be used; the message names the example.
    """
    task, columns, y = with_columns(task, x, y)
    count = len(next(iter(columns.values())))
    for name, values in columns.items():
        read = _READ.get(name, _text)
        columns[name] = [read(value, f"{name} {i}") for i, value in enumerate(values)]
    examples = Examples(SOURCE, list(range(count)), columns)
    if "question" in columns:
        columns["id"] = [str(number) for number in range(count)]
        examples = Questions(SOURCE, examples.lines, columns)
    if y is None:
        return task, examples
    given = _list("labels", y)
    if len(given) != count:
        raise InputError(f"{len(given)} labels for {count} examples: give a label for each")
    if "question" in columns:
        _add_answers(columns, given)
    elif "words" in columns:
        columns["label"] = [
            _labels_of_words(value, words, labels, f"labels {i}")
            for i, (value, words) in enumerate(zip(given, columns["words"], strict=True))
        ]
    else:
        is_class = bool(labels)
        columns["label"] = [
            _class(value, task, labels, f"label {i}") if is_class else _number(value, f"label {i}")
            for i, value in enumerate(given)
        ]
    return task, examples


def inputs_of(task: Task) -> list[str]:
    """Names of the strings of a task: those of evaluation, so that a tagger reads words."""
    kind = task.kind
    return kind.inputs(task) if kind.is_trained else list(kind.signatures(task)[DEFAULT].inputs)


def _roles(task: Task, columns: Mapping[str, Any]) -> dict[str, str]:
    """Role -> the column that has it: of the role's name, or of the task's."""
    own = {"text": task.text, "text_pair": task.pair or "text_pair"}
    roles = [*inputs_of(task), *(["text_pair"] if inputs_of(task) == ["text"] else [])]
    if roles[0] not in (*columns, *own) and task.text in columns:  # tokens for words, for one
        own[roles[0]] = task.text
    found = {}
    for role in roles:
        for column in (role, own.get(role, role)):
            if column in columns:
                found[role] = column
                break
    if not found:
        raise InputError(
            f"the inputs have the columns {', '.join(map(str, columns))}: name them "
            f"{' and '.join(roles)}"
        )
    return found


def _parts(x: Any, names: Sequence[str]) -> Sequence[Any]:
    """The inputs of each name; a list of tuples, one for each example, is turned."""
    if isinstance(x, str | bytes):
        raise InputError("the input is a single string: give a list, such as [text]")
    if isinstance(x, tuple):
        most = 2 if names == ["text"] else len(names)
        if len(x) > most:
            raise InputError(f"the inputs are {len(x)} columns: give {_forms(names)}")
        return x
    if isinstance(x, list) and x and all(isinstance(row, tuple) for row in x):
        sizes = {len(row) for row in x}
        if len(sizes) > 1:
            raise InputError(f"the inputs are tuples of {sorted(sizes)} texts: give all as many")
        return [list(column) for column in zip(*x, strict=True)]
    if len(names) > 1 and names != ["text", "text_pair"]:
        raise InputError(f"the inputs are one column: give {_forms(names)}")
    return [x]


def _forms(names: Sequence[str]) -> str:
    if list(names) == ["text"]:
        return "a list of texts, or for pairs a tuple of two lists"
    listed = ", ".join(names)
    return f"a tuple of lists ({listed}), or a dict of them"


def _is_frame(x: Any) -> bool:
    """Whether it is a data frame, or a `datasets.Dataset`."""
    return hasattr(x, "column_names") or (hasattr(x, "columns") and hasattr(x, "iloc"))


def _columns_of(frame: Any) -> list[Any]:
    return list(getattr(frame, "column_names", None) or frame.columns)


def _first_values(x: Any) -> list[Any]:
    """The first values that are not None, at most 8; of an iterator none, which it would lose."""
    if not isinstance(x, Sequence | np.ndarray) and not hasattr(x, "iloc"):
        return []
    values = (x.iloc[i] if hasattr(x, "iloc") else x[i] for i in range(min(len(x), 1000)))
    found = [value for value in values if value is not None and value == value]
    return found[:8]


def _list(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes):
        raise InputError(f"{name} is a single string: give a list of them")
    if hasattr(values, "numpy"):  # a tensor
        values = values.numpy()
    if hasattr(values, "to_list") or hasattr(values, "tolist"):
        values = (getattr(values, "to_list", None) or values.tolist)()
    try:
        return list(values)
    except TypeError:
        raise InputError(f"{name} is {values!r:.40}: give a list") from None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or (
        type(value).__name__ in ("NAType", "NaTType")
    )  # fmt: skip


def _text(value: Any, name: str) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if _is_missing(value):
        raise InputError(f"{name} is {value}: leave the example out, or give it a text")
    if not isinstance(value, str):
        raise InputError(
            f"{name} is {value!r:.40}, no string: give texts, such as str({value!r:.20})"
        )
    return str(value)


def _words(value: Any, name: str) -> str:
    """Words, or a string with spaces between them, as such a string."""
    if isinstance(value, str | bytes) or _is_missing(value):
        return _text(value, name)
    words = [_text(word, f"{name}, word {i}") for i, word in enumerate(_list(name, value))]
    for word in words:
        if not word or word.split() != [word]:
            raise InputError(f"{name} has the word {word!r}: give words without spaces")
    return " ".join(words)


def _texts(value: Any, name: str) -> list[str]:
    return [_text(each, f"{name}, number {i}") for i, each in enumerate(_list(name, value))]


_READ = {"words": _words, "choices": _texts}


def _class(value: Any, task: Task, labels: Sequence[str], name: str) -> str:
    """A label's name, by its name or its number."""
    known = ", ".join(labels)
    if _is_missing(value):
        raise InputError(f"{name} is {value}: leave the example out, or give it one of {known}")
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        value = task.label_aliases.get(value, value)
        if value not in labels:
            raise InputError(f"{name} is {value!r}, none of the model's ({known}): correct it")
        return value
    if isinstance(value, bool | int | np.integer | np.bool_):
        if not 0 <= value < len(labels):
            raise InputError(
                f"{name} is {value}: the model's {len(labels)} labels have the numbers 0 to "
                f"{len(labels) - 1}"
            )
        return labels[int(value)]
    raise InputError(
        f"{name} is {value!r:.40}: give a label's name or its number as an integer, such as "
        "labels.astype(int)"
    )


def _number(value: Any, name: str) -> str:
    if _is_missing(value) or not isinstance(value, str | bytes | int | float | np.number):
        raise InputError(f"{name} is {value!r:.40}: give a number, or leave the example out")
    return value.decode() if isinstance(value, bytes) else str(value)


def _labels_of_words(value: Any, words: str, labels: Sequence[str], name: str) -> str:
    if isinstance(value, str | bytes):
        return _text(value, name)
    given = [
        label if isinstance(label, str) else _class(label, _NO_ALIASES, labels, f"{name}, word {i}")
        for i, label in enumerate(_list(name, value))
    ]
    count = len(words.split())
    if len(given) != count:
        raise InputError(f"{name}: {len(given)} labels for {count} words: give a label for each")
    return " ".join(given)


_NO_ALIASES = Task(name="words", kind=None)


def _add_answers(columns: dict[str, list[Any]], given: Sequence[Any]) -> None:
    """Adds the columns of answers and of the first one's place to questions."""
    columns["answers"], columns["span"] = [], []
    for number, (context, value) in enumerate(zip(columns["context"], given, strict=True)):
        name = f"answer {number}"
        texts, starts = _answers(value, name)
        if not texts:
            columns["answers"].append([])
            columns["span"].append([])
            continue
        start = starts[0] if starts else context.find(texts[0])
        place = locate(context, texts[0], start) if start >= 0 else None
        if place is None:
            raise InputError(f"{name} ({texts[0]!r:.60}) is not in its context: correct it")
        columns["answers"].append(texts)
        columns["span"].append(place)


def _answers(value: Any, name: str) -> tuple[list[str], list[int]]:
    """Texts and starts: of an answer's text, or of SQuAD's `answers`, {"text", "answer_start"}."""
    if value is None or (isinstance(value, str) and not value):
        return [], []
    if isinstance(value, Mapping):
        texts, starts = value.get("text", []), value.get("answer_start", [])
        if isinstance(texts, str):
            texts, starts = [texts], [starts]
        return _texts(texts, name), [int(start) for start in starts]
    return [_text(value, name)], []

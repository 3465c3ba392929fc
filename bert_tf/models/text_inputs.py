"""Texts and labels in memory become `Examples`: lists, arrays, tensors, data frames, data sets."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from bert_tf.errors import InputError
from bert_tf.models.text_values import (
    add_answers,
    answered,
    are_marks,
    as_list,
    as_text,
    as_texts,
    class_of,
    columns_of,
    is_frame,
    is_missing,
    is_sequence,
    label_list,
    labels_of_text,
    labels_of_words,
    number_text,
    split_words,
)
from bert_tf.pipelines.examples.squad import Questions
from bert_tf.pipelines.examples.table import Examples, Source
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.task import Task

SOURCE = "the data"  # as messages name it
_LOOKED_AT = 1000  # values, to find a string among missing ones


@dataclass(frozen=True)
class Given(Examples):
    """Examples that were given in memory: messages count them from 0."""

    def row(self, index: int) -> str:
        return f"example {self.lines[index]}"


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
    found = [value for value in values if not is_missing(value)]
    return any(map(is_raw, found[:8])) or bool(values and not found)


def checked_stream(x: Any) -> Any:
    """Inputs for Keras; InputError for streams of raw text, and for lists of nothing or numbers.

    Batches of a stream are looked at when Keras takes them: none is read for it.
    """
    if isinstance(x, Iterator):
        return (_of_ids(batch) for batch in x)
    if isinstance(x, keras.utils.PyDataset):
        return x if isinstance(x, _OfIds) else _OfIds(x)
    has_arrays = not isinstance(x, list | tuple) or any(hasattr(each, "shape") for each in x)
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


def with_columns(task: Task, x: Any, y: Any = None) -> tuple[Task, dict[str, list[Any]], Any]:
    """The inputs by role, as lists, and the labels; the task has pairs where the inputs have.

    `x` are texts [E], for several texts of an example a tuple of such or a list of tuples; or a
    dict or a data frame with a column for each, by the kind's names or the task's. `y` are labels
    [E]; without, a column has them, if any. InputError if a column is missing or lengths differ.
    """
    if hasattr(x, "column_names"):
        check_dataset(x)
    if is_frame(x) or isinstance(x, Mapping):
        columns = dict(x.items()) if isinstance(x, Mapping) else {n: x[n] for n in columns_of(x)}
        given = by_role(task, columns)
        own = (task.label, "label", *(["answer"] if "question" in given else []))
        found = [name for name in own if name in columns and name not in given]
        if y is None and found:
            y = columns[found[0]]
        elif y is None and (names := label_columns(task)) and all(n in columns for n in names):
            y = {name: columns[name] for name in names}
        if y is not None and "question" in given and "is_impossible" in columns:
            y = answered(y, columns["is_impossible"])
    else:
        given = by_role(task, _parts(x, task))
    for role in {"text", "text_pair"} & given.keys():
        column = given[role]
        if hasattr(column, "isna") or hasattr(column, "is_null"):  # of a frame: an empty cell
            given[role] = ["" if is_missing(value) else value for value in as_list(role, column)]
    if "text_pair" in given and task.pair is None:
        task = replace(task, pair="text_pair")
    missing = [name for name in inputs_of(task) if name not in given]
    if missing:
        raise InputError(
            f"the inputs have no {' and no '.join(missing)}: give {_forms(inputs_of(task))}"
        )
    lists = {name: as_list(name, values) for name, values in given.items()}
    sizes = {name: len(values) for name, values in lists.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{size} of {name}" for name, size in sizes.items())
        raise InputError(f"the inputs differ in number ({told}): give as many of each")
    if not next(iter(sizes.values())):
        raise InputError("there is no example: give at least one text")
    return task, lists, y


def label_columns(task: Task) -> list[str]:
    """Names of columns of 0 and 1, one for each label, that a task of many labels may name."""
    return [name.strip() for name in task.label.split(",")] if task.many_labels else []


def given_examples(
    task: Task, x: Any, y: Any = None, labels: Sequence[str] = (), *, reads_labels: bool = True
) -> tuple[Task, Examples]:
    """Examples from inputs and labels; see `with_columns`.

    Labels `y` are names or numbers of classes; for any number of labels a list of them for each
    text, a string of them, or a row or columns of 0 and 1; numbers for regression and choices, a
    list of labels for the words of a text, for questions the answer's text or SQuAD's `answers`.
    `labels` are the model's, in the order of its outputs. Without `reads_labels` only the number of
    `y` is checked. InputError names the example that cannot be used.
    """
    task, columns, y = with_columns(task, x, y)
    source = Source()
    if is_frame(x) or isinstance(x, Mapping):
        named = names_by_role(task, x if isinstance(x, Mapping) else columns_of(x))
        source = Source(columns={role: [str(name)] for role, name in named.items()})
    count = len(next(iter(columns.values())))
    for name, values in columns.items():
        read = _READ.get(name, as_text)
        columns[name] = [read(value, f"{name} {i}") for i, value in enumerate(values)]
    every = columns.get("choices", [])
    for i, choices in enumerate(every):
        if len(choices) != max(2, len(every[0])):
            raise InputError(
                f"choices {i}: {len(choices)} choices where the first example has {len(every[0])}: "
                "give all examples the same number, 2 or more"
            )
    examples: Examples = Given(SOURCE, list(range(count)), columns, source=source)
    if "question" in columns:
        ids: Any = range(count)
        if source.columns and "id" in (x if isinstance(x, Mapping) else columns_of(x)):
            source = Source(columns={**source.columns, "id": ["id"]})
            ids = as_list("id", x["id"])
        columns["id"] = list(map(str, ids))
        examples = Questions(SOURCE, examples.lines, columns, source=source)
    if y is None:
        return task, examples
    given = label_list(y, many=task.many_labels)
    if len(given) != count:
        raise InputError(f"{len(given)} labels for {count} examples: give a label for each")
    if not reads_labels:
        return task, examples
    if "question" in columns:  # which may have no answer
        add_answers(task, columns, given)
        return task, examples
    for i, label in enumerate(given):  # first: beside NaN, numbers of classes are floats
        if is_missing(label):
            raise InputError(f"label {i} is {label}: leave the example out, or give it a label")
    if "words" in columns:
        # As the words of a file are: with a space between two.
        columns["words"] = [" ".join(split_words(text)) for text in columns["words"]]
        columns["label"] = [
            labels_of_words(value, words, task, labels, f"labels {i}")
            for i, (value, words) in enumerate(zip(given, columns["words"], strict=True))
        ]
    elif task.many_labels:
        is_marks = are_marks(given, labels)
        columns["label"] = [
            task.kind.joined(labels_of_text(x, is_marks, task, labels, f"label {i}"), f"label {i}")
            for i, x in enumerate(given)
        ]
    elif labels:
        columns["label"] = [class_of(x, task, labels, f"label {i}") for i, x in enumerate(given)]
    else:
        columns["label"] = [number_text(value, f"label {i}") for i, value in enumerate(given)]
    return task, examples


def inputs_of(task: Task) -> list[str]:
    """Names of the strings of a task: those of evaluation, so that a tagger reads words."""
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


def check_dataset(x: Any) -> None:
    """Refuses a `datasets.DatasetDict`, and data sets that are streamed."""
    if isinstance(x, Mapping):
        raise InputError(
            f"the data has the splits {', '.join(map(str, x))}: give one, such as "
            f"data[{next(iter(x), 'train')!r}]"
        )
    if not hasattr(x, "__getitem__"):
        raise InputError(
            "the data set is streamed: load it without streaming=True, or give list(texts)"
        )


def by_role(task: Task, x: Any) -> dict[str, Any]:
    """Role -> its strings, from one column, a tuple in their order, or columns by either name."""
    if not isinstance(x, Mapping):
        return dict(zip(_roles(task), x if isinstance(x, tuple) else (x,), strict=False))
    return {role: x[name] for role, name in names_by_role(task, x).items()}


def names_by_role(task: Task, x: Collection[Any]) -> dict[str, Any]:
    """Role -> the name of its column; the task's names go before those of the roles."""
    roles = _roles(task)
    own = {"text": task.text, "text_pair": task.pair}
    if roles[0] not in (*x, *own) and task.text in x:  # tokens for words, for one
        own[roles[0]] = task.text
    found = {role: name for role in roles for name in (role, own.get(role)) if name in x}
    if not found and len(x) == 1 and roles[0] in ("text", "words"):
        found = {roles[0]: next(iter(x))}
    if not found:
        named = "one text, or two text and text_pair" if roles[0] == "text" else " and ".join(roles)
        raise InputError(f"the inputs have the columns {', '.join(map(str, x))}: name {named}")
    return found


def _parts(x: Any, task: Task) -> tuple[Any, ...]:
    """The columns of inputs without names; a list with a tuple for each example is transposed."""
    names, roles = inputs_of(task), _roles(task)
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


def _words(value: Any, name: str) -> str:
    """Words, or a string with spaces between them, as such a string."""
    if isinstance(value, str | bytes) or is_missing(value):
        return as_text(value, name)
    words = [as_text(word, f"{name}, word {i}") for i, word in enumerate(as_list(name, value))]
    for word in words:
        if split_words(word) != [word]:
            raise InputError(f"{name} has the word {word!r}: give words without spaces")
    return " ".join(words)


_READ = {"words": _words, "choices": as_texts}

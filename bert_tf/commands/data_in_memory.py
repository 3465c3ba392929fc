"""Data in memory, in place of the files that the commands read."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.commands.function import CommandOptions
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_text
from bert_tf.files.outputs import GIVEN_DATA, check_output_folder
from bert_tf.files.owners import RUN, Layout, Mark
from bert_tf.files.storage import is_remote
from bert_tf.options import option

if TYPE_CHECKING:
    from bert_tf.commands.finetune import FinetuningSetup
    from bert_tf.pipelines.examples.table import Examples
    from bert_tf.tasks.task import Task

Setup = TypeVar("Setup", bound="FinetuningSetup")
Texts = TypeVar("Texts", bound=Any)

_EXAMPLES = ("train", "validation")  # options of fine-tuning


@dataclass(kw_only=True)
class DocumentOptions(CommandOptions):
    """Text in files or in memory."""

    documents: Any = option(None, python=True, first=True)
    """texts in place of `corpus`: a list, an array or a column, with a document in each."""


def is_in_memory(data: object) -> bool:
    """Whether an option holds data, not a path or nothing."""
    return not (data is None or isinstance(data, str | os.PathLike))


def examples_in_memory(
    task: "Task", data: Any, labels: Sequence[str] = (), *, labelled: bool = True
) -> "tuple[Task, Examples]":
    """Examples from data in memory, and the task, which has pairs where the data has.

    `data` has columns (a dict, a data frame, a `datasets.Dataset` or a list of dicts) or is the
    inputs [E], in a tuple (inputs, labels) if `labelled` and the task needs labels. `labels` are
    the model's, in the order of its outputs; empty if they are not known.
    """
    from bert_tf.models.text_inputs import given_examples, label_columns, with_columns

    answers: Any = None
    if labelled and isinstance(data, tuple) and task.kind.losses.needs_labels:
        if len(data) != 2:
            raise InputError(f"the data is a tuple of {len(data)}: give (inputs, labels)")
        data, answers = data
    data = _columns(data)
    if not labelled and isinstance(data, Mapping):
        of_labels = (task.label, *label_columns(task))
        data = {name: values for name, values in data.items() if name not in of_labels}
    if labelled and answers is None:
        _, _, answers = with_columns(task, data)
        if answers is None and task.kind.losses.needs_labels:
            raise InputError(
                f"the data has no labels: give (inputs, labels), or a column {task.label!r}"
            )
    found = given_examples(task, data, answers, labels)
    if labelled and (name := getattr(task.kind, "negatives", None)):
        found[1].columns["negatives"] = _negatives(data, name, len(found[1]))
    if answers is not None and labels:
        _check_named(task, answers, labels)
    return found


def _negatives(data: Any, name: str, count: int) -> list[list[str]]:
    """The wrong answers of each example: those in a column, or for "negative*" in several."""
    from bert_tf.models.text_values import as_list, as_texts

    names, prefix = [name], name.removesuffix("*")
    if isinstance(data, Mapping) and prefix != name:
        numbers = [str(x).removeprefix(prefix) for x in data if str(x).startswith(prefix)]
        names = [f"{prefix}{x}" for x in sorted(filter(str.isdecimal, numbers), key=int)]
        names = names or [prefix]
    if not isinstance(data, Mapping) or (missing := [x for x in names if x not in data]):
        own = names if not isinstance(data, Mapping) else missing
        raise InputError(f"the data has no column {own[0]!r} of wrong answers (negatives): name it")
    columns = [as_list(x, data[x]) for x in names]
    if prefix != name and names == [prefix]:  # a list for each
        (columns,) = columns
        return [as_texts(x, f"{prefix} {i}") for i, x in enumerate(columns)]
    if any(len(x) != count for x in columns):
        raise InputError(f"{names[0]} has {len(columns[0])} texts for {count} examples: give all")
    rows = zip(*columns, strict=True)
    return [as_texts(list(row), f"{names[0]} {i}") for i, row in enumerate(rows)]


def _check_named(task: "Task", answers: Any, labels: Sequence[str]) -> None:
    """Refuses numbers as labels that have names: every source orders them otherwise."""
    import numpy as np

    from bert_tf.models.text_values import are_marks, label_list, values_of

    given = label_list(answers, many=task.many_labels)
    if are_marks(given, labels) or not np.isnan(values_of(labels)).all():
        return
    for index, value in enumerate(given):
        for each in value if isinstance(value, list | tuple | np.ndarray) else [value]:
            if isinstance(each, int | np.integer):
                raise InputError(
                    f"label {index} is {value!r:.40}, and the labels have names "
                    f"({', '.join(labels)}), which other data number otherwise: give their names"
                )


def columns_of(data: Any) -> dict[str, list[Any]]:
    """All columns of data in memory, none for inputs without names."""
    from bert_tf.models.text_values import as_list

    found = _columns(data)
    columns = found if isinstance(found, Mapping) else {}
    return {str(name): as_list(str(name), values) for name, values in columns.items()}


def _columns(data: Any) -> Any:
    """The columns of records, data frames and datasets, with names of classes; else the data."""
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        return {name: [row.get(name) for row in data] for name in names}
    if hasattr(data, "column_names"):
        from bert_tf.models.text_inputs import check_dataset

        check_dataset(data)
        features = getattr(data, "features", None) or {}
        return {name: _named(data[name], features.get(name)) for name in data.column_names}
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return {name: data[name] for name in data.columns}
    return data


def _named(values: Any, feature: Any) -> Any:
    if names := getattr(feature, "names", None):
        return [None if number is None or number < 0 else names[number] for number in values]
    if names := getattr(getattr(feature, "feature", None), "names", None):  # labels of words
        return [[names[number] for number in numbers] for numbers in values]
    return values


@contextmanager
def examples_as_files(options: Setup, layout: Layout = RUN) -> Iterator[Setup]:
    """The options with paths of JSON lines in place of examples in memory.

    `layout` is that of the output.

    The files stay in OUTPUT/data, where the run can be resumed from Python or by the command; those
    of a dry run are temporary. Raises InputError if the run there was begun with other examples.
    """
    if isinstance(options.data, Mapping):  # a dict of splits, such as a datasets.DatasetDict
        if "train" not in options.data:
            raise InputError(
                f"data has the splits {', '.join(map(str, options.data))}: give train=..., or a "
                "dict with train and validation"
            )
        splits: dict[str, Any] = {name: options.data.get(name) for name in _EXAMPLES}
        options = replace(options, data=None, **splits)
    elif is_in_memory(options.data):
        raise InputError("data takes the name of a data set, or a dict of splits: give train=...")
    in_memory = {n: data for n in _EXAMPLES if is_in_memory(data := getattr(options, n))}
    if not in_memory:
        yield options
        return
    options, texts = _as_json_lines(options, in_memory)
    if options.dry_run:
        with tempfile.TemporaryDirectory() as temporary:
            yield replace(options, **_written(Path(temporary), texts))
        return
    output = check_output_folder(options.output, [options.model])
    folder = (output if is_remote(options.output) else Path(options.output)) / GIVEN_DATA
    begun = any(any(output.glob(f"{depth}config.yaml")) for depth in ("", "*/", "*/*/"))
    mark = Mark.of(output, layout)
    for name, text in texts.items():
        file = folder / f"{name}.jsonl"
        if begun and not options.override and not _has(file, text):
            raise InputError(
                f"{options.output} holds a run with other data for {name}: give the same, or "
                "another output"
            )
        if not _has(file, text):
            mark.claim(output / GIVEN_DATA / file.name)
    yield replace(options, **_written(folder, texts))


def _as_json_lines(options: Setup, given: Mapping[str, Any]) -> tuple[Setup, dict[str, str]]:
    """The content of a file for each of the data, and the options that read these files."""
    from bert_tf.commands.finetuning import task_to_train

    task = task_to_train(options)
    texts = {}
    for name, data in given.items():
        try:
            task, examples = examples_in_memory(task, data, task.labels)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        texts[name] = _json_lines(_rows(task, examples))
    if task.format not in (None, "jsonl"):
        others = [n for n in _EXAMPLES if n not in given and getattr(options, n) is not None]
        if others:
            raise InputError(
                f"{others[0]} is a {task.format} file and {next(iter(given))} is not: give both as "
                "files, or both as data"
            )
        options = replace(options, format="jsonl")
    if task.pair is not None and "choices" not in task.inputs:
        options = replace(options, pair_column=task.pair)
    return options, texts


def _rows(task: "Task", examples: "Examples") -> Iterator[dict[str, Any]]:
    """The objects that the task's kind reads from JSON lines, one for each example."""
    columns = {"text": task.text, "text_pair": task.pair, "label": task.label}
    if "words" in examples.columns:
        columns["words"] = "words" if task.text == "text" else task.text
    if "choices" in examples.columns:
        columns |= {"context": task.text, "choices": (task.pair or "choices").removesuffix("*")}
    for values in zip(*examples.columns.values(), strict=True):
        row = dict(zip(examples.columns, values, strict=True))
        if "words" in row:
            row |= {name: value.split(" ") for name, value in row.items()}
        if "negatives" in row:
            name = task.kind.negatives
            texts = row.pop("negatives")
            row[name.removesuffix("*")] = texts if name.endswith("*") else texts[0]
        if task.many_labels and "label" in row:
            row |= task.kind.cells(task.label, row.pop("label"))
        if "span" in row:  # SQuAD's, whose first answer has a place
            start = (row.pop("span") or [0])[0]
            row["answers"] = [{"text": text, "answer_start": start} for text in row["answers"]]
        named = {columns.get(name) or name: value for name, value in row.items()}
        opening = getattr(task.kind, "opening", None)  # choices in memory begin with it
        yield named if opening is None else {**named, opening: ""}


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _written(folder: Path, texts: Mapping[str, str]) -> dict[str, Any]:
    """Writes the files that are not there yet; returns their paths."""
    for name, text in texts.items():
        if not _has(folder / f"{name}.jsonl", text):
            write_text(folder / f"{name}.jsonl", text)
    return {name: str(folder / f"{name}.jsonl") for name in texts}


def _has(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


@contextmanager
def documents_as_file(options: Texts, unfinished: str = "") -> Iterator[Texts]:
    """The options with the path of JSON lines that hold their documents, if there are any.

    The file lies beside the output. It is deleted at the end, unless the output has a file
    `unfinished`: such work can only be resumed with the same documents.
    """
    documents = options.documents
    if bool(options.corpus) == (documents is not None):
        found = "two texts are" if options.corpus else "no text is"
        raise InputError(f"{found} given: give exactly one of corpus and documents (from Python)")
    if documents is None:
        yield options
        return
    if options.corpus_format not in ("auto", "jsonl"):
        raise InputError("corpus_format is for files: leave it out beside documents")
    text = _json_lines({options.text_field: document} for document in _texts(documents))
    if not text:
        raise InputError("documents is empty: give at least one text")
    folder = check_output_folder(options.output)
    content = hashlib.sha256(text.encode()).hexdigest()[:16]  # a file of this name is no other's
    file = folder.with_name(f"{folder.name}.documents-{content}.jsonl")
    if not _has(file, text):
        write_text(file, text)
    try:
        yield replace(options, corpus=[str(file)], documents=None)
    finally:
        if not unfinished or not (folder / unfinished).exists():
            file.unlink()


def _texts(documents: Any) -> Iterable[str]:
    if isinstance(documents, str | Mapping) or not isinstance(documents, Iterable):
        raise InputError(f"documents is {documents!r:.40}: give a list of texts")
    for number, document in enumerate(documents):
        if not isinstance(document, str):
            raise InputError(f"document {number} is {document!r:.40}: give a text")
        try:
            document.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"document {number} is not valid Unicode: correct it") from error
        yield str(document)

"""Data in memory, in place of the files that the commands read."""

import hashlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bert_tf.commands.command import CommandOptions
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_text
from bert_tf.files.outputs import GIVEN_DATA, check_output_folder
from bert_tf.files.owners import RUN, Layout, Mark
from bert_tf.files.storage import is_remote
from bert_tf.options import option

if TYPE_CHECKING:
    from bert_tf.commands.finetuning_options import FinetuningSetup
    from bert_tf.pipelines.examples.table import Examples, Table
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


def table_in_memory(
    task: "Task", data: Any, labels: Sequence[str] = (), *, labelled: bool = True
) -> "tuple[Task, Table, dict[str, str]]":
    """A table of data in memory, its columns by role, and the task, with pairs if the data has any.

    `data` has columns (a dict, a data frame, a `datasets.Dataset` or a list of dicts) or is the
    inputs [E], in a tuple (inputs, labels) if `labelled` and the task needs labels. `labels` are
    the model's, in the order of its outputs; empty if they are not known.
    """
    from bert_tf.text.inputs import given_table

    answers: Any = None
    needs_labels = labelled and task.kind.is_trained and task.kind.losses.needs_labels
    if needs_labels and isinstance(data, tuple):
        if len(data) != 2:
            raise InputError(f"the data is a tuple of {len(data)}: give (inputs, labels)")
        data, answers = data
    task, table, label = given_table(task, data, answers, labels, by_place=False, labelled=labelled)
    if needs_labels and label is None:
        raise InputError(
            f"the data has no labels: give (inputs, labels), or a column {task.label!r}"
        )
    columns = task.columns(labelled=labelled)
    return task, table, columns if label is None else columns | {"label": label}


def examples_in_memory(
    task: "Task", data: Any, labels: Sequence[str] = (), *, labelled: bool = True
) -> "tuple[Task, Examples]":
    """Examples from data in memory, and the task; see `table_in_memory`."""
    task, table, columns = table_in_memory(task, data, labels, labelled=labelled)
    return task, task.examples(table, columns)


def columns_of(data: Any) -> dict[str, list[Any]]:
    """All columns of data in memory, none for inputs without names."""
    from bert_tf.pipelines.examples.memory import as_list, columns_in

    columns = columns_in(data, names_classes=True) or {}
    return {str(name): as_list(str(name), values) for name, values in columns.items()}


@contextmanager
def examples_as_files(options: Setup, layout: Layout = RUN) -> Iterator[Setup]:
    """The options with paths of JSON lines in place of examples in memory.

    `layout` is the layout of the output.

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
    task = _task_to_train(options, in_memory)
    data = {}
    for name in in_memory:
        try:
            task, table, columns = table_in_memory(task, in_memory[name], task.labels)
            data[name] = _Data(table, columns, task.examples(table, columns))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    options = replace(options, format="jsonl" if task.format else options.format)
    if task.pair is not None and "choices" not in task.inputs:
        options = replace(options, pair_column=task.pair)
    if options.dry_run:
        with tempfile.TemporaryDirectory() as temporary:
            yield replace(options, **_written(Path(temporary), data))
        return
    output = check_output_folder(options.output, [options.model])
    folder = (output if is_remote(options.output) else Path(options.output)) / GIVEN_DATA
    begun = any(any(output.glob(f"{depth}config.yaml")) for depth in ("", "*/", "*/*/"))
    mark = Mark.of(output, layout)
    paths: dict[str, Any] = {}
    for name, examples in data.items():
        file = folder / f"{name}.jsonl"
        if _holds(file, examples, task):
            paths[name] = str(file)
        elif begun and not options.override:
            raise InputError(
                f"{options.output} holds a run with other data for {name}: give the same, or "
                "another output"
            )
        else:
            mark.claim(output / GIVEN_DATA / file.name)
    paths |= _written(folder, {n: x for n, x in data.items() if n not in paths})
    yield replace(options, **paths)


class _Data(NamedTuple):
    """Data in memory as a table, with the names of its columns by role, and as examples."""

    table: "Table"
    columns: dict[str, str]
    examples: "Examples"


def _task_to_train(options: "FinetuningSetup", in_memory: Collection[str]) -> "Task":
    task = options.task_to_train()
    files = [n for n in _EXAMPLES if n not in in_memory and getattr(options, n) is not None]
    if files and task.format not in (None, "jsonl"):
        raise InputError(
            f"{files[0]} is a {task.format} file and {next(iter(in_memory))} is not: give both as "
            "files, or both as data"
        )
    return task


def _written(folder: Path, data: Mapping[str, _Data]) -> dict[str, Any]:
    paths = {}
    for name, (table, _, examples) in data.items():
        if "id" in examples.columns:  # questions without one are numbered otherwise in files
            table = replace(table, columns={**table.columns, "id": examples.columns["id"]})
        paths[name] = write_table(folder / f"{name}.jsonl", table)
    return paths


def write_table(path: Path, table: "Table") -> str:
    """Writes a table in memory as JSON lines, which are read as the same examples."""
    rows = zip(*table.columns.values(), strict=True)
    write_text(path, _json_lines(dict(zip(table.columns, row, strict=True)) for row in rows))
    return str(path)


def _holds(file: Path, data: _Data, task: "Task") -> bool:
    """Whether a file holds the same examples."""
    from bert_tf.pipelines.examples.files import read_table

    try:
        examples = task.examples(read_table(file, "jsonl"), data.columns)
    except InputError:
        return False
    return examples.fingerprint() == data.examples.fingerprint()


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@contextmanager
def documents_as_file(options: Texts, unfinished: str = "") -> Iterator[Texts]:
    """The options with the path of JSON lines that hold their documents, if there are any.

    The file lies beside the output. It is deleted at the end, unless the output has a file
    `unfinished`: such work can only be resumed with the same documents.
    """
    documents = options.documents
    if bool(options.corpus) == (documents is not None):
        texts = "two texts are" if options.corpus else "no text is"
        raise InputError(f"{texts} given: give exactly one of corpus and documents (from Python)")
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
    if not (file.is_file() and file.read_bytes() == text.encode()):
        write_text(file, text)  # else unfinished work was begun with the file as it is
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

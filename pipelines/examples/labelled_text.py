"""Labelled text: tables, JSON lines, plain lines and TensorFlow Datasets become `Examples`."""

import contextlib
import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bert_tf.atomic import StrPath
from bert_tf.errors import InputError
from bert_tf.pipelines.examples import records as files

Format = Literal["tsv", "csv", "jsonl", "lines", "conll"]
_EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".conll": "conll",
}  # fmt: skip
# What the columns are for, and the option that names each.
OPTIONS = {
    "text": "--text_column", "text_pair": "--pair_column", "label": "--label_column",
    "labels": "--label_column",
}  # fmt: skip


class MissingColumnError(InputError):
    """A file lacks a column, or an example its label."""


@dataclass(frozen=True)
class Examples:
    path: str  # the file, or the name in TensorFlow Datasets, as messages name it
    lines: list[int]  # line of each example, or its number there
    columns: dict[str, list[Any]]  # role, such as "label" -> a string or a list per example
    skipped: tuple[int, ...] = ()  # lines of broken rows that were skipped
    documents: tuple[int, ...] = ()  # each example's, by number; () if the file has none

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, index: int) -> str:
        return f"{self.path}, {self.row(index)}"

    def row(self, index: int) -> str:
        """Where an example stands in its file or data set: "line 7", "example 7"."""
        unit = "example" if files.is_dataset_name(self.path) else "line"
        return f"{unit} {self.lines[index]}"

    def remarks(self) -> list[str]:
        """What a user should know about these examples, a sentence each."""
        found = []
        if self.skipped:
            found.append(
                f"{self.path}: skipped {len(self.skipped)} broken rows, the first in line "
                f"{self.skipped[0]}"
            )
        columns = [values for role, values in self.columns.items() if role != "label"]
        texts = [values for values in columns if isinstance(values[0], str)]
        rows = enumerate(zip(*texts, strict=True))
        if blank := [i for i, row in rows if not all(map(str.strip, row))]:
            found.append(
                f"{self.path}: {len(blank)} examples have a blank text, the first in "
                f"{self.row(blank[0])}"
            )
        return found

    def take(self, indices: Iterable[int]) -> "Examples":
        chosen = [int(index) for index in indices]
        columns = {role: [values[i] for i in chosen] for role, values in self.columns.items()}
        lines = [self.lines[i] for i in chosen]
        documents = tuple(self.documents[i] for i in chosen if self.documents)
        return replace(self, lines=lines, columns=columns, skipped=(), documents=documents)

    def fingerprint(self) -> str:
        """SHA-256 of all values; the file's name and lines do not count."""
        return hashlib.sha256(json.dumps(self.columns, sort_keys=True).encode()).hexdigest()


def format_of(path: StrPath) -> Format | None:
    """The format that a file's name tells, plain or gzip; None if it tells none."""
    return _EXTENSIONS.get(Path(str(path).lower().removesuffix(".gz")).suffix)


def read_examples(
    path: StrPath,
    columns: Mapping[str, str],
    *,
    format: Format | None = None,
    header: bool = True,
    skip_broken: bool = False,
    records: Iterable[files.Record] | None = None,
) -> Examples:
    """Reads some columns of a file, of "-" for standard input, or of TensorFlow Datasets.

    `columns` maps a role to the name of its column, or to its number counted from 0; "ending*" is a
    list: the columns ending0, ending1, ..., or in JSON lines a list "ending". By default, the
    file's extension tells the format: a `tsv` splits at tabs only, as GLUE's files do, a `csv` has
    quotes. A `header` is a first line that names the columns. `skip_broken` skips rows with too few
    or too many columns, instead of refusing them. `records` are the path's, if already read.
    """
    format = format or format_of(path)
    skipped: list[int] = []
    rows: Iterable[tuple[int, dict[str, Any]]]
    if format == "jsonl" or files.is_dataset_name(path):
        rows = (
            (number, {role: _value(place, role, column, row) for role, column in columns.items()})
            for number, place, row in (files.read_records(path) if records is None else records)
        )
    elif format is None:
        files.read_text(path)  # raises: there is no such file
        raise InputError(
            f"{path}: unknown format: give --format, or a file named .tsv, .csv, .jsonl"
        )
    elif format == "conll":
        raise InputError(f"{path}: a column file holds words: give --task tagging, or --format")
    elif format == "lines":
        rows = ((number, {"text": line}) for number, line in _lines(path))
        columns = {"text": "text"}
    else:
        rows = _table_rows(path, format, columns, header, skipped if skip_broken else None)
    lines: list[int] = []
    values: dict[str, list[str]] = {role: [] for role in columns}
    for line, row in rows:
        lines.append(line)
        for role, value in row.items():
            values[role].append(value)
    if not lines:
        raise InputError(f"{path}: no example; give a file, or a split, that has some")
    return Examples(files.shown_name(path), lines, values, tuple(skipped))


def check_columns(
    path: StrPath, columns: Mapping[str, str], *, format: Format | None = None, header: bool = True
) -> None:
    """Refuses, by its first row, a table or JSON lines that lacks a column or has it twice."""
    format = format or format_of(path)
    if format not in ("tsv", "csv", "jsonl") or not Path(path).is_file():
        return
    names: list[str] = []
    unreadable = (OSError, EOFError, ValueError, TypeError, csv.Error, RecursionError, zlib.error)
    with contextlib.suppress(*unreadable), Path(path).open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream: Any = gzip.GzipFile(fileobj=file) if is_gzip else file
        text = io.TextIOWrapper(stream, "utf-8-sig", newline="" if format == "csv" else None)
        if format == "csv":
            names = next(filter(None, csv.reader(text, strict=True)), [])
        else:
            line = next((line for line in text if line.strip()), "").rstrip("\n")
            names = line.split("\t") if format == "tsv" else list(dict(json.loads(line)))
    if format != "jsonl" and not header:
        names = _numbers(names)
    for role, column in columns.items() if names else ():
        for name in _numbered(str(path), role, column, names):
            if format != "jsonl":
                _place(path, role, name, names)
            elif name not in names:
                raise _no_column(str(path), role, name, names)


def _numbers(row: Sequence[object]) -> list[str]:
    """The names of columns without a header: "0", "1" and so on."""
    return list(map(str, range(len(row))))


def read_columns_of(
    path: StrPath, lines: Sequence[int], format: Format | None = None
) -> dict[str, list[Any]]:
    """Reads all columns of the examples in some lines: name -> a value per example, "" if missing.

    A table whose first line is one of them has the columns "0", "1" and so on.
    """
    format = None if files.is_dataset_name(path) else format or format_of(path)
    rows: dict[int, dict[str, Any]] = {}
    if format == "jsonl":
        rows = {number: row for number, _, row in files.read_records(path)}
    elif format in ("tsv", "csv"):
        table = dict(_table(path, format))
        first = next(number for number, row in table.items() if row != [""])
        header = table[first]
        if first == lines[0] or len(set(header)) < len(header):
            header = _numbers(header)
        rows = {number: dict(zip(header, row, strict=False)) for number, row in table.items()}
    chosen = [rows.get(line, {}) for line in lines]
    names = dict.fromkeys(name for row in chosen for name in row)
    return {name: [row.get(name, "") for row in chosen] for name in names}


def _value(place: str, role: str, column: str, row: dict[str, Any]) -> Any:
    if column.endswith("*"):
        items = row.get(column[:-1])
        if isinstance(items, list):
            row = {f"{column[:-1]}{number}": item for number, item in enumerate(items)}
        return [_value(place, role, name, row) for name in _numbered(place, role, column, row)]
    if column not in row:
        raise _no_column(place, role, column, row)
    value = row[column]
    if role == "labels" and isinstance(value, list):  # any number of labels
        return [_value(place, role, column, {column: each}) for each in value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{place}: {column!r} is {json.dumps(value)}; it must be text or a number")
    return files.check_text(place, column, str(value))


def _no_column(
    place: str, role: str, column: str, columns: Iterable[str], cure: str = ""
) -> MissingColumnError:
    is_label = OPTIONS.get(role, "") == OPTIONS["label"]
    unlabelled = "; bert-tf predict reads data without labels" if is_label else ""
    listed = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in columns)
    return MissingColumnError(
        f"{place}: no column {column!r}, there are: {listed}; give {OPTIONS.get(role, role)} one "
        f"of these{cure}{unlabelled}"
    )


def _table_rows(
    path: StrPath,
    format: Format,
    columns: Mapping[str, str],
    header: bool,
    skipped: list[int] | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = _table(path, format)
    start = next(place for place, (_, row) in enumerate(rows) if row != [""])
    first_line, first = rows[start]
    names = first if header else _numbers(first)
    places = {}
    for role, column in columns.items():
        found = _numbered(str(path), role, column, names)
        places[role] = [_place(path, role, name, names) for name in found]
    for number, row in rows[start + 1 if header else 0 :]:
        if row == [""] and len(names) > 1:
            continue  # a blank line; in a table of one column it is an empty text
        if len(row) == len(names):
            cells = {role: [row[place] for place in of_role] for role, of_role in places.items()}
            yield number, {r: c if columns[r].endswith("*") else c[0] for r, c in cells.items()}
        elif skipped is not None:
            skipped.append(number)
        else:
            raise InputError(
                f"{path}, line {number}: {len(row)} columns where line {first_line} has "
                f"{len(names)} ({', '.join(names)}); repair the line"
            )


def _numbered(place: str, role: str, column: str, names: Iterable[str]) -> list[str]:
    """The columns that "ending*" stands for, in the order of their numbers; others are one."""
    if not column.endswith("*"):
        return [column]
    prefix = column[:-1]
    numbers = [name[len(prefix) :] for name in names if name.startswith(prefix)]
    found = [f"{prefix}{number}" for number in sorted(filter(str.isdecimal, numbers), key=int)]
    if not found:
        raise _no_column(place, role, column, names)
    return found


def _place(path: StrPath, role: str, column: str, names: list[str]) -> int:
    """The column's place in a row; a number counts from 0 unless it is also a name."""
    if names.count(column) > 1:
        raise InputError(
            f"{path}: two columns of one name, {column!r}; rename one, or give "
            f"{OPTIONS.get(role, role)} its number, counted from 0"
        )
    if column in names:
        return names.index(column)
    if column.isdecimal() and int(column) < len(names):
        return int(column)
    no_header = ", or --no_header and column numbers if the file begins with an example"
    raise _no_column(str(path), role, column, names, "" if column.isdecimal() else no_header)


def _lines(path: StrPath) -> list[tuple[int, str]]:
    lines = files.read_text(path).removesuffix("\n").split("\n")
    return [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1)]


def _table(path: StrPath, format: Format) -> list[tuple[int, list[str]]]:
    """The rows of a tsv or csv, each with its line; [""] for a blank line."""
    if format == "tsv":
        return [(number, line.split("\t")) for number, line in _lines(path)]
    text = files.read_text(path)
    # csv needs line ends unchanged, for they may stand within quotes.
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(max(len(text), 1))  # a cell may be as long as the file
    try:
        return [(lines.line_num, row or [""]) for row in lines]
    except csv.Error as error:
        raise InputError(
            f"{path}, line {lines.line_num}: {error}; check the quotes, or save it as .tsv"
        ) from error
    finally:
        csv.field_size_limit(limit)

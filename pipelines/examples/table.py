"""Labelled text: tables, JSON lines, plain lines and TensorFlow Datasets become `Examples`."""

import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples import records as files

Format = Literal["tsv", "csv", "jsonl", "lines", "conll"]
_EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".conll": "conll",
    ".conllu": "conll",
}
# What the columns are for, and the option that names each.
OPTIONS = {
    "text": "--text_column",
    "text_pair": "--pair_column",
    "label": "--label_column",
    "labels": "--label_column",
    "context": "--text_column",
    "choices": "--pair_column",
}


class MissingColumnError(InputError):
    """A file lacks a column, or an example its label."""


@dataclass(frozen=True)
class Source:
    """Where examples are from: what it takes to read all columns again, or to write a copy."""

    path: str = ""  # "-" for standard input
    format: str = ""  # "json" for SQuAD's published files, "" for data in memory
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # role -> names in the file
    names: Sequence[str] = ()  # of all columns of a table
    delimiter: str = ","  # of a CSV
    unread: Sequence[str] = ()  # a header, if columns were chosen by number alone
    extents: Sequence[tuple[int, int]] = ()  # lines of each example, if some have several

    def role_of(self, name: str) -> str | None:
        """What a column of the file was read as; "ending*" is ending, ending0 and so on."""
        for role, columns in self.columns.items():
            for column in columns:
                number = name.removeprefix(column[:-1])
                is_numbered = name.startswith(column[:-1]) and (not number or number.isdecimal())
                if name == column or (column.endswith("*") and is_numbered):
                    return role
        return None


@dataclass(frozen=True)
class Examples:
    path: str  # the file, or the name in TensorFlow Datasets, as messages name it
    lines: list[int]  # line of each example, or its number there
    columns: dict[str, list[Any]]  # role, such as "label" -> a string or a list per example
    skipped: tuple[int, ...] = ()  # lines of broken rows that were skipped
    documents: tuple[int, ...] = ()  # each example's, by number; () if the file has none
    source: Source = Source()

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
        if self.source.unread:
            cells = ", ".join(f"{cell[:20]!r}" for cell in self.source.unread[:4])
            found.append(
                f"{self.path}: its first line ({cells}) was read as names of columns; give "
                "--no_header if it is an example"
            )
        faults = {"a blank text": _is_blank}
        if self.source.format == "tsv":
            faults["a text in a CSV's quotes, which a .tsv does not have"] = _is_quoted
        columns = [values for role, values in self.columns.items() if role != "label"]
        for what, has_fault in faults.items():
            odd = sorted(
                {
                    i
                    for values in columns
                    for i, x in enumerate(values)
                    if (has_fault(x) if isinstance(x, str) else any(map(has_fault, x)))
                }
            )
            if odd:
                found.append(
                    f"{self.path}: {len(odd)} examples have {what}, the first in {self.row(odd[0])}"
                )
        return found

    def take(self, indices: Iterable[int]) -> "Examples":
        chosen = [int(index) for index in indices]
        columns = {role: [values[i] for i in chosen] for role, values in self.columns.items()}
        lines = [self.lines[i] for i in chosen]
        documents = tuple(self.documents[i] for i in chosen if self.documents)
        return replace(
            self, lines=lines, columns=columns, skipped=(), documents=documents, source=Source()
        )

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
    source = Source(str(path), "jsonl", {role: [column] for role, column in columns.items()})
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
        source = Source(str(path), format)
    else:
        source, rows = _open_table(path, format, columns, header, skipped if skip_broken else None)
    lines: list[int] = []
    values: dict[str, list[str]] = {role: [] for role in columns}
    for line, row in rows:
        lines.append(line)
        for role, value in row.items():
            values[role].append(value)
    if not lines:
        raise InputError(f"{path}: no example; give a file, or a split, that has some")
    return Examples(files.shown_name(path), lines, values, tuple(skipped), source=source)


def _is_blank(text: str) -> bool:
    return not text.strip()


def _is_quoted(text: str) -> bool:
    """Whether a text is a cell of CSV: in quotes, with those within doubled."""
    if not text[:1] == text[-1:] == '"':
        return False
    return '""' in text[1:-1] and '"' not in text[1:-1].replace('""', "")


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
        line = next((line for line in text if line.strip()), "")
        if format == "csv":
            delimiter, rest = _delimiter(line, columns, header), itertools.chain([line], text)
            names = next(csv.reader(rest, strict=True, delimiter=delimiter), [])
        else:
            line = line.rstrip("\n")
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


def read_columns_of(examples: Examples) -> dict[str, list[Any]]:
    """Reads all columns of the file of some examples: name -> a value for each, "" if missing.

    A table without a header, or with two columns of one name, has the columns "0", "1" and so on;
    lines, column files and TensorFlow Datasets have none.
    """
    source = examples.source
    rows: dict[int, dict[str, Any]] = {}
    if source.format == "jsonl" and not files.is_dataset_name(source.path):
        rows = {number: row for number, _, row in files.read_records(source.path)}
    elif source.names:
        table = read_table(source.path, source.format, source.delimiter)
        rows = {number: dict(zip(source.names, row, strict=False)) for number, row in table}
    chosen = [rows.get(line, {}) for line in examples.lines]
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
    is_flag = isinstance(value, bool) and not _is_label(role)
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if is_flag or not (is_number or isinstance(value, str)):
        raise InputError(f"{place}: {column!r} is {json.dumps(value)}; it must be text or a number")
    return files.check_text(place, column, str(value))


def _is_label(role: str) -> bool:
    return OPTIONS.get(role, role).startswith(OPTIONS["label"])


def _no_column(
    place: str, role: str, column: str, columns: Iterable[str], cure: str = ""
) -> MissingColumnError:
    unlabelled = "; bert-tf predict reads data without labels" if _is_label(role) else ""
    listed = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in columns)
    return MissingColumnError(
        f"{place}: no column {column!r}, there are: {listed}; give {OPTIONS.get(role, role)} one "
        f"of these{cure}{unlabelled}"
    )


def _open_table(
    path: StrPath,
    format: Format,
    columns: Mapping[str, str],
    header: bool,
    skipped: list[int] | None,
) -> tuple[Source, Iterator[tuple[int, dict[str, Any]]]]:
    """What a table is, and its rows by role, each with its line."""
    delimiter = ","
    if format == "csv":
        first_line = next(filter(str.strip, files.read_text(path).splitlines()))
        delimiter = _delimiter(first_line, columns, header)
    table = read_table(path, format, delimiter)
    start = next(place for place, (_, row) in enumerate(table) if row != [""])
    first_line_number, first = table[start]
    names = first if header else _numbers(first)
    places = {}
    for role, column in columns.items():
        found = _numbered(str(path), role, column, names)
        places[role] = [_place(path, role, name, names) for name in found]
    shown = names if len(set(names)) == len(names) else _numbers(names)
    by_number = header and all(map(str.isdecimal, columns.values())) and names != _numbers(names)
    source = Source(
        str(path),
        format,
        {role: [shown[i] for i in own] for role, own in places.items()},
        shown,
        delimiter,
        names if by_number else (),
    )

    def rows() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, row in table[start + 1 if header else 0 :]:
            if row == [""] and len(names) > 1:
                continue  # a blank line; in a table of one column it is an empty text
            repeats = header and row == names and len(names) > 1
            if len(row) == len(names) and not repeats:
                cells = {role: [row[place] for place in own] for role, own in places.items()}
                yield number, {r: c if columns[r].endswith("*") else c[0] for r, c in cells.items()}
            elif skipped is not None:
                skipped.append(number)
            elif repeats:
                raise InputError(
                    f"{path}, line {number}: it repeats the header of line {first_line_number}; "
                    "remove it"
                )
            else:
                raise InputError(
                    f"{path}, line {number}: {len(row)} columns where line {first_line_number} has "
                    f"{len(names)} ({', '.join(names)}); repair the line"
                )

    return source, rows()


def _delimiter(line: str, columns: Mapping[str, str], header: bool) -> str:
    """A CSV's: the semicolon if a header has all the columns between semicolons alone."""
    for delimiter in ",;" if header else "":
        names = next(csv.reader([line], delimiter=delimiter), [])
        if all(any(fnmatchcase(x, column) for x in names) for column in columns.values()):
            return delimiter
    return ","


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


def read_table(path: StrPath, format: str, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """The rows of a tsv or csv, each with its first line; [""] for a blank line."""
    if format == "tsv":
        return [(number, line.split("\t")) for number, line in _lines(path)]
    text = files.read_text(path)
    # csv needs line ends unchanged, for they may stand within quotes.
    lines = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    limit = csv.field_size_limit(max(len(text), 1))  # a cell may be as long as the file
    rows: list[tuple[int, list[str]]] = []
    first = 1
    try:
        for row in lines:
            rows.append((first, row or [""]))
            first = lines.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {first}: {error}; check the quotes, or save it as .tsv"
        ) from error
    finally:
        csv.field_size_limit(limit)
    return rows

"""Tables from files and TensorFlow Datasets."""

import contextlib
import csv
import gzip
import io
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples import squad, tagged_words
from bert_tf.pipelines.examples.records import is_dataset_name, read_records, read_text
from bert_tf.pipelines.examples.table import Examples, Format, Source, Table

_EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".conll": "conll",
    ".conllu": "conll",
}


def format_of(path: StrPath) -> Format | None:
    """The format that a file's name tells, plain or gzip; None if it tells none."""
    return _EXTENSIONS.get(Path(str(path).lower().removesuffix(".gz")).suffix)


def read_table(
    path: StrPath,
    format: str | None = None,
    *,
    header: bool = True,
    skip_broken: bool = False,
    default: str | None = None,
    is_certain: bool = True,
) -> Table:
    """Reads a file, "-" for standard input, or TensorFlow Datasets.

    Args:
        path: the file, or a name of TensorFlow Datasets.
        format: by default what the extension tells: a `tsv` splits at tabs only, as GLUE's files
            do, a `csv` has quotes, `lines` are texts, `conll` has a word a line, and "json" is
            SQuAD's.
        header: whether the first line of a tsv or csv names the columns.
        skip_broken: skip rows with too few or too many columns, instead of refusing them.
        default: format of a file whose name tells none.
        is_certain: whether such a file has the default format; a column file may be one of texts.
    """
    if str(path) == "-" and default == "json":
        default = "jsonl"
    format = "jsonl" if is_dataset_name(path) else format or format_of(path)
    if format is None and (default != "conll" or is_certain or tagged_words.is_column_file(path)):
        format = default
    if format == "jsonl":
        return Table.of_records(read_records(path), Source(str(path), format))
    if format is None:
        if not Path(path).is_file():
            read_text(path)  # raises: there is no such file
        raise InputError(
            f"{path}: unknown format: give --format lines for a text on each line, --format conll "
            "for a word on each line, or a file named .tsv, .csv, .jsonl"
        )
    if format == "conll":
        return tagged_words.read_column_file(path)
    if format == "json":
        return squad.read_json(path)
    if format == "lines":
        numbers, lines = zip(*_lines(path), strict=True)
        return Table({"text": lines}, numbers, Source(str(path), format))
    return _cell_table(path, format, header, skip_broken)


def _cell_table(path: StrPath, format: str, header: bool, skip_broken: bool) -> Table:
    delimiter = ","
    if format == "csv" and header:
        delimiter = _delimiter(next(filter(str.strip, read_text(path).splitlines())))
    rows = read_rows(path, format, delimiter)
    start = next(index for index, (_, row) in enumerate(rows) if row != [""])
    first_line, names = rows[start]
    header_names = names if header else _numbers(names)
    body: list[tuple[int, list[str]]] = []
    skipped = []
    for line, row in rows[start + 1 if header else 0 :]:
        if row == [""] and len(names) > 1:
            continue  # a blank line; in a table of one column it is an empty text
        repeats = header and row == names and len(names) > 1
        if len(row) == len(names) and not repeats:
            body.append((line, row))
        elif skip_broken:
            skipped.append(line)
        elif repeats:
            raise InputError(
                f"{path}, line {line}: it repeats the header of line {first_line}; remove it"
            )
        else:
            raise InputError(
                f"{path}, line {line}: {len(row)} columns where line {first_line} has "
                f"{len(names)} ({', '.join(header_names)}); repair the line"
            )
    keys = header_names if len(set(header_names)) == len(header_names) else _numbers(names)
    cells = zip(*(row for _, row in body), strict=True) if body else ([] for _ in names)
    return Table(
        dict(zip(keys, cells, strict=True)),
        [line for line, _ in body],
        Source(str(path), format, names=keys, delimiter=delimiter),
        header=header_names,
        skipped=skipped,
    )


def _delimiter(line: str) -> str:
    """The delimiter of a csv with this header: the semicolon or tab if it makes more columns."""
    return max(",;\t", key=lambda x: len(next(csv.reader([line], delimiter=x), [])))


def _numbers(row: Sequence[object]) -> list[str]:
    """The names of columns without a header: "0", "1" and so on."""
    return list(map(str, range(len(row))))


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
            delimiter, rest = _delimiter(line) if header else ",", itertools.chain([line], text)
            names = next(csv.reader(rest, strict=True, delimiter=delimiter), [])
        else:
            line = line.rstrip("\n")
            names = line.split("\t") if format == "tsv" else list(dict(json.loads(line)))
    if not names:
        return
    if format == "jsonl":
        table = Table({name: [None] for name in names}, [1], Source(str(path), format))
    else:
        names = names if header else _numbers(names)
        empty = dict.fromkeys(_numbers(names), ())
        table = Table(empty, (), Source(str(path), format), header=names)
    for role, column in columns.items():
        if not (format == "jsonl" and column.removesuffix("*") in names):
            table.keys(role, column)


def read_columns_of(examples: Examples) -> dict[str, list[Any]]:
    """Reads all columns of the file of some examples: name -> a value for each, "" if missing.

    A table without a header, or with two columns of one name, has the columns "0", "1" and so on;
    lines, column files and TensorFlow Datasets have none.
    """
    source = examples.source
    rows: dict[int, dict[str, Any]] = {}
    if source.format == "jsonl" and not is_dataset_name(source.path):
        rows = dict(read_records(source.path))
    elif source.names:
        cells = read_rows(source.path, source.format, source.delimiter)
        rows = {line: dict(zip(source.names, row, strict=False)) for line, row in cells}
    chosen = [rows.get(line, {}) for line in examples.lines]
    names = dict.fromkeys(name for row in chosen for name in row)
    return {name: [row.get(name, "") for row in chosen] for name in names}


def _lines(path: StrPath) -> list[tuple[int, str]]:
    lines = read_text(path).removesuffix("\n").split("\n")
    return [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1)]


def read_rows(path: StrPath, format: str, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """The rows of a tsv or csv, each with its first line; [""] for a blank line."""
    if format == "tsv":
        return [(number, line.split("\t")) for number, line in _lines(path)]
    text = read_text(path)
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

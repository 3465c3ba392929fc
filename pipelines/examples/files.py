"""Tables from files and TensorFlow Datasets."""

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.pipelines.examples import squad, tagged_words
from bert_tf.pipelines.examples.reading import add_fault, is_dataset_name, read_records, read_text
from bert_tf.pipelines.examples.table import Examples, Format, Source, Table

_EXTENSIONS: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".conll": "conll",
    ".conllu": "conll",
}
_TOLD = re.compile(r"sep=(.)", re.IGNORECASE)  # the first line of Excel's csv


def format_of(path: StrPath) -> Format | None:
    """The format that a file's name tells, plain or gzip; None if it tells none."""
    return _EXTENSIONS.get(_name(path).suffix)


def _name(path: StrPath) -> Path:
    return Path(str(path).lower().removesuffix(".gz"))


def read_table(
    path: StrPath,
    format: str | None = None,
    *,
    header: bool = True,
    skip_broken: bool = False,
    default: str | None = None,
    is_certain: bool = True,
    faults: list[InputError] | None = None,
) -> Table:
    """Reads a file, "-" for standard input, or TensorFlow Datasets.

    Args:
        path: the file, or a name of TensorFlow Datasets.
        format: by default what the extension tells: a `tsv` splits at tabs only, as GLUE's files
            do, a `csv` has quotes, `lines` are texts, `conll` has a word a line, and "json" is
            SQuAD's. A `.json` has an object a line where it is not SQuAD's, or each is a question.
        header: whether the first line of a tsv or csv names the columns.
        skip_broken: skip rows with too few or too many columns, instead of refusing them.
        default: format of a file whose name tells none.
        is_certain: whether such a file has the default format; a column file may be one of texts.
        faults: takes the errors of lines that cannot be read, which are skipped; by default the
            first is raised.
    """
    if str(path) == "-" and default == "json":
        default = "jsonl"
    format = "jsonl" if is_dataset_name(path) else format or format_of(path)
    if format is None and _name(path).suffix == ".json":
        format = "jsonl" if default != "json" or squad.has_a_question_a_line(path) else None
    if format is None and (default != "conll" or is_certain or tagged_words.is_column_file(path)):
        format = default
    if format == "jsonl":
        return Table.of_records(read_records(path, faults), Source(str(path), format))
    if format is None:
        read_text(path)  # raises if there is no such file, or if it is no text, as .xlsx
        raise InputError(
            f"{path}: unknown format: give --format lines for a text on each line, --format conll "
            "for a word on each line, --format jsonl for a JSON object on each line, or a file "
            "named .tsv, .csv, .jsonl"
        )
    if format == "conll":
        return tagged_words.read_column_file(path, faults)
    if format == "json":
        return squad.read_json(path)
    if format == "lines":
        numbers, lines = zip(*_lines(path), strict=True)
        return Table({"text": lines}, numbers, Source(str(path), format))
    return _cell_table(path, format, header, skip_broken, faults)


def _cell_table(
    path: StrPath,
    format: str,
    header: bool,
    skip_broken: bool,
    faults: list[InputError] | None,
) -> Table:
    delimiter = ","
    is_told = False
    if format == "csv":
        delimiter, is_told, _ = _dialect(iter(read_text(path).splitlines()), header)
    rows = read_rows(path, format, delimiter)
    full = (index for index, (_, row) in enumerate(rows) if row != [""])
    start = next(itertools.islice(full, is_told, None))
    first_line, names = rows[start]
    header_names = names if header else _numbers(names)
    body: list[tuple[int, list[str]]] = []
    skipped = []
    for line, row in rows[start + 1 if header else start * is_told :]:
        if row == [""] and len(names) > 1:
            continue  # a blank line; in a table of one column it is an empty text
        repeats = header and row == names and len(names) > 1
        if len(row) == len(names) and not repeats:
            body.append((line, row))
        elif skip_broken:
            skipped.append(line)
        elif repeats:
            fault = f"it repeats the header of line {first_line}; remove it"
            add_fault(InputError(f"{path}, line {line}: {fault}"), faults)
        else:
            fault = f"{len(row)} columns where line {first_line} has {len(names)}"
            fault += f" ({', '.join(header_names)}); repair the line"
            add_fault(InputError(f"{path}, line {line}: {fault}"), faults)
    keys = header_names if len(set(header_names)) == len(header_names) else _numbers(names)
    cells = zip(*(row for _, row in body), strict=True) if body else ([] for _ in names)
    return Table(
        dict(zip(keys, cells, strict=True)),
        [line for line, _ in body],
        Source(str(path), format, names=keys, delimiter=delimiter),
        header=header_names,
        skipped=skipped,
    )


def _dialect(lines: Iterator[str], header: bool) -> tuple[str, bool, str]:
    """How a csv with these lines is split: delimiter, whether a line tells it, the line after it.

    Excel's first line tells it (`sep=;`), or else the header: it is the semicolon or tab that makes
    more columns than the comma. A space follows the delimiter where it does in the header.
    """
    full = filter(str.strip, lines)
    line = next(full, "")
    if told := _TOLD.fullmatch(line.strip("\r\n")):
        line = next(full, "")

    def cells(delimiter: str) -> list[str]:
        return next(csv.reader([line], delimiter=delimiter), [])

    delimiter = max(",;\t", key=lambda x: len(cells(x))) if header else ","
    delimiter = told[1] if told else delimiter
    others = cells(delimiter)[1:]
    is_spaced = header and others and all(cell.startswith(" ") for cell in others)
    return delimiter + " " * bool(is_spaced), bool(told), line


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


def _csv_rows(lines: Iterable[str], delimiter: str) -> Any:
    is_spaced = delimiter != delimiter[0]
    return csv.reader(lines, strict=True, delimiter=delimiter[0], skipinitialspace=is_spaced)


def read_rows(path: StrPath, format: str, delimiter: str = ",") -> list[tuple[int, list[str]]]:
    """The rows of a tsv or csv, each with its first line; [""] for a blank line."""
    if format == "tsv":
        return [(number, line.split("\t")) for number, line in _lines(path)]
    text = read_text(path)
    # csv needs line ends unchanged, for they may stand within quotes.
    lines = _csv_rows(io.StringIO(text, newline=""), delimiter)
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

"""One table of examples, whatever holds them: columns by name, and the location of each row.

`files.read_table` makes it from a file or a data set, `memory` from data in memory. A kind of task
reads the columns of its roles from it, as `Examples`, and refuses a blank label (`tasks.readers`).
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.cells import collection
from bert_tf.pipelines.examples.reading import Record, is_dataset_name, shown_name

Format = Literal["tsv", "csv", "jsonl", "lines", "conll"]
MEMORY = "the data"  # in place of a path
MISSING: Any = object()  # the cell of a record without this key
# What the columns are for, and the option that names each.
OPTIONS = {
    "text": "--text_column",
    "text_pair": "--pair_column",
    "label": "--label_column",
    "labels": "--label_column",
    "context": "--text_column",
    "choices": "--pair_column",
    "negatives": "--negatives",
}
# The usual names of both columns in other files, where a column file has numbers.
_USUAL = {"text": ("text", "words"), "label": ("label", "labels", "-1")}
_NO_TEXTS = ("label", "answers", "span", "id")  # roles of columns that hold no texts


class MissingColumnError(InputError):
    """A table lacks a column, or an example its label."""


@dataclass(frozen=True)
class Source:
    """Where examples are from: what it takes to read all columns again."""

    path: str = ""  # "-" for standard input
    format: str = ""  # "json" for SQuAD's published files, "" for data in memory
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # role -> names in the file
    names: Sequence[str] = ()  # of all columns of a tsv or csv
    delimiter: str = ","  # of a csv, with the space that follows it in the header, if any
    unread: Sequence[str] = ()  # a header, if columns were chosen by number alone

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
    """Values by role, such as "text" and "label", of examples that know their location."""

    path: str  # the file, or the name in TensorFlow Datasets, as messages name it
    lines: list[int]  # line of each example, or its number there
    columns: dict[str, list[Any]]  # role -> a string or a list per example
    skipped: tuple[int, ...] = ()  # lines of broken rows that were skipped
    documents: tuple[int, ...] = ()  # each example's, by number; () if the file has none
    source: Source = Source()

    def __len__(self) -> int:
        return len(self.lines)

    def location(self, index: int) -> str:
        return f"{self.path}, {self.row(index)}"

    def row(self, index: int) -> str:
        """Where an example stands in its file or data set: "line 7", "example 7", "question 7"."""
        if "id" in self.columns:
            return f"question {self.columns['id'][index]}"
        return f"{_unit(self.path)} {self.lines[index]}"

    def remarks(self) -> list[str]:
        """What a user should know about these examples, a sentence each."""
        remarks = []
        if self.skipped:
            remarks.append(
                f"{self.path}: skipped {len(self.skipped)} broken rows, the first in line "
                f"{self.skipped[0]}"
            )
        if self.source.unread:
            cells = ", ".join(f"{cell[:20]!r}" for cell in self.source.unread[:4])
            remarks.append(
                f"{self.path}: its first line ({cells}) was read as column names; give "
                "--no_header if it is an example"
            )
        is_pair = "text_pair" in self.source.names and "text" in self.columns
        if is_pair and self.source.role_of("text_pair") is None:
            remarks.append(
                f"{self.path}: its column text_pair is not read; for pairs give --pair_column "
                "text_pair"
            )
        spans = self.columns.get("span", [])
        if lost := [index for index, span in enumerate(spans) if span is None]:
            remarks.append(
                f"{self.path}: {len(lost)} of {len(self)} answers are not in their context; "
                f"training skips their questions, first {self.row(lost[0])}"
            )
        faults: dict[str, Callable[[str], bool]] = {"a blank text": lambda text: not text.strip()}
        if self.source.format == "tsv":
            faults["a text in a CSV's quotes, which a .tsv does not have"] = _is_quoted
        columns = [values for role, values in self.columns.items() if role not in _NO_TEXTS]
        for fault, has_fault in faults.items():
            odd = sorted(
                {
                    i
                    for values in columns
                    for i, x in enumerate(values)
                    if (has_fault(x) if isinstance(x, str) else any(map(has_fault, x)))
                }
            )
            if odd:
                remarks.append(
                    f"{self.path}: {len(odd)} examples have {fault}, the first in "
                    f"{self.row(odd[0])}"
                )
        return remarks

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


@dataclass(frozen=True)
class Table:
    """Columns of cells: strings of a table, any values of records, lists of words.

    A record without a column's key has `MISSING` there. The columns are named "0", "1" and so on in
    a column file, and in a tsv or csv that has no header or two columns of one name.
    """

    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int]  # line of each row, or its number in a data set
    source: Source
    header: Sequence[str] = ()  # names of the columns of a tsv or csv, as the file has them
    skipped: Sequence[int] = ()  # lines of broken rows
    locations: Sequence[str] = ()  # of each row, where a line does not tell
    documents: Sequence[int] = ()  # of each sentence of a column file, by number
    word_lines: Sequence[Sequence[int]] = ()  # of each word of a sentence
    usual: Mapping[str, str] = field(default_factory=dict)  # role -> column of a column file

    @classmethod
    def of_records(cls, records: Iterable[Record], source: Source) -> "Table":
        columns: dict[str, list[Any]] = {}
        lines: list[int] = []
        for line, row in records:
            for name, cell in row.items():
                cells = columns.setdefault(name, [])
                cells += [MISSING] * (len(lines) - len(cells))
                cells.append(cell)
            lines.append(line)
        for cells in columns.values():
            cells += [MISSING] * (len(lines) - len(cells))
        return cls(columns, lines, source)

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Sequence[int]) -> "Table":
        def chosen(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows] if values else []

        return replace(
            self,
            columns={name: chosen(cells) for name, cells in self.columns.items()},
            lines=chosen(self.lines),
            locations=chosen(self.locations),
            documents=chosen(self.documents),
            word_lines=chosen(self.word_lines),
        )

    def location(self, index: int) -> str:
        if self.locations:
            return self.locations[index]
        return f"{self.source.path}, {_unit(self.source.path)} {self.lines[index]}"

    def has(self, column: str) -> bool:
        """Whether a column of this name or number, or one of "ending*", is there."""
        try:
            return bool(self.keys("", column))
        except MissingColumnError:
            return column.endswith("*") and column[:-1] in self.columns

    def keys(self, role: str, column: str) -> list[str]:
        """The keys in `columns` of a column by its name or number; of "ending*" of all, in order.

        InputError says what there is if there is no such column.
        """
        names = list(self.header or self.columns)
        if self.source.format == "conll":
            return [self._numbered(role, column)]
        if self.source.format == "lines" and role == "text":
            return ["text"]
        if column.endswith("*"):
            numbered = self._numbers(column[:-1])
            if not numbered:
                raise self._no_column(role, column)
            return [key for name in numbered for key in self.keys(role, name)]
        if names.count(column) > 1:
            raise InputError(
                f"{self.source.path}: two columns of one name, {column!r}; rename one, or give "
                f"{_option(role)} its number, counted from 0"
            )
        keys = list(self.columns)
        if column in names:
            return [keys[names.index(column)]]
        if self.header and column.isdecimal() and int(column) < len(names):
            return [keys[int(column)]]
        raise self._no_column(role, column)

    def _numbers(self, prefix: str) -> list[str]:
        """The names of columns that are a prefix and a number, in the order of their numbers."""
        names = [name for name in self.header or self.columns if name.startswith(prefix)]
        numbers = [name[len(prefix) :] for name in names]
        return [f"{prefix}{n}" for n in sorted(filter(str.isdecimal, numbers), key=int)]

    def _numbered(self, role: str, column: str) -> str:
        """The key of a column file's column: its number, or its usual name in other files."""
        role = "label" if role in ("label", "labels") else "text"
        if not (column.isdecimal() or column in _USUAL[role]):
            raise InputError(
                f"{self.source.path}: a column file has no column names such as {column!r}: give "
                f"{OPTIONS[role]} a number, counted from 0"
            )
        is_own = column.isdecimal() and (role == "label" or int(column) > 0)
        key = str(int(column)) if is_own else self.usual[role]
        if key not in self.columns:
            raise InputError(
                f"{self.location(0)}: no column {key}, only {len(self.columns)} columns counted "
                "from 0; give a word and its label on each line, or name the columns with "
                "--text_column and --label_column"
            )
        return key

    def _no_column(self, role: str, column: str, row: int | None = None) -> MissingColumnError:
        names: Sequence[str] = self.header or list(self.columns)
        location = self.source.path
        cures = []
        if not self.header and len(self):  # records may have other keys in each line
            row = row or 0
            location = self.location(row)
            names = [name for name in names if self.columns[name][row] is not MISSING]
        option = _option(role)
        cures.append(f"give {option} one of these" if option.startswith("--") else "add it")
        if self.header and not column.isdecimal() and not column.endswith("*"):
            cures[0] += ", or --no_header and column numbers if the file begins with an example"
        if self.source.format == "tsv" and len(names) == 1 and "," in names[0]:
            cures.insert(0, "give --format csv if commas separate the columns")
        if _is_label(role):
            cures.append("bert-tf predict reads data without labels")
        shown = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in names)
        return MissingColumnError(
            f"{location}: no column {column!r}, there are: {shown}; {'; '.join(cures)}"
        )

    def column(self, role: str, column: str) -> Sequence[Any]:
        """All cells of a column."""
        (key,) = self.keys(role, column)
        cells = self.columns[key]
        if MISSING in cells:
            raise self._no_column(role, column, cells.index(MISSING))
        return cells

    def texts(self, role: str, column: str) -> list[str]:
        """The cells of a column as texts."""
        if self.source.format == "conll":
            raise InputError(
                f"{self.source.path}: a column file holds words: give --task tagging, or --format"
            )
        cells = self.column(role, column)
        if self.header or self.source.format == "lines":  # valid UTF-8
            return list(cells)
        return [
            cell if type(cell) is str and cell.isascii() else self.text(i, role, column, cell)
            for i, cell in enumerate(cells)
        ]

    def text(self, index: int, role: str, column: str, cell: Any) -> str:
        """A cell of a row as a text: a string, a number, or a label that is true or false."""
        if isinstance(cell, str):
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                raise InputError(
                    f"{self.location(index)}: {column!r} has half of a surrogate pair "
                    f"({cell[error.start]!a}); remove it or write the whole character"
                ) from error
            return str(cell)
        is_number = isinstance(cell, int) or (isinstance(cell, float) and math.isfinite(cell))
        if is_number and (_is_label(role) or not isinstance(cell, bool)):
            return str(cell)
        shown = json.dumps(cell)[:40] if self.source.format else f"{cell!r:.40}"
        cure = "correct it, or leave the example out"
        if not self.source.format and isinstance(cell, list):
            cure = "for pairs give a tuple of two lists, or a list of tuples"
        raise InputError(
            f"{self.location(index)}: {column!r} is {shown}; it must be text or a number: {cure}"
        )

    def lists(self, role: str, column: str) -> list[list[str]]:
        """Lists of texts: of "ending*" the columns ending0, ending1, ... or lists in "ending"."""
        prefix = column.removesuffix("*")
        listed = self.columns.get(prefix, ())
        keys = [] if listed and not self._numbers(prefix) else self.keys(role, column)
        rows = []
        for index in range(len(self)):
            items = collection(listed[index], self.location(index)) if listed else None
            if isinstance(items, list | tuple):
                cells = {f"{prefix}{number}": x for number, x in enumerate(items)}
            else:
                cells = {key: self.columns[key][index] for key in keys}
            texts = [self.text(index, role, key, x) for key, x in cells.items() if x is not MISSING]
            if not texts:
                raise self._no_column(role, column, index)
            rows.append(texts)
        return rows

    def examples(self, roles: Mapping[str, str]) -> Examples:
        """Examples with the texts of some columns, role -> name; of "ending*" lists of texts."""
        if not len(self):
            for role, name in roles.items() if self.header else ():
                self.keys(role, name)
            raise InputError(
                f"{self.source.path}: no examples; give a file or a split that has some"
            )
        columns = {
            role: self.lists(role, name) if name.endswith("*") else self.texts(role, name)
            for role, name in roles.items()
        }
        is_by_number = all(map(str.isdecimal, roles.values()))
        numbers = [str(number) for number in range(len(self.header))]
        is_unread = is_by_number and list(self.header) not in (numbers, [])
        return self.with_columns(columns, roles, unread=tuple(self.header) if is_unread else ())

    def with_columns(
        self, columns: dict[str, list[Any]], roles: Mapping[str, str], **source: Any
    ) -> Examples:
        """Examples with these values by role, which were read from the columns `roles`."""
        names = {
            role: [name] if name.endswith("*") or not self.header else self.keys(role, name)
            for role, name in roles.items()
        }
        return Examples(
            shown_name(self.source.path),
            list(self.lines),
            columns,
            tuple(self.skipped),
            source=replace(self.source, columns=self.source.columns or names, **source),
        )


def _unit(path: str) -> str:
    return "example" if is_dataset_name(path) or path == MEMORY else "line"


def _option(role: str) -> str:
    """The option that names a role's column; a column for each label has the role "OPTION NAME"."""
    return OPTIONS.get(role, role).partition(" ")[0]


def _is_label(role: str) -> bool:
    return _option(role) == OPTIONS["label"]


def _is_quoted(text: str) -> bool:
    """Whether a text is a cell of CSV: in quotes, with those within doubled."""
    if not text[:1] == text[-1:] == '"':
        return False
    return '""' in text[1:-1] and '"' not in text[1:-1].replace('""', "")

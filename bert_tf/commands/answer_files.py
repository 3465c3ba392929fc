"""Files of answers: a table or JSON lines, with the columns of the input beside each answer."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.files.atomic import write_text, write_tsv


def is_table(path: str | Path) -> bool:
    """Whether answers in a file of this name are a table; JSON lines otherwise."""
    return Path(path).suffix.lower() in (".csv", ".tsv")


def beside(
    columns: Mapping[str, Any], answer: Mapping[str, Any], read: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What was read of an input, its other columns, and its answer, by name.

    Names of the answer, also those that it has in a table, and columns that have the name of what
    was read, become `input_NAME`.
    """
    objects = [name for name, value in answer.items() if isinstance(value, dict)]
    taken = {*answer, *(f"{name}_{key}" for name in objects for key in answer[name])}
    row: dict[str, Any] = {}
    for values in (read or {}, columns):
        clashing = values.keys() & taken
        taken |= values.keys()
        for name, value in values.items():
            free = name
            while name in clashing and free in taken:
                free = f"input_{free}"
            taken.add(free)
            row[free] = value
    return {**row, **answer}


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_answers(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a table or as JSON lines, by the ending of the path.

    A table has a column for each key of an object, such as `probabilities_LABEL`; its cells hold
    other lists as JSON. A .tsv has no quotes: tabs and line ends within a cell become spaces.
    """
    if not is_table(path):
        write_text(path, "".join(f"{json_line(row)}\n" for row in rows))
        return
    cells = [_cells(row) for row in rows]
    names = list(dict.fromkeys(name for row in cells for name in row))
    table = [names, *([row.get(name, "") for name in names] for row in cells)]
    if Path(path).suffix.lower() == ".tsv":
        write_tsv(path, table)
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    write_text(path, text.getvalue())


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            cells |= {f"{name}_{key}": value[key] for key in sorted(value)}
        else:
            cells[name] = json_line(value) if isinstance(value, list) else value
    return cells

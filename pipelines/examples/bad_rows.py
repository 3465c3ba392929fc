"""Rows that cannot be used: all of them are named at once."""

from collections.abc import Callable, Sequence

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.reading import shown_name
from bert_tf.pipelines.examples.table import Examples, Table

_SHOWN = 10
_TRIED = 1000  # rows: if neither one of so many nor the last can be read, it is the table's fault
_AT_ONCE = 256  # rows read together


def refuse(faults: Sequence[InputError]) -> None:
    """Raises the error of a row that cannot be used; of several, one that notes the next nine."""
    if len(faults) == 1:
        raise faults[0]
    if faults:
        # The first in the message: graphs of TensorFlow lose the notes.
        error = InputError(f"{len(faults):,} rows cannot be used, such as {faults[0]}")
        for fault in faults[1:_SHOWN]:
            error.add_note(str(fault))
        others = len(faults) - _SHOWN
        more = f"and {others:,} more; " if others > 0 else ""
        error.add_note(f"{more}bert-tf check lists all such rows of a file, and other faults")
        raise error


def read_good_rows(
    read: Callable[[Table], Examples], table: Table, whole: InputError
) -> tuple[Examples, list[InputError]]:
    """The examples that `read` makes of a table without the rows that it refuses, and why.

    `whole` is the error of reading all rows. Raises it for a fault of the whole table, or if no row
    can be read.
    """
    if not _names_a_row(whole, table):
        raise whole
    good: list[int] = []
    faults: list[InputError] = []

    def fault_of(rows: Sequence[int]) -> InputError | None:
        # Beside a good row: some must be like each other.
        try:
            read(table.take([*good[:1], *rows]))
        except InputError as error:
            return error if _names_a_row(error, table) else None
        return None

    for first in range(0, len(table), _AT_ONCE):
        rows = range(first, min(first + _AT_ONCE, len(table)))
        if fault_of(rows) is None:
            good += rows
            continue
        for row in rows:
            if fault := fault_of([row]):
                faults.append(fault)
            else:
                good.append(row)
        if not good and len(faults) >= _TRIED and fault_of([len(table) - 1]):
            raise whole
    if not good:
        raise whole
    return read(table.take(good)), faults


def _names_a_row(error: InputError, table: Table) -> bool:
    return str(error).startswith((f"{table.source.path}, ", f"{shown_name(table.source.path)}, "))

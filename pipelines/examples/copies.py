"""Copies of files of examples: some rows are left out or get another label, the others stay."""

import csv
import io
import json
from collections.abc import Collection, Mapping

from bert_tf.pipelines.examples import records, squad
from bert_tf.pipelines.examples.files import read_rows
from bert_tf.pipelines.examples.table import Examples

_ENDINGS = {"lines": "txt"}  # of other formats than their names


def ending(examples: Examples) -> str:
    """The extension by which a copy is read as the original is, such as ".tsv"."""
    format = examples.source.format
    return f".{_ENDINGS.get(format, format)}"


def copy_without(examples: Examples, dropped: Collection[int], labels: Mapping[int, str]) -> str:
    """The file of examples, in its own format, without those that are dropped, by index.

    `labels` are new ones, index -> label, of examples with one label in a column. Rows that are
    not examples, such as a header or rows that were skipped, stay as they are. TensorFlow Datasets
    become JSON lines.
    """
    source = examples.source
    if source.format == "json":
        return squad.without(source.path, {examples.lines[i] for i in dropped})
    if records.is_dataset_name(source.path):
        rows = records.read_records(source.path)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for _, row in rows]
        extents = [(number, number) for number in range(1, len(lines) + 1)]
    else:
        text = records.read_text(source.path)
        # As csv reads lines; elsewhere "\r" alone does not end one.
        is_csv = source.format == "csv"
        lines = [*io.StringIO(text, newline="" if is_csv else "\n")]
        extents = [*source.extents] or [(line, line) for line in examples.lines]
        if is_csv:  # where a row may have several lines
            starts = [line for line, _ in read_rows(source.path, "csv", source.delimiter)]
            ends = [*(line - 1 for line in starts[1:]), len(lines)]
            end_of = dict(zip(starts, ends, strict=True))
            extents = [(first, end_of[last]) for first, last in extents]
    for index, label in labels.items():
        first, last = extents[index]
        row = "".join(lines[first - 1 : last])
        lines[first - 1 : last] = [_relabelled(row, label, examples), *[""] * (last - first)]
    for index in dropped:
        first, last = extents[index]
        if source.format == "conll":  # with its comments, and the blank line after it
            while first > 1 and lines[first - 2].startswith("#"):
                first -= 1
            last += last < len(lines) and not lines[last].strip()
        lines[first - 1 : last] = [""] * (last - first + 1)
    return "".join(lines)


def _relabelled(row: str, label: str, examples: Examples) -> str:
    source = examples.source
    (name,) = source.columns["label"]
    content = row.rstrip("\r\n")
    end = row[len(content) :]
    if source.format == "jsonl":
        return json.dumps(json.loads(row) | {name: label}, ensure_ascii=False) + end
    index = list(source.names).index(name)
    if source.format == "tsv":
        cells = content.split("\t")
        return "\t".join([*cells[:index], label, *cells[index + 1 :]]) + end
    (cells,) = csv.reader(io.StringIO(row, newline=""), delimiter=source.delimiter)
    cells[index] = label
    written = io.StringIO()
    csv.writer(written, delimiter=source.delimiter, lineterminator=end).writerow(cells)
    return written.getvalue()

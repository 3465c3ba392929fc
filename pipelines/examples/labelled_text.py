"""Labelled sentences and sentence pairs for fine-tuning: TSV, CSV and JSONL files to batches."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from bert_tf.errors import InputError
from pipelines.datasets import dataset_options

if TYPE_CHECKING:
    from bert_tf.tokenization.packing import Packer
    from bert_tf.tokenization.tokenizer import BertTokenizer

EXTENSIONS = (".tsv", ".csv", ".jsonl")


@dataclass(frozen=True)
class LabelledText:
    """Examples as text.

    Args:
        texts: the sentences, or the first ones of pairs.
        pairs: the second ones, or None.
        labels: names of the classes, or None.
    """

    texts: list[str]
    pairs: list[str] | None = None
    labels: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Iterable[int]) -> "LabelledText":
        """The examples at `indices`, in their order."""
        indices = [int(index) for index in indices]

        def chosen(column: list[str] | None) -> list[str] | None:
            return None if column is None else [column[index] for index in indices]

        return LabelledText(chosen(self.texts) or [], chosen(self.pairs), chosen(self.labels))


def read_labelled_text(
    path: str | os.PathLike,
    text_column: str,
    pair_column: str | None = None,
    label_column: str | None = None,
) -> LabelledText:
    """Reads examples from a file with named columns.

    A `.tsv` is cut at tabs and nothing else, as GLUE's are: a quote is a character like others.
    A `.csv` has quotes. Both begin with a line of column names. A `.jsonl` has an object a line.

    Args:
        path: the file; its extension says its format.
        text_column: name of the column of (first) sentences.
        pair_column: name of the column of second sentences, for pairs.
        label_column: name of the column of labels; numbers become their text.

    Raises:
        InputError: the file is missing, empty, not UTF-8 or malformed, or a column is not there.
    """
    path = Path(path)
    columns = [column for column in (text_column, pair_column, label_column) if column is not None]
    if path.suffix.lower() not in EXTENSIONS:
        raise InputError(
            f"{path}: extension {path.suffix or 'missing'}; name it {', '.join(EXTENSIONS)}, by "
            "its format"
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: invalid UTF-8; convert the file: iconv -f ITS_ENCODING -t UTF-8"
        ) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not text.strip():
        raise InputError(f"{path}: the file is empty; give one with examples")
    is_json = path.suffix.lower() == ".jsonl"
    rows = _json_rows(path, text) if is_json else _table_rows(path, text, columns)
    values: dict[str, list[str]] = {column: [] for column in columns}
    for line, row in rows:
        for column in values:
            values[column].append(_value(path, line, row, column))
    if not values[text_column]:
        raise InputError(f"{path}: only a line of column names; give a file with examples")
    return LabelledText(
        texts=values[text_column],
        pairs=None if pair_column is None else values[pair_column],
        labels=None if label_column is None else values[label_column],
    )


def _value(path: Path, line: int, row: dict[str, Any], column: str) -> str:
    if column not in row:
        raise _no_column(f"{path}, line {line}", column, row)
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(
            f"{path}, line {line}: {column!r} is {json.dumps(value)}; it must be text or a number"
        )
    return str(value)


def _no_column(place: str, column: str, columns: Iterable[str]) -> InputError:
    return InputError(
        f"{place}: no column {column!r}, there are: {', '.join(columns)}; name one of these"
    )


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"{path}, line {number}: not JSON ({error}); write one object a line"
            ) from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: not a JSON object; write one object a line")
        yield number, row


def _table_rows(path: Path, text: str, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = _tsv_rows(text) if path.suffix.lower() == ".tsv" else _csv_rows(path, text)
    header_line, header = next(rows)
    if len(set(header)) < len(header):
        raise InputError(
            f"{path}, line {header_line}: two columns of one name among {', '.join(header)}; "
            "rename one"
        )
    for column in columns:
        if column not in header:
            raise _no_column(f"{path}", column, header)
    for number, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {number}: {len(row)} columns where the first line names "
                f"{len(header)} ({', '.join(header)}); repair the line"
            )
        yield number, dict(zip(header, row, strict=True))


def _tsv_rows(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if line:
            yield number, line.split("\t")


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    # As csv wants it: line ends as they are, for they may stand within quotes.
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in lines:
            if row:
                yield lines.line_num, row
    except csv.Error as error:
        raise InputError(
            f"{path}, line {lines.line_num}: {error}; check the quotes, or save it as .tsv"
        ) from error


def text_batches(
    examples: LabelledText,
    tokenizer: "BertTokenizer",
    packer: "Packer",
    batch_size: int,
    *,
    labels: Sequence[str] | None = None,
    seed: int | None = None,
    start_step: int = 0,
    worker: int = 0,
    num_workers: int = 1,
) -> tf.data.Dataset:
    """Batches for a model from examples, tokenized in the graph.

    Without `seed` the examples come once, in their order. With it they come for ever, shuffled
    anew each epoch, and batch number `step` is a function of (seed, step). The last batch of an
    epoch may be smaller.

    Several workers share each batch of `num_workers * batch_size` examples, which is the one that
    a single worker would get: the first takes its first `batch_size` rows, and so on. Of a smaller
    batch the last workers take fewer rows or none; the number of batches is the same for all.

    Args:
        examples: E of them.
        tokenizer: turns text into ids.
        packer: puts [CLS] and [SEP] and padding to them, by `__call__(ids_a, ids_b)`.
        batch_size: B, examples in a batch of this worker.
        labels: names of the classes, in the order of their numbers; None leaves labels out.
        seed: of the order; None for the order of the file.
        start_step: batches to pass over.
        worker: number of this worker, from 0.
        num_workers: workers that share the examples.

    Returns:
        Dataset of (inputs, label ids int32 [B]), or of inputs alone where there are no labels;
        inputs as `packer` returns them.

    Raises:
        InputError: an example has a label that `labels` does not name.
    """
    label_ids = None
    if labels is not None and examples.labels is not None:
        label_ids = tf.constant(_label_ids(examples.labels, labels), tf.int32)
    texts = tf.constant(examples.texts, tf.string)
    pairs = None if examples.pairs is None else tf.constant(examples.pairs, tf.string)
    count = len(examples)
    shared_size = num_workers * batch_size
    first_epoch, passed = divmod(start_step, -(-count // shared_size))

    # Nothing here branches on tensors, so there is nothing for autograph to convert, slowly.
    @tf.autograph.experimental.do_not_convert
    def epoch(index: tf.Tensor) -> tf.data.Dataset:
        order = tf.range(count)
        if seed is not None:
            key = tf.stack([tf.constant(seed, tf.int64), index])
            order = tf.random.experimental.stateless_shuffle(order, key)
        batches = tf.data.Dataset.from_tensor_slices(order).batch(shared_size)
        return batches.skip(tf.where(index == first_epoch, tf.constant(passed, tf.int64), 0))

    @tf.autograph.experimental.do_not_convert
    def inputs(chosen: tf.Tensor) -> Any:
        chosen = chosen[worker * batch_size : (worker + 1) * batch_size]
        ids = tokenizer.tokenize(tf.gather(texts, chosen))
        pair_ids = None if pairs is None else tokenizer.tokenize(tf.gather(pairs, chosen))
        packed = packer(ids, pair_ids)
        return packed if label_ids is None else (packed, tf.gather(label_ids, chosen))

    epochs = tf.data.Dataset.range(first_epoch, 1 if seed is None else tf.int64.max)
    batches = epochs.flat_map(epoch).map(inputs, num_parallel_calls=2)
    if seed is None:
        remaining = max(0, -(-count // shared_size) - start_step)
        batches = batches.apply(tf.data.experimental.assert_cardinality(remaining))
    else:
        batches = batches.apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        )
    return batches.prefetch(2).with_options(dataset_options())


def _label_ids(names: list[str], labels: Sequence[str]) -> list[int]:
    numbers = {label: number for number, label in enumerate(labels)}
    unknown = sorted(set(names) - set(numbers))
    if unknown:
        raise InputError(
            f"label {unknown[0]!r} of example {names.index(unknown[0]) + 1} is not one of the "
            f"model's ({', '.join(labels)}); leave such examples out, or train with them"
        )
    return [numbers[name] for name in names]

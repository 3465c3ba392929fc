"""The formats of a corpus, read as lines of text.

- *sentences*, as in the original: a sentence per line, a blank line between documents;
- *text*: plain text, a document per file. A line of over 120 characters is a paragraph; shorter
  lines are a wrapped paragraph, up to a blank line;
- *sections*: the same, but two blank lines end a document, such as a chapter of a book;
- *jsonl*: a JSON object per line, its text in one field or several: a document of such paragraphs;
- *parquet*: a row per document, its text in one column or several;
- the name of a TensorFlow Dataset, `tfds:wikipedia/20230601.en`, optionally with version and split,
  `tfds:wikipedia/20230601.en:1.0.0:train[:1%]`: a document per example, its text in one feature.

Files may be compressed. Except in the first format, the graph splits paragraphs into sentences.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.storage import file_state
from bert_tf.pipelines.corpus import sources, text_files
from bert_tf.pipelines.corpus.sentence_splitting import end_sentences, split_sentences
from bert_tf.pipelines.corpus.sources import TFDS, Corpus, Slice
from bert_tf.pipelines.corpus.text_files import (
    LONG_LINE_BYTES,
    Block,
    line_start,
    read_blocks,
    strip,
)
from bert_tf.pipelines.data_options import CorpusOptions
from bert_tf.pipelines.datasets import dataset_options

_WRAPPED_LINE = 120  # characters of the longest one in plain text
_SHORTEST_SECTION = 1000  # bytes; a heading belongs to what follows
_BATCH_ROWS = 256  # of Parquet files
_PASSAGES = 200  # in a sample
_PASSAGE_BYTES = 1 << 16
_READ_BYTES = 1 << 20  # of lines, at once
_JUDGED_PASSAGES = 32
_FEW_LINES = 20  # are read as sentences
# Shares of the lines that hold parts of several sentences: below the first the lines are sentences,
# from the second on text. In 19 novels it is 13% to 48%, while at most a third of the lines end as
# sentences do; in paragraphs 87%; in sentences 0.5%, or 10% if another program split them.
_SEVERAL_IF_WRAPPED = (0.05, 0.1)
_SEVERAL = (0.25, 0.5)
# JSON lines, an array of objects, or either over several lines.
_ARRAY_BEGINS = re.compile(rb"\[\s*(\{|$)")
_JSON_BEGINS = re.compile(rb'\[\s*(\{|$)|\{\s*("|$)')
# Counts of faults of the text; the last begins a name that a field's name ends.
FAULTS = ("empty_documents", "invalid_utf8_lines", "nul_bytes", "cut_lines", "bad_lines")
WITHOUT = "documents_without_"


class Lines(NamedTuple):
    lines: list[bytes]  # stripped sentences or paragraphs; an empty one ends a document
    position: int  # bytes of the slice read so far


def read_slice(
    slice_: Slice, options: CorpusOptions, counts: Counter, unreadable: set[str] | None = None
) -> Iterator[Lines]:
    """Reads the documents of a slice.

    `counts` receives `empty_documents`, the documents without one of several fields, and what
    `read_blocks` counts; `unreadable` a skipped file.
    """
    reader = {
        "sentences": _sentences,
        "text": _plain_text,
        "sections": _sections,
        "jsonl": _json_lines,
        "parquet": _rows,
        "tfds": _dataset_texts,
    }
    try:
        yield from reader[slice_.format](slice_, options, counts)
    except text_files.UnreadableFile:
        if not options.skip_unreadable:
            raise
        if unreadable is not None:
            unreadable.add(slice_.source)
        yield Lines([b""], slice_.size)


def _blocks(slice_: Slice, counts: Counter, **settings: Any) -> Iterator[Block]:
    return read_blocks(*slice_[:3], state=slice_.state, counts=counts, **settings)


def _checked_blocks(
    slice_: Slice, options: CorpusOptions, counts: Counter, **settings: Any
) -> Iterator[Block]:
    for block in _blocks(slice_, counts, **settings):
        if options.corpus_format == "auto" and slice_.start == 0 and block.first_line == 1:
            _check_prose(slice_.source, block.lines)
        yield block


def _sentences(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Lines]:
    for block in _checked_blocks(slice_, options, counts):
        yield Lines([strip(line) for line in block.lines], block.position)


def _check_prose(source: str, lines: Iterable[bytes]) -> None:
    """Refuses XML and JSON, which their names do not tell, by the first line."""
    first = next(filter(None, map(strip, lines)), b"")
    kind = cure = ""
    if first[:10].lower().startswith((b"<?xml", b"<mediawiki", b"<html", b"<!doctype")):
        kind = "XML or HTML"
        cure = "extract its text (from a dump of Wikipedia with WikiExtractor and its --json)"
    elif first.startswith(b'<doc id="'):
        kind = "WikiExtractor's tags"
        cure = "give it --json, and here --corpus_format jsonl"
    elif _JSON_BEGINS.match(first):
        kind = "JSON"
        cure = "give --corpus_format jsonl"
    if kind:
        raise InputError(
            f"{source}: {kind}: {cure}, or --corpus_format sentences to read it as it is"
        )


def _plain_text(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Lines]:
    wrapped: list[bytes] = []
    for block in _checked_blocks(slice_, options, counts, cut_to=LONG_LINE_BYTES):
        yield Lines(list(_paragraphs(block.lines, wrapped)), block.position)
    yield Lines([b" ".join(wrapped), b""] if wrapped else [b""], slice_.size)


def _sections(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Lines]:
    wrapped: list[bytes] = []
    blank = size = 0  # blank lines before this one; bytes of the document
    for block in _checked_blocks(slice_, options, counts, cut_to=LONG_LINE_BYTES):
        lines: list[bytes] = []
        for line in map(strip, block.lines):
            if line and blank > 1 and size >= _SHORTEST_SECTION:
                lines.append(b"")
                size = 0
            lines += _paragraphs([line], wrapped)
            blank = 0 if line else blank + 1
            size += len(line)
        yield Lines(lines, block.position)
    yield Lines([b" ".join(wrapped), b""] if wrapped else [b""], slice_.size)


def _paragraphs(lines: Iterable[bytes], wrapped: list[bytes]) -> Iterator[bytes]:
    """Paragraphs, none empty; `wrapped` holds the lines of one that no blank line has ended."""
    size = sum(map(len, wrapped))
    for line in lines:
        line = strip(line)
        is_short = 0 < len(line) <= 4 * _WRAPPED_LINE  # a character has up to 4 bytes
        if is_short and len(line) > _WRAPPED_LINE:
            is_short = len(line.decode("utf-8")) <= _WRAPPED_LINE
        if wrapped and (not is_short or size > LONG_LINE_BYTES):
            yield b" ".join(wrapped)
            wrapped.clear()
            size = 0
        if is_short:
            wrapped.append(line)
            size += len(line)
        elif line:
            yield line


def _document(text: str, counts: Counter) -> list[bytes]:
    """The paragraphs of a text, then an empty one that ends the document."""
    encoded = text.encode("utf-8", errors="ignore")  # drops halves of surrogate pairs
    del text  # it may be large
    encoded = text_files.without_nul_bytes(encoded, counts)
    lines = text_files.cut_lines(encoded.splitlines(), LONG_LINE_BYTES, counts)
    paragraphs = list(_paragraphs([*lines, b""], []))
    if not paragraphs:
        counts["empty_documents"] += 1
    return [*paragraphs, b""]


def _json_lines(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Lines]:
    for block in _blocks(slice_, counts, cut_to=None, skip_longest=options.skip_bad_lines):
        lines: list[bytes] = []
        if slice_.start == 0 and block.first_line == 1:
            _check_json_lines(slice_.source, block.lines)
        for index, line in enumerate(block.lines):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                block.lines[index] = line = b""  # it may be large
                lines += _document(_text_of(record, options, counts), counts)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if options.skip_bad_lines:
                    counts["bad_lines"] += 1
                    continue
                where = text_files.line_name(block.first_line + index, slice_.start)
                raise InputError(
                    f"{slice_.source}, {where}: not a JSON object with text in the field "
                    f"{options.text_field!r} ({error!r}): fix it, name the field with "
                    "--text_field, or skip such lines with --skip_bad_lines"
                ) from error
        yield Lines(lines, block.position)


def _check_json_lines(source: str, lines: Iterable[bytes]) -> None:
    """Refuses an array of objects, and an object over several lines, by the first line."""
    first = next(filter(None, map(strip, lines)), b"")
    if first == b"{" or _ARRAY_BEGINS.match(first):
        raise InputError(
            f"{source}: not an object on each line: write one with jq -c '.[]' (for an array) or "
            f"jq -c ., such as jq -c '.[]' {Path(source).name} > {Path(source).stem}.jsonl"
        )


def _text_of(record: Any, options: CorpusOptions, counts: Counter) -> str:
    """Removes and returns the text of `record`; of several fields, those that it has."""
    fields = options.text_fields
    if not isinstance(record, dict):
        raise TypeError(f"the line is {type(record).__name__}, not an object")
    if len(fields) > 1:
        fields = [name for name in fields if record.get(name) is not None] or fields
    texts = []
    for name in fields:
        texts.append(record[name])
        record[name] = None
        if not isinstance(texts[-1], str):
            raise TypeError(f"{name} is {type(texts[-1]).__name__}, not a string")
    _count_missing(fields, options, counts)
    return texts[0] if len(texts) == 1 else "\n\n".join(texts)


def _count_missing(present: Iterable[str], options: CorpusOptions, counts: Counter) -> None:
    """Counts the fields that a document lacks: one that all lack may be misspelt."""
    for name in options.text_fields:
        if name not in present:
            counts[f"{WITHOUT}{name}"] += 1


def _rows(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Lines]:
    """The rows of a range of row groups of a Parquet file."""
    with text_files.read_errors(slice_.source), sources.parquet_file(slice_.source) as file:
        text_files.check_unchanged(slice_.source, file_state(slice_.source), slice_.state)
        groups = range(slice_.start, file.num_row_groups if slice_.end is None else slice_.end)
        columns = [name for name in options.text_fields if name in file.schema_arrow.names]
        if not columns:
            raise InputError(
                f"{slice_.source}: no column {options.text_field!r}: name one of "
                f"{', '.join(file.schema_arrow.names)} with --text_field"
            )
        rows = sum(file.metadata.row_group(group).num_rows for group in groups)
        done = 0
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=columns):
            lines: list[bytes] = []
            for row in batch.to_pylist():
                done += 1
                try:
                    lines += _document(_text_of(row, options, counts), counts)
                except (TypeError, KeyError) as error:
                    if not options.skip_bad_lines:
                        raise InputError(
                            f"{slice_.source}, row {done} from row group {slice_.start} on: no "
                            f"text in {options.text_field!r} ({error}): fix it, or skip such rows "
                            "with --skip_bad_lines"
                        ) from error
                    counts["bad_lines"] += 1
            yield Lines(lines, slice_.size * done // max(1, rows))


def _dataset_texts(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Lines]:
    full_name, _, split = slice_.source.removeprefix(TFDS).rpartition(":")
    tfds = sources.tensorflow_datasets(slice_.source)
    end = slice_.end or 0
    part = tfds.core.ReadInstruction(split, from_=slice_.start, to=end, unit="abs")
    builder = tfds.builder(full_name, data_dir=options.tfds_data_dir)
    examples = builder.as_dataset(split=part, shuffle_files=False)
    for number, example in enumerate(examples.as_numpy_iterator(), slice_.start):
        features = example if isinstance(example, dict) else {}
        fields = [name for name in options.text_fields if isinstance(features.get(name), bytes)]
        if not fields:
            raise InputError(
                f"{slice_.source}, example {number}: no text in the feature "
                f"{options.text_field!r}: name one of {', '.join(example)} with --text_field"
            )
        done = (number + 1 - slice_.start) * slice_.size // (end - slice_.start)
        _count_missing(fields, options, counts)
        text = b"\n\n".join(features[name] for name in fields).decode("utf-8", "ignore")
        yield Lines(_document(text, counts), done)


class EmptyCorpus(InputError):
    """A corpus of which no instance can be made."""


def empty_corpus(name: str) -> EmptyCorpus:
    return EmptyCorpus(f"{name}: no text, every line is blank: give files with text")


def sample_text(corpus: Corpus, most: int = _PASSAGES) -> Iterator[str]:
    """Lines from `most` places throughout a corpus, of 64 kB each, to judge its text."""
    for lines in _sample(list(itertools.chain.from_iterable(corpus.units)), corpus.options, most):
        yield b"\n".join(lines).decode("utf-8", "ignore")


def _sample(slices: list[Slice], options: CorpusOptions, most: int) -> Iterator[list[bytes]]:
    drawn = slices[:: -(-len(slices) // most)]
    for slice_ in drawn:
        try:
            yield from _passages(slice_, options, most // len(drawn))
        except text_files.UnreadableFile:
            if not options.skip_unreadable:
                raise


def _passages(slice_: Slice, options: CorpusOptions, count: int) -> Iterator[list[bytes]]:
    """Lines of a slice, together of `count` passages, from its beginning to its end."""

    def passage(offset: int) -> list[bytes]:
        start = line_start(slice_.source, offset) if offset > slice_.start else offset
        lines = list[bytes]()
        size = 0
        if offset == slice_.start or start < end:
            for read in read_slice(slice_._replace(start=start), options, Counter()):
                for line in read.lines:
                    lines.append(line)
                    size += len(line)
                    if size >= _PASSAGE_BYTES:
                        return lines
        return lines

    end = slice_.start + slice_.size
    has_lines = slice_.format not in ("parquet", "tfds")
    if count == 1 or (has_lines and not text_files.is_compressed(slice_.source)):
        offsets = range(slice_.start, end + 1, max(_PASSAGE_BYTES, slice_.size // count))
        with ThreadPoolExecutor(32) as threads:  # of requests, if the file is remote
            yield from threads.map(passage, offsets if count > 1 else offsets[:1])
        return
    every = (
        slice_.text_bytes // (count * _PASSAGE_BYTES) + 1 | 1
    )  # odd: kinds of text may alternate
    for read in read_slice(slice_, options, Counter()):
        yield read.lines[::every]


def judged_format(files: list[Slice], options: CorpusOptions) -> str:
    """Whether the lines of files are sentences or text, judged by 32 passages.

    Raises InputError if it cannot be told.
    """
    sample = _sample(files, options, _JUDGED_PASSAGES) if files else ()
    lines = [line for line in itertools.chain.from_iterable(sample) if line]
    if len(lines) < _FEW_LINES:
        return "sentences"
    several = np.mean(split_sentences(tf.constant(lines)).row_lengths() > 1)
    is_wrapped = np.mean(end_sentences(tf.constant(lines))) < 0.5
    most_in_sentences, least_in_text = _SEVERAL_IF_WRAPPED if is_wrapped else _SEVERAL
    if several < most_in_sentences:
        return "sentences"
    if several >= least_in_text:
        return "text"
    raise InputError(
        f"{files[0].source}: {several:.0%} of the lines of the corpus hold several sentences: give "
        "--corpus_format text (lines are parts of paragraphs, each file is a document) or "
        "--corpus_format sentences (each line is a sentence, blank lines end documents)"
    )


def read_lines(
    corpus: Corpus, counts: Counter | None = None, unreadable: set[str] | None = None
) -> tf.data.Dataset:
    """The lines of a corpus that are not blank: string [lines], about a megabyte each.

    `counts` and `unreadable` as in `read_slice`.
    """
    counted = Counter[str]() if counts is None else counts

    def batches() -> Iterator[list[bytes]]:
        slices = itertools.chain.from_iterable(corpus.units)
        parts = (read_slice(slice_, corpus.options, counted, unreadable) for slice_ in slices)
        reads = (read.lines for read in itertools.chain.from_iterable(parts))
        filled = filter(None, (list(filter(None, lines)) for lines in reads))
        group: list[list[bytes]] | None = None
        for group in sources.in_groups(filled, _READ_BYTES, lambda lines: sum(map(len, lines))):
            yield list(itertools.chain.from_iterable(group))
        if group is None:
            raise empty_corpus(corpus.name)

    signature = tf.TensorSpec([None], tf.string)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.with_options(dataset_options())


@contextmanager
def input_errors() -> Iterator[None]:
    """Unwraps an `InputError` that comes out of a dataset as an error of TensorFlow."""
    try:
        yield
    except tf.errors.OpError as error:
        # The message is "ExceptionType: message\nTraceback ...".
        if match := re.search(r"\b(?:InputError|UnreadableFile|EmptyCorpus): (.*)", error.message):
            raise InputError(match[1]) from None
        raise

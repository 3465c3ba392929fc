"""A corpus: what it is made of, in which format, and how it is cut into units of work.

Formats:

- *sentences*, that of the original's `create_pretraining_data.py`: a sentence a line, a blank
  line between documents;
- *text*: plain text, a document a file. A line of over 120 characters is a paragraph; shorter
  lines are taken for a wrapped paragraph, up to a blank line;
- *jsonl*: a JSON object a line, its text in one field; each a document of paragraphs as above;
- a name of TensorFlow Datasets, `tfds:wikipedia/20230601.en`, with its version and split if
  need be, `tfds:wikipedia/20230601.en:1.0.0:train[:1%]`: each example a document, its text in one
  feature.

Files may be compressed, with gzip or zstd. In all formats but the first, paragraphs are split
into sentences later, in the graph (`pipelines.sentence_splitting`).
"""

import glob
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.errors import InputError
from pipelines.options import CorpusOptions
from pipelines.text_files import (
    LONG_LINE_BYTES,
    UnreadableFile,
    cut_lines,
    is_compressed,
    line_start,
    read_blocks,
    strip,
)

CorpusInputs = str | os.PathLike | Iterable[str | os.PathLike]

# Text of a unit of work, about; a compressed byte is taken for several of text.
UNIT_BYTES = 32 << 20
COMPRESSION = 3

# Lines of plain text longer than this were not wrapped.
_WRAPPED_LINE_BYTES = 120

TFDS = "tfds:"


class Slice(NamedTuple):
    """A run of documents of one source.

    Attributes:
        source: path of a file, or "tfds:" and the full name of a dataset and split.
        start: byte of a plain file, or example of a dataset, at which a document may begin.
        end: where the slice ends; None for the end of the source. A document that begins before
            it belongs to the slice whole.
        size: bytes on disk, or of the examples.
    """

    source: str
    start: int
    end: int | None
    size: int


Unit = list[Slice]


class Passage(NamedTuple):
    """Lines in the order of the text, from one slice.

    Attributes:
        lines: sentences or paragraphs without white space around them; an empty one is where a
            document ends.
        position: bytes of the slice read so far.
    """

    lines: list[bytes]
    position: int


@dataclass
class Corpus:
    """What `open_corpus` found.

    Args:
        units: the text in units of about `UNIT_BYTES`, in order.
        sources: `file`, `bytes` and, of files, time of change (`modified`), for the record.
        unreadable: files that could not be read, where these are to be skipped.
        split_sentences: whether lines are paragraphs, to be split into sentences.
        options: the options it was opened with.
    """

    units: list[Unit]
    sources: list[dict[str, Any]]
    unreadable: list[str]
    split_sentences: bool
    options: CorpusOptions

    @property
    def text_bytes(self) -> int:
        """Bytes of text, about: those of compressed files are guessed."""
        return sum(_text_size(slice_) for unit in self.units for slice_ in unit)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(slice_.size for unit in self.units for slice_ in unit)

    @property
    def files(self) -> list[str]:
        """Paths of the files among the sources."""
        return [source["file"] for source in self.sources if "modified" in source]

    @property
    def name(self) -> str:
        """The first source, for messages."""
        return self.units[0][0].source


def find_files(inputs: CorpusInputs) -> list[str]:
    """Lists the files of a corpus.

    Args:
        inputs: a file, a folder (every file in it and below it whose name has no leading dot), a
            glob (`**` crosses folders), or several of these.

    Returns:
        Paths, sorted, each file once.

    Raises:
        InputError: a path does not exist, or a folder or glob holds no file.
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    found: dict[str, str] = {}
    for given in inputs:
        given = os.fspath(given)
        path = Path(given).expanduser()
        if path.is_file():
            files = [path]
        elif path.is_dir():
            files = [
                file
                for file in path.rglob("*")
                if file.is_file() and not _is_hidden(file.relative_to(path))
            ]
            if not files:
                raise InputError(f"{given}: the folder holds no files; put the text files there")
        elif glob.has_magic(given):
            # Not Path.glob, which takes no absolute pattern.
            matches = glob.glob(str(path), recursive=True)  # noqa: PTH207
            files = [Path(match) for match in sorted(matches) if Path(match).is_file()]
            if not files:
                raise InputError(f"{given}: the pattern matches no file; check it with ls")
        else:
            raise InputError(f"{given}: no such file or folder; check the path")
        for file in files:
            found.setdefault(os.path.realpath(file), str(file))
    if not found:
        raise InputError("no corpus given; name at least one text file, folder or glob")
    return sorted(found.values())


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def open_corpus(inputs: CorpusInputs, options: CorpusOptions | None = None) -> Corpus:
    """Finds the sources of a corpus and cuts them into units, reading next to nothing.

    A plain file of over two units is cut where documents begin, a dataset between its examples;
    small files share a unit. A compressed file, and a file that is one document, stays whole.

    Args:
        inputs: files, folders and globs (see `find_files`), and names of TensorFlow Datasets.
        options: format and what to do about files that cannot be read.

    Raises:
        InputError: an input does not exist, or the formats of several differ.
    """
    options = options or CorpusOptions()
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    names = [os.fspath(given) for given in inputs]
    datasets = [name for name in names if name.startswith(TFDS)]
    paths = [name for name in names if not name.startswith(TFDS)]
    files = find_files(paths) if paths or not datasets else []
    formats = {_format(file, options) for file in files} | ({"tfds"} if datasets else set())
    if len(formats - {"tfds"}) > 1 or formats == {"sentences", "tfds"}:
        raise InputError(
            f"{names[0]} and the other inputs are of several formats ({', '.join(sorted(formats))}"
            "); give them in runs of their own, or all one format with --corpus_format"
        )
    slices: list[Slice] = []
    sources: list[dict[str, Any]] = []
    unreadable: list[str] = []
    for file in files:
        try:
            status = Path(file).stat()
            slices += _file_slices(file, status.st_size, _format(file, options))
            sources.append({"file": file, "bytes": status.st_size, "modified": status.st_mtime_ns})
        except (OSError, UnreadableFile):
            if not options.skip_unreadable:
                raise
            unreadable.append(file)
    for name in datasets:
        found = _dataset_slices(name, options)
        slices += found
        sources.append({"file": found[0].source, "bytes": sum(part.size for part in found)})
    if not slices:
        raise InputError(f"{names[0]}: none of the files can be read; check their rights")
    return Corpus(list(_units(slices)), sources, unreadable, formats != {"sentences"}, options)


def _format(file: str, options: CorpusOptions) -> str:
    if options.corpus_format != "auto":
        return options.corpus_format
    name = re.sub(r"\.(gz|zst|zstd)$", "", file.lower())
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "sentences"


def _file_slices(file: str, size: int, text_format: str) -> list[Slice]:
    if size <= 2 * UNIT_BYTES or text_format == "text" or is_compressed(file):
        return [Slice(file, 0, None, size)]
    after_blank = text_format == "sentences"
    bounds = [
        line_start(file, offset, after_blank=after_blank)
        for offset in range(0, size - UNIT_BYTES // 2, UNIT_BYTES)
    ]
    bounds = sorted({*bounds, size})
    return [Slice(file, start, end, end - start) for start, end in itertools.pairwise(bounds)]


def _text_size(slice_: Slice) -> int:
    compressed = slice_.source.endswith((".gz", ".zst", ".zstd"))
    return slice_.size * (COMPRESSION if compressed else 1)


def _units(slices: list[Slice]) -> Iterator[Unit]:
    unit: Unit = []
    size = 0
    for slice_ in slices:
        if unit and size + _text_size(slice_) > UNIT_BYTES:
            yield unit
            unit, size = [], 0
        unit.append(slice_)
        size += _text_size(slice_)
    if unit:
        yield unit


def _dataset_slices(name: str, options: CorpusOptions) -> list[Slice]:
    tfds = _tensorflow_datasets(name)
    # name, config and version, then the split: "wikipedia/20230601.en:1.0.0:train[:1%]"
    parsed = re.fullmatch(r"([\w./-]+(?::\d[\d.*]*)?)(?::(.+))?", name.removeprefix(TFDS))
    try:
        if parsed is None:
            raise ValueError("not of the form NAME/CONFIG:SPLIT")
        full_name, split = parsed.groups()
        builder = tfds.builder(full_name, data_dir=options.tfds_data_dir)
        builder.download_and_prepare()
        splits = builder.info.splits
        parts = tfds.core.ReadInstruction.from_spec(split or "train").to_absolute(splits)
    except Exception as error:  # TensorFlow Datasets raises what its readers and servers do
        raise InputError(
            f"{name}: TensorFlow Datasets cannot give it ({str(error).strip().splitlines()[0]}); "
            "check the name against its catalogue, and the split"
        ) from error
    info = builder.info
    full_name = "/".join(filter(None, (info.name, info.config_name))) + f":{info.version}"
    slices = []
    for part in parts:
        split_info = splits[part.splitname]
        begin, end = part.from_ or 0, split_info.num_examples if part.to is None else part.to
        example_bytes = max(1, (split_info.num_bytes or 0) // max(1, split_info.num_examples))
        step = max(1, UNIT_BYTES // example_bytes)
        for first in range(begin, end, step):
            last = min(first + step, end)
            size = (last - first) * example_bytes
            slices.append(Slice(f"{TFDS}{full_name}:{part.splitname}", first, last, size))
    return slices


def _tensorflow_datasets(name: str) -> Any:
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise InputError(
            f"{name}: needs TensorFlow Datasets; pip install 'bert-tf[tfds]'"
        ) from error
    return tensorflow_datasets


def read_slice(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Passage]:
    """Reads the documents of a slice.

    Args:
        slice_: of an opened corpus.
        options: the corpus's.
        counts: what was met and mended is added here: `empty_documents`, `unreadable_files`, and
            what `read_blocks` counts.

    Raises:
        InputError: the source cannot be used; the message says where.
    """
    if slice_.source.startswith(TFDS):
        yield from _dataset_passages(slice_, options, counts)
        return
    reader = {"sentences": _sentences, "text": _plain_text, "jsonl": _json_lines}[
        _format(slice_.source, options)
    ]
    try:
        yield from reader(slice_, options, counts)
    except UnreadableFile:
        if not options.skip_unreadable:
            raise
        counts["unreadable_files"] += 1
        yield Passage([b""], slice_.size)


def _sentences(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Passage]:
    for block in read_blocks(*slice_[:3], counts=counts):
        yield Passage([strip(line) for line in block.lines], block.position)


def _plain_text(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Passage]:
    wrapped: list[bytes] = []
    for block in read_blocks(*slice_[:3], counts=counts, cut_to=LONG_LINE_BYTES):
        yield Passage(list(_paragraphs(block.lines, wrapped)), block.position)
    yield Passage([b" ".join(wrapped), b""] if wrapped else [b""], slice_.size)


def _paragraphs(lines: Iterable[bytes], wrapped: list[bytes]) -> Iterator[bytes]:
    """Paragraphs, none empty; `wrapped` holds the lines of the one that has not ended yet."""
    size = sum(map(len, wrapped))
    for line in lines:
        line = strip(line)
        is_short = 0 < len(line) <= _WRAPPED_LINE_BYTES
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
    """The paragraphs of a text, and the end of a document."""
    encoded = text.encode("utf-8", errors="ignore")  # drops halves of surrogate pairs
    del text  # it may be large
    if nul_bytes := encoded.count(b"\0"):
        counts["nul_bytes"] += nul_bytes
        encoded = encoded.replace(b"\0", b"")
    wrapped: list[bytes] = []
    lines = cut_lines(encoded.splitlines(), LONG_LINE_BYTES, counts)
    paragraphs = list(_paragraphs(lines, wrapped))
    if wrapped:
        paragraphs.append(b" ".join(wrapped))
    if not paragraphs:
        counts["empty_documents"] += 1
    return [*paragraphs, b""]


def _json_lines(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Passage]:
    for block in read_blocks(*slice_[:3], counts=counts, cut_to=None):
        lines: list[bytes] = []
        for index, line in enumerate(block.lines):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                block.lines[index] = line = b""  # it may be large
                lines += _document(_text_of(record, options), counts)
            except (ValueError, KeyError, TypeError) as error:
                where = f"line {block.first_line + index}"
                where += f" after byte {slice_.start}" if slice_.start else ""
                raise InputError(
                    f"{slice_.source}, {where}: not a JSON object with text in the field "
                    f"{options.text_field!r} ({error!r}); mend it, or name the field with "
                    "--text_field"
                ) from error
        yield Passage(lines, block.position)


def _text_of(record: Any, options: CorpusOptions) -> str:
    """Takes the text out of `record`."""
    text = record[options.text_field]
    record[options.text_field] = None
    if not isinstance(text, str):
        raise TypeError(f"{options.text_field} is {type(text).__name__}, not a string")
    return text


def _dataset_passages(slice_: Slice, options: CorpusOptions, counts: Counter) -> Iterator[Passage]:
    full_name, _, split = slice_.source.removeprefix(TFDS).rpartition(":")
    tfds = _tensorflow_datasets(slice_.source)
    end = slice_.end or 0
    part = tfds.core.ReadInstruction(split, from_=slice_.start, to=end, unit="abs")
    builder = tfds.builder(full_name, data_dir=options.tfds_data_dir)
    examples = builder.as_dataset(split=part, shuffle_files=False)
    for number, example in enumerate(examples.as_numpy_iterator(), slice_.start):
        text = example.get(options.text_field) if isinstance(example, dict) else None
        if not isinstance(text, bytes):
            raise InputError(
                f"{slice_.source}, example {number}: no text in the feature "
                f"{options.text_field!r}; name one of {', '.join(example)} with --text_field"
            )
        done = (number + 1 - slice_.start) * slice_.size // (end - slice_.start)
        yield Passage(_document(text.decode("utf-8", "ignore"), counts), done)


def empty_corpus(name: str) -> InputError:
    """The error for a corpus without a line of text."""
    return InputError(f"{name}: no text, every line is blank; give files with a sentence a line")


def read_lines(corpus: Corpus) -> tf.data.Dataset:
    """The lines of a corpus that are not blank, for counting words.

    Args:
        corpus: as returned by `open_corpus`.

    Returns:
        Dataset of string tensors [lines], each about a megabyte of text, in the order of the
        corpus. An unusable file raises while it is iterated: wrap the loop in `input_errors`.
    """

    def batches() -> Iterator[list[bytes]]:
        empty = True
        for slice_ in itertools.chain.from_iterable(corpus.units):
            gathered: list[bytes] = []
            size = 0
            for passage in read_slice(slice_, corpus.options, Counter()):
                lines = [line for line in passage.lines if line]
                gathered += lines
                size += sum(map(len, lines))
                if size > UNIT_BYTES // 32:
                    yield gathered
                    empty, gathered, size = False, [], 0
            if gathered:
                empty = False
                yield gathered
        if empty:
            raise empty_corpus(corpus.name)

    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec([None], tf.string)
    )
    return dataset.with_options(dataset_options())


def dataset_options() -> tf.data.Options:
    """Options of every dataset here: deterministic, parallelism as written, no autotuning.

    Autotuning can keep an iterator from closing for many seconds: tearing it down waits for the
    tuner's next wake-up.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA  # files are read inside flat_map
    )
    return options


@contextmanager
def input_errors() -> Iterator[None]:
    """Raises as itself an `InputError` that TensorFlow wrapped on its way out of a dataset."""
    try:
        yield
    except tf.errors.OpError as error:
        # TensorFlow keeps of a Python exception "ExceptionType: message\nTraceback ...".
        if match := re.search(r"\b(?:InputError|UnreadableFile): (.*)", error.message):
            raise InputError(match[1]) from None
        raise

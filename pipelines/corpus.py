"""Corpus inputs: plain text, a sentence a line, a blank line between documents.

The format is that of the original's `create_pretraining_data.py`. Files may be gzipped (known by
their first bytes, not by their name). A file is read in blocks of about a megabyte that end at
line ends, so memory depends neither on the size of a file nor on the number of files.
"""

import glob
import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import tensorflow as tf

from bert_tf.errors import InputError

CorpusInputs = str | os.PathLike | Iterable[str | os.PathLike]

BLOCK_BYTES = 1 << 20

# First bytes of the white space that `str.strip` removes and `bytes.strip` does not.
_UNICODE_SPACE_LEADS = frozenset(b"\x1c\x1d\x1e\x1f\xc2\xe1\xe2\xe3")


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


class Block(NamedTuple):
    """Whole lines of a file.

    Attributes:
        first_line: number of the first line, counted from 1.
        lines: the lines without line ends, valid UTF-8.
        position: bytes of the file on disk read so far.
    """

    first_line: int
    lines: list[bytes]
    position: int


def read_blocks(path: str) -> Iterator[Block]:
    """Reads a file block by block, at line ends; a line is never cut.

    Raises:
        InputError: the file is missing, unreadable, a damaged gzip file, or not UTF-8; the
            message names the file, and the line where there is one.
    """
    first_line = 1
    try:
        with Path(path).open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            text = gzip.GzipFile(fileobj=raw) if compressed else raw
            for block in _whole_lines(text):
                if first_line == 1:
                    block = block.removeprefix(b"\xef\xbb\xbf")  # byte order mark
                _check_utf8(block, path, first_line)
                lines = block.replace(b"\r\n", b"\n").split(b"\n")
                if not lines[-1]:  # what follows the last line end
                    lines.pop()
                yield Block(first_line, lines, raw.tell())
                first_line += len(lines)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path}: damaged gzip file ({error}); copy or compress it again"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{path}: cannot be read ({reason}); restore it or leave it out"
        ) from error


def _whole_lines(text: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    pieces: list[bytes] = []  # of a line whose end is not read yet
    while block := text.read(BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join((*pieces, block[:end]))
            pieces = []
        pieces.append(block[end:])
    if rest := b"".join(pieces):
        yield rest


def _check_utf8(block: bytes, path: str, first_line: int) -> None:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        raise InputError(
            f"{path}, line {line}: invalid UTF-8 (byte 0x{block[error.start]:02x}); "
            "convert the file: iconv -f ITS_ENCODING -t UTF-8, or iconv -c to drop such bytes"
        ) from error


def strip(line: bytes) -> bytes:
    """`line` without white space around it, Unicode's included; blank lines become empty."""
    line = line.strip()
    if line and line[0] in _UNICODE_SPACE_LEADS:
        return line.decode("utf-8").strip().encode("utf-8")
    return line


def empty_corpus(files: list[str]) -> InputError:
    """The error for a corpus without a line of text."""
    named = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files"
    return InputError(f"{named}: no text, every line is blank; give files with a sentence a line")


def read_lines(files: list[str]) -> tf.data.Dataset:
    """The lines of a corpus that are not blank, for counting words.

    Args:
        files: as returned by `find_files`.

    Returns:
        Dataset of string tensors [lines], each about a megabyte of text, in the order of `files`.
        An unusable file raises while it is iterated: wrap the loop in `input_errors`.
    """

    def batches() -> Iterator[list[bytes]]:
        empty = True
        for path in files:
            for block in read_blocks(path):
                lines = [stripped for line in block.lines if (stripped := strip(line))]
                if lines:
                    empty = False
                    yield lines
        if empty:
            raise empty_corpus(files)

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
        if match := re.search(r"\bInputError: (.*)", error.message):
            raise InputError(match[1]) from None
        raise

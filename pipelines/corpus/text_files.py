"""Reads text files in blocks of lines: plain or compressed, of any size and content.

A block has about a megabyte and ends at a line end. Faults are repaired by a rule and counted:

- invalid UTF-8 bytes are dropped, as by the original's `convert_to_unicode`; a file with more than
  0.5% of them is no text or in another encoding, and is refused;
- NUL bytes are dropped, as by the tokenizer;
- a line of over 64 kB is cut at white space into lines of about 512 bytes.

Archives, documents, UTF-16 and UTF-32 are refused by their first bytes.

Lines end at LF or CRLF, or at CR in a file whose first block has no LF.
"""

import codecs
import contextlib
import gzip
import operator
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from backports import zstd

from bert_tf.errors import InputError
from bert_tf.files.storage import (
    State,
    file_state,
    is_remote,
    open_for_reading,
    remote_errors,
    state_of,
)

_READ_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, zstd.ZstdError)
try:
    import bz2
    import lzma

    _READ_ERRORS += (lzma.LZMAError,)
    _HAS_XZ_AND_BZIP2 = True
except ImportError:  # this Python was built without one of them
    _HAS_XZ_AND_BZIP2 = False

BLOCK_BYTES = 1 << 20
_PROBE_BYTES = 1 << 16  # read at once where little is needed
LONG_LINE_BYTES = 1 << 16
CUT_LINE_BYTES = 512
MOST_LINE_BYTES = 32 << 20  # of a line that is kept whole; parsing it takes ten times the memory

# First bytes of what is no text, and their places.
_NO_TEXT = (
    (b"PK\x03\x04", 0, "a zip archive, or an office document", "unpack it, or save it as text"),
    (b"%PDF-", 0, "a PDF document", "extract its text, for example with pdftotext"),
    (b"ustar", 257, "a tar archive", "unpack it with tar -xf"),
    (b"{\\rtf", 0, "an RTF document", "save it as plain text"),
    (b"PAR1", 0, "a Parquet file", "name it *.parquet, or give --corpus_format parquet"),
)

_WIDE_MARKS = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)

# Largest share of invalid bytes. In Latin-1, about 1% of the bytes of Italian are invalid as UTF-8,
# 1.5% of German, 3% of French.
_MOST_INVALID_BYTES = 0.005

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zX"
_BZIP2 = tuple(b"BZh%d" % level for level in range(1, 10))
# pzstd begins with a frame to skip.
_SKIPPABLE_FRAMES = [struct.pack("<I", magic) for magic in range(0x184D2A50, 0x184D2A60)]
_ZSTD = (b"\x28\xb5\x2f\xfd", *_SKIPPABLE_FRAMES)
COMPRESSED = (".gz", ".zst", ".zstd", ".xz", ".bz2")  # endings of names

# First bytes of white space that `str.strip` removes and `bytes.strip` does not.
_UNICODE_SPACE_LEADS = frozenset(b"\x1c\x1d\x1e\x1f\xc2\xe1\xe2\xe3")


class Block(NamedTuple):
    first_line: int  # number of the first line, from 1 where reading began
    lines: list[bytes]  # the lines without line ends, valid UTF-8
    position: int  # bytes on disk read so far


class UnreadableFile(InputError):
    """A missing file, or one that the system cannot read."""


def is_compressed(path: str) -> bool:
    """Whether a file is gzip, zstd, xz or bzip2, according to its first bytes."""
    with read_errors(path), open_for_reading(path, _PROBE_BYTES) as file:
        return file.read(4).startswith((_GZIP, *_ZSTD, _XZ, *_BZIP2))


def read_blocks(
    path: str,
    start: int = 0,
    end: int | None = None,
    *,
    state: State | None = None,
    counts: Counter | None = None,
    cut_to: int | None = CUT_LINE_BYTES,
    skip_longest: bool = False,
) -> Iterator[Block]:
    """Reads a file in blocks of lines.

    `start` is the first byte of the first line to read, `end` that of the line after the last one;
    0 and None for compressed files. The file must have this `state` before and after reading.
    `counts` receives repaired faults: `invalid_utf8_lines`, `nul_bytes`, `cut_lines`. A line of
    over 64 kB is cut to `cut_to` bytes; without it, one of over 32 MB is refused or, with
    `skip_longest`, read as empty and counted in `bad_lines`.
    """
    counts = Counter() if counts is None else counts
    first_line = 1
    with read_errors(path), open_for_reading(path) as raw:
        check_unchanged(path, _state(path, raw), state)
        magic = raw.read(4)
        raw.seek(start)
        text = _decompressed(path, raw, magic) if end is None else raw
        continues = False  # whether a block begins within a line
        total = invalid = 0  # bytes read so far

        def too_long(line: int) -> None:
            if not skip_longest:
                raise InputError(
                    f"{path}, line {line}: longer than {MOST_LINE_BYTES >> 20} MB: split its "
                    "document over several lines, or skip such lines with --skip_bad_lines"
                )
            counts["bad_lines"] += 1

        def read() -> bytes:
            return text.read(BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - raw.tell()))

        for block in _whole_lines(read, too_long if cut_to is None else None):
            lines_ended, continued = block.count(b"\n"), not block.endswith(b"\n")
            is_first = first_line == 1 and start == 0
            if is_first:
                _check_is_text(path, block)
                block = block.removeprefix(codecs.BOM_UTF8)
            total += len(block)
            valid = _valid_utf8(block, counts)
            invalid += len(block) - len(valid)
            if invalid > _MOST_INVALID_BYTES * total:
                raise _wrong_encoding(path, start, first_line, block, invalid / total)
            lines = without_nul_bytes(valid, counts).replace(b"\r\n", b"\n").split(b"\n")
            del block, valid
            if not lines[-1]:  # what follows the last line end
                lines.pop()
            if cut_to is not None and max(map(len, lines), default=0) > LONG_LINE_BYTES:
                counts["cut_lines"] -= continues and len(lines[0]) > LONG_LINE_BYTES
                lines = cut_lines(lines, cut_to, counts)
            yield Block(first_line, lines, raw.tell() - start)
            first_line += lines_ended
            continues = continued
        check_unchanged(path, _state(path, raw), state)


def _check_is_text(path: str, block: bytes) -> None:
    """Refuses what is no text, UTF-16 and UTF-32, by the first block."""
    for begin, offset, kind, cure in _NO_TEXT:
        if block.startswith(begin, offset):
            raise InputError(f"{path}: {kind}: {cure}")
    if encoding := _wide_encoding(block):
        raise InputError(f"{path}: {encoding} text: convert it with iconv -f {encoding} -t UTF-8")


def _wide_encoding(block: bytes) -> str:
    """UTF-16 or UTF-32, by a mark at the beginning or by the places of NULs; else empty."""
    # That of UTF-32LE begins as that of UTF-16LE.
    for mark, encoding in zip(_WIDE_MARKS, ("UTF-32", "UTF-32", "UTF-16", "UTF-16"), strict=True):
        if block.startswith(mark):
            return encoding
    nuls = [block[place::4].count(0) for place in range(4)]
    for encoding, high, low in (
        ("UTF-32BE", nuls[:2], nuls[3:]),
        ("UTF-32LE", nuls[2:], nuls[:1]),
        ("UTF-16BE", nuls[::2], nuls[1::2]),
        ("UTF-16LE", nuls[1::2], nuls[::2]),
    ):
        # ASCII has NULs in all high bytes and in no low ones.
        if 10 * min(high) >= len(block) and 10 * sum(low) <= sum(high):
            return encoding
    return ""


def _state(path: str, file: IO[bytes]) -> State:
    return file_state(path) if is_remote(path) else state_of(os.fstat(file.fileno()))


def check_unchanged(path: str, now: State, state: State | None) -> None:
    """Refuses a file whose `file_state` is another one."""
    if state is not None and now != state:
        raise InputError(
            f"{path}: has changed since the run began: leave the text unchanged while it is read, "
            "and give the command again"
        )


def _decompressed(path: str, raw: IO[bytes], magic: bytes) -> Any:
    """A file as it is read, by the first bytes that it has on disk."""
    if magic.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)
    if magic.startswith(_ZSTD):
        window = zstd.DecompressionParameter.window_log_max  # the largest, as of zstd --long
        return zstd.ZstdFile(raw, options={window: window.bounds()[1]})
    if not magic.startswith((_XZ, *_BZIP2)):
        return raw
    if not _HAS_XZ_AND_BZIP2:
        raise InputError(
            f"{path}: compressed with xz or bzip2, which this Python was built without: unpack it"
        )
    return _Streams(raw, lzma.LZMADecompressor if magic.startswith(_XZ) else bz2.BZ2Decompressor)


class _Streams:
    """Concatenated streams of xz or bzip2; Python's own readers end before a damaged one."""

    def __init__(self, raw: IO[bytes], decompressor: Callable[[], Any]):
        self._raw, self._decompressor = raw, decompressor
        self._stream: Any = None  # None between streams
        self._packed = b""  # bytes read and not yet decompressed

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end."""
        text = b""
        while not text:
            if self._stream is None:
                self._packed = self._packed.lstrip(b"\0")  # xz pads streams
            if not self._packed and (self._stream is None or self._stream.needs_input):
                self._packed = self._raw.read(_PROBE_BYTES)
                if not self._packed and self._stream is None:
                    break
                if not self._packed:
                    raise EOFError("the last stream has no end")
                continue
            self._stream = self._stream or self._decompressor()
            text, self._packed = self._stream.decompress(self._packed, size), b""
            if self._stream.eof:
                self._packed, self._stream = self._stream.unused_data, None
        return text


@contextlib.contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Raises InputError with the path for any error while reading a file."""
    try:
        yield
    except _READ_ERRORS as error:
        if is_remote(path) and isinstance(error, OSError):
            with remote_errors(path):
                raise
        if not isinstance(error, OSError) or error.errno is None:  # gzip's and bzip2's own
            raise InputError(
                f"{path}: damaged compressed file ({error}): copy or compress it again"
            ) from error
        reason = error.strerror or str(error)
        raise UnreadableFile(f"{path}: cannot be read ({reason}): restore or remove it") from error


def _whole_lines(
    read: Callable[[], bytes], too_long: Callable[[int], None] | None
) -> Iterator[bytes]:
    """Blocks that end at line ends.

    A line of over `BLOCK_BYTES` is cut between blocks. With `too_long`, lines are whole, and of one
    that is over `MOST_LINE_BYTES` only the end remains, if `too_long` returns; it gets its number.
    """
    lines, is_skipping = 0, False
    rest = b""  # a line whose end is not read yet
    ends_at_cr: bool | None = None
    while block := read():
        if ends_at_cr is None:
            ends_at_cr = b"\r" in block[:-1] and b"\n" not in block
        if ends_at_cr:
            block = block.replace(b"\r", b"\n")
        if is_skipping:
            is_skipping = b"\n" not in block
            block = block[block.find(b"\n") :] if not is_skipping else b""
        if end := block.rfind(b"\n") + 1:
            whole, rest = rest + block[:end], block[end:]
            lines += whole.count(b"\n")
            yield whole
        else:
            rest += block
        if too_long is not None:
            if len(rest) > MOST_LINE_BYTES:
                too_long(lines + 1)
                rest, is_skipping = b"", True
        elif len(rest) > BLOCK_BYTES:
            end = _cut_before(rest, len(rest))
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _cut_before(line: bytes, end: int) -> int:
    """A place to cut `line` at or before `end`: after a space, or between characters."""
    space = line.rfind(b" ", max(0, end - CUT_LINE_BYTES // 2), end)
    if space >= 0:
        return space + 1
    last = min(end, len(line) - 1)
    indices = range(last, max(-1, last - 4), -1)
    # Not within a character, if it is UTF-8.
    return next((index for index in indices if line[index] & 0xC0 != 0x80), last)


def cut_lines(lines: list[bytes], cut_to: int, counts: Counter) -> list[bytes]:
    """Cuts lines of over 64 kB into `cut_to` bytes at most, at white space where there is any."""
    cut: list[bytes] = []
    for line in lines:
        begin = 0
        if len(line) > LONG_LINE_BYTES:
            counts["cut_lines"] += 1
            while len(line) - begin > cut_to:
                end = _cut_before(line, begin + cut_to)
                cut.append(line[begin:end])
                begin = end
        cut.append(line[begin:])
    return cut


def without_nul_bytes(text: bytes, counts: Counter) -> bytes:
    if nul_bytes := text.count(b"\0"):
        counts["nul_bytes"] += nul_bytes
        return text.replace(b"\0", b"")
    return text


def _valid_utf8(block: bytes, counts: Counter) -> bytes:
    with contextlib.suppress(UnicodeDecodeError):
        block.decode("utf-8")
        return block
    lines = block.split(b"\n")
    valid = [line.decode("utf-8", errors="ignore").encode("utf-8") for line in lines]
    counts["invalid_utf8_lines"] += sum(map(operator.ne, lines, valid))
    return b"\n".join(valid)


def _wrong_encoding(path: str, start: int, line: int, block: bytes, share: float) -> InputError:
    """`block`, which has invalid bytes, begins with line number `line`."""
    try:
        block.decode("utf-8")
        offset = 0
    except UnicodeDecodeError as error:
        offset = error.start
    where = line_name(line + block.count(b"\n", 0, offset), start)
    return InputError(
        f"{path}, {where}: invalid UTF-8 (byte 0x{block[offset]:02x}; {share:.1%} of the bytes so "
        "far): convert the file with iconv -f ITS_ENCODING -t UTF-8, drop such bytes with iconv "
        "-c, or remove the file if it is no text"
    )


def line_name(line: int, start: int) -> str:
    return f"line {line} after byte {start}" if start else f"line {line}"


def strip(line: bytes) -> bytes:
    """Strips white space, Unicode's included."""
    line = line.strip()
    if line and line[0] in _UNICODE_SPACE_LEADS:
        return line.decode("utf-8").strip().encode("utf-8")
    return line


def line_start(path: str, offset: int, *, after_blank: bool = False) -> int:
    """First byte of a line from `offset` on, or of that after a blank one; else the file's size."""
    if offset <= 0:
        return 0
    with read_errors(path), open_for_reading(path, _PROBE_BYTES) as file:
        file.seek(offset - 1)
        in_first, at_start = True, False  # `at_start` of a line, not within a long one
        while piece := file.readline(BLOCK_BYTES):
            may_be_blank = at_start and not b" " < piece[:1] < b"\x7f"  # most lines are not
            at_start = piece.endswith(b"\n")
            if in_first:
                in_first = not at_start
                if at_start and not after_blank:
                    break
            elif may_be_blank and not piece.decode("utf-8", "ignore").replace("\0", "").strip():
                break
        return file.tell()

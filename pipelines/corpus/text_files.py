"""Reads text files in blocks of lines: plain or compressed, of any size and content.

A block has about a megabyte and ends at a line end. Faults are repaired by a rule and counted:

- invalid UTF-8 bytes are dropped, as by the original's `convert_to_unicode`, and NUL bytes, as by
  the tokenizer; a file with more than 0.5% of them is no text or in another encoding, and is
  refused;
- a line of over 64 kB is cut at white space into lines of about 512 bytes.

Archives and documents are refused by their first bytes; UTF-16, UTF-32, ISO-2022 and HZ by their
first block. UTF-7 is not recognized: it is read as the ASCII that it is.

Lines end at LF or CRLF, or at CR in a file whose first block has no LF.
"""

import codecs
import contextlib
import gzip
import operator
import os
import re
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from bert_tf.errors import InputError
from bert_tf.files.storage import (
    State,
    file_state,
    is_remote,
    open_for_reading,
    remote_errors,
    state_of,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

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
    (
        *(b"PK\x03\x04", 0, "a zip archive, or an office document such as .xlsx"),
        "unpack it, or save it as text: a table as CSV in UTF-8",
    ),
    (b"%PDF-", 0, "a PDF document", "extract its text, for example with pdftotext"),
    (b"\xd0\xcf\x11\xe0", 0, "a document of an older Office", "save it as text or CSV in UTF-8"),
    (b"ustar", 257, "a tar archive", "unpack it with tar -xf"),
    (b"{\\rtf", 0, "an RTF document", "save it as plain text"),
    (
        *(b"PAR1", 0, "a Parquet file"),
        "for pre-training name it *.parquet, or give --corpus_format parquet; save labelled "
        "examples as CSV or JSON lines",
    ),
)

_WIDE_MARKS = (
    codecs.BOM_UTF32_LE,
    codecs.BOM_UTF32_BE,
    codecs.BOM_UTF16_LE,
    codecs.BOM_UTF16_BE,
)

# Largest share of NULs and invalid bytes. In Latin-1, about 1% of the bytes of Italian are invalid
# as UTF-8, 1.5% of German, 3% of French.
_MOST_INVALID_BYTES = 0.005

# Encodings whose bytes are all ASCII, and what they write for other letters.
_ESCAPED = {
    "ISO-2022-JP": re.compile(rb"\x1b\$(?:[@AB]|\([@-D])[!-~]*"),
    "ISO-2022-KR": re.compile(rb"\x0e[!-~]+\x0f"),
    "HZ": re.compile(rb"~\{(?:[!-w][!-~])+~\}"),
}

# What letters in UTF-16 have among their bytes, and text has not.
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1f]")

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zX"
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

    `start` is the first byte of the first line to read, `end` the byte behind the last line; 0 and
    None for compressed files. The file must have this `state` before and after reading.
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
        read = _reader(path, raw, magic, end)
        continues = False  # whether a block begins within a line
        total = invalid = 0  # bytes read so far

        def too_long(line: int) -> None:
            if not skip_longest:
                raise InputError(
                    f"{path}, line {line}: longer than {MOST_LINE_BYTES >> 20} MB: split its "
                    "document over several lines, or skip such lines with --skip_bad_lines"
                )
            counts["bad_lines"] += 1

        for block in _whole_lines(read, too_long if cut_to is None else None):
            lines_ended = block.count(b"\n")
            continued = not block.endswith(b"\n")
            is_first = first_line == 1 and start == 0
            if is_first:
                check_is_text(path, block)
                block = block.removeprefix(codecs.BOM_UTF8)
            total += len(block)
            valid = without_nul_bytes(_valid_utf8(block, counts), counts)
            invalid += len(block) - len(valid)
            if invalid > _MOST_INVALID_BYTES * total:
                raise _wrong_encoding(path, start, first_line, block, invalid / total)
            lines = valid.replace(b"\r\n", b"\n").split(b"\n")
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


def check_is_text(path: str, block: bytes) -> None:
    """Refuses what is no text, and encodings that the first block tells."""
    for begin, offset, kind, cure in _NO_TEXT:
        if block.startswith(begin, offset):
            raise InputError(f"{path}: {kind}: {cure}")
    if encoding := _wide_encoding(block):
        _refuse_appended(path, block, 1)
    if encoding := encoding or _escaping_encoding(block):
        raise InputError(f"{path}: {encoding} text: convert it with iconv -f {encoding} -t UTF-8")


def _refuse_appended(path: str, block: bytes, line: int, start: int = 0) -> None:
    """Refuses UTF-16 or UTF-32 that follows lines of UTF-8; `block` begins with line `line`."""
    begin = block.rfind(b"\n", 0, _first_fault(block)) + 1
    is_text = not _CONTROLS.search(block, 0, begin)  # as letters in UTF-16 are
    if (begin or line > 1) and is_text and (encoding := _wide_encoding(block[begin:])):
        where = line_name(line + block.count(b"\n", 0, begin), start)
        raise InputError(
            f"{path}, {where}: {encoding} text follows UTF-8: convert the lines from there on, "
            f"iconv -f {encoding} -t UTF-8"
        )


def _first_fault(block: bytes) -> int:
    """The place of the first NUL or invalid byte; the length without one."""
    offset = len(block)
    try:
        block.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start
    nul = block.find(b"\0", 0, offset)
    return offset if nul < 0 else nul


def _wide_encoding(block: bytes) -> str:
    """UTF-16 or UTF-32, by a mark at the beginning or by the places of NULs; else empty."""
    # That of UTF-32LE begins as that of UTF-16LE.
    for mark, encoding in zip(_WIDE_MARKS, ("UTF-32", "UTF-32", "UTF-16", "UTF-16"), strict=True):
        if block.startswith(mark):
            return encoding
    nuls = [block[place::4].count(0) for place in range(4)]
    if sum(nuls) <= max(1, _MOST_INVALID_BYTES * len(block)):
        return ""
    # ASCII has NULs in all high bytes and in no low ones. In UTF-16, other text may have few: those
    # of spaces and line ends.
    for encoding, high, low, least in (
        ("UTF-32BE", nuls[:2], nuls[3:], 0.1),
        ("UTF-32LE", nuls[2:], nuls[:1], 0.1),
        ("UTF-16BE", nuls[::2], nuls[1::2], 0.0),
        ("UTF-16LE", nuls[1::2], nuls[::2], 0.0),
    ):
        if min(high) >= least * len(block) and 10 * sum(low) <= sum(high):
            return encoding
    return ""


def _escaping_encoding(block: bytes) -> str:
    """An encoding of ASCII bytes alone that writes much of the text; else empty."""
    for encoding, pattern in _ESCAPED.items():
        if sum(map(len, pattern.findall(block))) > _MOST_INVALID_BYTES * len(block):
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


def _reader(path: str, raw: IO[bytes], magic: bytes, end: int | None) -> Callable[[], bytes]:
    """A function that reads the next text; empty at the end. The first bytes tell compression."""
    if end is not None:
        return lambda: raw.read(min(BLOCK_BYTES, end - raw.tell()))
    file: Any = raw
    if magic.startswith((_XZ, *_BZIP2)):
        if not _HAS_XZ_AND_BZIP2:
            raise InputError(
                f"{path}: compressed with xz or bzip2, which this Python was built without: "
                "unpack it"
            )
        is_xz = magic.startswith(_XZ)
        texts = _streams(raw, lzma.LZMADecompressor if is_xz else bz2.BZ2Decompressor)
        return lambda: next(texts, b"")
    if magic.startswith(_GZIP):
        file = gzip.GzipFile(fileobj=raw)
    elif magic.startswith(_ZSTD):
        window = zstd.DecompressionParameter.window_log_max  # the largest, as of zstd --long
        file = zstd.ZstdFile(raw, options={window: window.bounds()[1]})
    return lambda: file.read(BLOCK_BYTES)


def _streams(raw: IO[bytes], decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """The text of concatenated streams of xz or bzip2.

    Python's own readers, which fsspec uses, end before a damaged later stream without an error.
    """
    packed = b""
    while packed := packed or raw.read(_PROBE_BYTES):
        packed = packed.lstrip(b"\0")  # xz pads streams
        stream = decompressor() if packed else None
        while stream and not stream.eof:
            packed = packed or (raw.read(_PROBE_BYTES) if stream.needs_input else b"")
            if stream.needs_input and not packed:
                raise EOFError("the last stream has no end")
            if text := stream.decompress(packed, BLOCK_BYTES):
                yield text
            packed = stream.unused_data


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
    lines = 0
    is_skipping = False
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
            whole = rest + block[:end]
            rest = block[end:]
            lines += whole.count(b"\n")
            yield whole
        else:
            rest += block
        if too_long is not None:
            if len(rest) > MOST_LINE_BYTES:
                too_long(lines + 1)
                rest = b""
                is_skipping = True
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
    """`block`, which has NULs or invalid bytes, begins with line number `line`."""
    _refuse_appended(path, block, line, start)
    offset = _first_fault(block)
    where = line_name(line + block.count(b"\n", 0, offset), start)
    fault, tool = ("invalid UTF-8", "iconv -c") if block[offset] else ("NULs", "tr -d '\\000'")
    return InputError(
        f"{path}, {where}: {fault} (byte 0x{block[offset]:02x}; {share:.1%} of the bytes so far): "
        "convert the file with iconv -f ITS_ENCODING -t UTF-8, drop such bytes with "
        f"{tool}, or remove the file if it is not text"
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
        in_first = True
        at_start = False  # of a line, not within a long one
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

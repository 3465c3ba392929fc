"""Frames of a zstd file, which can be decompressed each by itself: several readers share a file.

Parallel compressors (pzstd, zstd with the seekable format, concatenated files) write many frames.
Their borders say nothing of lines: as in Hadoop, the text of a frame begins at the first document
that begins after the first line end in it, and the reader of the frames before goes on to there.

Source: RFC 8878; the seekable format of facebook/zstd, contrib/seekable_format.
"""

import itertools
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from backports import zstd

from bert_tf.storage import is_remote, open_for_reading

_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
# First bytes of a file; pzstd begins with a frame to skip.
MAGIC = (_FRAME, *(struct.pack("<I", magic) for magic in _SKIPPABLE))
_TABLE, _FOOTER = 0x184D2A5E, 0x8F92EAB1  # of the seekable format
_MOST_FIRST_BYTES = 256 << 20  # of a frame: a file whose first one is longer has one reader
_PROBE_BYTES = 1 << 16


def frame_starts(path: str) -> list[int]:
    """The first bytes of the frames of a file, [0] if they cannot be found quickly.

    Found by the table of the seekable format, or in local files by the headers of all blocks.
    """
    with open_for_reading(path, _PROBE_BYTES) as file:
        if starts := _in_table(file):
            return starts
    if is_remote(path):
        return [0]
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as all:
        try:
            return list(_by_headers(all)) or [0]
        except (struct.error, IndexError, zstd.ZstdError):  # damaged: the one reader reports it
            return [0]


def _in_table(file: IO[bytes]) -> list[int]:
    """The starts by the table at the end of a file; none without one."""
    size = file.seek(0, os.SEEK_END)
    if size < 17:
        return []
    file.seek(size - 9)
    frames, flags, magic = struct.unpack("<IBI", file.read(9))
    each = 12 if flags & 0x80 else 8
    begin = size - 9 - frames * each - 8
    if magic != _FOOTER or begin < 0:
        return []
    file.seek(begin)
    if struct.unpack("<II", file.read(8)) != (_TABLE, frames * each + 9):
        return []
    table = file.read(frames * each)
    sizes = [struct.unpack_from("<I", table, n * each)[0] for n in range(frames)]
    return [0, *itertools.accumulate(sizes)][:-1] if sum(sizes) == begin else []


def _by_headers(content: Any) -> Iterator[int]:
    place, size = 0, len(content)
    while place < size:
        magic, skipped = struct.unpack_from("<II", content, place)
        if magic in _SKIPPABLE:
            place += 8 + skipped
            continue
        if content[place : place + 4] != _FRAME:
            raise zstd.ZstdError("no frame")
        yield place
        first, place = place, place + 5
        descriptor = content[place - 1]
        is_single = bool(descriptor & 0x20)
        place += not is_single
        place += (0, 1, 2, 4)[descriptor & 3]  # identity of a dictionary
        place += (int(is_single), 2, 4, 8)[descriptor >> 6]  # size of the content
        is_last = False
        while not is_last:
            header = int.from_bytes(content[place : place + 3], "little")
            is_last, kind = bool(header & 1), header >> 1 & 3
            place += 3 + (1 if kind == 1 else header >> 3)
            if place > size or (first == 0 and place > _MOST_FIRST_BYTES):
                raise zstd.ZstdError("cut or too long")
        place += 4 * bool(descriptor & 4)  # checksum


def opened(raw: Any) -> zstd.ZstdFile:
    """A file of frames, read with the largest window, which only its own frames need."""
    window = zstd.DecompressionParameter.window_log_max
    return zstd.ZstdFile(raw, options={window: window.bounds()[1]})


def document_start(path: str, frame: int, *, after_blank: bool) -> int | None:
    """Bytes of text from a frame to the first document to read there; None if none begins there.

    A document begins with a line or, `after_blank`, after a blank one.
    """
    with open_for_reading(path, _PROBE_BYTES) as raw:
        raw.seek(frame)
        text, passed, is_first = opened(raw), 0, True
        at_start = False  # of a line
        while piece := text.readline(_PROBE_BYTES):
            passed += len(piece)
            ends = piece.endswith(b"\n")
            if is_first:
                is_first = not ends
                if ends and not after_blank:
                    return passed
            elif at_start and not piece.decode("utf-8", "ignore").replace("\0", "").strip():
                return passed
            at_start = ends
    return None


class FrameRange:
    """The text of the frames from `start` to `end`, for `read`: whole documents."""

    def __init__(self, path: str, raw: IO[bytes], start: int, end: int | None, after_blank: bool):
        raw.seek(start)
        self._skip: int | None = 0
        if start:
            self._skip = document_start(path, start, after_blank=after_blank)
        self._parts = [(opened(raw if end is None else _Limited(raw, end - start)), 2**62)]
        self._after: IO[bytes] | None = None
        if end is not None:
            self._after = open_for_reading(path)
            self._after.seek(end)
            more = document_start(path, end, after_blank=after_blank)
            self._parts.append((opened(self._after), 2**62 if more is None else more))

    def read(self, size: int) -> bytes:
        while self._skip and (passed := self._read(min(self._skip, _PROBE_BYTES))):
            self._skip -= len(passed)
        return b"" if self._skip is None else self._read(size)

    def _read(self, size: int) -> bytes:
        while self._parts:
            part, left = self._parts[0]
            if found := part.read(min(size, left)):
                self._parts[0] = part, left - len(found)
                return found
            self._parts.pop(0)
        if self._after is not None:
            self._after.close()
        return b""


class _Limited:
    """The next bytes of a file."""

    def __init__(self, file: IO[bytes], left: int):
        self._file, self._left = file, left

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found

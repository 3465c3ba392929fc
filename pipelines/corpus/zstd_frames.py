"""Frames of a zstd file, which can be decompressed each by itself: several readers share a file.

Parallel compressors (pzstd, zstd with the seekable format, concatenated files) write many frames.
Their borders say nothing of lines: as in Hadoop, the text of a frame begins at the first document
that begins after the first line end in it, and the reader of the frames before goes on to there.

Source: RFC 8878; the seekable format of facebook/zstd, contrib/seekable_format.
"""

import itertools
import os
import struct
from typing import IO, Any

import numpy as np
from backports import zstd

from bert_tf.storage import is_remote, open_for_reading

_FRAME = b"\x28\xb5\x2f\xfd"
# First bytes of a file; pzstd begins with a frame to skip.
MAGIC = (_FRAME, *(struct.pack("<I", magic) for magic in range(0x184D2A50, 0x184D2A60)))
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
    content, place = np.memmap(path, np.uint8, "r"), 0
    try:
        while place < len(content):
            size = zstd.get_frame_size(content[place : None if place else _MOST_FIRST_BYTES])
            if content[place : place + 4].tobytes() == _FRAME:  # not one to skip
                starts.append(place)
            place += size
    except zstd.ZstdError:  # damaged: the one reader reports it
        return [0]
    return starts or [0]


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
    """The text of the frames from `start`, where `raw` is, to `end`: whole documents."""

    def __init__(self, path: str, raw: IO[bytes], start: int, end: int | None, after_blank: bool):
        self._skip = document_start(path, start, after_blank=after_blank) if start else 0
        self._parts: list[Any] = [opened(raw if end is None else Limited(raw, end - start))]
        self._after: IO[bytes] | None = None
        if end is not None:
            self._after = open_for_reading(path)
            self._after.seek(end)
            more = document_start(path, end, after_blank=after_blank)
            rest = opened(self._after)
            self._parts.append(rest if more is None else Limited(rest, more))

    def read(self, size: int) -> bytes:
        while self._skip and (passed := self._read(min(self._skip, _PROBE_BYTES))):
            self._skip -= len(passed)
        return b"" if self._skip is None else self._read(size)

    def _read(self, size: int) -> bytes:
        while self._parts:
            if found := self._parts[0].read(size):
                return found
            self._parts.pop(0)
        if self._after is not None:
            self._after.close()
        return b""


class Limited:
    """The next bytes of a file."""

    def __init__(self, file: Any, left: int):
        self._file, self._left = file, left

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found

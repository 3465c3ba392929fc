"""An index of the records in TFRecord files, so that reading may begin at any block.

A TFRecord file is a chain of records: the length as uint64, its checksum, the data, their checksum;
all little-endian, the checksums masked CRC-32C. Only the record before tells where a record begins.
The manifest holds the place of every `BLOCK_RECORDS`th record; in files of other programs, this
module follows the lengths.
"""

import itertools
import mmap
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.shards.manifest import BLOCK_RECORDS, Shard

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES

# TensorFlow's errors for a record of another kind; the second if it quotes the record.
PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)

_HEADERS_AT_ONCE = 1 << 20
_SEARCH_BYTES = 1 << 20


class RecordBlocks(NamedTuple):
    """B blocks of records in F files.

    A block is one run of contiguous records. Corrupt records split it into several runs, or leave
    none. R runs in all, in the order of blocks.

    Attributes:
        files: list of F paths.
        runs: int64 [B], number of runs of each block.
        file: int64 [R], index of the run's file.
        offset: int64 [R], first byte of the run.
        size: int64 [R], number of bytes of the run.
        records: int64 [R], number of records of the run.
    """

    files: list[str]
    runs: np.ndarray
    file: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    records: np.ndarray

    @property
    def block_records(self) -> np.ndarray:
        """int64 [B], number of records of each block."""
        block = np.repeat(np.arange(len(self.runs)), self.runs)
        totals = np.bincount(block, weights=self.records, minlength=len(self.runs))
        return totals.astype(np.int64)

    def dealt(self, worker: int, num_workers: int) -> "RecordBlocks":
        """Every `num_workers`th block, beginning with block `worker`."""
        mine = np.arange(len(self.runs)) % num_workers == worker
        mine_run = np.repeat(mine, self.runs)
        return RecordBlocks(self.files, self.runs[mine], *(a[mine_run] for a in self[2:]))


class RecordScan(NamedTuple):
    """The records of one file.

    Attributes:
        offsets: int64 [n], first byte of each.
        sizes: int64 [n], number of bytes, header and footer included.
    """

    offsets: np.ndarray
    sizes: np.ndarray

    @property
    def gaps(self) -> np.ndarray:
        """int64, indices of the records that do not begin where the previous one ends."""
        ends = np.concatenate([[0], self.offsets + self.sizes])
        return np.flatnonzero(self.offsets != ends[:-1])

    @property
    def end(self) -> int:
        """The byte after the last record."""
        return int(self.offsets[-1] + self.sizes[-1]) if len(self.offsets) else 0


def join_blocks(paths: list[Path], blocks: list[RecordBlocks]) -> RecordBlocks:
    """Joins the blocks of several files."""
    file = np.repeat(np.arange(len(paths)), [len(each.offset) for each in blocks])
    _, runs, _, *of_runs = zip(*blocks, strict=True)
    files = [str(path.absolute()) for path in paths]
    return RecordBlocks(files, np.concatenate(runs), file, *map(np.concatenate, of_runs))


def written_blocks(shard: Shard) -> RecordBlocks:
    """The blocks of a shard according to the manifest."""
    offset = np.array(shard.block_offsets, np.int64)
    records = np.full_like(offset, BLOCK_RECORDS)
    records[-1:] = shard.instances - BLOCK_RECORDS * (len(offset) - 1)
    return RecordBlocks(
        files=[shard.file],
        runs=np.ones_like(offset),
        file=np.zeros_like(offset),
        offset=offset,
        size=np.diff(offset, append=shard.bytes),
        records=records,
    )


def scanned_blocks(
    scan: RecordScan, block_offsets: np.ndarray, is_sound: np.ndarray
) -> RecordBlocks:
    """The blocks that begin at `block_offsets`, with their sound records.

    Args:
        scan: scan of n records.
        block_offsets: int64 [B], ascending, the first 0.
        is_sound: bool [n].
    """
    offsets, sizes = scan.offsets[is_sound], scan.sizes[is_sound]
    block = np.searchsorted(block_offsets, offsets, side="right") - 1
    begins = np.ones(len(offsets), bool)
    begins[1:] = (block[1:] != block[:-1]) | (offsets[1:] != (offsets + sizes)[:-1])
    first = np.flatnonzero(begins)
    return RecordBlocks(
        files=[""],
        runs=np.bincount(block[first], minlength=len(block_offsets)),
        file=np.zeros_like(first),
        offset=offsets[first],
        size=np.add.reduceat(sizes, first) if len(first) else first,
        records=np.diff(first, append=len(offsets)),
    )


def read_run(
    file: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, records: tf.Tensor
) -> tf.data.Dataset:
    """Dataset of a run's records, string [] each; the arguments are scalars, `file` a path.

    Use it in another dataset's function or with `get_single_element`: TensorFlow 2.21 cannot
    serialize it for an iterator of its own.
    """
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=tf.reshape(file, [1]),
        compression_type="",
        buffer_size=size,
        byte_offsets=tf.reshape(offset, [1]),
    )
    spec = tf.TensorSpec([], tf.string)
    return tf.data.experimental.from_variant(variant, spec).take(records)


def scan_records(path: Path, end: int | None = None, *, after_damage: bool) -> RecordScan:
    """Finds the records of a TFRecord file by their headers, without checking their data.

    Args:
        path: the file.
        end: number of bytes to scan; by default all.
        after_damage: whether to continue with the next sound header after a damaged one; else the
            scan ends there.
    """
    found: list[np.ndarray] = []
    size = path.stat().st_size if end is None else min(end, path.stat().st_size)
    if size == 0:  # nothing to map
        return RecordScan(np.zeros(0, np.int64), np.zeros(0, np.int64))
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as view:
        position: int | None = 0
        while position is not None:
            offsets = _follow_lengths(view, position, size)
            sound = _sound_headers(view, offsets[:-1])
            found.append(offsets[: sound + 1])
            position = None
            if after_damage and offsets[sound] < size:
                position = _next_header(view, offsets[sound] + 1, size)
    # The last place of each stretch is where it ends.
    return RecordScan(
        np.concatenate([stretch[:-1] for stretch in found]),
        np.concatenate([np.diff(stretch) for stretch in found]),
    )


def _follow_lengths(view: mmap.mmap, position: int, end: int) -> np.ndarray:
    """int64 [n + 1], bounds of the n records that fit before `end`, if all lengths are right."""
    length = struct.Struct("<Q").unpack_from
    offsets = array("q", [position])
    while position + FRAME_BYTES <= end:
        position += FRAME_BYTES + length(view, position)[0]
        if position > end:
            break
        offsets.append(position)
    return np.array(offsets, np.int64)


def _sound_headers(view: mmap.mmap, offsets: np.ndarray) -> int:
    """Number of records before the first whose length does not match its checksum."""
    for first in range(0, len(offsets), _HEADERS_AT_ONCE):
        is_header = _is_header(view, offsets[first : first + _HEADERS_AT_ONCE])
        if not is_header.all():
            return first + int(is_header.argmin())
    return len(offsets)


def _next_header(view: mmap.mmap, position: int, end: int) -> int | None:
    """The first place from `position` on with a sound header and room for its record."""
    content = np.frombuffer(view, np.uint8)
    last = end - FRAME_BYTES
    for first in range(position, last + 1, _SEARCH_BYTES):
        places = np.arange(first, min(first + _SEARCH_BYTES, last + 1))
        # Few places hold a possible length: no record has 4 GB.
        possible = np.ones(len(places), bool)
        for byte in range(4, 8):
            possible &= content[places[0] + byte : places[-1] + byte + 1] == 0
        places = places[possible]
        for place in places[_is_header(view, places)].tolist():
            (length,) = struct.unpack_from("<Q", view, place)
            if place + FRAME_BYTES + length <= end:
                return place
    return None


def _is_header(view: mmap.mmap, offsets: np.ndarray) -> np.ndarray:
    """Bool [n], whether a length with its checksum is at each of `offsets`, int64 [n]."""
    headers = np.frombuffer(view, np.uint8)[offsets[:, None] + np.arange(HEADER_BYTES)]
    crc = np.full(len(offsets), 0xFFFFFFFF, np.uint32)
    for byte in range(8):
        crc = _CRC_TABLE[(crc ^ headers[:, byte]) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return headers[:, 8:].copy().view("<u4")[:, 0] == masked


def _crc_table() -> np.ndarray:
    """uint32 [256], CRC-32C (polynomial 0x1EDC6F41, reflected) of each byte."""
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, (crc >> np.uint32(1)) ^ np.uint32(0x82F63B78), crc >> np.uint32(1))
    return crc


_CRC_TABLE = _crc_table()


def find_unsound(path: Path, scan: RecordScan, parse: Callable[[tf.Tensor], object]) -> np.ndarray:
    """Bool [n], which of the n scanned records are damaged or of another kind.

    Reads whole blocks, and halves a block that fails until the faulty records are isolated.
    `parse` takes records, string [n], and raises one of `PARSE_ERRORS` if it cannot read them.
    """
    unsound = np.zeros(len(scan.offsets), bool)

    def examine(first: int, last: int) -> None:
        size = int(scan.sizes[first:last].sum())
        run = read_run(tf.constant(str(path)), scan.offsets[first], size, last - first)
        try:
            parse(run.batch(last - first).get_single_element())
        except (*PARSE_ERRORS, tf.errors.DataLossError):
            if last - first == 1:
                unsound[first] = True
            else:
                middle = (first + last) // 2
                examine(first, middle)
                examine(middle, last)

    bounds = {*range(0, len(unsound), BLOCK_RECORDS), *scan.gaps.tolist(), len(unsound)}
    for first, last in itertools.pairwise(sorted(bounds)):
        examine(first, last)
    return unsound

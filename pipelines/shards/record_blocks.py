"""Where the records of TFRecord files stand: indexed, so that reading may begin at any block.

A TFRecord file is a chain of records: the length as uint64, a checksum of it, the data, a checksum
of that; all little-endian, the checksums masked CRC-32C. Only from one record is known where the
next one begins. `pipelines.shards.writing` notes the place of every `BLOCK_RECORDS`th record in the
manifest; for files of others the lengths are followed here.
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

# What TensorFlow fails with on a record of another kind; the second if it quotes the record.
PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)

_HEADERS_AT_ONCE = 1 << 20
_SEARCH_BYTES = 1 << 20


class RecordBlocks(NamedTuple):
    """B blocks of records in F files.

    The records of a block stand together in one unbroken run; a block with corrupt records in it
    has a run between each two of them, and may have none. R runs in all, in the order of blocks.

    Attributes:
        files: list of F paths.
        runs: int64 [B], runs of each block.
        file: int64 [R], index of the run's file.
        offset: int64 [R], byte at which the run begins.
        size: int64 [R], its bytes.
        records: int64 [R], its records.
    """

    files: list[str]
    runs: np.ndarray
    file: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    records: np.ndarray

    @property
    def block_records(self) -> np.ndarray:
        """int64 [B], records of each block."""
        block = np.repeat(np.arange(len(self.runs)), self.runs)
        totals = np.bincount(block, weights=self.records, minlength=len(self.runs))
        return totals.astype(np.int64)

    def dealt(self, worker: int, num_workers: int) -> "RecordBlocks":
        """Every `num_workers`th block, the first being number `worker`."""
        mine = np.arange(len(self.runs)) % num_workers == worker
        mine_run = np.repeat(mine, self.runs)
        return RecordBlocks(self.files, self.runs[mine], *(a[mine_run] for a in self[2:]))


class RecordScan(NamedTuple):
    """Records of one file.

    Attributes:
        offsets: int64 [n], the byte at which each begins.
        sizes: int64 [n], bytes, header and footer included.
    """

    offsets: np.ndarray
    sizes: np.ndarray

    @property
    def gaps(self) -> np.ndarray:
        """int64, indices of the records that do not follow upon the one before them."""
        ends = np.concatenate([[0], self.offsets + self.sizes])
        return np.flatnonzero(self.offsets != ends[:-1])

    @property
    def end(self) -> int:
        """The byte behind the last record."""
        return int(self.offsets[-1] + self.sizes[-1]) if len(self.offsets) else 0


def join_blocks(paths: list[Path], blocks: list[RecordBlocks]) -> RecordBlocks:
    """The blocks of several files, each given as blocks of a single file."""
    file = np.repeat(np.arange(len(paths)), [len(each.offset) for each in blocks])
    return RecordBlocks(
        files=[str(path.absolute()) for path in paths],
        runs=np.concatenate([each.runs for each in blocks]),
        file=file,
        offset=np.concatenate([each.offset for each in blocks]),
        size=np.concatenate([each.size for each in blocks]),
        records=np.concatenate([each.records for each in blocks]),
    )


def written_blocks(shard: Shard) -> RecordBlocks:
    """The blocks of a shard as the manifest has them."""
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
    """The blocks that begin at `block_offsets`, int64 [B], with the sound ones of the records.

    Args:
        scan: of n records.
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

    For use within another dataset's function, or with `get_single_element`: TensorFlow 2.21 fails
    to serialize it, which an iterator made of it alone would need.
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
    """Finds the records of a TFRecord file by their headers; their data is not looked at.

    Args:
        path: the file.
        end: bytes of the file to look at; by default all.
        after_damage: whether to search on behind a damaged header for the next sound one; else
            records up to the first damage are found.

    Returns:
        The records that are whole and have a sound header.
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
    # Each stretch ends with the place where it broke off.
    return RecordScan(
        np.concatenate([stretch[:-1] for stretch in found]),
        np.concatenate([np.diff(stretch) for stretch in found]),
    )


def _follow_lengths(view: mmap.mmap, position: int, end: int) -> np.ndarray:
    """int64 [n + 1], where n records begin that end before `end`, if all lengths are true."""
    length = struct.Struct("<Q").unpack_from
    offsets = array("q", [position])
    while position + FRAME_BYTES <= end:
        position += FRAME_BYTES + length(view, position)[0]
        if position > end:
            break
        offsets.append(position)
    return np.array(offsets, np.int64)


def _sound_headers(view: mmap.mmap, offsets: np.ndarray) -> int:
    """How many of the records, from the first on, have a length that fits its checksum."""
    content = np.frombuffer(view, np.uint8)
    for first in range(0, len(offsets), _HEADERS_AT_ONCE):
        some = offsets[first : first + _HEADERS_AT_ONCE]
        wrong = np.flatnonzero(~_is_header(content, some))
        if len(wrong):
            return first + int(wrong[0])
    return len(offsets)


def _next_header(view: mmap.mmap, position: int, end: int) -> int | None:
    """The first place from `position` on that has a sound header and room for its record."""
    content = np.frombuffer(view, np.uint8)
    last = end - FRAME_BYTES
    for first in range(position, last + 1, _SEARCH_BYTES):
        places = np.arange(first, min(first + _SEARCH_BYTES, last + 1))
        # Few places can be a length at all: no record is 4 GB long.
        possible = np.ones(len(places), bool)
        for byte in range(4, 8):
            possible &= content[places[0] + byte : places[-1] + byte + 1] == 0
        places = places[possible]
        for place in places[_is_header(content, places)].tolist():
            (length,) = struct.unpack_from("<Q", view, place)
            if place + FRAME_BYTES + length <= end:
                return place
    return None


def _is_header(content: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Bool [n], whether a length and its checksum stand at each of `offsets`, int64 [n]."""
    headers = content[offsets[:, None] + np.arange(HEADER_BYTES)]
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
    """Reads records and finds those whose data is damaged or of another kind.

    Blocks are read whole; one that cannot be read or parsed is halved until the records at fault
    stand alone.

    Args:
        path: the file of the records.
        scan: n records of it.
        parse: reads records, string [n]; raises one of `PARSE_ERRORS` if it cannot.

    Returns:
        bool [n].
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
    ordered = sorted(bounds)
    for first, last in itertools.pairwise(ordered):
        examine(first, last)
    return unsound

"""An index of the records in TFRecord files, so that reading may begin at any block.

A TFRecord file is a chain of records: the length as uint64, its checksum, the data, their checksum.
The manifest holds the place of every `BLOCK_RECORDS`th record; in files of other programs, this
module follows the lengths.
"""

import mmap
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.shards.manifest import BLOCK_RECORDS

FRAME_BYTES = 12 + 4  # before and after the data of a record

# TensorFlow's errors for a record of another kind; the second if it quotes the record.
PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)


class RecordBlocks(NamedTuple):
    """B blocks of consecutive records in F files, in order."""

    files: list[str]  # list of F paths
    file: np.ndarray  # int64 [B], index of the block's file
    offset: np.ndarray  # int64 [B], first byte of the block
    size: np.ndarray  # int64 [B], number of bytes
    records: np.ndarray  # int64 [B], number of records; 0 for a block to skip

    def dealt(self, worker: int, num_workers: int) -> "RecordBlocks":
        """Every `num_workers`th block, beginning with block `worker`."""
        return RecordBlocks(self.files, *(values[worker::num_workers] for values in self[1:]))

    @classmethod
    def of_files(
        cls, paths: Sequence[Path], places: Iterable[tuple[Sequence[int], int, int]]
    ) -> "RecordBlocks":
        """Blocks of files by, for each, the offsets of its blocks, its bytes and its records."""
        columns = []
        for number, (offsets, size, records) in enumerate(places):
            offset = np.array(offsets, np.int64)
            first = np.arange(len(offset)) * BLOCK_RECORDS
            sizes, counts = np.diff(offset, append=size), np.diff(first, append=records)
            columns.append((np.full_like(offset, number), offset, sizes, counts))
        return cls(list(map(str, paths)), *map(np.concatenate, zip(*columns, strict=True)))

    def of_file(self, file: int) -> np.ndarray:
        return np.flatnonzero(self.file == file)

    def read(self, block: int, records: int) -> tf.Tensor:
        """string, the first `records` of a block, or fewer if the file ends before."""
        file = tf.constant(self.files[self.file[block]])
        run = read_run(file, self.offset[block], self.size[block], records)
        return run.batch(records).get_single_element()

    def is_sound(
        self, block: int, parse: Callable[[tf.Tensor], object], records: int | None = None
    ) -> bool:
        """Whether the first `records` of a block, by default all, can be read and parsed.

        `parse` takes records, string [n], and raises one of `PARSE_ERRORS` for other kinds.
        """
        records = int(self.records[block]) if records is None else records
        try:
            found = self.read(block, records)
            parse(found)
        except (*PARSE_ERRORS, tf.errors.DataLossError):
            return False
        return len(found) == records

    def first_damaged(self, file: int, parse: Callable[[tf.Tensor], object]) -> int | None:
        """Number of the first record of a file that cannot be read and parsed, if any."""
        before = 0
        for block in self.of_file(file):
            records = int(self.records[block])
            if not self.is_sound(block, parse):
                sound = (n for n in range(records) if not self.is_sound(block, parse, n + 1))
                return before + next(sound)
            before += records
        return None


def scanned_blocks(paths: Sequence[Path]) -> RecordBlocks:
    """The blocks of TFRecord files by the lengths of the records, without reading their data.

    If the lengths do not lead to the end of a file, its last block is damaged, and the number of
    its records is an estimate.
    """
    return RecordBlocks.of_files(paths, map(_scan, paths))


def _scan(path: Path) -> tuple[Sequence[int], int, int]:
    """The offsets of a file's blocks, its bytes and its records."""
    size = path.stat().st_size
    offsets, position = array("q"), 0
    length = struct.Struct("<Q").unpack_from
    if size >= FRAME_BYTES:  # an empty file cannot be mapped
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            while position + FRAME_BYTES <= size:
                offsets.append(position)
                position += FRAME_BYTES + length(view, position)[0]
    if position < size:  # the rest is too short for a record
        offsets.append(position)
    records = len(offsets)
    if position != size and records > 1:  # the last one hides those in the rest of the file
        records += max(1, (size - offsets[-1]) * (records - 1) // offsets[-1]) - 1
    return offsets[::BLOCK_RECORDS], size, records


def read_run(
    file: tf.Tensor, offset: tf.Tensor, size: tf.Tensor, records: tf.Tensor
) -> tf.data.Dataset:
    """Dataset of contiguous records, string [] each; the arguments are scalars.

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

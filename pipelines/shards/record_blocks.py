"""Blocks of consecutive records in TFRecord files: reading begins at any of them.

A TFRecord file is a chain of records: the length as uint64, its checksum, the data, their checksum.
The manifest holds the size of each block; in files of other programs, `scan` follows the lengths.
"""

import contextlib
import mmap
import struct
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.files.atomic import StrPath
from bert_tf.files.storage import fetch_ranges, is_remote
from bert_tf.pipelines.instances.schemas import OUT_OF_RANGE
from bert_tf.pipelines.shards.manifest import BLOCK_RECORDS, FRAME_BYTES, Shard

# TensorFlow's errors for a record of another kind; the second if it quotes the record.
PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)
DAMAGED = "is damaged, truncated or no instance"
Parse = Callable[[tf.Tensor], object]


class RecordBlocks(NamedTuple):
    """B blocks of consecutive records in F files, in order."""

    files: list[str]  # list of F paths
    file: np.ndarray  # int64 [B], index of the block's file
    offset: np.ndarray  # int64 [B], first byte of the block
    size: np.ndarray  # int64 [B], number of bytes
    records: np.ndarray  # int64 [B], number of records; 0 for a block to skip

    def dealt(self, worker: int, num_workers: int) -> "RecordBlocks":
        return RecordBlocks(self.files, *(values[worker::num_workers] for values in self[1:]))

    @classmethod
    def of_shards(cls, folder: StrPath, shards: Sequence[Shard]) -> "RecordBlocks":
        counts = np.array([len(shard.block_bytes) for shard in shards], np.int64)
        file = np.repeat(np.arange(len(shards)), counts)
        size = np.concatenate([np.asarray(shard.block_bytes, np.int64) for shard in shards])
        ends = np.cumsum(counts)
        records = np.full(len(size), BLOCK_RECORDS, np.int64)
        totals = np.array([shard.instances for shard in shards], np.int64)
        in_last = totals - (counts - 1) * BLOCK_RECORDS
        records[ends[counts > 0] - 1] = in_last[counts > 0]
        starts = np.append(0, np.cumsum(size))
        offset = starts[:-1] - np.repeat(starts[ends - counts], counts)
        return cls([f"{folder}/{shard.file}" for shard in shards], file, offset, size, records)

    def of_file(self, file: int) -> np.ndarray:
        return np.flatnonzero(self.file == file)

    def read(self, block: int, records: int) -> tf.Tensor:
        """String, the first `records` of a block, or fewer if the file ends before."""
        file = self.files[self.file[block]]
        offset = self.offset[block]
        size = self.size[block]
        with contextlib.ExitStack() as stack:
            if is_remote(file):
                local = stack.enter_context(tempfile.NamedTemporaryFile())
                local.write(fetch_ranges([file], [int(offset)], [int(offset + size)])[0])
                local.flush()
                file = local.name
                offset = np.int64(0)
            run = self.run(tf.constant(file), offset, size, records)
            return run.batch(records).get_single_element()

    @staticmethod
    def run(file: Any, offset: Any, size: Any, records: Any) -> tf.data.Dataset:
        """Dataset of contiguous records, string [] each; TensorFlow 2.21 cannot iterate it alone.

        The arguments are scalar tensors.
        """
        source = {"filenames": tf.reshape(file, [1]), "byte_offsets": tf.reshape(offset, [1])}
        run = tf.raw_ops.TFRecordDatasetV2(compression_type="", buffer_size=size, **source)
        return tf.data.experimental.from_variant(run, tf.TensorSpec([], tf.string)).take(records)

    def fault(self, block: int, parse: Parse, records: int | None = None) -> str | None:
        """Why the first `records` of a block, by default all, cannot be read and parsed."""
        records = int(self.records[block]) if records is None else records
        try:
            content = self.read(block, records)
            parse(content)
        except (*PARSE_ERRORS, tf.errors.DataLossError) as error:
            found = OUT_OF_RANGE.search(str(error))
            return found[0] if found else DAMAGED
        return None if len(content) == records else DAMAGED

    def first_damaged(self, file: int, parse: Parse) -> tuple[int, str] | None:
        """Number of the first record of a file that cannot be read and parsed, and why."""
        before = 0
        for block in self.of_file(file):
            records = int(self.records[block])
            if self.fault(block, parse) is not None:
                for number in range(records):
                    if (fault := self.fault(block, parse, number + 1)) is not None:
                        return before + number, fault
            before += records
        return None


def scan(path: Path) -> Shard:
    """The blocks of a TFRecord file by the lengths of its records; the last may be damaged."""
    size = path.stat().st_size
    offsets = array("q")
    position = 0
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
    bounds = np.append(np.frombuffer(offsets[::BLOCK_RECORDS], np.int64), size)
    return Shard(path.name, records, size, "", array("q", np.diff(bounds).tolist()))


def are_records(content: bytes) -> bool:
    """Whether bytes are whole records, by their lengths alone."""
    position = 0
    while position + FRAME_BYTES <= len(content):
        position += FRAME_BYTES + struct.unpack_from("<Q", content, position)[0]
    return position == len(content)

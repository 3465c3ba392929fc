"""Opens and checks a folder of pre-training shards.

A corrupt record (damaged on disk, truncated, or no instance at all) stops a run with an error that
names file and record; or the blocks of such records are found in advance and skipped.

Reading may begin at any block of records. A TFRecord file is a chain of records: the length as
uint64, its checksum, the data, their checksum. The manifest holds the place of each block; in files
of other programs, this module follows the lengths.
"""

import contextlib
import mmap
import os
import re
import struct
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.storage import Folder, fetch_ranges, is_remote, open_folder
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances import schemas
from bert_tf.pipelines.shards import manifest as manifests
from bert_tf.pipelines.shards.manifest import BLOCK_RECORDS, FRAME_BYTES, Manifest
from bert_tf.tokenization import BertTokenizer

# TensorFlow's errors for a record of another kind; the second if it quotes the record.
_PARSE_ERRORS = (tf.errors.InvalidArgumentError, UnicodeDecodeError)
Parse = Callable[[tf.Tensor], object]
# Names of other programs' TFRecord files, and endings of what others put beside them.
_RECORDS = re.compile(r"^[^.].*(\.tf_?record|(?<!\.data)-\d+-of-\d+$)")
_BESIDE = (".index", ".idx", ".json", ".txt", ".csv", ".md5", ".sha256", ".crc")


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
    def of_files(
        cls, paths: Sequence[StrPath], sizes: Sequence[array], records: Sequence[int]
    ) -> "RecordBlocks":
        """Blocks of files by, for each, the bytes of its blocks and its number of records."""
        counts = np.array([len(each) for each in sizes], np.int64)
        file = np.repeat(np.arange(len(sizes)), counts)
        size = np.concatenate([np.asarray(each, np.int64) for each in sizes])
        ends = np.cumsum(counts)
        passed = np.append(0, np.cumsum(size))
        of_block = np.full(len(size), BLOCK_RECORDS, np.int64)
        in_last = np.array(records, np.int64) - (counts - 1) * BLOCK_RECORDS
        of_block[ends[counts > 0] - 1] = in_last[counts > 0]
        offset = passed[:-1] - np.repeat(passed[ends - counts], counts)
        return cls(list(map(str, paths)), file, offset, size, of_block)

    def of_file(self, file: int) -> np.ndarray:
        return np.flatnonzero(self.file == file)

    def read(self, block: int, records: int) -> tf.Tensor:
        """String, the first `records` of a block, or fewer if the file ends before."""
        file, offset, size = self.files[self.file[block]], self.offset[block], self.size[block]
        with contextlib.ExitStack() as stack:
            if is_remote(file):
                local = stack.enter_context(tempfile.NamedTemporaryFile())
                local.write(fetch_ranges([file], [int(offset)], [int(offset + size)])[0])
                local.flush()
                file, offset = local.name, np.int64(0)
            run = self.run(tf.constant(file), offset, size, records)
            return run.batch(records).get_single_element()

    @staticmethod
    def run(file: Any, offset: Any, size: Any, records: Any) -> tf.data.Dataset:
        """Dataset of contiguous records, string [] each; TensorFlow 2.21 cannot iterate it alone.

        The arguments are scalar tensors.
        """
        place = {"filenames": tf.reshape(file, [1]), "byte_offsets": tf.reshape(offset, [1])}
        run = tf.raw_ops.TFRecordDatasetV2(compression_type="", buffer_size=size, **place)
        return tf.data.experimental.from_variant(run, tf.TensorSpec([], tf.string)).take(records)

    def is_sound(self, block: int, parse: Parse, records: int | None = None) -> bool:
        """Whether the first `records` of a block, by default all, can be read and parsed."""
        records = int(self.records[block]) if records is None else records
        try:
            found = self.read(block, records)
            parse(found)
        except (*_PARSE_ERRORS, tf.errors.DataLossError):
            return False
        return len(found) == records

    def first_damaged(self, file: int, parse: Parse) -> int | None:
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
    """The blocks of TFRecord files by the lengths of the records; the last may be damaged."""
    return RecordBlocks.of_files(paths, *map(list, zip(*map(_scan, paths), strict=True)))


def _scan(path: Path) -> tuple[array, int]:
    """The bytes of the blocks of a file, and its number of records."""
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
    bounds = np.append(np.frombuffer(offsets[::BLOCK_RECORDS], np.int64), size)
    return array("q", np.diff(bounds).tolist()), records


def are_records(content: bytes) -> bool:
    """Whether bytes are whole records, by their lengths alone."""
    position = 0
    while position + FRAME_BYTES <= len(content):
        position += FRAME_BYTES + struct.unpack_from("<Q", content, position)[0]
    return position == len(content)


@dataclass
class ShardFolder:
    directory: str | Path  # folder of the shards, or its URL
    split: str  # "train" or "held_out"
    options: PretrainingDataOptions  # what the shards were made with, as far as reading needs it
    manifest: Manifest | None  # None for shards of other programs
    blocks: RecordBlocks = field(repr=False)  # places of the records
    left_out: dict[str, int] = field(default_factory=dict)  # path -> records in damaged blocks
    names: dict[str, str] = field(default_factory=dict)  # other names of features
    failures: list[Exception] = field(default_factory=list, repr=False)  # of reads from a store

    @property
    def files(self) -> list[str]:
        return self.blocks.files

    @property
    def instances(self) -> int:
        return int(self.blocks.records.sum())

    @property
    def has_rows(self) -> bool:
        """Whether a record is a row of several instances (`instances.schemas`)."""
        return self.options.instances_per_row > 1

    @property
    def has_next_sentences(self) -> bool:
        return self.options.instances == "sentence_pairs"

    def parse(self, records: tf.Tensor) -> tuple:
        """Reads the instances of records, string [n]; see `parse_instances`."""
        records = schemas.parse_rows(records).flat_values if self.has_rows else records
        return self.parse_instances(records)

    def parse_instances(self, records: tf.Tensor, pad_token_id: int = 0) -> schemas.Parsed:
        """Reads instances, string [n], in either form."""
        if self.options.masking == "dynamic":
            return schemas.parse_compact(records, self.options, pad_token_id)
        return schemas.parse_masked(records, self.options, self.names)


def open_shards(
    directory: StrPath, split: str = "train", *, skip_corrupt: bool = False
) -> ShardFolder | None:
    """Opens and checks a folder of shards; None for "held_out" where nothing was held out.

    Without a manifest, its TFRecord files are read as the original script's. `skip_corrupt` skips
    the blocks of corrupt records, found by checksums, or by reading all without a manifest.
    """
    folder = os.fspath(directory).rstrip("/") if is_remote(directory) else Path(directory)
    if split not in manifests.SPLITS:
        raise InputError(f"split is {split!r}: give one of {', '.join(manifests.SPLITS)}")
    if isinstance(folder, Path) and folder.is_file():
        raise InputError(f"{folder}: is a file: give the folder that holds it, {folder.parent}")
    is_complete = open_folder(folder).size(manifests.FILE_NAME) is not None
    if not is_complete:
        here = folder if isinstance(folder, str) else folder.absolute()
        for output in (str(here), os.path.dirname(here)):  # noqa: PTH120
            # Shards of several lengths are in subfolders.
            if (open_folder(output) / manifests.JOURNAL).sizes():
                raise InputError(
                    f"{folder}: bert-tf shards has not finished there: the same command resumes it"
                )
    if not is_complete and not (isinstance(folder, Path) and folder.is_dir()):
        raise InputError(f"{folder}: no such folder: make one with bert-tf shards")
    manifest, names = None, dict[str, str]()
    if is_complete or isinstance(folder, str):
        manifest = Manifest.load(folder)
        written = manifest.shards.get(split)
        if not written:
            return None
        manifests.check_sizes(folder, written, may_differ=skip_corrupt)
        suspects: Iterable[int] = manifests.altered(folder, written) if skip_corrupt else ()
        places = ((f"{folder}/{x.file}", x.block_bytes, x.instances) for x in written)
        blocks = RecordBlocks.of_files(*map(list, zip(*places, strict=True)))
        options = manifest.data_options
    else:
        paths = _foreign_files(folder)
        if split != "train":
            return None
        blocks = scanned_blocks(paths)
        suspects = range(len(paths)) if skip_corrupt else ()
        _check_foreign(blocks, skip_corrupt)
        options, names = _record_sizes(folder, blocks)
    shards = ShardFolder(folder, split, options, manifest, blocks, names=names)
    for block in (block for file in suspects for block in blocks.of_file(file)):
        if not blocks.is_sound(block, shards.parse):
            path = shards.files[blocks.file[block]]
            shards.left_out[path] = shards.left_out.get(path, 0) + int(blocks.records[block])
            blocks.records[block] = 0
    if not shards.instances:
        raise InputError(
            f"{folder}: every block of the {split} shards holds a corrupt record: make them again "
            "with bert-tf shards"
        )
    return shards


def _foreign_files(folder: Path) -> list[Path]:
    found = (x for x in folder.iterdir() if _RECORDS.search(x.name) and x.suffix not in _BESIDE)
    if paths := sorted(path for path in found if path.is_file()):
        return paths
    if lengths := sorted(path.parent.name for path in folder.glob(f"*/{manifests.FILE_NAME}")):
        names = ", ".join(lengths)
        raise InputError(f"{folder}: holds folders of shards: name one of them ({names})")
    raise InputError(
        f"{folder}: holds neither {manifests.FILE_NAME} nor *.tfrecord files: make shards with "
        "bert-tf shards"
    )


def store_tokenizer(files: Folder, tokenizer: BertTokenizer) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer.save(Path(temporary))
        for path in Path(temporary).iterdir():
            files.write(path.name, path.read_bytes())


def stored_tokenizer(files: Folder) -> BertTokenizer:
    with tempfile.TemporaryDirectory() as copy:
        for name in ("vocab.txt", "tokenizer_config.json"):
            if (content := files.read(name)) is not None:
                Path(copy, name).write_bytes(content)
        return BertTokenizer.from_directory(copy)


def tokenizer_of_shards(directory: StrPath, given: StrPath | None = None) -> BertTokenizer:
    """Opens the tokenizer of a folder of shards, or one `given` as a folder or vocab.txt."""
    files = open_folder(directory)
    if not given:
        if files.read("vocab.txt") is None:
            raise InputError(
                f"{directory}: holds no vocab.txt: give --tokenizer the tokenizer that its shards "
                "were made with, or make them with bert-tf shards"
            )
        return stored_tokenizer(files)
    tokenizer = BertTokenizer.from_directory(given)
    if manifests.FILE_NAME in files.sizes():
        made_with = Manifest.load(directory).vocabulary["settings"]
        if differing := tokenizer.other_switches(made_with):
            raise InputError(
                f"{given}: differs from the tokenizer of {directory} in {differing}: remove "
                "--tokenizer, or make the shards again with this one"
            )
    return tokenizer


def _check_foreign(blocks: RecordBlocks, skip_corrupt: bool) -> None:
    """Refuses compressed files and, unless corrupt records are skipped, damaged lengths."""
    for file, path in enumerate(blocks.files):
        of_file = blocks.of_file(file)
        if not len(of_file):
            continue
        with Path(path).open("rb") as opened:
            magic = opened.read(2)
        is_packed = magic in (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda")
        if is_packed and not blocks.is_sound(of_file[0], tf.identity, 1):
            kind = "gzip" if magic == b"\x1f\x8b" else "zlib"
            raise InputError(
                f"{path}: is {kind}-compressed, which prevents reading from any record: "
                "decompress it"
            )
        # A damaged length leads astray: the last block is then unsound, too.
        if not skip_corrupt and not blocks.is_sound(of_file[-1], tf.identity):
            raise _corrupt_record(path, blocks.first_damaged(file, tf.identity) or 0)


def _record_sizes(
    folder: Path, blocks: RecordBlocks
) -> tuple[PretrainingDataOptions, dict[str, str]]:
    """Tokens and predictions per instance, and other names of features.

    They are those of the first instance of each file that begins a block.
    """
    problem = InputError(f"{folder}: the *.tfrecord files are empty: make them again")
    found: dict[tuple[int, int, bool], str] = {}
    seen: set[int] = set()
    for block, file in enumerate(blocks.file.tolist()):
        if file in seen:
            continue
        try:
            (record,) = blocks.read(block, 1).numpy()
            features = tf.train.Example.FromString(record).features.feature
        except (tf.errors.OpError, DecodeError):
            continue
        is_newer = "input_word_ids" in features
        names = schemas.NEWER_NAMES if is_newer else {}
        needed = schemas.masked_features(1, 1)
        missing = [name for name in needed if names.get(name, name) not in features]
        if missing:
            problem = InputError(
                f"{blocks.files[file]}: records have no {', '.join(missing)}: give shards of "
                "pre-training instances, such as those of bert-tf shards"
            )
            continue
        seen.add(file)
        both = (names.get("input_ids", "input_ids"), "masked_lm_ids")
        length, most = (len(features[name].int64_list.value) for name in both)
        found.setdefault((length, most, is_newer), blocks.files[file])
    if not found:
        raise problem
    if len(found) > 1:
        each = ", ".join(
            f"{Path(path).name} has {length} tokens and {most} predictions"
            + " and newer names of features" * newer
            for (length, most, newer), path in found.items()
        )
        raise InputError(f"{folder}: instances differ: {each}: give each kind its own folder")
    ((length, most, is_newer),) = found
    options = PretrainingDataOptions(max_seq_length=length, max_predictions_per_seq=most)
    return options, schemas.NEWER_NAMES if is_newer else {}


def _corrupt_record(path: str, index: int) -> InputError:
    return InputError(
        f"{path}: record {index + 1} is damaged, truncated or no instance: copy the shard again, "
        "make it again, or skip such records with --skip_corrupt"
    )


@contextmanager
def shard_errors(*opened: ShardFolder) -> Iterator[None]:
    """Turns TensorFlow's error for records that it cannot read into one that names the cause.

    Raises InputError for shards that have changed since they were opened and for corrupt records,
    OSError for a store that failed.
    """
    try:
        yield
    except (tf.errors.OpError, *_PARSE_ERRORS) as error:
        # The error of a dataset names its iterators.
        of_model = isinstance(error, tf.errors.OpError) and "Iterator::" not in error.message
        if not of_model or isinstance(error, tf.errors.DataLossError):
            for shards in opened:
                _check_unchanged(shards)
                _name_corrupt_record(shards)
                for failure in shards.failures:
                    raise failure from error
        raise


def _check_unchanged(shards: ShardFolder) -> None:
    if shards.manifest is None:
        return
    is_there = open_folder(shards.directory).size(manifests.FILE_NAME) is not None
    if not is_there or Manifest.load(shards.directory) != shards.manifest:
        raise InputError(
            f"{shards.directory}: its shards were replaced or removed while they were read: "
            "restore them, or make others with another --output"
        )


def _name_corrupt_record(shards: ShardFolder) -> None:
    again = open_shards(shards.directory, shards.split)  # raises for missing or truncated shards
    if again is None:
        return
    suspects: Sequence[int] = range(len(again.files))
    if again.manifest is not None:
        suspects = list(manifests.altered(again.directory, again.manifest.shards[again.split]))
    for file in suspects:
        if (number := again.blocks.first_damaged(file, again.parse)) is not None:
            raise _corrupt_record(again.files[file], number)
    if suspects and again.manifest is not None:
        manifests.verify(again.directory)  # every record is readable, but some shard was changed

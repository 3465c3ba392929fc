"""Opens and checks a folder of pre-training shards.

A corrupt record (damaged on disk, truncated, or no instance at all) stops a run with an error that
names file and record; or such records are found in advance and skipped.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.errors import InputError
from pipelines.instances.rows import parse_rows, row_predictions
from pipelines.instances.schemas import masked_features, parse_compact, parse_masked
from pipelines.shards.manifest import (
    BLOCK_RECORDS,
    FILE_NAME,
    SPLITS,
    UNFINISHED,
    Manifest,
    altered,
    check_sizes,
    verify,
)
from pipelines.shards.record_blocks import (
    FRAME_BYTES,
    HEADER_BYTES,
    PARSE_ERRORS,
    RecordBlocks,
    RecordScan,
    find_unsound,
    join_blocks,
    scan_records,
    scanned_blocks,
    written_blocks,
)

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer


@dataclass
class ShardFolder:
    """The shards of one split on disk, ours or the original's.

    Args:
        directory: folder of the shards.
        split: "train" or "held_out".
        files: paths of the shards.
        max_seq_length: tokens per instance.
        max_predictions_per_seq: predictions per instance, padding included.
        manifest: None for shards written by other programs.
        blocks: places of the readable records.
        left_out: number of skipped corrupt records by path of a shard.
    """

    directory: Path
    split: str
    files: list[str]
    max_seq_length: int
    max_predictions_per_seq: int
    manifest: Manifest | None
    blocks: RecordBlocks = field(init=False, repr=False)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def instances(self) -> int:
        """Number of readable records."""
        return int(self.blocks.records.sum())

    @property
    def is_compact(self) -> bool:
        """Whether the records have the compact form, for masks drawn during training."""
        return self.manifest is not None and self.manifest.options["masking"] == "dynamic"

    @property
    def has_rows(self) -> bool:
        """Whether a record is a row of several instances (`pipelines.instances.rows`)."""
        return self.manifest is not None and self.manifest.has_rows

    @property
    def predictions(self) -> int:
        """Predictions per record, padding included."""
        if self.manifest is None or not self.has_rows:
            return self.max_predictions_per_seq
        return row_predictions(self.manifest.data_options)

    @property
    def has_next_sentences(self) -> bool:
        """Whether the instances are pairs with a next-sentence label."""
        return self.manifest is None or self.manifest.options["instances"] == "sentence_pairs"

    def parse(self, records: tf.Tensor) -> tuple:
        """Reads the instances of records, string [n]; see `parse_instances`."""
        return self.parse_instances(parse_rows(records).flat_values if self.has_rows else records)

    def parse_instances(self, records: tf.Tensor, pad_token_id: int = 0) -> tuple:
        """Reads instances, string [n], by `parse_compact` or `parse_masked`."""
        length = self.max_seq_length
        if self.is_compact:
            return parse_compact(records, max_seq_length=length, pad_token_id=pad_token_id)
        predictions = self.max_predictions_per_seq
        return parse_masked(records, max_seq_length=length, max_predictions_per_seq=predictions)


def open_shards(
    directory: str | os.PathLike,
    split: str = "train",
    vocabulary_hash: str | None = None,
    *,
    skip_corrupt: bool = False,
) -> ShardFolder | None:
    """Opens and checks a folder of shards.

    A folder without a manifest is read as shards of the original's script: its `*.tfrecord*` files
    are one split, indexed by the record lengths in them.

    Args:
        directory: folder from `pipelines.shards.writing.write_shards`, or with `*.tfrecord*` files.
        split: "train" or "held_out".
        vocabulary_hash: `BertTokenizer.vocabulary_hash`, to compare with the manifest's.
        skip_corrupt: whether to find and skip corrupt records. Compares all shards with their
            checksums, or reads them if there is no manifest.

    Returns:
        The shards; None if "held_out" is asked for and nothing was held out.

    Raises:
        InputError: the folder or a shard is missing or damaged, or the vocabulary does not match.
    """
    folder = Path(directory)
    if split not in SPLITS:
        raise InputError(f"split is {split!r}: give one of {', '.join(SPLITS)}")
    if not folder.is_dir():
        here = folder.absolute()
        for output in (here, here.parent):  # shards of several lengths are in subfolders
            unfinished = output.with_name(output.name + UNFINISHED)
            if not output.exists() and unfinished.is_dir():
                raise InputError(
                    f"{folder}: bert-tf shards has not finished there ({unfinished} holds what it "
                    "has made so far): the same command continues it"
                )
        raise InputError(f"{folder}: no such folder: make one with bert-tf shards")
    if (folder / FILE_NAME).exists():
        shards = _open_written_shards(folder, split, skip_corrupt)
    else:
        shards = _open_foreign_shards(folder, split, skip_corrupt)
    if shards is None:
        return None
    check_vocabulary(shards, vocabulary_hash)
    if not shards.instances:
        raise InputError(
            f"{folder}: every record of the {split} shards is corrupt: make them again with "
            "bert-tf shards"
        )
    return shards


def _open_written_shards(folder: Path, split: str, skip_corrupt: bool) -> ShardFolder | None:
    manifest = Manifest.load(folder)
    written = manifest.shards.get(split)
    if not written:
        return None
    paths = [folder / shard.file for shard in written]
    shards = ShardFolder(
        directory=folder,
        split=split,
        files=[str(path) for path in paths],
        max_seq_length=manifest.options["max_seq_length"],
        max_predictions_per_seq=manifest.options["max_predictions_per_seq"],
        manifest=manifest,
    )
    blocks = [written_blocks(shard) for shard in written]
    if not skip_corrupt:
        check_sizes(folder, written)
    for index in altered(folder, written) if skip_corrupt else ():
        path, shard = paths[index], written[index]
        scan = scan_records(path, shard.bytes, after_damage=True)
        unsound = find_unsound(path, scan, shards.parse)
        blocks[index] = scanned_blocks(scan, np.array(shard.block_offsets), ~unsound)
        shards.left_out[str(path)] = shard.instances - int((~unsound).sum())
    shards.blocks = join_blocks(paths, blocks)
    return shards


def _open_foreign_shards(folder: Path, split: str, skip_corrupt: bool) -> ShardFolder | None:
    paths = sorted(path for path in folder.glob("*.tfrecord*") if path.is_file())
    if not paths:
        if lengths := sorted(path.parent.name for path in folder.glob(f"*/{FILE_NAME}")):
            raise InputError(
                f"{folder}: holds folders of shards: name one of them ({', '.join(lengths)})"
            )
        raise InputError(
            f"{folder}: holds neither {FILE_NAME} nor *.tfrecord files: make shards with bert-tf "
            "shards"
        )
    if split != "train":
        return None
    scans = [scan_records(path, after_damage=skip_corrupt) for path in paths]
    for path, scan in zip(paths, scans, strict=True):
        _refuse_compressed(path, scan)
        if not skip_corrupt and scan.end != path.stat().st_size:
            raise _corrupt_record(path, len(scan.offsets))
    length, predictions = _record_sizes(folder, paths, scans)
    shards = ShardFolder(folder, split, [str(path) for path in paths], length, predictions, None)
    blocks = []
    for path, scan in zip(paths, scans, strict=True):
        unsound = np.zeros(len(scan.offsets), bool)
        if skip_corrupt:
            unsound = find_unsound(path, scan, shards.parse)
        blocks.append(scanned_blocks(scan, scan.offsets[::BLOCK_RECORDS], ~unsound))
        # A damaged stretch held an unknown number of records, at least one.
        lost = int(unsound.sum()) + len(scan.gaps) + (scan.end != path.stat().st_size)
        if lost:
            shards.left_out[str(path)] = lost
    shards.blocks = join_blocks(paths, blocks)
    return shards


def tokenizer_of_shards(
    directory: str | os.PathLike, given: str | os.PathLike | None = None
) -> "BertTokenizer":
    """Opens the tokenizer of a folder of shards.

    Args:
        directory: folder of shards; `bert-tf shards` saves the tokenizer there.
        given: tokenizer folder or vocab.txt, for shards of the original's script.

    Raises:
        InputError: it is missing, cannot be used, or is not the shards' tokenizer.
    """
    from bert_tf.tokenization import BertTokenizer

    if not given and not (Path(directory) / "vocab.txt").is_file():
        raise InputError(
            f"{directory}: holds no vocab.txt: give --tokenizer the tokenizer that its shards were "
            "made with, or make them with bert-tf shards"
        )
    if given and Path(given).is_file():
        tokenizer = BertTokenizer(given)
    else:
        tokenizer = BertTokenizer.from_directory(given or directory)
    if given and (Path(directory) / FILE_NAME).is_file():
        made_with = Manifest.load(directory).vocabulary["settings"]
        if differing := tokenizer.other_switches(made_with):
            raise InputError(
                f"{given}: differs from the tokenizer of {directory} in {differing}: remove "
                "--tokenizer, or make the shards again with this one"
            )
    return tokenizer


def check_vocabulary(shards: ShardFolder, vocabulary_hash: str | None) -> None:
    """Refuses a vocabulary that the shards were not made with, if theirs is known.

    Raises:
        InputError: the hashes differ.
    """
    made_with = shards.manifest.vocabulary["hash"] if shards.manifest else None
    if vocabulary_hash and made_with and vocabulary_hash != made_with:
        raise InputError(
            f"{shards.directory}: the shards were made with another vocabulary ({made_with[:12]}, "
            f"not {vocabulary_hash[:12]}): use that one, or make the shards again with this one"
        )


def _refuse_compressed(path: Path, scan: RecordScan) -> None:
    with path.open("rb") as file:
        magic = file.read(2)
    no_records = not len(scan.offsets) or scan.offsets[0] > 0
    if no_records and magic in (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda"):
        kind = "gzip" if magic == b"\x1f\x8b" else "zlib"
        raise InputError(
            f"{path}: is {kind}-compressed, which prevents reading from any record: decompress it"
        )


def _record_sizes(folder: Path, paths: list[Path], scans: list[RecordScan]) -> tuple[int, int]:
    """Tokens and predictions per instance, from the first instance."""
    problem = InputError(f"{folder}: the *.tfrecord files are empty: make them again")
    for path, scan in zip(paths, scans, strict=True):
        with path.open("rb") as file:
            for offset, size in zip(scan.offsets.tolist(), scan.sizes.tolist(), strict=True):
                file.seek(offset + HEADER_BYTES)
                try:
                    example = tf.train.Example.FromString(file.read(size - FRAME_BYTES))
                except DecodeError:
                    continue
                features = example.features.feature
                missing = [name for name in masked_features(1, 1) if name not in features]
                if not missing:
                    return (
                        len(features["input_ids"].int64_list.value),
                        len(features["masked_lm_ids"].int64_list.value),
                    )
                problem = InputError(
                    f"{path}: records have no {', '.join(missing)}: give shards of pre-training "
                    "instances, such as those of bert-tf shards"
                )
    raise problem


def _corrupt_record(path: Path, index: int) -> InputError:
    return InputError(
        f"{path}: record {index + 1} is damaged, truncated or no instance: copy the shard again, "
        "make it again, or skip such records with --skip_corrupt"
    )


@contextmanager
def shard_errors(directory: str | os.PathLike) -> Iterator[None]:
    """Turns TensorFlow's error for a corrupt record into an `InputError` that names it.

    After a failure, compares the shards with their checksums, or reads them if there is no
    manifest, and reads the damaged one record by record.
    """
    try:
        yield
    except (tf.errors.OpError, *PARSE_ERRORS) as error:
        # The error of a dataset names its iterators.
        of_model = isinstance(error, tf.errors.OpError) and "Iterator::" not in error.message
        if not of_model or isinstance(error, tf.errors.DataLossError):
            _name_corrupt_record(Path(directory))
        raise


def _name_corrupt_record(folder: Path) -> None:
    for split in SPLITS:
        shards = open_shards(folder, split)  # raises for missing or truncated shards
        if shards is None:
            continue
        paths = [Path(file) for file in shards.files]
        if shards.manifest is not None:
            paths = [paths[i] for i in altered(folder, shards.manifest.shards[split])]
        for path in paths:
            scan = scan_records(path, after_damage=False)
            unsound = np.flatnonzero(find_unsound(path, scan, shards.parse))
            if len(unsound):
                raise _corrupt_record(path, int(unsound[0]))
            if scan.end != path.stat().st_size:
                raise _corrupt_record(path, len(scan.offsets))
        if paths and shards.manifest is not None:
            verify(folder)  # every record is readable, but some shard was changed

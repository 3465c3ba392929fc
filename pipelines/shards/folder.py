"""Opens and checks a folder of pre-training shards.

A corrupt record (damaged on disk, truncated, or no instance at all) stops a run with an error that
names file and record; or the blocks of such records are found in advance and skipped.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf
from google.protobuf.message import DecodeError

from bert_tf.errors import InputError
from pipelines.instances.masking import MaskedTokens
from pipelines.instances.schemas import (
    masked_features,
    parse_compact,
    parse_masked,
    parse_rows,
)
from pipelines.instances.sentence_pairs import PackedPairs
from pipelines.options import PretrainingDataOptions
from pipelines.shards.manifest import (
    FILE_NAME,
    SPLITS,
    UNFINISHED,
    Manifest,
    altered,
    check_sizes,
    verify,
)
from pipelines.shards.record_blocks import PARSE_ERRORS, RecordBlocks, scanned_blocks

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer


@dataclass
class ShardFolder:
    """The shards of one split on disk."""

    directory: Path  # folder of the shards
    split: str  # "train" or "held_out"
    options: PretrainingDataOptions  # what the shards were made with, as far as reading needs it
    manifest: Manifest | None  # None for shards of other programs
    blocks: RecordBlocks = field(repr=False)  # places of the records
    # path of a shard -> number of records in its damaged blocks, which are skipped
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def files(self) -> list[str]:
        return self.blocks.files

    @property
    def instances(self) -> int:
        """Number of readable records."""
        return int(self.blocks.records.sum())

    @property
    def has_rows(self) -> bool:
        """Whether a record is a row of several instances (`pipelines.instances.schemas`)."""
        return self.options.instances_per_row > 1

    @property
    def has_next_sentences(self) -> bool:
        """Whether the instances are pairs with a next-sentence label."""
        return self.options.instances == "sentence_pairs"

    def parse(self, records: tf.Tensor) -> tuple:
        """Reads the instances of records, string [n]; see `parse_instances`."""
        return self.parse_instances(parse_rows(records).flat_values if self.has_rows else records)

    def parse_instances(
        self, records: tf.Tensor, pad_token_id: int = 0
    ) -> tuple[PackedPairs, MaskedTokens, tf.Tensor]:
        """Reads instances, string [n], in either form; also int32 [n], the next-sentence labels."""
        if self.options.masking == "dynamic":
            return parse_compact(records, self.options, pad_token_id)
        return parse_masked(records, self.options)


def open_shards(
    directory: str | os.PathLike,
    split: str = "train",
    *,
    skip_corrupt: bool = False,
) -> ShardFolder | None:
    """Opens and checks a folder of shards; None for "held_out" where nothing was held out.

    A folder without a manifest is read as shards of the original's script: its `*.tfrecord*` files
    are one split. With `skip_corrupt`, finds corrupt records and skips their blocks: compares all
    shards with their checksums, or reads them if there is no manifest.
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
        manifest = Manifest.load(folder)
        written = manifest.shards.get(split)
        if not written:
            return None
        if not skip_corrupt:
            check_sizes(folder, written)
        suspects: Iterable[int] = altered(folder, written) if skip_corrupt else ()
        paths = [folder / shard.file for shard in written]
        places = ((shard.block_offsets, shard.bytes, shard.instances) for shard in written)
        blocks = RecordBlocks.of_files(paths, places)
        options = manifest.data_options
    else:
        manifest, paths = None, _foreign_files(folder)
        if split != "train":
            return None
        blocks = scanned_blocks(paths)
        suspects = range(len(paths)) if skip_corrupt else ()
        _check_foreign(blocks, skip_corrupt)
        options = _record_sizes(folder, blocks)
    shards = ShardFolder(folder, split, options, manifest, blocks)
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
    return paths


def tokenizer_of_shards(
    directory: str | os.PathLike, given: str | os.PathLike | None = None
) -> "BertTokenizer":
    """Opens the tokenizer of a folder of shards: the one that `bert-tf shards` saved there.

    A tokenizer folder or vocab.txt can be `given`, for shards of the original's script; it must be
    the shards' tokenizer.
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
                f"{path}: is {kind}-compressed, which prevents reading from any record: decompress "
                "it"
            )
        # A damaged length leads astray: the last block is then unsound, too.
        if not skip_corrupt and not blocks.is_sound(of_file[-1], tf.identity):
            raise _corrupt_record(path, blocks.first_damaged(file, tf.identity) or 0)


def _record_sizes(folder: Path, blocks: RecordBlocks) -> PretrainingDataOptions:
    """Tokens and predictions per instance, from the first instance that begins a block."""
    problem = InputError(f"{folder}: the *.tfrecord files are empty: make them again")
    for block, file in enumerate(blocks.file):
        try:
            (record,) = blocks.read(block, 1).numpy()
            features = tf.train.Example.FromString(record).features.feature
        except (tf.errors.OpError, DecodeError):
            continue
        missing = [name for name in masked_features(1, 1) if name not in features]
        if not missing:
            length, predictions = (
                len(features[name].int64_list.value) for name in ("input_ids", "masked_lm_ids")
            )
            return PretrainingDataOptions(
                max_seq_length=length, max_predictions_per_seq=predictions
            )
        problem = InputError(
            f"{blocks.files[file]}: records have no {', '.join(missing)}: give shards of "
            "pre-training instances, such as those of bert-tf shards"
        )
    raise problem


def _corrupt_record(path: str, index: int) -> InputError:
    return InputError(
        f"{path}: record {index + 1} is damaged, truncated or no instance: copy the shard again, "
        "make it again, or skip such records with --skip_corrupt"
    )


@contextmanager
def shard_errors(directory: str | os.PathLike) -> Iterator[None]:
    """Turns TensorFlow's error for a corrupt record into an `InputError` that names it.

    Finds it as `open_shards` does; then reads the first damaged block record by record.
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
        suspects: Sequence[int] = range(len(shards.files))
        if shards.manifest is not None:
            suspects = list(altered(folder, shards.manifest.shards[split]))
        for file in suspects:
            if (number := shards.blocks.first_damaged(file, shards.parse)) is not None:
                raise _corrupt_record(shards.files[file], number)
        if suspects and shards.manifest is not None:
            verify(folder)  # every record is readable, but some shard was changed

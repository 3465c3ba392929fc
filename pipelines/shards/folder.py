"""Opens and checks a folder of pre-training shards.

A corrupt record (damaged on disk, truncated, or no instance at all) stops a run with an error that
names file and record; or the blocks of such records are found in advance and skipped.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.storage import Folder, is_remote, open_folder
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances import schemas
from bert_tf.pipelines.shards import manifest as manifests
from bert_tf.pipelines.shards.foreign import foreign_files, foreign_manifest
from bert_tf.pipelines.shards.manifest import Manifest, corrupt_record
from bert_tf.pipelines.shards.record_blocks import PARSE_ERRORS, RecordBlocks
from bert_tf.tokenization import BertTokenizer

TOKENIZER_FILES = ("vocab.txt", "tokenizer_config.json")


@dataclass
class ShardFolder:
    directory: str | Path  # folder of the shards, or its URL
    split: str  # "train" or "held_out"
    manifest: Manifest
    blocks: RecordBlocks = field(repr=False)  # places of the records
    names: dict[str, str] = field(default_factory=dict)  # other names of features
    left_out: dict[str, int] = field(default_factory=dict)  # path -> records in damaged blocks
    failures: list[Exception] = field(default_factory=list, repr=False)  # of reads from a store
    vocabulary_size: int = tf.int32.max  # all ids are lower

    def __post_init__(self) -> None:
        self.options: PretrainingDataOptions = self.manifest.data_options

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
        return schemas.parse_masked(records, self.options, self.names, self.vocabulary_size)


def open_shards(
    directory: StrPath, split: str = "train", *, skip_corrupt: bool = False
) -> ShardFolder | None:
    """Opens and checks a folder of shards; None for "held_out" where nothing was held out.

    TFRecord files without a manifest are read as the original script's. `skip_corrupt` skips the
    blocks of corrupt records, found by checksums, or by reading all records without any.
    """
    folder = os.fspath(directory).rstrip("/") if is_remote(directory) else Path(directory)
    if split not in manifests.SPLITS:
        raise InputError(f"split is {split!r}: give one of {', '.join(manifests.SPLITS)}")
    if isinstance(folder, Path) and folder.is_file():
        raise InputError(f"{folder}: is a file: give the folder that holds it, {folder.parent}")
    names = dict[str, str]()
    if open_folder(folder).size(manifests.FILE_NAME) is not None:
        manifest = Manifest.load(folder)
    else:
        _check_finished(folder)
        if isinstance(folder, str) or not folder.is_dir():
            raise InputError(f"{folder}: no such folder: make one with bert-tf shards")
        if split != "train" and foreign_files(folder):
            return None
        manifest, names = foreign_manifest(folder, skip_corrupt=skip_corrupt)
    if not (written := manifest.shards.get(split)):
        return None
    manifests.check_sizes(folder, written, may_differ=skip_corrupt)
    blocks = RecordBlocks.of_shards(folder, written)
    shards = ShardFolder(folder, split, manifest, blocks, names)
    suspects = manifests.altered(folder, written) if skip_corrupt else ()
    for block in (block for file in suspects for block in blocks.of_file(file)):
        if blocks.fault(block, shards.parse) is not None:
            path = shards.files[blocks.file[block]]
            shards.left_out[path] = shards.left_out.get(path, 0) + int(blocks.records[block])
            blocks.records[block] = 0
    if not shards.instances:
        raise InputError(
            f"{folder}: every block of the {split} shards holds a corrupt record: make them again "
            "with bert-tf shards"
        )
    return shards


def _check_finished(folder: str | Path) -> None:
    here = folder if isinstance(folder, str) else folder.absolute()
    for output in (str(here), os.path.dirname(here)):  # noqa: PTH120
        # Shards of several lengths are in subfolders.
        if (open_folder(output) / manifests.JOURNAL).sizes():
            raise InputError(
                f"{folder}: bert-tf shards has not finished there: the same command resumes it"
            )


def store_tokenizer(files: Folder, tokenizer: BertTokenizer) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer.save(Path(temporary))
        for path in Path(temporary).iterdir():
            files.write(path.name, path.read_bytes())


def stored_tokenizer(files: Folder) -> BertTokenizer:
    with tempfile.TemporaryDirectory() as copy:
        for name in TOKENIZER_FILES:
            if (content := files.read(name)) is not None:
                Path(copy, name).write_bytes(content)
        return BertTokenizer.from_directory(copy)


def tokenizer_of_shards(directory: StrPath, tokenizer_path: StrPath | None = None) -> BertTokenizer:
    """Opens the tokenizer of a folder of shards, or one at a path: a folder or vocab.txt."""
    files = open_folder(directory)
    if not tokenizer_path:
        if files.read("vocab.txt") is None:
            raise InputError(
                f"{directory}: holds no vocab.txt: give --tokenizer the tokenizer that its shards "
                "were made with, or make them with bert-tf shards"
            )
        return stored_tokenizer(files)
    tokenizer = BertTokenizer.from_directory(tokenizer_path)
    if manifests.FILE_NAME in files.sizes():
        made_with = Manifest.load(directory).vocabulary["settings"]
        if differing := tokenizer.other_switches(made_with):
            raise InputError(
                f"{tokenizer_path}: differs from the tokenizer of {directory} in {differing}: "
                "remove --tokenizer, or make the shards again with this one"
            )
    return tokenizer


@contextmanager
def shard_errors(*opened: ShardFolder) -> Iterator[None]:
    """Turns TensorFlow's error for records that it cannot read into one that names the cause.

    Raises InputError for shards that have changed since they were opened and for corrupt records,
    OSError for a store that failed.
    """
    try:
        yield
    except (tf.errors.OpError, *PARSE_ERRORS) as error:
        # The error of a dataset names its iterators.
        is_of_model = isinstance(error, tf.errors.OpError) and "Iterator::" not in error.message
        if not is_of_model or isinstance(error, tf.errors.DataLossError):
            for shards in opened:
                _check_unchanged(shards)
                _name_corrupt_record(shards)
                for failure in shards.failures:
                    raise failure from error
        raise


def _check_unchanged(shards: ShardFolder) -> None:
    if shards.manifest.is_foreign:
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
    again.vocabulary_size = shards.vocabulary_size
    suspects = list(manifests.altered(again.directory, again.manifest.shards[again.split]))
    for file in suspects:
        if (damaged := again.blocks.first_damaged(file, again.parse)) is not None:
            raise corrupt_record(again.files[file], *damaged)
    if suspects and not again.manifest.is_foreign:
        manifests.verify(again.directory)  # every record is readable, but some shard was changed

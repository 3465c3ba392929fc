"""The manifest of a folder of shards: settings, shards with checksums, statistics.

It is written last: a folder that has one is complete. Beside it, blocks.npy holds the sizes of all
blocks of records, in order of the shards.
"""

import io
import itertools
import json
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.storage import Folder, open_folder, sha256
from bert_tf.pipelines.data_options import PretrainingDataOptions

FILE_NAME = "manifest.json"
BLOCKS_NAME = "blocks.npy"
JOURNAL = ".journal"  # subfolder, until the shards are complete
SHARD_NAMES = ("train-[0-9]*-*-*-*.tfrecord", "held_out-[0-9]*-*-*-*.tfrecord")
FORMAT = 3
SPLITS = ("train", "held_out")
BLOCK_RECORDS = 256
FRAME_BYTES = 12 + 4  # before and after the data of a record
_MUCH_UNKNOWN = 0.02  # share of [UNK]; vocabularies leave less than 0.1% of their language
Progress = Callable[[int, int], None]  # receives the shards done, and all


@dataclass
class Shard:
    file: str  # name in the folder
    instances: int  # number of records: instances, or rows of them
    bytes: int  # size
    sha256: str  # checksum of the file, hexadecimal; "" if it is not known
    block_bytes: array = field(default_factory=lambda: array("I"))  # per `BLOCK_RECORDS` records

    def without_blocks(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "block_bytes"}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Shard":
        """Reads a shard of a journal or, without its blocks, of a manifest."""
        sizes = content.pop("block_bytes", ())
        return cls(**content, block_bytes=array("I", sizes))

    @classmethod
    def of_splits(cls, content: dict[str, list[dict[str, Any]]]) -> "dict[str, list[Shard]]":
        return {split: list(map(cls.of_json, shards)) for split, shards in content.items()}


@dataclass
class Manifest:
    options: dict[str, Any]  # see `PretrainingDataOptions.data_settings`
    # `hash` (None if it is not known) and `size`, and the `settings` of the tokenizer
    vocabulary: dict[str, Any]
    # `file` (in the common folder) and `bytes` of each; of many, folders and numbers of `files`
    corpus: list[dict[str, Any]]
    documents: int
    sentences: int
    irregularities: dict[str, int]  # counts of repaired faults of the text, by name
    shards: dict[str, list[Shard]]  # by split: "train" and, if text was held out, "held_out"
    statistics: dict[str, dict[str, Any]]  # by split, see `instances.record_batches.summarize`
    bert_tf_version: str  # version that wrote the shards; "" for another program
    format: int = FORMAT  # version of this layout

    def instances(self, split: str = "train") -> int:
        """Number of records in a split."""
        return sum(shard.instances for shard in self.shards.get(split, []))

    @property
    def data_options(self) -> PretrainingDataOptions:
        """The settings of the instances."""
        return PretrainingDataOptions(**self.options)

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote the shards, which have no manifest in their folder."""
        return not self.bert_tf_version

    @property
    def unknown_tokens(self) -> str | None:
        """A warning if many tokens are [UNK]; shards of other programs do not say."""
        share = self.statistics["train"].get("unknown_token_share", 0.0)
        if share < _MUCH_UNKNOWN:
            return None
        return (
            f"Warning: {share:.1%} of the tokens are [UNK], because the vocabulary does not fit "
            "the text, and a model learns nothing of these words: learn a vocabulary from this "
            "text with bert-tf vocab, or give shards another --tokenizer"
        )

    def all_shards(self) -> Iterator[Shard]:
        return itertools.chain.from_iterable(self.shards.values())

    def save(self, directory: StrPath) -> None:
        """Writes the sizes of the blocks, then the manifest."""
        folder = open_folder(directory)
        packed = io.BytesIO()
        blocks = [np.frombuffer(shard.block_bytes, np.uint32) for shard in self.all_shards()]
        np.save(packed, np.concatenate(blocks))
        folder.write(BLOCKS_NAME, packed.getvalue())
        text = json.dumps(vars(self), indent=1, ensure_ascii=False, default=Shard.without_blocks)
        folder.write(FILE_NAME, f"{text}\n".encode())

    @classmethod
    def load(cls, directory: StrPath) -> "Manifest":
        """Reads the manifest of a folder; `InputError` if it is missing or cannot be used."""
        folder = open_folder(directory)
        path = f"{folder}/{FILE_NAME}"
        remake = "make the shards again with bert-tf shards"
        packed = folder.read(FILE_NAME)
        if packed is None:
            raise InputError(f"{path}: no manifest: give a folder of shards, or {remake}")
        try:
            content = json.loads(packed)
            if content["format"] != FORMAT:
                raise InputError(
                    f"{path}: format {content['format']}, but this version reads {FORMAT}: {remake}"
                )
            content["shards"] = Shard.of_splits(content["shards"])
            manifest = cls(**content)
            manifest._read_blocks(folder)
            return manifest
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: damaged manifest ({error!r}): {remake}") from error

    def _read_blocks(self, folder: Folder) -> None:
        packed = folder.read(BLOCKS_NAME)
        if packed is None:
            raise ValueError(f"{BLOCKS_NAME} is missing")
        blocks = np.load(io.BytesIO(packed))
        begin = 0
        for shard in self.all_shards():
            end = begin + -(-shard.instances // BLOCK_RECORDS)
            shard.block_bytes = array("I", blocks[begin:end].tobytes())
            begin = end
        if begin != len(blocks):
            raise ValueError(f"{BLOCKS_NAME} is of other shards")


_CURE = "copy the folder again, or make it again with bert-tf shards"


def check_sizes(directory: StrPath, shards: list[Shard], *, may_differ: bool = False) -> None:
    """Refuses shards that are missing or, unless they `may_differ`, of another size."""
    folder = open_folder(directory)
    sizes = folder.sizes()
    for shard in shards:
        path = f"{folder}/{shard.file}"
        size = sizes.get(shard.file) or folder.size(shard.file)
        if size is None:
            raise InputError(f"{path}: the shard is missing: {_CURE}")
        if size != shard.bytes and not may_differ:
            kind = "truncated" if size < shard.bytes else "changed"
            raise InputError(f"{path}: {kind}, {size} bytes instead of {shard.bytes}: {_CURE}")


def corrupt_record(path: str, index: int, fault: str) -> InputError:
    return InputError(
        f"{path}: record {index + 1} {fault}: copy the shard again, make it again, or skip such "
        "records with --skip_corrupt"
    )


def altered(
    directory: StrPath, shards: list[Shard], progress: Progress = lambda done, total: None
) -> Iterator[int]:
    """The indices of the shards that do not match their checksums; all of them must exist."""
    folder = open_folder(directory)

    def is_altered(shard: Shard) -> bool:
        return not shard.sha256 or sha256(f"{folder}/{shard.file}") != shard.sha256

    threads = ThreadPoolExecutor()
    try:
        for index, differs in enumerate(threads.map(is_altered, shards)):
            progress(index + 1, len(shards))
            if differs:
                yield index
    finally:
        threads.shutdown(cancel_futures=True)


def verify(directory: StrPath, progress: Progress = lambda done, total: None) -> Manifest:
    """Returns the manifest, if every shard matches its checksum; reports shards done, and all."""
    manifest = Manifest.load(directory)
    written = list(manifest.all_shards())
    check_sizes(directory, written)
    for index in altered(directory, written, progress):
        path = f"{open_folder(directory)}/{written[index].file}"
        raise InputError(f"{path}: checksum mismatch: {_CURE}")
    return manifest

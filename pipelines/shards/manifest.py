"""The manifest of a folder of shards: settings, shards with checksums, statistics."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_tf.atomic import write_text
from bert_tf.errors import InputError
from pipelines.options import PretrainingDataOptions

FILE_NAME = "manifest.json"
FORMAT = 2
SPLITS = ("train", "held_out")
BLOCK_RECORDS = 256

# Ending of a folder's name while its shards are being made.
UNFINISHED = ".unfinished"


@dataclass
class Shard:
    file: str  # name in the folder
    instances: int  # number of records: instances, or rows of them
    bytes: int  # size
    sha256: str  # checksum of the file, hexadecimal
    # byte offset of every `BLOCK_RECORDS`th record from the first on; reading may begin at each
    block_offsets: list[int]


@dataclass
class Manifest:
    options: dict[str, Any]  # see `PretrainingDataOptions.of_data`
    vocabulary: dict[str, Any]  # `hash` and `size`, and the `settings` of the tokenizer
    corpus: list[dict[str, Any]]  # `file` (relative to the common folder) and `bytes` of each file
    documents: int  # number of documents
    sentences: int  # number of sentences
    # faults of the text that were handled by a rule, counted by name
    irregularities: dict[str, int]
    shards: dict[str, list[Shard]]  # by split: "train" and, if text was held out, "held_out"
    statistics: dict[str, dict[str, Any]]  # by split, see `pipelines.instances.records`
    bert_tf_version: str  # version that wrote the shards
    format: int = FORMAT  # version of this layout

    def instances(self, split: str = "train") -> int:
        """Number of records in a split."""
        return sum(shard.instances for shard in self.shards.get(split, []))

    @property
    def data_options(self) -> PretrainingDataOptions:
        """`options`, with what older shards were made with for those that they lack."""
        return PretrainingDataOptions(**({"cut_long_sentences": False} | self.options))

    def save(self, directory: Path) -> None:
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)
        # Lists of numbers on one line each; no string holds a line end.
        text = re.sub(r"\[\n[\d\s,]+\]", lambda numbers: "".join(numbers[0].split()), text)
        write_text(directory / FILE_NAME, text + "\n")

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "Manifest":
        """Reads the manifest of a folder; `InputError` if it is missing or cannot be used."""
        path = Path(directory) / FILE_NAME
        remake = "make the shards again with bert-tf shards"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise InputError(
                    f"{path}: format {content['format']}, but this version reads {FORMAT}: {remake}"
                )
            content["shards"] = {
                split: [Shard(**shard) for shard in shards]
                for split, shards in content["shards"].items()
            }
            return cls(**content)
        except FileNotFoundError as error:
            raise InputError(
                f"{path}: no manifest: give a folder of shards, or {remake}"
            ) from error
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: damaged manifest ({error!r}): {remake}") from error


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_CURE = "copy the folder again, or make it again with bert-tf shards"


def check_sizes(directory: str | os.PathLike, shards: list[Shard]) -> None:
    """Refuses shards that are missing or of another size than in the manifest."""
    for shard in shards:
        path = _existing(directory, shard)
        size = path.stat().st_size
        if size != shard.bytes:
            kind = "truncated" if size < shard.bytes else "changed"
            raise InputError(f"{path}: {kind}, {size} bytes instead of {shard.bytes}: {_CURE}")


def _existing(directory: str | os.PathLike, shard: Shard) -> Path:
    path = Path(directory) / shard.file
    if not path.is_file():
        raise InputError(f"{path}: the shard is missing: {_CURE}")
    return path


def altered(
    directory: str | os.PathLike,
    shards: list[Shard],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[int]:
    """The indices of the shards that do not match their checksums; refuses missing ones."""
    paths = [_existing(directory, shard) for shard in shards]
    threads = ThreadPoolExecutor()
    try:
        for index, checksum in enumerate(threads.map(sha256, paths)):
            progress(index + 1, len(shards))
            if checksum != shards[index].sha256:
                yield index
    finally:
        threads.shutdown(cancel_futures=True)


def verify(
    directory: str | os.PathLike, progress: Callable[[int, int], None] = lambda done, total: None
) -> Manifest:
    """Returns the manifest, if every shard matches its checksum; reports shards done, and all."""
    manifest = Manifest.load(directory)
    written = [shard for shards in manifest.shards.values() for shard in shards]
    check_sizes(directory, written)
    for index in altered(directory, written, progress):
        raise InputError(f"{Path(directory) / written[index].file}: checksum mismatch: {_CURE}")
    return manifest

"""What a folder of shards holds: `manifest.json`, beside the shards."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError

FILE_NAME = "manifest.json"
FORMAT = 2
SPLITS = ("train", "held_out")
BLOCK_RECORDS = 256

# What the name of a folder ends with while its shards are being made.
UNFINISHED = ".unfinished"


@dataclass
class Shard:
    """One TFRecord file.

    Args:
        file: name in the folder.
        instances: records in it.
        bytes: size.
        sha256: checksum of the file, hexadecimal.
        block_offsets: byte offset of every `BLOCK_RECORDS`th record, the first's included: reading
            may begin at any of them.
    """

    file: str
    instances: int
    bytes: int
    sha256: str
    block_offsets: list[int]


@dataclass
class Manifest:
    """How shards were made, and what they are.

    Args:
        options: every option of `PretrainingDataOptions`.
        vocabulary: `hash` and `size`, and the `settings` of the tokenizer.
        corpus: `file` (relative to the folder that holds them all) and `bytes` of each file.
        documents: documents in the corpus.
        sentences: sentences in the corpus.
        irregularities: what was met in the text and dealt with by a stated rule, counted by name.
        shards: by split, "train" and, if text was held out, "held_out".
        statistics: by split, see `pipelines.instances.statistics`.
        bert_tf_version: version that wrote the shards.
        format: version of this layout.
    """

    options: dict[str, Any]
    vocabulary: dict[str, Any]
    corpus: list[dict[str, Any]]
    documents: int
    sentences: int
    irregularities: dict[str, int]
    shards: dict[str, list[Shard]]
    statistics: dict[str, dict[str, Any]]
    bert_tf_version: str
    format: int = field(default=FORMAT)

    def instances(self, split: str = "train") -> int:
        """Records in a split."""
        return sum(shard.instances for shard in self.shards.get(split, []))

    def save(self, directory: Path) -> None:
        """Writes `manifest.json` into a folder."""
        text = json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)
        # Lists of numbers on one line each; no string holds a line end.
        text = re.sub(r"\[\n[\d\s,]+\]", lambda numbers: "".join(numbers[0].split()), text)
        (directory / FILE_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "Manifest":
        """Reads the manifest of a folder.

        Raises:
            InputError: there is none, or it cannot be used.
        """
        path = Path(directory) / FILE_NAME
        remake = "make the shards again with bert-tf shards"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise InputError(
                    f"{path}: format {content['format']}, this version reads {FORMAT}; {remake}"
                )
            content["shards"] = {
                split: [Shard(**shard) for shard in shards]
                for split, shards in content["shards"].items()
            }
            return cls(**content)
        except FileNotFoundError as error:
            raise InputError(
                f"{path}: no manifest; is this a folder of shards? {remake}"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path}: damaged manifest ({error!r}); {remake}") from error


def sha256(path: Path) -> str:
    """Checksum of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sizes(directory: str | os.PathLike, shards: list[Shard]) -> None:
    """Compares the shards on disk with the manifest by size, which costs nothing.

    Raises:
        InputError: a shard is missing, truncated or otherwise not the one that was written.
    """
    for shard in shards:
        path = Path(directory) / shard.file
        cure = "copy the folder again, or make it again with bert-tf shards"
        if not path.is_file():
            raise InputError(f"{path}: the shard is missing; {cure}")
        size = path.stat().st_size
        if size != shard.bytes:
            kind = "truncated" if size < shard.bytes else "changed"
            raise InputError(
                f"{path}: {kind}, {size} bytes where {shard.bytes} were written; {cure}"
            )


def verify(
    directory: str | os.PathLike,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Manifest:
    """Compares every shard of a folder with its checksum in the manifest.

    Args:
        directory: of the shards.
        progress: called with the shards compared so far, and with how many there are.

    Returns:
        The manifest, when all agree.

    Raises:
        InputError: naming the first shard that is missing, truncated or altered.
    """
    manifest = Manifest.load(directory)
    written = [shard for shards in manifest.shards.values() for shard in shards]
    check_sizes(directory, written)
    for done, shard in enumerate(written, start=1):
        path = Path(directory) / shard.file
        if sha256(path) != shard.sha256:
            raise InputError(
                f"{path}: damaged, its checksum is not the manifest's; copy the folder again, "
                "or make it again with bert-tf shards"
            )
        progress(done, len(written))
    return manifest

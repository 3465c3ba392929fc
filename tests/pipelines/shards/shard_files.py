"""What files and folders of shards hold, for tests."""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.shards.folder import ShardFolder, open_shards, shard_errors
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches

TEXT_OPTIONS = PretrainingDataOptions(max_seq_length=32, num_shards=2, held_out_share=0.1)


def options(**changed: Any) -> PretrainingDataOptions:
    settings = {"max_seq_length": 32, "num_shards": 3, "held_out_share": 0.1, **changed}
    return PretrainingDataOptions(**settings)


def many_options(**changed: Any) -> PretrainingDataOptions:
    return options(**{"buffer_bytes": 2000, "num_shards": 4, "dupe_factor": 2, **changed})


def write_many(folder: Path, number_corpus: Callable[..., str], files: int = 5) -> Path:
    folder.mkdir()
    for index in range(files):
        text = number_corpus(30, first=10 + index * 30 * 12 * 9)
        (folder / f"{index}.txt").write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def records_of(path: Path) -> list[bytes]:
    """The records of a file, without a graph: the checksums are verified elsewhere."""
    content, place, records = path.read_bytes(), 0, []
    while place < len(content):
        (size,) = struct.unpack_from("<Q", content, place)
        records.append(content[place + 12 : place + 12 + size])
        place += 12 + size + 4
    return records


def file_of(folder: Path, number: int = 1, split: str = "train") -> Path:
    return folder / Manifest.load(folder).shards[split][number].file


def examples(folder: Path, split: str = "train") -> Iterator[dict[str, list]]:
    """The features of the records of a split, in the order of the files."""
    for shard in Manifest.load(folder).shards[split]:
        for record in records_of(folder / shard.file):
            features = tf.train.Example.FromString(record).features.feature.items()
            yield {name: [*(x.int64_list.value or x.float_list.value)] for name, x in features}


def unmasked(batches: list[Any]) -> list[tuple]:
    """The instances of batches as they were before masking, each a tuple of ids."""
    instances: list[tuple] = []
    for inputs, labels, weights in batches:
        ids = inputs["token_ids"].copy()
        for row, position in zip(*np.nonzero(weights["mlm_logits"]), strict=True):
            ids[row, inputs["mask_positions"][row, position]] = labels["mlm_logits"][row, position]
        instances += map(tuple, ids)
    return instances


def arrays(dataset: tf.data.Dataset, batches: int | None = None) -> list:
    return list(itertools.islice(dataset.as_numpy_iterator(), batches))


def joined(dataset: tf.data.Dataset) -> Any:
    return tf.nest.map_structure(lambda *values: np.concatenate(values), *arrays(dataset))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def starts_of(records: list[bytes]) -> np.ndarray:
    return np.cumsum([0, *(len(record) + 16 for record in records)])


def rewrite(path: Path, records: list[bytes]) -> Path:
    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            file.write(record)
    return path


def stored(shards: ShardFolder, file: Path | None = None) -> list[bytes]:
    """The records that are read of opened shards, or of one file, in the order of the files."""
    blocks = shards.blocks
    kept = np.flatnonzero(blocks.records)
    if file is not None:
        kept = np.intersect1d(kept, blocks.of_file(shards.files.index(str(file))))
    read = (blocks.read(block, blocks.records[block]).numpy().tolist() for block in kept)
    return [record for records in read for record in records]


def without_blocks(records: list[bytes], damaged: Iterable[int]) -> list[bytes]:
    """The records outside of the blocks that hold a damaged one."""
    blocks = {number // 8 for number in damaged}
    return [record for number, record in enumerate(records) if number // 8 not in blocks]


def read_all(shards: Path | ShardFolder, tokenizer: Any) -> list:
    return list(pretraining_batches(shards, 4, repeat=False, tokenizer=tokenizer))


def refusal(shards: Path, tokenizer: Any) -> str:
    with pytest.raises(InputError) as refused, shard_errors(open_shards(shards)):
        read_all(shards, tokenizer)
    return str(refused.value)

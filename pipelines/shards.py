"""A corpus to TFRecord shards of pre-training instances, with a manifest.

The records have the features of the original's `create_pretraining_data.py`, so what reads those
reads these. The path of the data is one tf.data graph: batches of documents, tokenized, paired,
truncated, packed, masked and serialized, a batch at a time; Python only hands text in and writes
bytes out. Memory holds a few batches, however large the corpus.

The original shuffles all instances before it writes them. Here the instances of a batch are
shuffled and dealt out to all shards in turn, and training shuffles further while it reads.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from bert_tf.atomic import replace_directory
from bert_tf.errors import InputError
from bert_tf.version import __version__
from pipelines.corpus import CorpusInputs, dataset_options, find_files, input_errors
from pipelines.documents import DocumentBatch, DocumentReader
from pipelines.manifest import Manifest, Shard, sha256
from pipelines.masking import mask_tokens
from pipelines.options import PretrainingDataOptions
from pipelines.pretraining_instances import (
    Sentences,
    index_sentences,
    pack_pairs,
    sentence_pairs,
    shuffle_pairs,
    truncate_pairs,
)
from pipelines.statistics import InstanceCounts, count_instances, no_instances, summarize
from pipelines.tf_examples import serialize_examples

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer


@dataclass
class ShardsProgress:
    """How far `write_shards` has come.

    Args:
        bytes_read: bytes of the corpus on disk that are done.
        total_bytes: bytes of the corpus on disk.
        instances: instances written, held-out ones included.
    """

    bytes_read: int
    total_bytes: int
    instances: int


def write_shards(
    inputs: CorpusInputs,
    output_directory: str | os.PathLike,
    tokenizer: "BertTokenizer",
    options: PretrainingDataOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[ShardsProgress], None] | None = None,
) -> Manifest:
    """Makes pre-training instances of a corpus and writes them as TFRecord shards.

    The folder also gets `manifest.json` and the tokenizer's own files, so that training needs no
    other. Each record has the original's features: `input_ids`, `input_mask`, `segment_ids`
    [max_seq_length], `masked_lm_positions`, `masked_lm_ids` [max_predictions_per_seq] and
    `next_sentence_labels` [1] as int64, `masked_lm_weights` [max_predictions_per_seq] as float32.

    Args:
        inputs: files, folders or globs of text, a sentence a line, a blank line between
            documents.
        output_directory: folder to make. It appears whole, when all is written.
        tokenizer: turns sentences into ids; needs [CLS], [SEP] and [MASK].
        options: how to make the instances.
        overwrite: whether to replace a folder that has files in it.
        progress: called after each batch of documents.

    Returns:
        The manifest that was written.

    Raises:
        InputError: the corpus cannot be used, or the folder is not empty.
    """
    options = options or PretrainingDataOptions()
    output = Path(output_directory)
    if output.exists() and not output.is_dir():
        raise InputError(f"{output}: is a file; name a folder for the shards")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise InputError(f"{output}: is not empty; name another folder, or overwrite it")
    files = find_files(inputs)
    corpus = _corpus_entries(files)
    reader = DocumentReader(
        files,
        buffer_bytes=options.buffer_bytes,
        held_out_share=options.held_out_share,
        seed=options.seed,
    )
    with replace_directory(output) as folder:
        length = options.max_seq_length
        splits = {False: _SplitWriter(folder, "train", options.num_shards, length)}
        if options.held_out_share:
            splits[True] = _SplitWriter(folder, "held_out", 1, length)
        with ExitStack() as stack:
            for split in splits.values():
                stack.enter_context(split)
            with input_errors():
                for batch in _serialized_batches(reader, tokenizer, options):
                    splits[bool(batch["held_out"])].write(batch["records"], batch["counts"])
                    if progress:
                        instances = sum(split.instances for split in splits.values())
                        total = sum(file["bytes"] for file in corpus)
                        progress(ShardsProgress(int(batch["bytes_read"]), total, instances))
        if not splits[False].instances:
            raise InputError(
                f"{files[0]}: no instance could be made, the text has no tokens; check that the "
                "vocabulary is of its language"
            )
        written = [split for split in splits.values() if split.instances]
        manifest = Manifest(
            options={
                field.name: getattr(options, field.name)
                for field in dataclasses.fields(PretrainingDataOptions)
            },
            vocabulary={
                "hash": tokenizer.vocabulary_hash,
                "size": tokenizer.vocabulary_size,
                "settings": tokenizer.settings,
            },
            corpus=corpus,
            documents=reader.documents,
            sentences=reader.lines,
            shards={split.name: split.shards() for split in written},
            statistics={split.name: summarize(split.counts) for split in written},
            bert_tf_version=__version__,
        )
        manifest.save(folder)
        tokenizer.save(folder)
    return manifest


def _corpus_entries(files: list[str]) -> list[dict[str, Any]]:
    folder = os.path.commonpath([Path(file).absolute().parent for file in files])
    return [
        {"file": Path(os.path.relpath(file, folder)).as_posix(), "bytes": Path(file).stat().st_size}
        for file in files
    ]


class _SplitWriter:
    """The shards of one split, and the counts of what is in them."""

    def __init__(self, folder: Path, name: str, num_shards: int, max_seq_length: int):
        self.name = name
        self.instances = 0
        self.counts = no_instances(max_seq_length)
        self._paths = [
            folder / f"{name}-{index:05d}-of-{num_shards:05d}.tfrecord"
            for index in range(num_shards)
        ]
        self._instances = [0] * num_shards
        self._files = ExitStack()
        self._writers: list[tf.io.TFRecordWriter] = []

    def __enter__(self) -> "_SplitWriter":
        self._writers = [
            self._files.enter_context(tf.io.TFRecordWriter(str(path))) for path in self._paths
        ]
        return self

    def __exit__(self, *error) -> None:
        self._files.close()
        if not self.instances:
            for path in self._paths:
                path.unlink()

    def write(self, records: np.ndarray, counts: InstanceCounts) -> None:
        """Deals records out to the shards in turn, going on where the last call ended."""
        turns = len(self._paths)
        for shard in range(turns):
            dealt = records[(shard - self.instances) % turns :: turns].tolist()
            write = self._writers[shard].write
            for record in dealt:
                write(record)
            self._instances[shard] += len(dealt)
        self.instances += len(records)
        self.counts += counts

    def shards(self) -> list[Shard]:
        """Describes the finished files."""
        with ThreadPoolExecutor() as threads:
            checksums = threads.map(sha256, self._paths)
        return [
            Shard(path.name, instances, path.stat().st_size, checksum)
            for path, instances, checksum in zip(
                self._paths, self._instances, checksums, strict=True
            )
        ]


def _serialized_batches(
    reader: DocumentReader, tokenizer: "BertTokenizer", options: PretrainingDataOptions
) -> Iterator[dict[str, Any]]:
    """Records and counts, one batch of documents and one round of `dupe_factor` at a time."""

    # Nothing here branches on tensors, so there is nothing for autograph to convert, slowly.
    @tf.autograph.experimental.do_not_convert
    def tokenize(batch: DocumentBatch) -> dict[str, Any]:
        sentences = index_sentences(
            tokenizer.tokenize(batch.lines),
            batch.documents,
            batch.passages,
            batch.is_donor,
            max_seq_length=options.max_seq_length,
        )
        seed = tf.stack([tf.constant(options.seed, tf.int64), tf.cast(batch.held_out, tf.int64)])
        # With the length in it, the two phases of a pre-training differ in their pairs, too.
        seed = tf.random.fold_in(seed, options.max_seq_length)
        return {
            "sentences": sentences,
            "seed": tf.random.fold_in(seed, batch.number),
            "held_out": batch.held_out,
            "bytes_read": batch.bytes_read,
        }

    def rounds(tokenized: dict[str, Any]) -> tf.data.Dataset:
        return tf.data.Dataset.range(options.dupe_factor).map(lambda index: (tokenized, index))

    @tf.autograph.experimental.do_not_convert
    def serialize(tokenized: dict[str, Any], index: tf.Tensor) -> dict[str, Any]:
        records, counts = _make_records(
            tokenized["sentences"], tokenizer, options, tf.random.fold_in(tokenized["seed"], index)
        )
        return {
            "records": records,
            "counts": counts,
            "held_out": tokenized["held_out"],
            "bytes_read": tokenized["bytes_read"],
        }

    threads = os.cpu_count() or 1
    signature = DocumentBatch(
        lines=tf.TensorSpec([None], tf.string),
        documents=tf.TensorSpec([None], tf.int32),
        passages=tf.TensorSpec([None], tf.int32),
        is_donor=tf.TensorSpec([None], tf.bool),
        number=tf.TensorSpec([], tf.int64),
        held_out=tf.TensorSpec([], tf.bool),
        bytes_read=tf.TensorSpec([], tf.int64),
    )
    dataset = tf.data.Dataset.from_generator(lambda: iter(reader), output_signature=signature)
    dataset = dataset.map(tokenize, threads).flat_map(rounds).map(serialize, threads).prefetch(1)
    return dataset.with_options(dataset_options()).as_numpy_iterator()


def _make_records(
    sentences: Sentences,
    tokenizer: "BertTokenizer",
    options: PretrainingDataOptions,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, InstanceCounts]:
    """One round of instances of a batch: serialized [N], in random order, and their counts."""
    pair_seed, truncation_seed, order_seed, mask_seed = tf.unstack(tf.random.split(seed, 4))
    length = options.max_seq_length
    pairs = sentence_pairs(
        sentences,
        max_seq_length=length,
        short_seq_prob=options.short_seq_prob,
        seed=pair_seed,
    )
    pairs = truncate_pairs(pairs, max_seq_length=length, seed=truncation_seed)
    pairs = shuffle_pairs(pairs, order_seed)
    packed = pack_pairs(
        sentences.token_ids,
        pairs,
        max_seq_length=length,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    masked = mask_tokens(
        packed.token_ids,
        packed.padding_mask,
        seed=mask_seed,
        vocabulary_size=tokenizer.vocabulary_size,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
        max_predictions_per_seq=options.max_predictions_per_seq or 0,
        masked_lm_prob=options.masked_lm_prob,
    )
    records = serialize_examples(
        {
            "input_ids": tf.cast(masked.token_ids, tf.int64),
            "input_mask": tf.cast(packed.padding_mask, tf.int64),
            "segment_ids": tf.cast(packed.segment_ids, tf.int64),
            "masked_lm_positions": tf.cast(masked.positions, tf.int64),
            "masked_lm_ids": tf.cast(masked.labels, tf.int64),
            "masked_lm_weights": masked.weights,
            "next_sentence_labels": tf.cast(pairs.is_random_next[:, None], tf.int64),
        }
    )
    counts = count_instances(
        pairs, masked, max_seq_length=length, mask_token_id=tokenizer.mask_token_id
    )
    return records, counts

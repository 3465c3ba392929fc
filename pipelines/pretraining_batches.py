"""Shards to batches for pre-training, in an order that is a function of (seed, step).

The stream of an epoch is: the shards in random order, several read in turns, then a shuffle
buffer. Epochs follow one another and batches run across their borders, so every batch is full and
batch number `step` is the same whether the run began at 0 or at `step`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from bert_tf.errors import InputError
from pipelines.corpus import dataset_options
from pipelines.manifest import FILE_NAME, SPLITS, Manifest, check_sizes, verify

# Shards read in turns, records taken at a turn, and records held to draw the next one from.
OPEN_SHARDS = 8
TURN_RECORDS = 16
SHUFFLE_RECORDS = 16384


@dataclass
class ShardFolder:
    """Shards on disk, ours or the original's.

    Args:
        files: paths of the shards of a split.
        instances: records in them.
        max_seq_length: tokens of an instance.
        max_predictions_per_seq: predictions of an instance, padding included.
        manifest: None for shards that others wrote.
    """

    files: list[str]
    instances: int
    max_seq_length: int
    max_predictions_per_seq: int
    manifest: Manifest | None


def open_shards(
    directory: str | os.PathLike, split: str = "train", vocabulary_hash: str | None = None
) -> ShardFolder | None:
    """Looks a folder of shards over, before anything is trained on it.

    A folder without a manifest is taken for one of shards by the original's script: its
    `*.tfrecord*` files are one split, and are counted by reading them.

    Args:
        directory: folder that `pipelines.shards.write_shards` made, or `*.tfrecord*` files.
        split: "train" or "held_out".
        vocabulary_hash: `BertTokenizer.vocabulary_hash`, to compare with the manifest's.

    Returns:
        The shards; None for "held_out" where nothing was held out.

    Raises:
        InputError: the folder or a shard is missing or not what was written, or the
            shards were made with another vocabulary.
    """
    folder = Path(directory)
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; make one with bert-tf shards")
    if not (folder / FILE_NAME).exists():
        return _open_foreign_shards(folder, split)
    manifest = Manifest.load(folder)
    shards = manifest.shards.get(split)
    if not shards:
        return None
    made_with = manifest.vocabulary["hash"]
    if vocabulary_hash is not None and vocabulary_hash != made_with:
        raise InputError(
            f"{folder}: the shards were made with another vocabulary ({made_with[:12]}, this one "
            f"is {vocabulary_hash[:12]}); use that one, or make the shards again with this one"
        )
    check_sizes(folder, shards)
    return ShardFolder(
        files=[str(folder / shard.file) for shard in shards],
        instances=manifest.instances(split),
        max_seq_length=manifest.options["max_seq_length"],
        max_predictions_per_seq=manifest.options["max_predictions_per_seq"],
        manifest=manifest,
    )


def _open_foreign_shards(folder: Path, split: str) -> ShardFolder | None:
    files = sorted(str(path) for path in folder.glob("*.tfrecord*") if path.is_file())
    if not files:
        raise InputError(
            f"{folder}: holds neither {FILE_NAME} nor *.tfrecord files; make shards there with "
            "bert-tf shards"
        )
    if split != "train":
        return None
    instances, first = 0, None
    for file in files:
        try:
            for record in tf.data.TFRecordDataset(file).as_numpy_iterator():
                first = first or record
                instances += 1
        except tf.errors.DataLossError as error:
            raise InputError(
                f"{file}: damaged after record {instances}; copy or make it again"
            ) from error
    if first is None:
        raise InputError(f"{folder}: the *.tfrecord files are empty; make them again")
    features = tf.train.Example.FromString(first).features.feature
    missing = [name for name in _feature_specs(1, 1) if name not in features]
    if missing:
        raise InputError(
            f"{files[0]}: records have no {', '.join(missing)}; give shards of pre-training "
            "instances, as bert-tf shards writes them"
        )
    return ShardFolder(
        files=files,
        instances=instances,
        max_seq_length=len(features["input_ids"].int64_list.value),
        max_predictions_per_seq=len(features["masked_lm_ids"].int64_list.value),
        manifest=None,
    )


def _feature_specs(length: int, predictions: int) -> dict[str, tf.io.FixedLenFeature]:
    return {
        "input_ids": tf.io.FixedLenFeature([length], tf.int64),
        "input_mask": tf.io.FixedLenFeature([length], tf.int64),
        "segment_ids": tf.io.FixedLenFeature([length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
    }


def pretraining_batches(
    shard_directory: str | os.PathLike,
    batch_size: int,
    *,
    split: str = "train",
    seed: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
    drop_remainder: bool = False,
    start_step: int = 0,
    vocabulary_hash: str | None = None,
) -> tf.data.Dataset | None:
    """Batches for `model.fit` of a model with outputs `mlm_logits` and `nsp_logits`.

    Args:
        shard_directory: see `open_shards`.
        batch_size: B, instances in a batch.
        split: "train" or "held_out".
        seed: of the order.
        shuffle: whether to read in random order, another one each epoch.
        repeat: whether to go on for ever; else one epoch.
        drop_remainder: whether to leave out the last batch of one epoch when it is not full.
        start_step: batches to pass over; what follows is what would have followed them.
        vocabulary_hash: `BertTokenizer.vocabulary_hash`, to compare with the shards'.

    Returns:
        Dataset of (inputs, labels, sample weights), of L tokens and P predictions:
        inputs `token_ids`, `segment_ids`, `padding_mask` int32 [B, L], `mask_positions` int32
        [B, P]; labels `mlm_logits` int32 [B, P], `nsp_logits` int32 [B]; sample weights
        `mlm_logits` float32 [B, P], `nsp_logits` float32 [B]. None for the split "held_out" where
        nothing was held out.

    Raises:
        InputError: see `open_shards`; or the split is smaller than a batch.
    """
    shards = open_shards(shard_directory, split, vocabulary_hash)
    if shards is None:
        return None
    if drop_remainder and not repeat and shards.instances < batch_size:
        raise InputError(
            f"{shard_directory}: {shards.instances} {split} instances do not fill a batch of "
            f"{batch_size}; lower the batch size, or make more shards"
        )
    first = start_step * batch_size  # in the endless stream of records
    first_epoch, passed = divmod(first, shards.instances)
    files = tf.constant(shards.files)

    # Nothing here branches on tensors, so there is nothing for autograph to convert, slowly.
    @tf.autograph.experimental.do_not_convert
    def epoch(index: tf.Tensor) -> tf.data.Dataset:
        records = _epoch_records(files, tf.stack([tf.cast(seed, tf.int64), index]), shuffle)
        return records.skip(tf.where(index == first_epoch, tf.constant(passed, tf.int64), 0))

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max if repeat else 1)
    records = epochs.flat_map(epoch)
    specs = _feature_specs(shards.max_seq_length, shards.max_predictions_per_seq)

    @tf.autograph.experimental.do_not_convert
    def parse(serialized: tf.Tensor) -> tuple[dict, dict, dict]:
        return _model_inputs(tf.io.parse_example(serialized, specs))

    batches = records.batch(batch_size, drop_remainder=drop_remainder or repeat)
    batches = batches.map(parse, num_parallel_calls=2)
    remaining = max(0, shards.instances - first)
    full, rest = divmod(remaining, batch_size)
    batches = batches.apply(
        tf.data.experimental.assert_cardinality(
            tf.data.INFINITE_CARDINALITY if repeat else full + (rest > 0 and not drop_remainder)
        )
    )
    return batches.prefetch(2).with_options(dataset_options())


def _epoch_records(files: tf.Tensor, seed: tf.Tensor, shuffle: bool) -> tf.data.Dataset:
    """Serialized records of all files once; `seed`, int64 [2], decides their order."""
    if shuffle:
        files = tf.random.experimental.stateless_shuffle(files, seed)
    records = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset, cycle_length=OPEN_SHARDS, block_length=TURN_RECORDS
    )
    if shuffle:
        drawn = tf.random.stateless_uniform([], seed, 1, tf.int64.max, dtype=tf.int64)
        # Of this function's graph alone: TensorFlow would mix the process's global seed in, and
        # fails on one of 0.
        tf.random.set_seed(1)
        records = records.shuffle(SHUFFLE_RECORDS, drawn, reshuffle_each_iteration=False)
    return records


def _model_inputs(features: dict[str, tf.Tensor]) -> tuple[dict, dict, dict]:
    """The original's feature names to the model's."""
    ints = {
        name: tf.cast(values, tf.int32)
        for name, values in features.items()
        if values.dtype == tf.int64
    }
    inputs = {
        "token_ids": ints["input_ids"],
        "segment_ids": ints["segment_ids"],
        "padding_mask": ints["input_mask"],
        "mask_positions": ints["masked_lm_positions"],
    }
    labels = {
        "mlm_logits": ints["masked_lm_ids"],
        "nsp_logits": ints["next_sentence_labels"][:, 0],
    }
    weights = {
        "mlm_logits": features["masked_lm_weights"],
        "nsp_logits": tf.ones_like(labels["nsp_logits"], tf.float32),
    }
    return inputs, labels, weights


@contextmanager
def shard_errors(directory: str | os.PathLike) -> Iterator[None]:
    """Turns TensorFlow's error for a damaged record into an `InputError` that names the shard.

    TensorFlow says neither the file nor what to do. Only after it has failed are the checksums
    compared.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if not isinstance(error, tf.errors.DataLossError) and "Could not parse" not in str(error):
            raise
        if (Path(directory) / FILE_NAME).exists():
            verify(directory)  # raises for the shard at fault
        raise InputError(
            f"{directory}: a shard is damaged ({error.message.splitlines()[0]}); make it again"
        ) from error

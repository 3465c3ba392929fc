"""Reads shards as batches for pre-training, in an order that is a function of (seed, step).

Blocks of 256 records are read in random order, a new one in each epoch. The blocks of a window are
loaded together and their records shuffled. Batches run across windows and epochs, so every batch is
full. Shards of the compact form are masked here, with new masks in every epoch.
"""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.storage import is_remote
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.datasets import dataset_options
from bert_tf.pipelines.instances.masking import mask_tokens, unmask
from bert_tf.pipelines.instances.schemas import lay_out_rows, parse_rows
from bert_tf.pipelines.shards.block_cache import LOADS_AT_ONCE, Fetcher, block_fetcher
from bert_tf.pipelines.shards.folder import ShardFolder, open_shards, tokenizer_of_shards
from bert_tf.pipelines.shards.record_blocks import RecordBlocks
from bert_tf.startup import available_cores
from bert_tf.tokenization import BertTokenizer

WINDOW_BLOCKS = 64  # loaded and shuffled together: 16,384 records
# Up to so many blocks, an epoch's order is a shuffle of all, which takes a millisecond per window.
# Beyond, each place is drawn by itself: a terabyte of text has 9 million blocks.
MOST_SHUFFLED = 1 << 16
MIXED = 10_000  # records in which sources have exactly their shares
_ANSWER_SECONDS = 10  # of a tf.data service
_SAMPLE_SEED = 12345  # of held-out instances, so that runs with other seeds compare


class Share(NamedTuple):
    """A worker's share, every `num_workers`th block, with batches and epochs of its own."""

    worker: int  # from 0 on
    num_workers: int


@dataclass(frozen=True, kw_only=True)
class Masking:
    """Options of masks drawn while shards are read; None for what the shards were made with."""

    masked_lm_prob: float | None = None
    mask_token_share: float | None = None
    random_token_share: float | None = None
    whole_word_masking: bool | None = None
    max_ngram: int | None = None

    @property
    def changed(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


_WHOLE = Share(0, 1)
_AS_MADE = Masking()
MakeExamples = Callable[[Any], tuple[Any, Any, Any]]
Masks = tuple[PretrainingDataOptions, BertTokenizer | None]  # see `_masks`
Source = tuple[RecordBlocks, Fetcher | None]


def pretraining_batches(
    shard_directory: StrPath | ShardFolder,
    batch_size: int,
    *,
    split: str = "train",
    seed: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
    drop_remainder: bool = False,
    start_step: int = 0,
    share: Share = _WHOLE,
    tokenizer: BertTokenizer | None = None,
    masking: Masking = _AS_MADE,
    make_examples: MakeExamples | None = None,
    data_service: str | None = None,
    mixed: Sequence[tuple[ShardFolder, float]] = (),
) -> tf.data.Dataset | None:
    """Batches for `model.fit` of a model with outputs `mlm_logits` and `nsp_logits`.

    Args:
        shard_directory: see `open_shards`; or its result, whose `split` holds.
        batch_size: B, instances (or rows of several) per batch of this worker.
        split: "train" or "held_out".
        seed: random seed of the order and of masks drawn here.
        shuffle: read in random order, a new one in each epoch.
        repeat: read epochs without end; else one.
        drop_remainder: drop the last batch of a single epoch if it is not full.
        start_step: number of batches to skip; the rest are the same as without skipping.
        share: this worker's share (docs/reading-shards.md shows the call).
        tokenizer: tokenizer of the shards; by default the one saved with them, if masks are drawn.
        masking: settings of these masks.
        make_examples: function from inputs of unmasked text to inputs, labels and weights; None for
            masked words.
        data_service: address of a tf.data service that makes the batches.
        mixed: further shards that are read without end, and their shares of the records;
            `shard_directory` supplies the rest, and the settings of the masks.

    Returns:
        A dataset of (inputs, labels, sample weights), of L tokens and P predictions: inputs
        `token_ids`, `segment_ids`, `padding_mask` int32 [B, L], `mask_positions` int32 [B, P];
        labels `mlm_logits` int32 [B, P], `nsp_logits` int32 [B]; float32 sample weights of the
        same names and shapes, for `nsp_logits` 0 if instances are not pairs. Rows of several
        instances: see `lay_out_rows`. None if nothing was held out.

    Raises:
        InputError: the shards, their tokenizer or the tf.data service cannot be used; or the split
            is smaller than a batch, has too few blocks for the workers, or has masks already.
    """
    source = shard_directory
    shards = source if isinstance(source, ShardFolder) else open_shards(source, split)
    if shards is None:
        return None
    sources = [
        (_blocks_of(opened, share), block_fetcher(opened))
        for opened in (shards, *(other for other, _ in mixed))
    ]
    instances = int(sources[0][0].records.sum())
    if drop_remainder and not repeat and instances < batch_size:
        raise InputError(
            f"{shards.directory}: {instances} {shards.split} instances do not fill a batch of "
            f"{batch_size}: lower the batch size, or make more shards"
        )
    masks = _masks(shards, tokenizer, masking.changed)
    # Each worker has two streams of random numbers, on the device that tf.data runs on.
    with tf.device("CPU"):
        seeds = tf.random.split(tf.constant([seed, share.worker], tf.int64))
        order_seed, mask_seed = tf.unstack(seeds)
    first = start_step * batch_size  # record in the endless stream
    if mixed:
        assert repeat and shuffle
        records = _mixed_records(sources, [part for _, part in mixed], order_seed, first)
        batches = records.batch(batch_size, drop_remainder=True)
    else:
        records = _records(sources[0], order_seed if shuffle else None, first, repeat)
        batches = records.rebatch(batch_size, drop_remainder=drop_remainder or repeat)
    model_inputs = _model_inputs(shards, masks, mask_seed, make_examples)
    batches = batches.map(model_inputs, num_parallel_calls=available_cores())
    full, rest = divmod(max(0, instances - first), batch_size)
    count = tf.data.INFINITE_CARDINALITY if repeat else full + (rest > 0 and not drop_remainder)
    if data_service is not None:
        batches = _from_data_service(batches, shards, data_service)
    if repeat or data_service is None:  # each worker of a service ends with a batch of its own
        batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    options = dataset_options()
    if share.num_workers > 1:  # this is a worker's share already
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return batches.prefetch(2).with_options(options)


def _model_inputs(
    shards: ShardFolder, masks: Masks, mask_seed: tf.Tensor, make_examples: MakeExamples | None
) -> Callable[[tf.Tensor, tf.Tensor], tuple[dict, dict, dict]]:
    """The function from a batch of records and their places to inputs, labels and weights."""
    options, tokenizer = masks
    pad_token_id = tokenizer.pad_token_id if tokenizer else 0

    @tf.autograph.experimental.do_not_convert  # slow, and nothing branches on tensors
    def model_inputs(records: tf.Tensor, places: tf.Tensor) -> tuple[dict, dict, dict]:
        rows = parse_rows(records) if shards.has_rows else None
        instances = records if rows is None else rows.flat_values
        packed, masked, is_random_next = shards.parse_instances(instances, pad_token_id)
        if make_examples is not None:
            masked = unmask(masked)
        elif tokenizer is not None:
            # No other batch begins at the same place.
            seed = tf.random.fold_in(mask_seed, places[0])
            masked = mask_tokens(packed.token_ids, packed.padding_mask, tokenizer, options, seed)
        if rows is not None:
            inputs, labels, weights = lay_out_rows(
                rows.row_lengths(), packed, masked, is_random_next, options
            )
        else:
            inputs = {
                "token_ids": masked.token_ids,
                "segment_ids": packed.segment_ids,
                "padding_mask": packed.padding_mask,
                "mask_positions": masked.positions,
            }
            labels = {"mlm_logits": masked.labels, "nsp_logits": is_random_next}
            pair_weights = tf.ones_like(is_random_next, tf.float32)
            weights = {"mlm_logits": masked.weights, "nsp_logits": pair_weights}
        if make_examples is not None:
            return make_examples(inputs)
        if not shards.has_next_sentences:
            weights["nsp_logits"] = tf.zeros_like(weights["nsp_logits"])
        return inputs, labels, weights

    return model_inputs


def check_token_ids(
    shards: ShardFolder, tokenizer: BertTokenizer, inputs: dict, labels: dict
) -> None:
    """Refuses a batch, in NumPy, with ids beyond the vocabulary."""
    highest = max(inputs["token_ids"].max(), labels["mlm_logits"].max())
    if highest >= tokenizer.vocabulary_size:
        raise InputError(
            f"{shards.directory}: token id {highest} exceeds the tokenizer's "
            f"{tokenizer.vocabulary_size} pieces: give --tokenizer the one they were made with"
        )


def _blocks_of(shards: ShardFolder, share: Share) -> RecordBlocks:
    """A worker's blocks; refuses too few."""
    worker, num_workers = share
    if not 0 <= worker < num_workers:
        raise InputError(
            f"worker is {worker} of {num_workers}: number the workers from 0 to num_workers - 1"
        )
    blocks = shards.blocks.dealt(worker, num_workers)
    if not len(blocks.records):
        raise InputError(
            f"{shards.directory}: {len(shards.blocks.records)} blocks of {shards.split} records "
            f"are too few for {num_workers} workers: use fewer workers, or make more shards "
            "(a higher dupe_factor, more text)"
        )
    return blocks


def held_out_batches(
    shard_directory: StrPath | ShardFolder, batch_size: int, count: int, **options: Any
) -> tf.data.Dataset | None:
    """A fixed sample of held-out batches, which does not depend on the training seed, if any."""
    batches = pretraining_batches(
        shard_directory, batch_size, split="held_out", seed=_SAMPLE_SEED, repeat=False, **options
    )
    return None if batches is None else batches.take(count)


def _masks(shards: ShardFolder, tokenizer: BertTokenizer | None, changed: dict[str, Any]) -> Masks:
    """Options of the masks; the tokenizer to draw them with, None if the shards hold them."""
    is_static = shards.options.masking == "static"
    if is_static and changed:
        raise InputError(
            f"{shards.directory}: the shards hold their masks already: remove "
            f"{' and '.join(changed)}, or make shards with --masking dynamic"
        )
    if tokenizer is None and not is_static:
        tokenizer = tokenizer_of_shards(shards.directory)
    if tokenizer is not None:
        theirs = shards.manifest.vocabulary["hash"]
        ours = tokenizer.vocabulary_hash
        if theirs not in (None, ours):
            raise InputError(
                f"{shards.directory}: the shards were made with another vocabulary "
                f"({theirs[:12]}, not {ours[:12]}): use that one, or make the shards again with "
                "this one"
            )
    if "masked_lm_prob" in changed:  # which sets the number of predictions
        changed = {"max_predictions_per_seq": None, **changed}
    return replace(shards.options, **changed), None if is_static else tokenizer


def _from_data_service(
    batches: tf.data.Dataset, shards: ShardFolder, address: str
) -> tf.data.Dataset:
    """Makes the batches on the workers of a tf.data service, `grpc://host:port`.

    One worker keeps their order; several yield batches of their own windows as they are ready.
    """
    if is_remote(str(shards.directory)):
        raise InputError(
            f"{shards.directory}: a tf.data service reads from file systems only: copy the "
            "shards to one, or remove --data_service"
        )
    match = re.fullmatch(r"grpc://(\[?[^/\s]+?\]?):(\d+)", address)
    if not match:
        raise InputError(
            f"{address}: not the address of a tf.data service: give it as grpc://host:port"
        )
    try:
        host_and_port = match[1].strip("[]"), int(match[2])
        socket.create_connection(host_and_port, timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"{address}: no tf.data service answers ({error}): start its dispatcher and workers "
            "(see docs/reading-shards.md), or remove --data_service"
        ) from error
    service = tf.data.experimental.service
    distribute = service.distribute(service.ShardingPolicy.DYNAMIC, address)
    return batches.with_options(dataset_options()).apply(distribute)


def _mixed_records(
    sources: Sequence[Source], shares: Sequence[float], seed: tf.Tensor, first: int
) -> tf.data.Dataset:
    """Records of several sources, string [], after the `first`, and their places, int64 [].

    Each `MIXED` records hold exactly as many of a source as its share says, in a random order that
    is a function of the seed and of the place. `shares` begins with the second source.
    """
    others = [round(share * MIXED) for share in shares]
    counts = np.array([MIXED - sum(others), *others], np.int64)
    ordered = tf.constant(np.repeat(np.arange(len(counts)), counts))

    def source_of(part: tf.Tensor) -> tf.Tensor:
        """The sources of the records of a part, int64 [MIXED]."""
        # Epochs of a source draw from seeds that are folded with numbers from 0 on.
        part_seed = tf.random.fold_in(tf.random.fold_in(seed, -len(counts)), part)
        return tf.random.experimental.stateless_shuffle(ordered, part_seed)

    part, passed = divmod(first, MIXED)
    with tf.device("CPU"):
        before = source_of(tf.constant(part, tf.int64)).numpy()[:passed]
        seeds = [seed, *(tf.random.fold_in(seed, -skipped) for skipped in range(1, len(counts)))]
    before = part * counts + np.bincount(before, minlength=len(counts))
    choice = tf.data.Dataset.range(part, tf.int64.max).flat_map(
        lambda number: tf.data.Dataset.from_tensor_slices(source_of(number))
    )
    streams = [
        _records(source, source_seed, first=int(skipped), repeat=True).unbatch()
        for source, source_seed, skipped in zip(sources, seeds, before, strict=True)
    ]
    records = tf.data.Dataset.choose_from_datasets(streams, choice.skip(passed))
    places = tf.data.Dataset.range(first, tf.int64.max)
    return tf.data.Dataset.zip(records, places).map(lambda record, place: (record[0], place))


def _records(source: Source, seed: tf.Tensor | None, first: int, repeat: bool) -> tf.data.Dataset:
    """Windows of records, string [n], after the `first` records; `places`, int64 [n], number them.

    Without a seed, int64 [2], the blocks keep the order of the files.
    """
    windows = _Windows(source, seed, first)
    last = tf.int64.max if repeat else windows.in_epoch
    numbers = tf.data.Dataset.range(windows.first, last)
    return numbers.map(windows.load, num_parallel_calls=LOADS_AT_ONCE)


class _Windows:
    """The windows of an endless stream of records, by their numbers in it."""

    def __init__(self, source: Source, seed: tf.Tensor | None, first_record: int):
        blocks, self._fetch = source  # local files of remote blocks
        files = blocks.files if self._fetch else [str(Path(x).absolute()) for x in blocks.files]
        self._files = tf.constant(files)
        self._columns = [tf.constant(values) for values in blocks[1:]]  # (B,) each
        self._seed = seed
        self._blocks = len(blocks.records)
        self._has_records = blocks.records > 0
        self._is_shuffled_whole = self._blocks <= MOST_SHUFFLED
        self._used_blocks = self._blocks
        if self._is_shuffled_whole:
            self._used_blocks = int(self._has_records.sum())
        self.in_epoch = -(-self._used_blocks // WINDOW_BLOCKS)

        epoch, passed = divmod(first_record, int(blocks.records.sum()))
        with tf.device("CPU"):
            whole = (tf.constant(number, tf.int64) for number in (epoch, 0, self._used_blocks))
            order = self._block_order(*whole).numpy()
        ends = np.cumsum(blocks.records[order])[self._begin(np.arange(1, self.in_epoch + 1)) - 1]
        window = int(np.searchsorted(ends, passed, side="right"))
        self.first = epoch * self.in_epoch + window
        self._passed = passed - (int(ends[window - 1]) if window else 0)  # records of the first

    def _begin(self, window: Any) -> Any:
        """The place of a window's first block in the order of an epoch."""
        return window * self._used_blocks // self.in_epoch

    def _block_order(self, epoch: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """The blocks at places `begin` to `end` of the order of an epoch."""
        if self._seed is None and (self._has_records.all() or not self._is_shuffled_whole):
            return tf.range(begin, end)
        if not self._is_shuffled_whole:
            seed = tf.random.fold_in(self._seed, epoch)
            return tf.random.experimental.index_shuffle(
                tf.range(begin, end), seed, self._blocks - 1
            )
        order = tf.range(self._blocks, dtype=tf.int64)
        if self._seed is not None:
            seed = tf.random.fold_in(self._seed, epoch)
            order = tf.random.experimental.stateless_shuffle(order, seed)
        if not self._has_records.all():  # empty blocks do not change the order of the others
            order = tf.boolean_mask(order, tf.gather(tf.constant(self._has_records), order))
        return order[begin:end]

    @tf.autograph.experimental.do_not_convert
    def load(self, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The records of a window, string [n], and their places, int64 [n]."""
        epoch = number // self.in_epoch
        window = number % self.in_epoch
        order = self._block_order(epoch, self._begin(window), self._begin(window + 1))
        file, offset, size, counts = (tf.gather(values, order) for values in self._columns)
        path = tf.gather(self._files, file)
        if self._fetch is not None:
            path = tf.numpy_function(self._fetch, [file, offset, size], tf.string)
            path = tf.ensure_shape(path, [None])
            offset = tf.zeros_like(offset)
        to_read = tf.data.Dataset.from_tensor_slices((path, offset, size, counts))
        records = tf.reduce_sum(counts)
        read = to_read.flat_map(RecordBlocks.run).batch(tf.maximum(records, 1))
        # All blocks of a window may be damaged.
        none = tf.data.Dataset.from_tensors(tf.zeros([0], tf.string))
        loaded = read.concatenate(none).take(1).get_single_element()
        index = tf.range(records)
        if self._seed is not None:
            seed = tf.random.fold_in(tf.random.fold_in(self._seed, epoch), window)
            index = tf.random.experimental.stateless_shuffle(index, seed)
        passed = tf.where(number == self.first, tf.constant(self._passed, tf.int64), 0)
        index = index[passed:]
        return tf.gather(loaded, index), number * 2**32 + index

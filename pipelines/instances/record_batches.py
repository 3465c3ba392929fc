"""The tf.data graph from batches of documents to serialized pre-training instances.

A batch is tokenized once, however many rounds of `dupe_factor` and sequence lengths are made of it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.pipelines.corpus.documents import MOST_BATCHES, DocumentBatch
from bert_tf.pipelines.corpus.sentence_splitting import split_sentences
from bert_tf.pipelines.data_options import CorpusOptions, PretrainingDataOptions
from bert_tf.pipelines.datasets import dataset_options
from bert_tf.pipelines.instances import sentence_pairs as pairing
from bert_tf.pipelines.instances.masking import MaskedTokens, mask_tokens
from bert_tf.pipelines.instances.schemas import serialize_compact, serialize_masked, serialize_rows
from bert_tf.startup import available_cores, keep_freed_memory_for_good
from bert_tf.tokenization import BertTokenizer, Packer

_PERCENTILES = (5, 25, 50, 75, 95)  # of lengths, in the statistics


class InstanceCounts(NamedTuple):
    lengths: Any  # int64 [max_seq_length + 1], instances by length with [CLS] and [SEP]
    a_lengths: Any  # int64 [max_seq_length + 1], by number of tokens of A
    b_lengths: Any  # int64 [max_seq_length + 1], by number of tokens of B
    random_next: Any  # int64, instances with a random next
    predictions: Any  # int64, tokens to predict
    masked: Any  # int64, tokens to predict that are shown as [MASK]
    kept: Any  # int64, tokens to predict that are shown unchanged
    tokens: Any  # int64, tokens of the text
    dropped: Any  # int64, tokens of the text that truncation left in no instance
    unknown: Any = 0  # int64, tokens of the text that are [UNK]

    def __add__(self, other: "InstanceCounts") -> "InstanceCounts":  # type: ignore[override]
        return InstanceCounts(*(np.add(a, b) for a, b in zip(self, other, strict=True)))

    def __radd__(self, zero: int) -> "InstanceCounts":
        return self


class Records(NamedTuple):
    records: Any  # string, serialized, in random order: [N] instances, or rows of them
    counts: InstanceCounts  # counts of the instances
    short_documents: Any  # int64, documents with fewer tokens than an instance


class RecordBatch(NamedTuple):
    batch: DocumentBatch  # the batch, without its lines
    round: int  # from 0 to dupe_factor - 1. Count the text in round 0 only
    sentences: Any  # int64, number of sentences in the batch, without donors
    without_tokens: Any  # int64, number of these sentences that have no token
    lengths: tuple[Records, ...]  # of each sequence length


def record_batches(
    batches: Iterator[DocumentBatch],
    tokenizer: BertTokenizer,
    options: Sequence[PretrainingDataOptions],
    split_paragraphs: bool,
    threads: int | None = None,
) -> Iterator[RecordBatch]:
    """Makes instances of batches of documents in order, round by round, by default on all cores."""
    keep_freed_memory_for_good()
    tokenize, serialize = _traced(tokenizer, options, split_paragraphs)
    rounds = options[0].dupe_factor
    threads = threads or available_cores()
    in_graph: deque[DocumentBatch] = deque()

    def texts() -> Iterator[tuple]:
        for batch in batches:
            in_graph.append(batch._replace(lines=batch.lines[:0]))
            yield *batch[:4], batch.unit * MOST_BATCHES + batch.number, batch.held_out

    @tf.autograph.experimental.do_not_convert  # slow, and nothing branches on tensors
    def in_rounds(outputs: dict[str, Any]) -> tf.data.Dataset:
        return tf.data.Dataset.range(rounds).map(lambda index: (outputs, index))

    line_specs = [tf.TensorSpec([None], kind) for kind in (tf.string, tf.int32, tf.int32, tf.bool)]
    signature = (*line_specs, tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.bool))
    dataset = tf.data.Dataset.from_generator(texts, output_signature=signature)
    dataset = dataset.map(tokenize, threads).flat_map(in_rounds).map(serialize, threads).prefetch(1)
    settings = dataset_options()
    # tf.data's rewriting of the graph finds nothing to improve here, and takes most of a second.
    settings.experimental_optimization.apply_default_optimizations = False
    for number, outputs in enumerate(dataset.with_options(settings).as_numpy_iterator()):
        if number % rounds == 0:
            batch = in_graph.popleft()
        yield RecordBatch(batch, number % rounds, *outputs)


# Tracing takes seconds, and a worker process writes many units with the same settings.
_TRACED: dict[tuple, tuple[Callable, Callable]] = {}
_MOST_TRACED = 4
# Options that the graph does not depend on.
_OUTSIDE = {field.name for field in fields(CorpusOptions)} | {"dupe_factor", "held_out_share"}
_OUTSIDE |= {"max_held_out_bytes", "max_tokens", "num_shards", "buffer_bytes"}


def _traced(
    tokenizer: BertTokenizer, options: Sequence[PretrainingDataOptions], split_paragraphs: bool
) -> tuple[Callable, Callable]:
    """The functions of `_functions`, the same ones for equal arguments."""
    graph_options = [
        {k: v for k, v in x.data_settings().items() if k not in _OUTSIDE} for x in options
    ]
    settings = json.dumps([tokenizer.settings, *graph_options])
    key = (type(tokenizer), tokenizer.vocabulary_hash, settings, split_paragraphs)
    traced = _TRACED.get(key)
    if traced is None:
        while len(_TRACED) >= _MOST_TRACED:
            _TRACED.pop(next(iter(_TRACED)), None)  # another thread may have been faster
        traced = _TRACED[key] = _functions(tokenizer, options, split_paragraphs)
    return traced


def _functions(
    tokenizer: BertTokenizer, options: Sequence[PretrainingDataOptions], split_paragraphs: bool
) -> tuple[Callable, Callable]:
    @tf.function(autograph=False)
    def tokenize(lines: tf.Tensor, *about: tf.Tensor) -> dict[str, Any]:
        *columns, number, held_out = about
        if split_paragraphs:
            in_paragraphs = split_sentences(lines)
            lines = in_paragraphs.flat_values
            columns = [tf.repeat(values, in_paragraphs.row_lengths()) for values in columns]
        documents, passages, is_donor = columns
        token_ids = tokenizer.tokenize(lines)
        is_unknown = token_ids.flat_values == tokenizer.unk_token_id
        is_text = ~is_donor
        tokens = tf.cast(token_ids.row_lengths(), tf.int32)
        indexed = tuple(
            pairing.index_sentences(
                token_ids,
                documents,
                passages,
                is_donor,
                max_seq_length=variant.max_seq_length,
                cut_long=variant.cut_long_sentences and variant.instances == "sentence_pairs",
            )
            for variant in options
        )
        sizes = tf.math.segment_sum(tf.where(is_text, tokens, 0), documents)
        short = tuple(
            tf.math.count_nonzero((sizes > 0) & (sizes < variant.max_seq_length - 3))
            for variant in options
        )
        return {
            "number": number,
            "held_out": held_out,
            "indexed": indexed,
            "short": short,
            "tokens": tf.reduce_sum(tf.cast(sizes, tf.int64)),
            "unknown": tf.math.count_nonzero(is_unknown & tf.repeat(is_text, tokens)),
            "sentences": tf.math.count_nonzero(is_text),
            "without_tokens": tf.math.count_nonzero(is_text & (tokens == 0)),
        }

    @tf.function(autograph=False)
    def serialize(batch: dict[str, Any], index: tf.Tensor) -> tuple:
        lengths = []
        columns = options, batch["indexed"], batch["short"]
        for variant, sentences, short in zip(*columns, strict=True):
            seed = tf.stack([np.int64(variant.seed), tf.cast(batch["held_out"], tf.int64)])
            # The length is part of the seed, so that the two phases of pre-training differ.
            seed = tf.random.fold_in(seed, variant.max_seq_length)
            seed = tf.random.fold_in(seed, batch["number"])
            seed = tf.random.fold_in(seed, index)
            records, counts = _make_records(sentences, batch["tokens"], tokenizer, variant, seed)
            lengths.append(Records(records, counts._replace(unknown=batch["unknown"]), short))
        return batch["sentences"], batch["without_tokens"], tuple(lengths)

    return tokenize, serialize


def _make_records(
    sentences: pairing.Sentences,
    tokens: tf.Tensor,
    tokenizer: BertTokenizer,
    options: PretrainingDataOptions,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, InstanceCounts]:
    """One round of instances of a batch: records, string, in random order, and counts."""
    pair_seed, truncation_seed, order_seed, mask_seed = tf.unstack(tf.random.split(seed, 4))
    length = options.max_seq_length
    token_ids = sentences.token_ids
    packer = Packer(tokenizer, length, pad_to_max_length=True)
    rules = {"max_seq_length": length, "short_seq_prob": options.short_seq_prob, "seed": pair_seed}
    if options.instances == "full_sentences":
        sep = tokenizer.sep_token_id
        token_ids, pairs = pairing.full_sentences(sentences, sep_token_id=sep, **rules)
    else:
        pairs = pairing.sentence_pairs(sentences, **rules)
        pairs = pairing.truncate_pairs(pairs, packer, truncation_seed)
    pairs = pairing.shuffle_pairs(pairs, order_seed)
    segments = 1 if options.instances == "full_sentences" else 2
    starts = (pairs.a_start, pairs.b_start)
    lengths = (pairs.a_length, pairs.b_length)
    inputs = packer.pack_ranges(token_ids, starts[:segments], lengths[:segments])
    packed = pairing.PackedPairs(**inputs)
    if options.masking == "dynamic":
        masked = None
        records = serialize_compact(packed, pairs.is_random_next)
    else:
        masked = mask_tokens(packed.token_ids, packed.padding_mask, tokenizer, options, mask_seed)
        records = serialize_masked(packed, masked, pairs.is_random_next)
    if options.instances_per_row > 1:
        row_seed = tf.random.fold_in(order_seed, options.instances_per_row)
        records = serialize_rows(records, pairs.lengths, options, row_seed)
    return records, _count_instances(pairs, masked, length, tokenizer.mask_token_id, tokens)


def _count_instances(
    pairs: pairing.SentencePairs,
    masked: MaskedTokens | None,
    max_seq_length: int,
    mask_token_id: int,
    tokens: tf.Tensor,
) -> InstanceCounts:
    """Counts truncated pairs and their masks, if any; `tokens` is the text's, int64."""
    size = max_seq_length + 1
    count = tf.math.count_nonzero
    mask_counts = [tf.constant(0, tf.int64)] * 3
    if masked is not None:
        predicted = masked.weights > 0
        shown = tf.gather(masked.token_ids, masked.positions, batch_dims=1)
        outcomes = (predicted, shown == mask_token_id, shown == masked.labels)
        mask_counts = [count(predicted & matches) for matches in outcomes]
    # Pairing takes a token once as A or the true B. A batch of full sentences drops none; its [SEP]
    # between documents count here as text.
    used = pairs.a_length + tf.where(pairs.is_random_next, 0, pairs.b_length)
    dropped = tf.maximum(tokens - tf.reduce_sum(tf.cast(used, tf.int64)), 0)
    histograms = [
        tf.math.bincount(lengths, minlength=size, maxlength=size, dtype=tf.int64)
        for lengths in (pairs.lengths, pairs.a_length, pairs.b_length)
    ]
    counts = [*histograms, count(pairs.is_random_next), *mask_counts, tokens, dropped]
    return InstanceCounts(*counts)


def summarize(counts: InstanceCounts, instances_are_pairs: bool = True) -> dict[str, Any]:
    instances = int(np.sum(counts.lengths))
    if not instances:
        return {"instances": 0}
    predictions = int(counts.predictions)
    masked = int(counts.masked)
    kept = int(counts.kept)
    summary: dict[str, Any] = {
        "instances": instances,
        "full_length_share": int(counts.lengths[-1]) / instances,
        "dropped_token_share": int(counts.dropped) / max(1, int(counts.tokens)),
        "unknown_token_share": int(counts.unknown) / max(1, int(counts.tokens)),
    }
    histograms = {"length": counts.lengths}
    if instances_are_pairs:
        summary["is_random_next"] = int(counts.random_next) / instances
        histograms |= {"segment_a_length": counts.a_lengths, "segment_b_length": counts.b_lengths}
    for name, histogram in histograms.items():
        summary[f"{name}_mean"] = float(histogram @ np.arange(len(histogram))) / instances
        below = np.cumsum(histogram) / instances
        summary[f"{name}_percentiles"] = {
            str(percent): int(np.searchsorted(below, percent / 100)) for percent in _PERCENTILES
        }
    if predictions:  # none if masks are drawn during training
        summary["predictions_mean"] = predictions / instances
        tokens = counts.lengths @ np.arange(len(counts.lengths))
        summary["predictions_over_length"] = predictions / int(tokens)
        summary["mask_share"] = masked / predictions
        summary["kept_share"] = kept / predictions
        summary["random_share"] = (predictions - masked - kept) / predictions
    return summary

"""The forms of pre-training instances in TFRecord shards (features: docs/reading-shards.md).

- *masked*: the features of the original's `create_pretraining_data.py`, masked when written.
- *compact*: for masks drawn during training: the tokens, the length of `[CLS] A [SEP]`, the label.

With `instances_per_row`, a record is a *row* of several short instances, each seeing only itself: a
`tf.train.Example` whose feature `instances` is the list of their records, in either form (Krell et
al. 2021, "Efficient sequence packing without cross-contamination"). N instances are in R rows of L
tokens, S instances and P predictions at most a row.
"""

import heapq
import math
import re
from collections.abc import Mapping
from functools import partial

import numpy as np
import tensorflow as tf

from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances.masking import MaskedTokens, Tensors
from bert_tf.pipelines.instances.sentence_pairs import PackedPairs

Parsed = tuple[PackedPairs, MaskedTokens, tf.Tensor]  # the last int32 [batch], next-sentence labels


def serialize_masked(
    packed: PackedPairs, masked: MaskedTokens, is_random_next: tf.Tensor
) -> tf.Tensor:
    features = {
        "input_ids": masked.token_ids,
        "input_mask": packed.padding_mask,
        "segment_ids": packed.segment_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.labels,
        "masked_lm_weights": masked.weights,
        "next_sentence_labels": is_random_next[:, None],
    }
    return serialize_examples(features)


def serialize_compact(packed: PackedPairs, is_random_next: tf.Tensor) -> tf.Tensor:
    length = tf.reduce_sum(packed.padding_mask, axis=-1)
    second = tf.reduce_sum(packed.segment_ids, axis=-1)
    features = {
        "input_ids": packed.token_ids,
        "first_segment_length": (length - second)[:, None],
        "next_sentence_labels": is_random_next[:, None],
    }
    return serialize_examples(features, lengths={"input_ids": length})


def parse_compact(records: tf.Tensor, options: PretrainingDataOptions, pad_token_id: int) -> Parsed:
    """Reads records of the compact form, string [batch]."""
    length = options.max_seq_length
    ids = tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True, default_value=-1)
    one = tf.io.FixedLenFeature([1], tf.int64)
    kinds = {"input_ids": ids, "first_segment_length": one, "next_sentence_labels": one}
    features = tf.io.parse_example(records, kinds)
    token_ids = tf.cast(features["input_ids"], tf.int32)  # (batch, longest)
    missing = length - tf.shape(token_ids)[1]
    token_ids = tf.pad(token_ids, [[0, 0], [0, missing]], constant_values=-1)
    token_ids = tf.ensure_shape(token_ids, [None, length])
    in_sequence = token_ids >= 0
    first_length = tf.cast(features["first_segment_length"], tf.int32)  # (batch, 1)
    in_second = in_sequence & (tf.range(length) >= first_length)
    token_ids = tf.where(in_sequence, token_ids, pad_token_id)
    packed = PackedPairs(token_ids, tf.cast(in_second, tf.int32), tf.cast(in_sequence, tf.int32))
    none = token_ids[:, :0]
    masked = MaskedTokens(token_ids, none, none, tf.cast(none, tf.float32))
    return packed, masked, tf.cast(features["next_sentence_labels"][:, 0], tf.int32)


def masked_features(length: int, predictions: int) -> dict[str, tf.io.FixedLenFeature]:
    sizes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), length)
    sizes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), predictions)
    sizes["next_sentence_labels"] = 1
    weights = tf.io.FixedLenFeature([predictions], tf.float32)
    ints = {name: tf.io.FixedLenFeature([size], tf.int64) for name, size in sizes.items()}
    return {**ints, "masked_lm_weights": weights}


# In an error, the feature of a record and what it holds.
OUT_OF_RANGE = re.compile(r"has \w+ (?:not from 0 to \d+|outside the vocabulary|of no token)")
# Model Garden's names in place of the original's, if it was asked for its newer ones.
NEWER_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}


def parse_masked(
    records: tf.Tensor,
    options: PretrainingDataOptions,
    names: Mapping[str, str],
    vocabulary_size: int = tf.int32.max,
) -> Parsed:
    """Reads records of the masked form, string [batch]; `names` has other names of features.

    Raises `tf.errors.InvalidArgumentError` with an `OUT_OF_RANGE` for a value that no instance has.
    """
    assert options.max_predictions_per_seq is not None  # filled in by the options
    kinds = masked_features(options.max_seq_length, options.max_predictions_per_seq)
    renamed = {names.get(name, name): kind for name, kind in kinds.items()}
    parsed = tf.io.parse_example(records, renamed)
    features = {name: parsed[names.get(name, name)] for name in kinds}
    with tf.control_dependencies(_checks(features, vocabulary_size)):
        weights = tf.identity(features.pop("masked_lm_weights"))
        ints = {name: tf.cast(values, tf.int32) for name, values in features.items()}
    packed = PackedPairs(ints["input_ids"], ints["segment_ids"], ints["input_mask"])
    mask_names = ("input_ids", "masked_lm_positions", "masked_lm_ids")
    ids, positions, labels = (ints[name] for name in mask_names)
    masked = MaskedTokens(ids, positions, labels, weights)
    return packed, masked, ints["next_sentence_labels"][:, 0]


def _checks(features: Tensors, vocabulary_size: int) -> list[tf.Operation]:
    """Assertions that the values are in range: other programs may write any."""
    mask = features["input_mask"]
    positions = features["masked_lm_positions"]
    length = mask.shape[1]
    last = dict.fromkeys(features, 1) | {"masked_lm_positions": length - 1}
    said = {name: f"{name} not from 0 to {largest}" for name, largest in last.items()}
    for name in ("input_ids", "masked_lm_ids"):
        last[name] = vocabulary_size - 1
        said[name] = f"{name} outside the vocabulary"
    faults = {
        said[name]: ~((x >= 0) & (x <= tf.cast(last[name], x.dtype)))
        for name, x in features.items()
    }
    is_token = tf.gather(mask, tf.clip_by_value(positions, 0, length - 1), batch_dims=1) > 0
    faults["masked_lm_positions of no token"] = (features["masked_lm_weights"] > 0) & ~is_token
    faults["input_mask of no token"] = tf.reduce_all(mask == 0, -1)
    return [tf.debugging.Assert(~tf.reduce_any(x), [f"has {name}"]) for name, x in faults.items()]


def serialize_examples(features: Tensors, lengths: Tensors | None = None) -> tf.Tensor:
    """String [batch], `tf.train.Example`s of features: integers, floats or strings [batch, values].

    `lengths`, int32 [batch], limits a feature's values. Python takes about a millisecond for such a
    record; `encode_proto` writes the same bytes for a whole batch.
    """
    # A map field is, on the wire, a repeated message of key and value.
    lengths = lengths or {}
    entries = [_entry(name, features[name], lengths.get(name)) for name in sorted(features)]
    message = _message("Features", feature=tf.stack(entries, axis=1))
    return _message("Example", features=message[:, None])


def _entry(name: str, values: tf.Tensor, lengths: tf.Tensor | None) -> tf.Tensor:
    if values.dtype == tf.string:
        kind = "Bytes"
    elif values.dtype.is_floating:
        kind = "Float"
    else:
        kind = "Int64"
        values = tf.cast(values, tf.int64)
    key = tf.fill([tf.shape(values)[0], 1], name)
    listed = _message(f"{kind}List", lengths, value=values)[:, None]
    value = _message("Feature", **{f"{kind.lower()}_list": listed})[:, None]
    return _message("Features.FeatureEntry", key=key, value=value)


def _message(kind: str, lengths: tf.Tensor | None = None, **fields: tf.Tensor) -> tf.Tensor:
    """String [batch], messages of fields [batch, repetitions], or `lengths` of a field's."""
    counts = [lengths]
    if lengths is None:
        counts = [tf.fill([tf.shape(v)[0]], tf.shape(v)[1]) for v in fields.values()]
    sizes = tf.stack(counts, axis=1)
    return tf.io.encode_proto(sizes, list(fields.values()), list(fields), f"tensorflow.{kind}")


def row_predictions(options: PretrainingDataOptions) -> int:
    """Predictions in a record, padding included."""
    per_instance = options.max_predictions_per_seq
    assert per_instance is not None  # filled in by the options
    if options.instances_per_row == 1:
        return per_instance
    # Each instance has `masked_lm_prob` of its tokens, rounded, and at least one.
    per_tokens = math.floor(options.masked_lm_prob * options.max_seq_length)
    return min(per_tokens + options.instances_per_row, options.instances_per_row * per_instance)


def fill_rows(lengths: tf.Tensor, options: PretrainingDataOptions) -> tf.Tensor:
    """The row of each instance, int32 [N]: the longest first, each where the least room is left."""
    rows = tf.numpy_function(partial(_fill_rows, options=options), [lengths], tf.int32)
    return tf.ensure_shape(rows, [None])


def _fill_rows(lengths: np.ndarray, options: PretrainingDataOptions) -> np.ndarray:
    rows = np.zeros(len(lengths), np.int32)
    rows_by_room: list[list[tuple[int, int]]] = [[] for _ in range(options.max_seq_length + 1)]
    rooms = used = 0  # a bit for each amount of room that some row has; rows so far
    for index in np.argsort(-lengths, kind="stable"):
        length = int(lengths[index])
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1  # the least that is enough
            row, free = heapq.heappop(rows_by_room[room])
            if not rows_by_room[room]:
                rooms ^= 1 << room
        else:
            room = options.max_seq_length
            row = used
            free = options.instances_per_row
            used += 1
        rows[index] = row
        if free > 1:
            heapq.heappush(rows_by_room[room - length], (row, free - 1))
            rooms |= 1 << (room - length)
    return rows


def serialize_rows(
    records: tf.Tensor, lengths: tf.Tensor, options: PretrainingDataOptions, seed: tf.Tensor
) -> tf.Tensor:
    """String [R], rows in random order, of instances' records, string [N]."""
    rows = fill_rows(lengths, options)
    order = tf.argsort(rows, stable=True)
    used = tf.reduce_max(tf.concat([rows, [-1]], 0)) + 1
    records = tf.gather(records, order)
    rows = tf.gather(rows, order)
    in_rows = tf.RaggedTensor.from_value_rowids(records, rows, nrows=used)
    instances = tf.cast(in_rows.row_lengths(), tf.int32)
    serialized = serialize_examples({"instances": in_rows.to_tensor()}, {"instances": instances})
    return tf.random.experimental.stateless_shuffle(serialized, seed)


def parse_rows(records: tf.Tensor) -> tf.RaggedTensor:
    """String [R, (instances)], the instances' records of rows, string [R]."""
    feature = tf.io.RaggedFeature(tf.string, row_splits_dtype=tf.int64)
    return tf.io.parse_example(records, {"instances": feature})["instances"]


def lay_out_rows(
    instances: tf.Tensor,
    packed: PackedPairs,
    masked: MaskedTokens,
    is_random_next: tf.Tensor,
    options: PretrainingDataOptions,
) -> tuple[Tensors, Tensors, Tensors]:
    """Inputs, labels and weights of rows, for `BertPreTrainer` and its losses.

    `instances`, int64 [R], is the number of instances in each row; `packed` and `masked` are those
    instances, [N, L] each, `is_random_next` their labels, int32 [N]. Inputs, int32: `token_ids`,
    `segment_ids` [R, L], 0 at padding; `padding_mask` [R, L], the number of the token's instance in
    its row from 1 on, 0 for padding; `position_ids` [R, L], places within the instance;
    `mask_positions` [R, P] and `first_positions` [R, S], places in the row. Labels, int32:
    `mlm_logits` [R, P], `nsp_logits` [R, S]. Weights, float32, likewise: 0 for slots without use.
    """
    rows = tf.size(instances)
    length = options.max_seq_length
    most = options.instances_per_row
    predictions = row_predictions(options)
    row = tf.repeat(tf.range(rows), instances)  # (N,)
    first = tf.cumsum(tf.cast(instances, tf.int32), exclusive=True)
    number = tf.range(tf.size(row)) - tf.gather(first, row)  # (N,), within the row

    def before(sizes: tf.Tensor) -> tf.Tensor:
        """The sum of the sizes, int32 [N], of the instances before each one in its row."""
        total = tf.cumsum(sizes, exclusive=True)
        return total - tf.gather(total, tf.gather(first, row))

    # What is kept of the instances, and where it goes in the flattened rows.
    is_token = packed.padding_mask != 0  # (N, L)
    offset = before(tf.math.count_nonzero(is_token, -1, dtype=tf.int32))  # (N,)
    column = tf.range(length)[None, :]
    to_tokens = tf.boolean_mask((row * length + offset)[:, None] + column, is_token)
    is_prediction = masked.weights > 0  # (N, most predictions of an instance), the first ones
    predicted = tf.math.count_nonzero(is_prediction, -1, dtype=tf.int32)
    slot = (row * predictions + before(predicted))[:, None] + tf.range(tf.shape(is_prediction)[1])
    to_predictions = tf.boolean_mask(slot, is_prediction)

    def spread(values: tf.Tensor, is_used: tf.Tensor, places: tf.Tensor, width: int) -> tf.Tensor:
        used_values = tf.boolean_mask(tf.broadcast_to(values, tf.shape(is_used)), is_used)
        flat = tf.scatter_nd(places[:, None], used_values, [rows * width])
        return tf.ensure_shape(tf.reshape(flat, [rows, width]), [None, width])

    tokens = partial(spread, is_used=is_token, places=to_tokens, width=length)
    words = partial(spread, is_used=is_prediction, places=to_predictions, width=predictions)
    every = tf.ones_like(row, tf.bool)
    per_instance = partial(spread, is_used=every, places=row * most + number, width=most)
    inputs = {
        "token_ids": tokens(masked.token_ids),
        "segment_ids": tokens(packed.segment_ids),
        "padding_mask": tokens(number[:, None] + 1),
        "position_ids": tokens(column),
        "mask_positions": words(masked.positions + offset[:, None]),
        "first_positions": per_instance(offset),
    }
    labels = {"mlm_logits": words(masked.labels), "nsp_logits": per_instance(is_random_next)}
    used = per_instance(tf.ones_like(row, tf.float32))
    return inputs, labels, {"mlm_logits": words(masked.weights), "nsp_logits": used}

"""Several short instances in one row, each seeing only itself (`instances_per_row`).

Rows are full, or nearly so, whatever the lengths of the instances: shapes are static, as GPUs and
TPUs like them, and little is padding. Krell et al. 2021 ("Efficient sequence packing without
cross-contamination") did this for BERT.

A record of such shards is a row: a `tf.train.Example` whose feature `instances` is the list of the
instances' own records, in either form of `pipelines.instances.schemas`.

N instances in R rows of L tokens, S instances and P predictions at most a row.
"""

import math
from functools import partial
from typing import Any

import tensorflow as tf

from pipelines.instances.masking import MaskedTokens
from pipelines.instances.schemas import serialize_examples
from pipelines.instances.sentence_pairs import PackedPairs
from pipelines.options import PretrainingDataOptions


def row_predictions(options: PretrainingDataOptions) -> int:
    """Predictions in a record, padding included."""
    of_instance = options.max_predictions_per_seq
    assert of_instance is not None  # filled in by the options
    if options.instances_per_row == 1:
        return of_instance
    # Each instance has `masked_lm_prob` of its tokens, rounded, and at least one: at most one more
    # than that share.
    of_tokens = math.floor(options.masked_lm_prob * options.max_seq_length)
    return min(of_tokens + options.instances_per_row, options.instances_per_row * of_instance)


def fill_rows(lengths: tf.Tensor, options: PretrainingDataOptions) -> tf.Tensor:
    """The row of each instance of these tokens, int32 [N].

    Places the longest first, each where the least room is left over.
    """
    count, row_length = tf.size(lengths), options.max_seq_length
    longest_first = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def place(step: tf.Tensor, room: tf.Tensor, free: tf.Tensor, rows: tf.Tensor) -> tuple:
        length = lengths[longest_first[step]]
        fits = (room >= length) & (free > 0)
        # Rows without instances have the most room: a new one is begun only where none fits.
        row = tf.argmin(tf.where(fits, room, row_length + 1), output_type=tf.int32)
        room = tf.tensor_scatter_nd_sub(room, [[row]], [length])
        free = tf.tensor_scatter_nd_sub(free, [[row]], [1])
        return step + 1, room, free, tf.tensor_scatter_nd_update(rows, [[step]], [row])

    start = (0, tf.fill([count], row_length), tf.fill([count], options.instances_per_row))
    *_, rows = tf.while_loop(
        lambda step, *_: step < count,
        place,
        [*start, tf.zeros([count], tf.int32)],
        parallel_iterations=1,
    )
    return tf.scatter_nd(longest_first[:, None], rows, [count])


def serialize_rows(
    records: tf.Tensor, lengths: tf.Tensor, options: PretrainingDataOptions, seed: tf.Tensor
) -> tf.Tensor:
    """String [R], rows in random order, of instances' records, string [N]."""
    rows = fill_rows(lengths, options)
    order = tf.argsort(rows, stable=True)
    used = tf.reduce_max(tf.concat([rows, [-1]], 0)) + 1
    in_rows = tf.RaggedTensor.from_value_rowids(
        tf.gather(records, order), tf.gather(rows, order), nrows=used
    )
    made = serialize_examples(
        {"instances": in_rows.to_tensor()}, {"instances": tf.cast(in_rows.row_lengths(), tf.int32)}
    )
    return tf.random.experimental.stateless_shuffle(made, seed)


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
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Inputs, labels and weights of rows, for `BertPreTrainer` and its losses.

    `instances`, int64 [R], is the number of instances in each row, N together; `packed` and
    `masked` are those instances, [N, L] each, `is_random_next` their labels, int32 [N].

    Returns:
        Inputs, int32: `token_ids`, `segment_ids` [R, L], 0 at padding; `padding_mask` [R, L], the
        number of the token's instance in its row from 1 on, 0 for padding; `position_ids` [R, L],
        places within the instance; `mask_positions` [R, P] and `first_positions` [R, S], places
        in the row. Labels, int32: `mlm_logits` [R, P], `nsp_logits` [R, S]. Weights, float32,
        likewise: 0 for slots that are not used.
    """
    rows, length = tf.size(instances), options.max_seq_length
    most, predictions = options.instances_per_row, row_predictions(options)
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
    place = tf.range(length)[None, :]
    to_tokens = tf.boolean_mask((row * length + offset)[:, None] + place, is_token)
    is_prediction = masked.weights > 0  # (N, most predictions of an instance), the first ones
    predicted = tf.math.count_nonzero(is_prediction, -1, dtype=tf.int32)
    slot = (row * predictions + before(predicted))[:, None] + tf.range(tf.shape(is_prediction)[1])
    to_predictions = tf.boolean_mask(slot, is_prediction)
    to_instances = row * most + number

    def spread(values: tf.Tensor, kept: tf.Tensor, places: tf.Tensor, width: int) -> tf.Tensor:
        kept_values = tf.boolean_mask(tf.broadcast_to(values, tf.shape(kept)), kept)
        flat = tf.scatter_nd(places[:, None], kept_values, [rows * width])
        return tf.ensure_shape(tf.reshape(flat, [rows, width]), [None, width])

    is_instance = tf.ones_like(row, tf.bool)
    tokens = partial(spread, kept=is_token, places=to_tokens, width=length)
    words = partial(spread, kept=is_prediction, places=to_predictions, width=predictions)
    of_instances = partial(spread, kept=is_instance, places=to_instances, width=most)
    inputs = {
        "token_ids": tokens(masked.token_ids),
        "segment_ids": tokens(packed.segment_ids),
        "padding_mask": tokens(number[:, None] + 1),
        "position_ids": tokens(place),
        "mask_positions": words(masked.positions + offset[:, None]),
        "first_positions": of_instances(offset),
    }
    labels = {"mlm_logits": words(masked.labels), "nsp_logits": of_instances(is_random_next)}
    weights = {
        "mlm_logits": words(masked.weights),
        "nsp_logits": of_instances(tf.ones_like(row, tf.float32)),
    }
    return inputs, labels, weights

"""The two forms of pre-training instances in TFRecord shards.

- *masked*: the features of the original's `create_pretraining_data.py`, masked when the shards are
  written. All int64 lists, except the weights, a float list: `input_ids`, `input_mask`,
  `segment_ids` [max_seq_length]; `masked_lm_positions`, `masked_lm_ids`, `masked_lm_weights`
  [max_predictions_per_seq]; `next_sentence_labels` [1].
- *compact*: for masks drawn during training. All int64 lists: `input_ids` [length], `[CLS] A [SEP]
  B [SEP]` without masks and padding; `first_segment_length` [1], number of tokens of `[CLS] A
  [SEP]`; `next_sentence_labels` [1].

In both, the next-sentence label of a random next is 1.
"""

import tensorflow as tf

from pipelines.instances.masking import MaskedTokens
from pipelines.instances.sentence_pairs import PackedPairs
from pipelines.options import PretrainingDataOptions


def serialize_masked(
    packed: PackedPairs, masked: MaskedTokens, is_random_next: tf.Tensor
) -> tf.Tensor:
    """String [N], records of the masked form; `is_random_next` is bool [N]."""
    ints = {
        "input_ids": masked.token_ids,
        "input_mask": packed.padding_mask,
        "segment_ids": packed.segment_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.labels,
        "next_sentence_labels": is_random_next[:, None],
    }
    features = {name: tf.cast(values, tf.int64) for name, values in ints.items()}
    return serialize_examples({**features, "masked_lm_weights": masked.weights})


def serialize_compact(packed: PackedPairs, is_random_next: tf.Tensor) -> tf.Tensor:
    """String [N], records of the compact form; `is_random_next` is bool [N]."""
    length = tf.reduce_sum(packed.padding_mask, axis=-1)
    second = tf.reduce_sum(packed.segment_ids, axis=-1)
    return serialize_examples(
        {
            "input_ids": tf.cast(packed.token_ids, tf.int64),
            "first_segment_length": tf.cast((length - second)[:, None], tf.int64),
            "next_sentence_labels": tf.cast(is_random_next[:, None], tf.int64),
        },
        lengths={"input_ids": length},
    )


def parse_compact(
    records: tf.Tensor, options: PretrainingDataOptions, pad_token_id: int
) -> tuple[PackedPairs, tf.Tensor]:
    """Reads records of the compact form, string [batch]; also int32 [batch], the labels."""
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
    packed = PackedPairs(
        token_ids=tf.where(in_sequence, token_ids, pad_token_id),
        segment_ids=tf.cast(in_second, tf.int32),
        padding_mask=tf.cast(in_sequence, tf.int32),
    )
    return packed, tf.cast(features["next_sentence_labels"][:, 0], tf.int32)


def masked_features(
    max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, tf.io.FixedLenFeature]:
    """The features of the masked form, for `tf.io.parse_example`."""
    sizes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), max_seq_length)
    sizes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), max_predictions_per_seq)
    sizes["next_sentence_labels"] = 1
    weights = tf.io.FixedLenFeature([max_predictions_per_seq], tf.float32)
    ints = {name: tf.io.FixedLenFeature([size], tf.int64) for name, size in sizes.items()}
    return {**ints, "masked_lm_weights": weights}


def parse_masked(
    records: tf.Tensor, options: PretrainingDataOptions
) -> tuple[PackedPairs, MaskedTokens, tf.Tensor]:
    """Reads records of the masked form, string [batch]; also int32 [batch], the labels."""
    assert options.max_predictions_per_seq is not None  # filled in by the options
    kinds = masked_features(options.max_seq_length, options.max_predictions_per_seq)
    features = tf.io.parse_example(records, kinds)
    weights = features.pop("masked_lm_weights")
    ints = {name: tf.cast(values, tf.int32) for name, values in features.items()}
    packed = PackedPairs(ints["input_ids"], ints["segment_ids"], ints["input_mask"])
    masked = MaskedTokens(
        ints["input_ids"], ints["masked_lm_positions"], ints["masked_lm_ids"], weights
    )
    return packed, masked, ints["next_sentence_labels"][:, 0]


def serialize_examples(
    features: dict[str, tf.Tensor], lengths: dict[str, tf.Tensor] | None = None
) -> tf.Tensor:
    """String [batch], serialized examples of features, int64, float32 or string [batch, values].

    `tf.train.Example` in Python takes about a millisecond per pre-training record; `encode_proto`
    writes the same bytes for a whole batch. `lengths`, int32 [batch], limits a feature's values.
    """
    # A map field is, on the wire, a repeated message of key and value.
    lengths = lengths or {}
    entries = [_entry(name, features[name], lengths.get(name)) for name in sorted(features)]
    message = _message("Features", feature=tf.stack(entries, axis=1))
    return _message("Example", features=message[:, None])


_LISTS = {
    tf.int64: ("int64_list", "Int64List"),
    tf.float32: ("float_list", "FloatList"),
    tf.string: ("bytes_list", "BytesList"),
}


def _entry(name: str, values: tf.Tensor, lengths: tf.Tensor | None) -> tf.Tensor:
    if values.dtype not in _LISTS:
        raise TypeError(f"feature {name} is {values.dtype.name}: give int64, float32 or string")
    field, kind = _LISTS[values.dtype]
    key = tf.fill([tf.shape(values)[0], 1], name)
    value = _message("Feature", **{field: _message(kind, lengths, value=values)[:, None]})[:, None]
    return _message("Features.FeatureEntry", key=key, value=value)


def _message(kind: str, lengths: tf.Tensor | None = None, **fields: tf.Tensor) -> tf.Tensor:
    """String [batch], messages of type tensorflow.`kind`; each field is [batch, repetitions].

    For a message with one field, `lengths`, int32 [batch], limits its repetitions.
    """
    counts = [lengths]
    if lengths is None:
        counts = [tf.fill([tf.shape(v)[0]], tf.shape(v)[1]) for v in fields.values()]
    return tf.io.encode_proto(
        sizes=tf.stack(counts, axis=1),
        values=list(fields.values()),
        field_names=list(fields),
        message_type=f"tensorflow.{kind}",
    )

"""Statistics of pre-training instances, counted in the graph and reported at the end."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.instances.masking import MaskedTokens
from pipelines.instances.sentence_pairs import SentencePairs

PERCENTILES = (5, 25, 50, 75, 95)


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

    def __add__(self, other: "InstanceCounts") -> "InstanceCounts":  # type: ignore[override]
        return InstanceCounts(*(np.add(a, b) for a, b in zip(self, other, strict=True)))


def count_instances(
    pairs: SentencePairs,
    masked: MaskedTokens | None,
    max_seq_length: int,
    mask_token_id: int,
    tokens: tf.Tensor,
) -> InstanceCounts:
    """Counts truncated pairs and their masks, if any; `tokens` is those of the text, int64."""
    size = max_seq_length + 1
    count = tf.math.count_nonzero

    def histogram(lengths: tf.Tensor) -> tf.Tensor:
        return tf.math.bincount(lengths, minlength=size, maxlength=size, dtype=tf.int64)

    of_masks = [tf.constant(0, tf.int64)] * 3
    if masked is not None:
        predicted = masked.weights > 0
        shown = tf.gather(masked.token_ids, masked.positions, batch_dims=1)
        places = (predicted, shown == mask_token_id, shown == masked.labels)
        of_masks = [count(predicted & each) for each in places]
    # Pairing takes a token once as A or the true B. A batch of full sentences drops none; its [SEP]
    # between documents count here as text.
    used = pairs.a_length + tf.where(pairs.is_random_next, 0, pairs.b_length)
    dropped = tf.maximum(tokens - tf.reduce_sum(tf.cast(used, tf.int64)), 0)
    of_lengths = [histogram(x) for x in (pairs.lengths, pairs.a_length, pairs.b_length)]
    counts = [*of_lengths, count(pairs.is_random_next), *of_masks, tokens, dropped]
    return InstanceCounts(*counts)


def summarize(counts: InstanceCounts, instances_are_pairs: bool = True) -> dict[str, Any]:
    """Shares, means and percentiles of the counts."""
    instances = int(np.sum(counts.lengths))
    if not instances:
        return {"instances": 0}
    predictions, masked, kept = int(counts.predictions), int(counts.masked), int(counts.kept)
    summary: dict[str, Any] = {
        "instances": instances,
        "full_length_share": int(counts.lengths[-1]) / instances,
        "dropped_token_share": int(counts.dropped) / max(1, int(counts.tokens)),
    }
    histograms = {"length": counts.lengths}
    if instances_are_pairs:
        summary["is_random_next"] = int(counts.random_next) / instances
        histograms |= {"segment_a_length": counts.a_lengths, "segment_b_length": counts.b_lengths}
    for name, histogram in histograms.items():
        summary[f"{name}_mean"] = float(histogram @ np.arange(len(histogram))) / instances
        below = np.cumsum(histogram) / instances
        summary[f"{name}_percentiles"] = {
            str(percent): int(np.searchsorted(below, percent / 100)) for percent in PERCENTILES
        }
    if predictions:  # none if masks are drawn during training
        summary["predictions_mean"] = predictions / instances
        tokens = counts.lengths @ np.arange(len(counts.lengths))
        summary["predictions_over_length"] = predictions / int(tokens)
        summary["mask_share"] = masked / predictions
        summary["kept_share"] = kept / predictions
        summary["random_share"] = (predictions - masked - kept) / predictions
    return summary

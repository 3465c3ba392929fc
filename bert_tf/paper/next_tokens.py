"""Examples of language models: each token predicts its neighbour."""

from collections.abc import Iterable

import tensorflow as tf

Tensors = dict[str, tf.Tensor]


def next_tokens(inputs: Tensors, sides: Iterable[str]) -> tuple[Tensors, Tensors, Tensors]:
    """Inputs, labels and weights for `BertLanguageModel`, of unmasked inputs, int32 [B, T].

    For the side "ltr" each token predicts the one after it; for "rtl" the one before it. [SEP] is
    predicted, and right to left [CLS]. A token predicts none of another instance.

    The inputs get `mask_positions` int32 [B, T], all places. Labels are `ltr_logits` or
    `rtl_logits` int32 [B, T], or both; weights float32 [B, T] are 0 where nothing is predicted.
    """
    token_ids = inputs["token_ids"]
    instances = inputs["padding_mask"]
    positions = tf.zeros_like(token_ids) + tf.range(tf.shape(token_ids)[1])
    labels = {}
    weights = {}
    for side in sides:
        neighbours = _after if side == "ltr" else _before
        is_same = (neighbours(instances) == instances) & (instances != 0)
        labels[f"{side}_logits"] = tf.where(is_same, neighbours(token_ids), 0)
        weights[f"{side}_logits"] = tf.cast(is_same, tf.float32)
    unpacked = {name: x for name, x in inputs.items() if name != "first_positions"}
    return {**unpacked, "mask_positions": positions}, labels, weights


def _before(values: tf.Tensor) -> tf.Tensor:
    return tf.pad(values[:, :-1], [[0, 0], [1, 0]])


def _after(values: tf.Tensor) -> tf.Tensor:
    return tf.pad(values[:, 1:], [[0, 0], [0, 1]])

"""Targets of language models: each token's neighbour, in text without masks."""

from typing import Literal

import tensorflow as tf

from pipelines.instances.masking import MaskedTokens

Objective = Literal["ltr", "rtl", "ltr+rtl"]


def without_masks(token_ids: tf.Tensor) -> MaskedTokens:
    """A batch of tokens, int32 [batch, length], with no predictions."""
    none = token_ids[:, :0]
    return MaskedTokens(token_ids, none, none, tf.cast(none, tf.float32))


def as_it_was(masked: MaskedTokens) -> MaskedTokens:
    """The batch with the original tokens in place of the masks.

    It is exact: every masked place is among the positions, with its original token as the label.
    """
    where = tf.where(masked.weights > 0)  # (predictions in all, 2)
    places = tf.gather_nd(masked.positions, where)
    token_ids = tf.tensor_scatter_nd_update(
        masked.token_ids,
        tf.stack([tf.cast(where[:, 0], tf.int32), places], axis=-1),
        tf.gather_nd(masked.labels, where),
    )
    return masked._replace(token_ids=token_ids)


def next_tokens(
    inputs: dict[str, tf.Tensor], objective: Objective
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Inputs, labels and weights for `BertLanguageModel`, of unmasked inputs, int32 [B, T].

    Left to right, each token predicts the one after it, the last one nothing; right to left, the
    one before it, and the first one nothing. [SEP] is predicted, and right to left [CLS]. In rows
    of instances (`pipelines.instances.rows`) a token predicts none of another instance.

    Returns:
        The inputs, with `mask_positions` int32 [B, T], all places. Labels `ltr_logits` or
        `rtl_logits` int32 [B, T], or both, and weights float32 [B, T], 0 where nothing is
        predicted.
    """
    token_ids, instances = inputs["token_ids"], inputs["padding_mask"]
    places = tf.zeros_like(token_ids) + tf.range(tf.shape(token_ids)[1])
    labels, weights = {}, {}
    for name in objective.split("+"):
        neighbours = _after if name == "ltr" else _before
        is_same = (neighbours(instances) == instances) & (instances != 0)
        labels[f"{name}_logits"] = tf.where(is_same, neighbours(token_ids), 0)
        weights[f"{name}_logits"] = tf.cast(is_same, tf.float32)
    kept = {name: x for name, x in inputs.items() if name != "first_positions"}
    return {**kept, "mask_positions": places}, labels, weights


def _after(x: tf.Tensor) -> tf.Tensor:
    """[B, T], the value of the next place; 0 at the last one."""
    return tf.concat([x[:, 1:], tf.zeros_like(x[:, :1])], 1)


def _before(x: tf.Tensor) -> tf.Tensor:
    """[B, T], the value of the place before; 0 at the first one."""
    return tf.concat([tf.zeros_like(x[:, :1]), x[:, :-1]], 1)

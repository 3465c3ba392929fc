"""Masking for the masked language model (Devlin et al. 2018, section 3.1, task 1).

Follows `create_masked_lm_predictions` of the original's `create_pretraining_data.py`, for whole
batches at once.
"""

from typing import NamedTuple

import tensorflow as tf


class MaskedTokens(NamedTuple):
    """A batch with words hidden.

    Attributes:
        token_ids: int32 [batch, length], with [MASK], random and kept tokens at `positions`.
        positions: int32 [batch, predictions], ascending, then 0 for padding.
        labels: int32 [batch, predictions], the tokens that stood there, then 0 for padding.
        weights: float32 [batch, predictions], 1 for a prediction, 0 for padding.
    """

    token_ids: tf.Tensor
    positions: tf.Tensor
    labels: tf.Tensor
    weights: tf.Tensor


def mask_tokens(
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    *,
    seed: tf.Tensor,
    vocabulary_size: int,
    cls_token_id: int,
    sep_token_id: int,
    mask_token_id: int,
    max_predictions_per_seq: int,
    masked_lm_prob: float = 0.15,
) -> MaskedTokens:
    """Chooses tokens to predict and hides them: 80% [MASK], 10% a random token, 10% kept.

    The number chosen is `masked_lm_prob` of the sequence's length ([CLS] and [SEP] counted),
    rounded to even as Python does, at least 1 and at most `max_predictions_per_seq`. [CLS],
    [SEP] and padding are never chosen. A random token is drawn from the whole vocabulary.

    Args:
        token_ids: int32 [batch, length].
        padding_mask: bool or integer [batch, length], nonzero for tokens.
        seed: integer [2]; equal seeds give equal masks.
        vocabulary_size: entries of the vocabulary.
        cls_token_id: id of [CLS].
        sep_token_id: id of [SEP].
        mask_token_id: id of [MASK].
        max_predictions_per_seq: width of `positions`, `labels` and `weights`.
        masked_lm_prob: share of tokens to predict.

    Returns:
        `MaskedTokens`.
    """
    # B sequences of length T, P predictions each.
    batch, length = tf.unstack(tf.shape(token_ids))
    order_seed, action_seed, word_seed = tf.unstack(tf.random.split(seed, 3))
    is_token = tf.cast(padding_mask, tf.bool)
    maskable = is_token & (token_ids != cls_token_id) & (token_ids != sep_token_id)

    # In float64 and half to even, so that every length gives the original's number.
    tokens = tf.reduce_sum(tf.cast(is_token, tf.float64), axis=-1)  # (B,)
    wanted = tf.cast(tf.round(tokens * tf.constant(masked_lm_prob, tf.float64)), tf.int32)
    wanted = tf.clip_by_value(wanted, 1, max_predictions_per_seq)
    wanted = tf.minimum(wanted, tf.math.count_nonzero(maskable, axis=-1, dtype=tf.int32))

    # The `wanted` highest of random scores are a uniform choice without replacement.
    scores = tf.random.stateless_uniform([batch, length], order_seed)
    scores = tf.where(maskable, scores, -1.0)
    chosen = tf.math.top_k(scores, k=tf.minimum(max_predictions_per_seq, length)).indices
    chosen = tf.pad(chosen, [[0, 0], [0, max_predictions_per_seq - tf.shape(chosen)[1]]])
    valid = tf.sequence_mask(wanted, max_predictions_per_seq)  # (B, P)
    # Ascending; `length` sorts what is not chosen to the end.
    positions = tf.sort(tf.where(valid, chosen, length), axis=-1)
    positions = tf.where(valid, positions, 0)
    labels = tf.where(valid, tf.gather(token_ids, positions, batch_dims=1), 0)

    predictions = tf.shape(positions)
    action = tf.random.stateless_uniform(predictions, action_seed)
    random_tokens = tf.random.stateless_uniform(
        predictions, word_seed, 0, vocabulary_size, dtype=tf.int32
    )
    shown = tf.where(action < 0.8, mask_token_id, tf.where(action < 0.9, labels, random_tokens))
    where = tf.where(valid)  # (predictions in all, 2)
    updates = tf.stack([tf.cast(where[:, 0], tf.int32), tf.boolean_mask(positions, valid)], axis=-1)
    return MaskedTokens(
        token_ids=tf.tensor_scatter_nd_update(token_ids, updates, tf.boolean_mask(shown, valid)),
        positions=positions,
        labels=labels,
        weights=tf.cast(valid, tf.float32),
    )

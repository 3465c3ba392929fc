"""Masking for the masked language model (Devlin et al. 2018, section 3.1, task 1).

Follows `create_masked_lm_predictions` of the original's `create_pretraining_data.py`, for whole
batches at once; the shares of 15%, 80% and 10% are options, in `data_options`. Language models read
text without masks.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.tokenization import BertTokenizer

Tensors = dict[str, tf.Tensor]


class MaskedTokens(NamedTuple):
    token_ids: tf.Tensor  # int32 [batch, length], masked at `positions`
    positions: tf.Tensor  # int32 [batch, predictions], ascending, then 0 for padding
    labels: tf.Tensor  # int32 [batch, predictions], the original tokens, then 0 for padding
    weights: tf.Tensor  # float32 [batch, predictions], 1 for a prediction, 0 for padding


def mask_tokens(
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    tokenizer: BertTokenizer,
    options: PretrainingDataOptions,
    seed: tf.Tensor,
) -> MaskedTokens:
    """Chooses tokens to predict and masks them: by default 80% [MASK], 10% random, 10% kept.

    The number of tokens is `masked_lm_prob` of the sequence's length (with [CLS] and [SEP]),
    rounded half to even, at least 1 and at most `max_predictions_per_seq`. [CLS], [SEP] and padding
    are never chosen. Random tokens are of the whole vocabulary. Tokens are chosen one by one or as:

    - Whole words, with `whole_word_masking` (`do_whole_word_mask` of the original), in random
      order, except those that exceed the number. A continuation whose word was cut off begins a
      word; the original counts it to the last word before the [SEP].
    - Spans of 1 to `max_ngram` whole words, with `max_ngram` above 1 (Lan et al. 2019, section
      4.1): k words with a probability proportional to 1/k. A sequence is divided into consecutive
      spans of such lengths, with borders at [CLS] and [SEP], and spans are chosen like words.

    If all spans of a sequence exceed the number, words are chosen, and if all words do, tokens.
    """
    most = options.max_predictions_per_seq
    assert most is not None  # filled in by the options
    # B sequences of length T, P predictions each.
    batch, length = tf.unstack(tf.shape(token_ids))
    order_seed, action_seed, word_seed = tf.unstack(tf.random.split(seed, 3))
    is_token = tf.cast(padding_mask, tf.bool)
    is_special = (token_ids == tokenizer.cls_token_id) | (token_ids == tokenizer.sep_token_id)
    maskable = is_token & ~is_special

    # In float64 and half to even, as in the original.
    tokens = tf.reduce_sum(tf.cast(is_token, tf.float64), axis=-1)  # (B,)
    wanted = tf.cast(tf.round(tokens * options.masked_lm_prob), tf.int32)
    wanted = tf.clip_by_value(wanted, 1, most)
    wanted = tf.minimum(wanted, tf.math.count_nonzero(maskable, axis=-1, dtype=tf.int32))

    if options.whole_word_masking or options.max_ngram > 1:
        continues = tf.gather(tf.constant(tokenizer.is_continuation), token_ids)
        words = maskable & ~(continues & _before(maskable))  # where one begins
        units = _units(words, maskable)
        if options.max_ngram > 1:
            span_seed = tf.random.fold_in(order_seed, options.max_ngram)
            spans = _spans(words, maskable, options.max_ngram, span_seed)
            units = _finer_where_none_fits(_units(spans, maskable), words, maskable, wanted)
        units = _finer_where_none_fits(units, maskable, maskable, wanted)
        chosen, wanted = _choose_units(units, wanted, order_seed)
    else:
        # The `wanted` highest of random scores are a uniform choice without replacement.
        scores = tf.random.stateless_uniform([batch, length], order_seed)
        scores = tf.where(maskable, scores, -1.0)
        chosen = tf.math.top_k(scores, k=tf.minimum(most, length)).indices
    chosen = tf.pad(chosen, [[0, 0], [0, most - tf.shape(chosen)[1]]])
    valid = tf.sequence_mask(wanted, most)  # (B, P)
    # Ascending; `length` sorts the rest to the end.
    positions = tf.sort(tf.where(valid, chosen, length), axis=-1)
    positions = tf.where(valid, positions, 0)
    labels = tf.where(valid, tf.gather(token_ids, positions, batch_dims=1), 0)

    shape = tf.shape(positions)
    pieces = tokenizer.vocabulary_size
    action = tf.random.stateless_uniform(shape, action_seed)
    random_tokens = tf.random.stateless_uniform(shape, word_seed, 0, pieces, dtype=tf.int32)
    replaced = tf.where(action < 1 - options.random_token_share, labels, random_tokens)
    shown = tf.where(action < options.mask_token_share, tokenizer.mask_token_id, replaced)
    token_ids = _replaced(token_ids, positions, shown, valid)
    return MaskedTokens(token_ids, positions, labels, weights=tf.cast(valid, tf.float32))


def _replaced(
    token_ids: tf.Tensor, positions: tf.Tensor, values: tf.Tensor, valid: tf.Tensor
) -> tf.Tensor:
    """The tokens [B, T] with `values` at `positions`, [B, P] each, where these are `valid`."""
    row = tf.cast(tf.where(valid)[:, 0], tf.int32)  # (predictions in all,)
    indices = tf.stack([row, tf.boolean_mask(positions, valid)], axis=-1)
    return tf.tensor_scatter_nd_update(token_ids, indices, tf.boolean_mask(values, valid))


class _Units(NamedTuple):
    """Words or spans to choose as a whole. Each [B, T]; the tokens of a unit share a value."""

    begins: tf.Tensor  # bool, whether the token is the first of its unit
    number: tf.Tensor  # int32, number of the unit in its sequence; 0 for tokens outside
    size: tf.Tensor  # int32, number of tokens of the unit; the largest int32 for tokens outside


def _units(begins: tf.Tensor, maskable: tf.Tensor) -> _Units:
    """Units that begin at `begins`, bool [B, T], and hold all maskable tokens."""
    batch, length = tf.unstack(tf.shape(maskable))
    number = tf.cumsum(tf.cast(begins, tf.int32), axis=-1) - 1
    number = tf.where(maskable, number, 0)
    in_batch = tf.range(batch)[:, None] * length + number
    sizes = tf.math.unsorted_segment_sum(tf.cast(maskable, tf.int32), in_batch, batch * length)
    return _Units(begins, number, tf.where(maskable, tf.gather(sizes, in_batch), tf.int32.max))


def _spans(words: tf.Tensor, maskable: tf.Tensor, max_ngram: int, seed: tf.Tensor) -> tf.Tensor:
    """Bool [B, T], whether a span begins at the token, given the beginnings of words."""
    shares = 1 / np.arange(1, max_ngram + 1)
    bounds = np.cumsum(shares / shares.sum())[:-1]
    # A row has at most T consecutive spans; find the span of its n-th word.
    draws = tf.random.stateless_uniform(tf.shape(words), seed)
    span_words = 1 + tf.add_n([tf.cast(draws >= bound, tf.int32) for bound in bounds])
    word = tf.cumsum(tf.cast(words, tf.int32), axis=-1) - 1
    span = tf.searchsorted(tf.cumsum(span_words, axis=-1), word, side="right")
    is_next = tf.pad(span[:, 1:] != span[:, :-1], [[0, 0], [1, 0]])
    return words & (is_next | ~_before(maskable))


def _before(values: tf.Tensor) -> tf.Tensor:
    """[B, T], the value of the previous position; 0 or False at the first."""
    return tf.pad(values[:, :-1], [[0, 0], [1, 0]])


def _finer_where_none_fits(
    units: _Units, begins: tf.Tensor, maskable: tf.Tensor, wanted: tf.Tensor
) -> _Units:
    """`units`, or `begins` in rows whose units all exceed `wanted`, int32 [B]."""
    fits = tf.reduce_any(units.size <= wanted[:, None], axis=-1, keepdims=True)
    return tf.cond(  # most batches have no such row
        tf.reduce_all(fits),
        lambda: units,
        lambda: _units(tf.where(fits, units.begins, begins), maskable),
    )


def _choose_units(units: _Units, wanted: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Takes units of each row in random order if they fit: positions [B, most], number [B]."""
    scores = tf.random.stateless_uniform(tf.shape(units.size), seed)
    scores = tf.gather(scores, units.number, batch_dims=1)
    scores = tf.where(units.size < tf.int32.max, scores, -1.0)
    # Equal scores are ordered by position, so the tokens of a unit stay together.
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    size = tf.gather(units.size, order, batch_dims=1)
    begins = tf.gather(units.begins, order, batch_dims=1)

    # Each step takes the first units that fit together: the next one exceeds the rest.
    def take(taken: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        fits = ~taken & (size <= left[:, None])
        total = tf.cumsum(tf.where(fits & begins, size, 0), axis=-1)
        taken |= fits & (total <= left[:, None])
        return taken, wanted - tf.math.count_nonzero(taken, axis=-1, dtype=tf.int32)

    taken, left = tf.while_loop(
        lambda taken, left: tf.reduce_any(~taken & (size <= left[:, None])),
        take,
        [tf.zeros_like(begins), wanted],
        parallel_iterations=1,
    )
    number = wanted - left
    positions = tf.RaggedTensor.from_row_lengths(tf.boolean_mask(order, taken), number)
    return positions.to_tensor(), number


def unmask(masked: MaskedTokens) -> MaskedTokens:
    """Puts the original tokens, the labels, back in place of the masks."""
    token_ids, positions, labels, weights = masked
    return masked._replace(token_ids=_replaced(token_ids, positions, labels, weights > 0))

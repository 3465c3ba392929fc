"""Masking for the masked language model (Devlin et al. 2018, section 3.1, task 1).

Follows `create_masked_lm_predictions` of the original's `create_pretraining_data.py`, for whole
batches at once: single tokens, whole words, or spans of words.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.options import PretrainingDataOptions

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer


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
    whole_word: bool = False,
    max_ngram: int = 1,
    is_continuation: tf.Tensor | np.ndarray | None = None,
) -> MaskedTokens:
    """Chooses tokens to predict and hides them: 80% [MASK], 10% a random token, 10% kept.

    The number to choose is `masked_lm_prob` of the sequence's length ([CLS] and [SEP] counted),
    rounded to even as Python does, at least 1 and at most `max_predictions_per_seq`. [CLS],
    [SEP] and padding are never chosen. A random token is drawn from the whole vocabulary, for
    each token of a word on its own.

    What is chosen is one of:

    - Tokens, by default: the number to choose is reached wherever there are as many tokens.
    - Whole words, with `whole_word` (`do_whole_word_mask` of the original). A word is a token and
      the continuations after it. Words are gone through in random order; one that would exceed
      the number to choose is passed over, and smaller ones after it are still taken.
    - Spans of 1 to `max_ngram` whole words, with `max_ngram` above 1 (Lan et al. 2019, section
      4.1): k words with a probability proportional to 1/k. All words of a sequence are laid out
      in consecutive spans of such lengths, cut where a [CLS] or [SEP] stands between words, and
      spans are chosen as words are: none overlaps another or crosses a segment's border. Long
      ones are passed over somewhat more often, as few tokens remain to be chosen.

    A continuation with no token of its word before it (the text was cut there) begins a word; the
    original would count it to the last word before the [SEP]. Where every span of a sequence is
    larger than the number to choose, words are chosen in place of spans, and where every word is,
    tokens: something is predicted wherever there is a token to predict.

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
        whole_word: whether to choose whole words.
        max_ngram: most words of a span; above 1 implies whole words.
        is_continuation: bool [vocabulary_size], which tokens go on with a word
            (`BertTokenizer.is_continuation`); needed for words and spans.

    Returns:
        `MaskedTokens`.

    Raises:
        ValueError: `max_ngram` is below 1, or `is_continuation` is missing.
    """
    if max_ngram < 1:
        raise ValueError(f"max_ngram is {max_ngram}; it must be at least 1")
    by_words = whole_word or max_ngram > 1
    if by_words and is_continuation is None:
        raise ValueError("whole words and spans of them need is_continuation, bool [vocabulary]")
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

    if by_words:
        words = _words(token_ids, maskable, is_continuation)
        if max_ngram > 1:
            spans = _spans(words, maskable, max_ngram, tf.random.fold_in(order_seed, max_ngram))
            units = _finer_where_none_fits(_units(spans, maskable), words, maskable, wanted)
        else:
            units = _units(words, maskable)
        units = _finer_where_none_fits(units, maskable, maskable, wanted)
        chosen, wanted = _choose_units(units, wanted, order_seed)
    else:
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


def mask_by_options(
    token_ids: tf.Tensor,
    padding_mask: tf.Tensor,
    tokenizer: "BertTokenizer",
    options: PretrainingDataOptions,
    seed: tf.Tensor,
) -> MaskedTokens:
    """`mask_tokens` with what `options` say and the ids of `tokenizer`."""
    by_words = options.whole_word_masking or options.max_ngram > 1
    assert options.max_predictions_per_seq is not None  # they have filled it in
    return mask_tokens(
        token_ids,
        padding_mask,
        seed=seed,
        vocabulary_size=tokenizer.vocabulary_size,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
        max_predictions_per_seq=options.max_predictions_per_seq,
        masked_lm_prob=options.masked_lm_prob,
        whole_word=options.whole_word_masking,
        max_ngram=options.max_ngram,
        is_continuation=tokenizer.is_continuation if by_words else None,
    )


class _Units(NamedTuple):
    """What is chosen whole: words, or spans of them. Each [B, T]; a unit's tokens share a value.

    Attributes:
        begins: bool, whether the token is the first of its unit.
        number: int32, number of the unit in its sequence; 0 for tokens of none.
        size: int32, tokens of the unit; the largest int32 for tokens of none.
    """

    begins: tf.Tensor
    number: tf.Tensor
    size: tf.Tensor


def _units(begins: tf.Tensor, maskable: tf.Tensor) -> _Units:
    """Units that begin where `begins`, bool [B, T], says; all maskable tokens are in one."""
    batch, length = tf.unstack(tf.shape(maskable))
    number = tf.cumsum(tf.cast(begins, tf.int32), axis=-1) - 1
    number = tf.where(maskable, number, 0)
    in_batch = tf.range(batch)[:, None] * length + number
    sizes = tf.math.unsorted_segment_sum(tf.cast(maskable, tf.int32), in_batch, batch * length)
    size = tf.where(maskable, tf.gather(sizes, in_batch), tf.int32.max)
    return _Units(begins, number, size)


def _words(
    token_ids: tf.Tensor, maskable: tf.Tensor, is_continuation: tf.Tensor | np.ndarray | None
) -> tf.Tensor:
    """Bool [B, T], whether a word begins at the token."""
    continues = tf.gather(tf.cast(is_continuation, tf.bool), token_ids)
    return maskable & ~(continues & _before(maskable))


def _spans(words: tf.Tensor, maskable: tf.Tensor, max_ngram: int, seed: tf.Tensor) -> tf.Tensor:
    """Bool [B, T], whether a span of words begins at the token, given where words do."""
    shares = 1 / np.arange(1, max_ngram + 1)
    bounds = np.cumsum(shares / shares.sum())[:-1]
    # A row is at most T spans, one after the other; which span is the row's n-th word in?
    draws = tf.random.stateless_uniform(tf.shape(words), seed)
    span_words = 1 + tf.add_n([tf.cast(draws >= bound, tf.int32) for bound in bounds])
    word = tf.cumsum(tf.cast(words, tf.int32), axis=-1) - 1
    span = tf.searchsorted(tf.cumsum(span_words, axis=-1), word, side="right")
    is_next = tf.pad(span[:, 1:] != span[:, :-1], [[0, 0], [1, 0]])
    return words & (is_next | ~_before(maskable))


def _before(values: tf.Tensor) -> tf.Tensor:
    """Bool [B, T], at each position the value of the one before it; False at the first."""
    return tf.pad(values[:, :-1], [[0, 0], [1, 0]])


def _finer_where_none_fits(
    units: _Units, begins: tf.Tensor, maskable: tf.Tensor, wanted: tf.Tensor
) -> _Units:
    """`units`, but those of `begins` in the rows where each is larger than `wanted`, int32 [B]."""
    fits = tf.reduce_any(units.size <= wanted[:, None], axis=-1, keepdims=True)
    return tf.cond(  # most batches have no such row
        tf.reduce_all(fits),
        lambda: units,
        lambda: _units(tf.where(fits, units.begins, begins), maskable),
    )


def _choose_units(units: _Units, wanted: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Goes through the units of each row in random order and takes every one that still fits.

    Returns:
        int32 [B, most], positions of the tokens taken; int32 [B], how many, at most `wanted`.
    """
    scores = tf.random.stateless_uniform(tf.shape(units.size), seed)
    scores = tf.gather(scores, units.number, batch_dims=1)
    scores = tf.where(units.size < tf.int32.max, scores, -1.0)
    # Equal scores are ordered by position, so the tokens of a unit stay together.
    order = tf.argsort(scores, direction="DESCENDING", stable=True)
    size = tf.gather(units.size, order, batch_dims=1)
    begins = tf.gather(units.begins, order, batch_dims=1)

    # Of the units that are no larger than what is left, the first few that fit together are
    # taken at once. The next one exceeds what they leave, just as if they were taken one by one.
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

"""Fills instances with consecutive sentences, for training without next-sentence prediction.

FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2), with the lockstep walk of
`pipelines.instances.sentence_pairs`.
"""

from typing import NamedTuple

import tensorflow as tf

from pipelines.instances import sentence_pairs as pairing
from pipelines.instances.sentence_pairs import SentencePairs, Sentences, changes

# Share of instances without the last sentence that would fit. Otherwise, two walks that meet at a
# sentence would stay together: in a book, most instances of 128 tokens were the same in every
# round. It makes 3% more instances of 128 tokens, 1% more of 512.
LEAVES_OUT_LAST = 1 / 8


def full_sentences(
    sentences: Sentences,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    sep_token_id: int,
    seed: tf.Tensor,
) -> tuple[tf.Tensor, SentencePairs]:
    """Fills instances with consecutive sentences, across borders of documents.

    An instance has as many whole sentences as fit, with a [SEP] between documents. The passages of
    a batch are in random order, each followed by a [SEP]; donors are left out. The target length
    of a stream, as in `sentence_pairs`, holds for the instances that begin in it; a longer sentence
    is an instance of its own. Only a sentence too long for any instance is cut, into full instances
    and a rest that is joined with the next sentences.

    The seed determines the order of passages and which eighth of the instances leaves its last
    sentence to the next one.

    Returns int32 [T'], the passages with a [SEP] after each; and `SentencePairs` of them: A is the
    instance without [CLS] and the last [SEP], B is empty. Shuffle and pack them untruncated.
    """
    order_seed, is_short_seed, short_seed, walk_seed = tf.unstack(tf.random.split(seed, 4))
    max_tokens = max_seq_length - 2
    text = _join_passages(sentences, sep_token_id, order_seed)
    target = pairing.target_lengths(
        tf.size(sentences.stream_first), max_tokens, short_seq_prob, is_short_seed, short_seed
    )
    target = tf.gather(target, text.stream)  # (n,)

    # Stretches of the text are walked in parallel; no instance crosses from one to the next.
    stretch = text.starts[:-1] // (pairing.INSTANCES_PER_STREAM * max_seq_length)
    bounds = tf.gather(text.starts, pairing.run_bounds(changes(stretch)))  # (stretches + 1,)
    stretch_end = bounds[1:]

    # Each step takes one instance from every stretch: tokens from `at` to the end of a sentence.
    def take_instance(step: tf.Tensor, at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        current = tf.searchsorted(text.ends, at, side="right")  # the sentence at `at`
        current = tf.minimum(current, tf.size(text.ends) - 1)  # for places after the text
        limit = tf.minimum(at + tf.gather(target, current), stretch_end)
        last = tf.searchsorted(text.ends, limit, side="right") - 1  # the last that fits
        draws = tf.random.stateless_uniform(tf.shape(at), tf.random.fold_in(walk_seed, step))
        last -= tf.cast(draws < LEAVES_OUT_LAST, tf.int32)
        last = tf.maximum(last, current)
        sentence_end = tf.gather(text.ends, last)
        end = tf.minimum(sentence_end, at + max_tokens)
        after = tf.where(end == sentence_end, tf.gather(text.starts, last + 1), end)
        return (end - at)[:, None], after

    _, start, lengths = pairing.walk_streams(bounds[:-1], stretch_end, take_instance, values=1)
    none = tf.zeros_like(start)
    return text.token_ids, SentencePairs(start, lengths[:, 0], none, none, none > 0)


class _JoinedPassages(NamedTuple):
    """Passages one after the other, a [SEP] after each. n sentences."""

    token_ids: tf.Tensor  # int32 [T']
    starts: tf.Tensor  # int32 [n + 1], first token of each sentence, then T'
    ends: tf.Tensor  # int32 [n], end of each sentence, before a [SEP]
    stream: tf.Tensor  # int32 [n], index of the sentence's stream in `Sentences`


def _join_passages(sentences: Sentences, sep_token_id: int, seed: tf.Tensor) -> _JoinedPassages:
    """The passages that make instances, in random order."""
    starts = sentences.starts
    # Streams are in order, and those of a passage share its end.
    passage_end = tf.gather(sentences.passage_end, sentences.stream_first)
    new_passage = changes(passage_end)
    first = tf.boolean_mask(sentences.stream_first, new_passage)
    end = tf.boolean_mask(passage_end, new_passage)
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(first)), seed)
    first, end = tf.gather(first, order), tf.gather(end, order)

    # One more token per passage, for the [SEP].
    tokens = tf.ragged.range(tf.gather(starts, first), tf.gather(starts, end) + 1)
    padded = tf.pad(sentences.token_ids, [[0, 1]])
    token_ids = tf.tensor_scatter_nd_update(
        tf.gather(padded, tokens.flat_values),
        tokens.row_splits[1:, None] - 1,
        tf.fill([tf.size(first)], sep_token_id),
    )
    members = tf.ragged.range(first, end)  # [passages, (sentences)]
    sentence = members.flat_values
    lengths = tf.gather(starts, sentence + 1) - tf.gather(starts, sentence)
    separators = tf.cast(members.value_rowids(), tf.int32)  # before the sentence
    ends = tf.cumsum(lengths) + separators
    return _JoinedPassages(
        token_ids=token_ids,
        starts=tf.concat([ends - lengths, [tf.size(token_ids)]], axis=0),
        ends=ends,
        stream=tf.searchsorted(sentences.stream_first, sentence, side="right") - 1,
    )

"""Pairs sentences, or fills instances with them, a whole batch of documents at a time.

Pairs follow the rules of `create_instances_from_document` and `truncate_seq_pair` in the
original's `create_pretraining_data.py`; full sentences follow RoBERTa's (Liu et al. 2019, section
4.2). The token ids of a batch are one flat vector, and an instance is a pair of ranges in it. The
only loop is the walk: in each step, every document of the batch makes one instance.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_tf.tokenization import Packer

# Full instances per stream: longer documents are walked as several streams in parallel.
INSTANCES_PER_STREAM = 128
# Pieces of a long sentence in a full instance: as many sentences as instances usually hold.
_PIECES = range(4, 9)
# Share of full instances without the last sentence that would fit. Otherwise, two walks that meet
# at a sentence would stay together: in a book, most instances of 128 tokens were the same in every
# round. It makes 3% more instances of 128 tokens, 1% more of 512.
_LEAVES_OUT_LAST = 1 / 8


class Sentences(NamedTuple):
    """The sentences of a batch of documents, indexed. n sentences, T tokens, D documents."""

    token_ids: tf.Tensor  # int32 [T]
    starts: tf.Tensor  # int32 [n + 1], first token of each sentence, then T
    document: tf.Tensor  # int32 [n], index of the sentence's document
    document_first: tf.Tensor  # int32 [D + 1], first sentence of each document, then n
    passage_end: tf.Tensor  # int32 [n], end of the sentence's passage
    stream_first: tf.Tensor  # int32 [S], first sentence of each stream to make instances from
    stream_end: tf.Tensor  # int32 [S], end of each stream


class SentencePairs(NamedTuple):
    """Pairs of token ranges, [N] each."""

    a_start: tf.Tensor  # int32, first token of A in `Sentences.token_ids`
    a_length: tf.Tensor  # int32, number of tokens of A
    b_start: tf.Tensor  # int32, first token of B
    b_length: tf.Tensor  # int32, number of tokens of B; 0 for an instance of A alone
    is_random_next: tf.Tensor  # bool, whether B is from another document

    @property
    def lengths(self) -> tf.Tensor:
        """Int32 [N], number of tokens with [CLS] and [SEP]."""
        return 2 + self.a_length + tf.where(self.b_length > 0, self.b_length + 1, 0)


class PackedPairs(NamedTuple):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP], padded. Each int32 [N, max_seq_length]."""

    token_ids: tf.Tensor
    segment_ids: tf.Tensor  # 1 for B and the [SEP] after it
    padding_mask: tf.Tensor


def index_sentences(
    token_ids: tf.RaggedTensor,
    documents: tf.Tensor,
    passages: tf.Tensor,
    is_donor: tf.Tensor,
    *,
    max_seq_length: int,
    cut_long: bool = False,
) -> Sentences:
    """Indexes lines, int32 [lines, (tokens)], that have tokens; `cut_long` cuts the long ones."""
    lengths = tf.cast(token_ids.row_lengths(), tf.int32)
    if cut_long:
        line, lengths = _cut_long(lengths, max_seq_length - 3)
    else:
        line = tf.where(lengths > 0)[:, 0]
        lengths = tf.gather(lengths, line)
    documents, passages, is_donor = (tf.gather(x, line) for x in (documents, passages, is_donor))
    starts = tf.concat([[0], tf.cumsum(lengths)], axis=0)  # (n + 1,)

    new_document = _changes(documents)
    new_passage = _changes(passages) | new_document
    document_first = _run_bounds(new_document)
    passage_first = _run_bounds(new_passage)
    passage = tf.cumsum(tf.cast(new_passage, tf.int32)) - 1  # (n,)
    # A new stream begins where a passage begins and wherever its tokens fill a stream.
    offset = starts[:-1] - tf.gather(starts, tf.gather(passage_first, passage))
    new_stream = new_passage | _changes(offset // (INSTANCES_PER_STREAM * max_seq_length))
    stream_first = _run_bounds(new_stream)
    makes_instances = ~tf.gather(is_donor, stream_first[:-1])
    return Sentences(
        token_ids=token_ids.flat_values,
        starts=starts,
        document=tf.cumsum(tf.cast(new_document, tf.int32)) - 1,
        document_first=document_first,
        passage_end=tf.gather(passage_first, passage + 1),
        stream_first=tf.boolean_mask(stream_first[:-1], makes_instances),
        stream_end=tf.boolean_mask(stream_first[1:], makes_instances),
    )


def _cut_long(lengths: tf.Tensor, max_tokens: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts lines into sentences of equal length and a rest: the line and the length of each."""
    # As many pieces in an instance as leave the smallest part of the last one over.
    pieces = min(_PIECES, key=lambda number: -max_tokens % number)
    size = -(-max_tokens // pieces)
    is_long = lengths > max_tokens
    number = tf.where(is_long, (lengths + size - 1) // size, tf.minimum(lengths, 1))
    line = tf.repeat(tf.range(tf.size(lengths)), number)
    index = tf.range(tf.size(line)) - tf.gather(tf.cumsum(number, exclusive=True), line)
    left = tf.gather(lengths, line) - index * size
    return line, tf.where(tf.gather(is_long, line), tf.minimum(left, size), left)


def _changes(values: tf.Tensor) -> tf.Tensor:
    """Bool [n], true at the first value and at each that differs from the previous one."""
    first = tf.ones([tf.minimum(tf.size(values), 1)], tf.bool)
    return tf.concat([first, values[1:] != values[:-1]], axis=0)


def _run_bounds(is_first: tf.Tensor) -> tf.Tensor:
    """Int32 [runs + 1], where each run begins, then n."""
    firsts = tf.cast(tf.where(is_first)[:, 0], tf.int32)
    return tf.concat([firsts, [tf.size(is_first)]], axis=0)


def sentence_pairs(
    sentences: Sentences, *, max_seq_length: int, short_seq_prob: float, seed: tf.Tensor
) -> SentencePairs:
    """Pairs sentences of each document with the next ones, or with another document's.

    As in the original, a document has one target length: the full one or, with `short_seq_prob`,
    one drawn from 2 to the full one. Sentences are taken until the target is reached. A is a random
    number of the first ones. B is the rest or, in half of the cases and for a single sentence,
    consecutive sentences of another document, enough for the target; unused sentences are then
    taken again. In a batch of one document, pairs with a random next are dropped.
    """
    *target_seeds, walk_seed, next_seed = tf.unstack(tf.random.split(seed, 4))
    starts = sentences.starts
    stream_end = sentences.stream_end
    target = _target_lengths(sentences, max_seq_length - 3, short_seq_prob, target_seeds)  # (S,)

    # Each step takes one chunk of sentences [first, end) from every unfinished stream.
    def take_chunk(step, stream, first):
        end = tf.searchsorted(starts, tf.gather(starts, first) + tf.gather(target, stream))
        end = tf.minimum(end, tf.gather(stream_end, stream))
        size = end - first
        step_seed = tf.random.fold_in(walk_seed, step)
        draws = tf.random.stateless_uniform([2, tf.size(stream)], step_seed)
        a_end = first + 1 + _scaled(draws[0], size - 1)
        is_random_next = (size == 1) | (draws[1] < 0.5)
        b_end = tf.where(is_random_next, -1, end)
        return tf.stack([a_end, b_end], axis=-1), tf.where(is_random_next, a_end, end)

    stream, first, chunks = _walk_streams(sentences.stream_first, stream_end, take_chunk, values=2)
    a_end, b_end = tf.unstack(chunks, axis=-1)
    target = tf.gather(target, stream)

    a_start = tf.gather(starts, first)
    a_length = tf.gather(starts, a_end) - a_start
    is_random_next = b_end < 0
    random_first, random_end = _random_next(sentences, first, target - a_length, next_seed)
    b_first = tf.where(is_random_next, random_first, a_end)
    b_end = tf.where(is_random_next, random_end, b_end)
    b_start = tf.gather(starts, b_first)
    b_length = tf.gather(starts, b_end) - b_start
    pairs = SentencePairs(a_start, a_length, b_start, b_length, is_random_next)
    possible = ~is_random_next | (tf.size(sentences.document_first) > 2)
    return SentencePairs(*(tf.boolean_mask(values, possible) for values in pairs))


def _target_lengths(
    sentences: Sentences, max_tokens: int, short_seq_prob: float, seeds: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Int32 [S], target number of tokens for the instances of each stream."""
    shape = tf.shape(sentences.stream_first)
    is_short = tf.random.stateless_uniform(shape, seeds[0]) < short_seq_prob
    short = tf.random.stateless_uniform(shape, seeds[1], 2, max_tokens + 1, dtype=tf.int32)
    return tf.where(is_short, short, max_tokens)


def _walk_streams(
    first: tf.Tensor,
    end: tf.Tensor,
    take: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    values: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Walks all S streams in lockstep, an instance per step.

    `take` maps the number of the step, and the numbers and places of the A unfinished streams,
    int32 [A], to the instances there, int32 [A, values], and the next places, int32 [A]. Returns
    the stream [N], the place [N] and the values [N, values] of each instance, stream after stream.
    """

    # Only unfinished streams take part: one long document beside many short ones costs little.
    def walk_step(step, stream, at, taken):
        instances, after = take(step, stream, at)
        taken = taken.write(step, tf.concat([stream[:, None], at[:, None], instances], axis=-1))
        goes_on = after < tf.gather(end, stream)
        return step + 1, tf.boolean_mask(stream, goes_on), tf.boolean_mask(after, goes_on), taken

    stream = tf.cast(tf.where(first < end)[:, 0], tf.int32)
    taken = tf.TensorArray(
        tf.int32, size=0, dynamic_size=True, infer_shape=False, element_shape=[None, 2 + values]
    )
    *_, taken = tf.while_loop(
        # A first step even without streams, because an empty array cannot be joined.
        lambda step, stream, at, taken: (step == 0) | (tf.size(stream) > 0),
        walk_step,
        [0, stream, tf.gather(first, stream), taken],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None]), None],
        parallel_iterations=1,
    )
    rows = taken.concat()  # (N, 2 + values), step after step
    rows = tf.gather(rows, tf.argsort(rows[:, 0], stable=True))
    return rows[:, 0], rows[:, 1], rows[:, 2:]


def _random_next(
    sentences: Sentences, first: tf.Tensor, tokens: tf.Tensor, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sentences of another document, for each A at sentence `first`: one, or more for `tokens`."""
    document_seed, sentence_seed = tf.unstack(tf.random.split(seed, 2))
    a_document = tf.gather(sentences.document, first)
    others = tf.size(sentences.document_first) - 2
    shape = tf.shape(first)
    number = tf.maximum(others, 1)
    document = tf.random.stateless_uniform(shape, document_seed, 0, number, dtype=tf.int32)
    document = tf.where(document >= a_document, document + 1, document)
    document = tf.minimum(document, others)  # for a batch of one document
    document_first = tf.gather(sentences.document_first, document)
    size = tf.gather(sentences.document_first, document + 1) - document_first
    next_first = document_first + _scaled(tf.random.stateless_uniform(shape, sentence_seed), size)
    limit = tf.gather(sentences.starts, next_first) + tf.maximum(tokens, 1)
    next_end = tf.searchsorted(sentences.starts, limit)
    return next_first, tf.minimum(next_end, tf.gather(sentences.passage_end, next_first))


def _scaled(draws: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Uniform floats in [0, 1) to uniform integers in [0, size), or 0 for an empty range."""
    scaled = tf.cast(draws * tf.cast(size, tf.float32), tf.int32)
    return tf.clip_by_value(scaled, 0, tf.maximum(size - 1, 0))


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
    a batch are in random order; donors are left out. The target length of a stream, as in
    `sentence_pairs`, holds for the instances that begin in it; a longer sentence is an instance of
    its own. Only a sentence too long for any instance is cut, into full instances and a rest that
    is joined with the next sentences.

    Returns int32 [T'], the passages with a [SEP] after each; and `SentencePairs` of them: A is the
    instance without [CLS] and the last [SEP], B is empty.
    """
    order_seed, *target_seeds, walk_seed = tf.unstack(tf.random.split(seed, 4))
    max_tokens = max_seq_length - 2
    token_ids, starts, ends, stream = _join_passages(sentences, sep_token_id, order_seed)
    target = _target_lengths(sentences, max_tokens, short_seq_prob, target_seeds)
    target = tf.gather(target, stream)  # (n,)

    # Stretches of the text are walked in parallel; no instance crosses from one to the next.
    stretch_of_sentence = starts[:-1] // (INSTANCES_PER_STREAM * max_seq_length)
    bounds = tf.gather(starts, _run_bounds(_changes(stretch_of_sentence)))  # (stretches + 1,)
    stretch_end = bounds[1:]

    # Each step takes one instance from every stretch: tokens from `at` to the end of a sentence.
    def take_instance(step, stretch, at):
        current = tf.searchsorted(ends, at, side="right")  # the sentence at `at`
        current = tf.minimum(current, tf.size(ends) - 1)  # for places after the text
        limit = tf.minimum(at + tf.gather(target, current), tf.gather(stretch_end, stretch))
        last = tf.searchsorted(ends, limit, side="right") - 1  # the last that fits
        draws = tf.random.stateless_uniform(tf.shape(at), tf.random.fold_in(walk_seed, step))
        last -= tf.cast(draws < _LEAVES_OUT_LAST, tf.int32)
        last = tf.maximum(last, current)
        sentence_end = tf.gather(ends, last)
        end = tf.minimum(sentence_end, at + max_tokens)
        return (end - at)[:, None], tf.where(end == sentence_end, tf.gather(starts, last + 1), end)

    _, start, lengths = _walk_streams(bounds[:-1], stretch_end, take_instance, values=1)
    none = tf.zeros_like(start)
    return token_ids, SentencePairs(start, lengths[:, 0], none, none, none > 0)


def _join_passages(
    sentences: Sentences, sep_token_id: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Joins the passages that make instances in random order, a [SEP] after each; n sentences.

    Returns int32 [T'], the tokens; [n + 1], the first one of each sentence, then T'; [n], the end
    of each sentence, before a [SEP]; [n], the index of its stream in `Sentences`.
    """
    starts = sentences.starts
    # Streams are in order, and those of a passage share its end.
    passage_end = tf.gather(sentences.passage_end, sentences.stream_first)
    new_passage = _changes(passage_end)
    first = tf.boolean_mask(sentences.stream_first, new_passage)
    end = tf.boolean_mask(passage_end, new_passage)
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(first)), seed)
    first = tf.gather(first, order)
    end = tf.gather(end, order)

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
    starts = tf.concat([ends - lengths, [tf.size(token_ids)]], axis=0)
    stream = tf.searchsorted(sentences.stream_first, sentence, side="right") - 1
    return token_ids, starts, ends, stream


def truncate_pairs(pairs: SentencePairs, packer: Packer, seed: tf.Tensor) -> SentencePairs:
    """Cuts pairs to the length of a row, as the original's `truncate_seq_pair`.

    A token at a time leaves the longer segment (B if equal), at the front or the back at random.
    """
    a_length, b_length = packer.fitting_lengths(pairs.a_length, pairs.b_length)
    lost = tf.stack([pairs.a_length - a_length, pairs.b_length - b_length])  # (2, N)
    at_front = tf.random.stateless_binomial(
        tf.shape(lost), seed, tf.cast(lost, tf.float32), 0.5, output_dtype=tf.int32
    )
    a_start = pairs.a_start + at_front[0]
    b_start = pairs.b_start + at_front[1]
    return SentencePairs(a_start, a_length, b_start, b_length, pairs.is_random_next)


def shuffle_pairs(pairs: SentencePairs, seed: tf.Tensor) -> SentencePairs:
    order = tf.random.experimental.stateless_shuffle(tf.range(tf.size(pairs.a_start)), seed)
    return SentencePairs(*(tf.gather(values, order) for values in pairs))

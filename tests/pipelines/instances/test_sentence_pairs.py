import itertools
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.pipelines.instances import sentence_pairs as pairing
from bert_tf.pipelines.instances.sentence_pairs import (
    SentencePairs,
    full_sentences,
    index_sentences,
    sentence_pairs,
    truncate_pairs,
)
from bert_tf.tokenization import Packer

PAIRS = "bert_tf.pipelines.instances.sentence_pairs"
SEP = 3
TOKENIZER = SimpleNamespace(pad_token_id=0, cls_token_id=2, sep_token_id=SEP)


def seed_of(number):
    return tf.constant([number, 11], tf.int64)


def index(documents, max_seq_length, donors=(), document_of=None, cut_long=False):
    """Sentences of documents given as lists of sentence lengths; token i has id 10 + i.

    With `document_of`, the lists are passages, and it says which document each is of.
    """
    sizes = [size for document in documents for size in document]
    numbers = np.repeat(np.arange(len(documents), dtype=np.int32), [len(d) for d in documents])
    return index_sentences(
        tf.RaggedTensor.from_row_lengths(tf.range(10, 10 + sum(sizes), dtype=tf.int32), sizes),
        tf.constant(numbers if document_of is None else np.array(document_of, np.int32)[numbers]),
        tf.constant(numbers),
        tf.constant(np.isin(numbers, list(donors))),
        max_seq_length=max_seq_length,
        cut_long=cut_long,
    )


documents_of_sizes = st.lists(
    st.lists(st.integers(0, 30), min_size=1, max_size=30).filter(any), min_size=2, max_size=6
)


@settings(max_examples=25, deadline=None)
@given(
    documents=documents_of_sizes,
    max_seq_length=st.integers(5, 70),
    short_seq_prob=st.sampled_from([0.0, 0.5, 1.0]),
    per_stream=st.sampled_from([1, 128]),
    seed=st.integers(0, 1000),
)
def test_pairs_follow_the_rules(documents, max_seq_length, short_seq_prob, per_stream, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{PAIRS}.INSTANCES_PER_STREAM", per_stream)
        sentences = index(documents, max_seq_length)
    pairs = sentence_pairs(
        sentences, max_seq_length=max_seq_length, short_seq_prob=short_seq_prob, seed=seed_of(seed)
    )
    starts = sentences.starts.numpy()
    document_of_token = np.repeat(np.arange(len(documents)), [*map(sum, documents)])
    bounds = set(starts.tolist())
    stream_ends = starts[sentences.stream_end.numpy()].tolist()
    expected = starts[sentences.stream_first.numpy()].tolist()
    assert max(np.diff([*expected, starts[-1]])) <= per_stream * max_seq_length + 30
    stream = 0
    at = expected[0]
    for a, a_length, b, b_length, is_random in zip(*(v.numpy() for v in pairs), strict=True):
        if at == stream_ends[stream]:
            stream += 1
            at = expected[stream]
        # A goes on exactly where the last pair of the stream ended; both are whole sentences.
        assert a == at
        assert {a, a + a_length, b, b + b_length} <= bounds
        assert a_length >= 1
        assert b_length >= 1
        assert a + a_length <= stream_ends[stream]
        of_b = set(document_of_token[b : b + b_length].tolist())
        assert len(of_b) == 1
        if is_random:
            assert of_b != {document_of_token[a]}
            at = a + a_length
        else:
            assert b == a + a_length
            assert b + b_length <= stream_ends[stream]
            # A chunk is whole when its last sentence reaches the target: without it, it is short.
            last = max(start for start in bounds if start < b + b_length)
            assert last - a < max_seq_length - 3
            at = b + b_length
    # Every sentence has been in a chunk.
    assert (stream, at) == (len(stream_ends) - 1, stream_ends[-1])


def test_tokens_are_lost_at_both_ends_alike():
    n = 4000
    values = [np.full(n, v, np.int32) for v in (0, 20, 500, 60)]
    pairs = SentencePairs(*map(tf.constant, (*values, np.ones(n, bool))))
    cut = truncate_pairs(pairs, Packer(TOKENIZER, 63), seed_of(1))
    assert np.all(cut.a_length.numpy() == 20) and np.all(cut.b_length.numpy() == 40)
    lost = cut.b_start.numpy() - 500  # binomial of 20 tosses
    assert np.all((lost >= 0) & (lost <= 20))
    assert np.all(cut.a_start.numpy() == 0)
    assert abs(lost.mean() - 10) < 0.2
    assert abs(lost.var() - 5) < 0.5


def test_half_of_the_next_sentences_are_random_and_from_any_other_document():
    documents = [[5] * 400, [5] * 100, [5] * 100]
    pairs = sentence_pairs(
        index(documents, 128, donors=[1, 2]), max_seq_length=32, short_seq_prob=0, seed=seed_of(1)
    )
    assert np.all(pairs.a_start.numpy() < 2000)  # donors make no instances
    is_random = pairs.is_random_next.numpy()
    assert 0.35 < is_random.mean() < 0.65
    from_second = pairs.b_start.numpy()[is_random] < 2500
    assert 0.3 < from_second.mean() < 0.7
    alone = index([[5] * 200], 32)
    pairs = sentence_pairs(alone, max_seq_length=32, short_seq_prob=0, seed=seed_of(1))
    assert len(pairs.a_start) > 10 and not pairs.is_random_next.numpy().any()


@settings(max_examples=30, deadline=None)
@given(documents=documents_of_sizes, max_seq_length=st.integers(5, 40))
def test_long_sentences_are_cut_into_pieces_that_fill_instances(documents, max_seq_length):
    most = max_seq_length - 3
    whole = index(documents, max_seq_length)
    cut = index(documents, max_seq_length, cut_long=True)
    sizes = np.diff(cut.starts)
    pieces = iter(sizes.tolist())
    for length in np.diff(whole.starts).tolist():
        piece = next(pieces)
        if length <= most:
            assert piece == length
            continue
        assert piece <= max(1, -(-most // 4))  # a chunk has several
        full, rest = divmod(length, piece)
        assert [next(pieces) for _ in range(full - 1)] == [piece] * (full - 1)
        assert (next(pieces) if rest else 0) == rest
    assert next(pieces, None) is None
    # Each piece belongs to the document, the passage and the stream of its line.
    first_tokens = cut.starts[:-1]
    line = tf.searchsorted(whole.starts, first_tokens, side="right") - 1
    assert np.array_equal(cut.document, tf.gather(whole.document, line))
    ends = tf.gather(whole.starts, tf.gather(whole.passage_end, line))
    assert np.array_equal(tf.gather(cut.starts, cut.passage_end), ends)


def test_one_long_document_beside_many_short_ones(monkeypatch):
    """Every step costs what its unfinished streams cost: 5,000 of them have one."""
    sizes = []
    uniform = tf.random.stateless_uniform

    def counting(shape, *arguments, **named):
        if isinstance(shape, list):
            sizes.append(int(shape[1]))
        return uniform(shape, *arguments, **named)

    monkeypatch.setattr(tf.random, "stateless_uniform", counting)
    sentences = index([[5, 5]] * 5_000 + [[1] * 16_000], 128)
    pairs = sentence_pairs(sentences, max_seq_length=128, short_seq_prob=0, seed=seed_of(7))
    a_start = pairs.a_start.numpy()
    places = np.searchsorted(sentences.starts, a_start)
    assert (np.diff(sentences.document.numpy()[places]) >= 0).all()
    assert len(a_start) > 5_000
    assert len(sizes) > 100
    assert sum(sizes) < 2 * len(a_start)


def test_short_documents_have_one_target():
    sentences = index([[1] * 3000, [1] * 3000], 128)
    pairs = sentence_pairs(sentences, max_seq_length=128, short_seq_prob=1.0, seed=seed_of(3))
    pairs = SentencePairs(*(values.numpy() for values in pairs))
    lengths = (pairs.a_length + pairs.b_length)[~pairs.is_random_next]
    of_first = lengths[pairs.a_start[~pairs.is_random_next] < 3000][:-1]
    of_second = lengths[pairs.a_start[~pairs.is_random_next] >= 3000][:-1]
    assert len(set(of_first)) == len(set(of_second)) == 1
    assert set(of_first) != set(of_second)


def full(sentences, max_seq_length, short_seq_prob=0.0, seed=1):
    """The instances as arrays of ids, without [CLS] and the last [SEP]; the text; the ranges."""
    how = {"max_seq_length": max_seq_length, "short_seq_prob": short_seq_prob, "sep_token_id": SEP}
    token_ids, ranges = full_sentences(sentences, seed=seed_of(seed), **how)
    token_ids, starts, lengths = (v.numpy() for v in (token_ids, ranges.a_start, ranges.a_length))
    assert not ranges.b_length.numpy().any()
    assert not ranges.is_random_next.numpy().any()
    assert np.array_equal(ranges.lengths, 2 + lengths)  # [CLS] and [SEP]
    instances = [token_ids[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    return instances, token_ids, ranges


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    passages=documents_of_sizes,
    neighbours=st.lists(st.booleans(), min_size=6, max_size=6),
    donors=st.sets(st.integers(0, 5), max_size=2),
    max_seq_length=st.integers(5, 70),
    short_seq_prob=st.sampled_from([0.0, 0.5, 1.0]),
    per_stream=st.sampled_from([1, 3, 128]),
    seed=st.integers(0, 1000),
)
def test_full_sentences_follow_the_rules(
    passages, neighbours, donors, max_seq_length, short_seq_prob, per_stream, seed
):
    most = max_seq_length - 2
    document_of = np.cumsum(neighbours)[: len(passages)]  # some documents have several passages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{PAIRS}.INSTANCES_PER_STREAM", per_stream)
        sentences = index(passages, max_seq_length, donors, document_of)
        instances, token_ids, ranges = full(sentences, max_seq_length, short_seq_prob, seed)

    # The text is each passage and a [SEP] after it, in some order.
    ids = iter(range(10, 10 + sum(map(sum, passages))))
    kept = [list(itertools.islice(ids, sum(passage))) for passage in passages]
    kept = [passage for number, passage in enumerate(kept) if number not in donors]
    parts = np.split(token_ids, np.flatnonzero(token_ids == SEP) + 1)
    assert sorted(part.tolist() for part in parts) == [[], *([*part, SEP] for part in kept)]

    edges = 10 + sentences.starts.numpy()
    sentence_of = {
        token: range(*bounds) for bounds in itertools.pairwise(edges) for token in range(*bounds)
    }
    at = 0
    for start, instance in zip(ranges.a_start.numpy(), instances, strict=True):
        # All of the text, in its order, but for a [SEP] between two instances.
        assert start - at == (at > 0 and token_ids[at] == SEP)
        at = start + len(instance)
        assert 1 <= len(instance) <= most
        first, last = instance[[0, -1]]
        assert SEP not in (first, last)
        # Whole sentences, or a piece of one that is too long; only its last piece is not full.
        begun, ended = sentence_of[first], sentence_of[last]
        cut = first - begun.start
        assert cut == 0 or (len(begun) > most and cut % most == 0)
        if last != ended.stop - 1:
            assert begun == ended
            assert len(instance) == most
    assert token_ids[at:].tolist() in ([], [SEP])


def test_full_sentences_are_as_many_as_fit_or_one_less():
    rng = np.random.default_rng(1)
    sentences = index([rng.integers(1, 30, rng.integers(1, 60)) for _ in range(200)], 64)
    _, token_ids, ranges = full(sentences, 64)
    begins = ranges.a_start.numpy()
    ends = begins + ranges.a_length.numpy()
    is_end = np.isin(token_ids, 9 + sentences.starts.numpy())  # the last token of a sentence
    # Sentences that would have fitted as well. At the end of a stretch they are in the next one.
    fitting = np.array([is_end[b : a + 62].sum() for a, b in zip(begins, ends, strict=True)])
    stretches = len(token_ids) / (64 * pairing.INSTANCES_PER_STREAM)
    assert (fitting > 1).sum() <= stretches + 1
    assert (fitting == 1).mean() == pytest.approx(1 / 8, abs=0.03)


def test_other_rounds_cut_the_text_elsewhere():
    rng = np.random.default_rng(1)
    book = [rng.integers(1, 45, 4000).tolist()]
    articles = [rng.integers(1, 45, 20).tolist() for _ in range(200)]
    made_of = {"max_seq_length": 128, "short_seq_prob": 0.1, "sep_token_id": SEP}
    graph = tf.function(partial(full_sentences, **made_of))  # a book is walked in many steps
    for documents in (book, articles):
        sentences = index(documents, 128)
        first, again, other = (
            {tuple(ids[a : a + n]) for a, n in zip(ranges.a_start, ranges.a_length, strict=True)}
            for ids, ranges in (
                tf.nest.map_structure(lambda x: x.numpy(), graph(sentences, seed=seed_of(seed)))
                for seed in (1, 1, 2)
            )
        )
        assert first == again
        assert len(first & other) < 0.55 * len(first)


def test_a_stream_of_full_sentences_has_one_target():
    sentences = index([[1] * 3000, [1] * 3000], 128)
    lengths = Counter(len(instance) for instance in full(sentences, 128, 1.0, seed=3)[0])
    # Two targets, each with the instances that leave a sentence out.
    low, first, below, second = sorted(length for length, _ in lengths.most_common(4))
    assert (low, below) == (first - 1, second - 1)
    assert second < 126
    assert lengths.total() - sum(n for _, n in lengths.most_common(4)) <= 2
    unshortened = [len(instance) for instance in full(sentences, 128)[0]]
    assert np.isin(unshortened, [126, 125]).mean() > 0.9


def test_no_text_gives_no_instances():
    for documents, donors in (([[0, 0], [0]], ()), ([], ()), ([[3, 4], [5]], (0, 1))):
        sentences = index(documents, 32, donors)
        settings = {"max_seq_length": 32, "short_seq_prob": 0.1, "seed": seed_of(1)}
        assert len(sentence_pairs(sentences, **settings).a_start) == 0
        instances, token_ids, _ = full(sentences, 32, 0.1)
        assert instances == [] and token_ids.tolist() == []

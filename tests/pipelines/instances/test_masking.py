import bisect
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances.masking import mask_tokens

CLS, SEP, MASK, VOCABULARY = 2, 3, 4, 50_000
IS_CONTINUATION = np.arange(VOCABULARY) >= 40_000
WORDS = {"whole_word_masking": True}
SPANS = {"max_ngram": 3}
SPECIAL = {"cls_token_id": CLS, "sep_token_id": SEP, "mask_token_id": MASK}
TOKENIZER = SimpleNamespace(vocabulary_size=VOCABULARY, is_continuation=IS_CONTINUATION, **SPECIAL)


def mask(token_ids, padding_mask, seed=1, predictions=20, prob=0.15, **what):
    given = tf.constant(token_ids, tf.int32), tf.constant(padding_mask), TOKENIZER
    most = {"max_predictions_per_seq": predictions, "masked_lm_prob": prob}
    options = PretrainingDataOptions(**most, **what)
    masked = mask_tokens(*given, options, tf.constant([seed, 7], tf.int64))
    return [values.numpy() for values in masked]


@settings(max_examples=30, deadline=None)
@given(
    # Shares of [MASK], same and random: the paper's (appendix C.2), and any others.
    shares=st.sampled_from(
        [(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)]
    )
    | st.tuples(st.integers(0, 100), st.integers(0, 100)).map(
        lambda pair: (min(pair), max(pair) - min(pair), 100 - max(pair))
    ),
    seed=st.integers(0, 2**40),
)
def test_the_shares_of_a_masking_strategy_come_out(shares, seed):
    token_ids = np.full([500, 66], 9, np.int32)
    token_ids[:, 0], token_ids[:, 65] = CLS, SEP
    masked, kept, random = (share / 100 for share in shares)
    strategy = {"mask_token_share": masked, "random_token_share": random}
    shown, positions, labels, weights = mask(
        token_ids, np.ones_like(token_ids), seed, predictions=33, prob=0.5, **strategy
    )
    default = mask(token_ids, np.ones_like(token_ids), seed, predictions=33, prob=0.5)
    for ours, others in zip((positions, labels, weights), default[1:], strict=True):
        np.testing.assert_array_equal(ours, others)  # a strategy changes what is shown alone
    predicted = np.take_along_axis(shown, positions, -1)[weights > 0]
    n = len(predicted)
    # A random token may be any: [MASK], or the token itself.
    by_chance = random / VOCABULARY
    for count, share in (
        (np.sum(predicted == MASK), masked + by_chance),
        (np.sum(predicted == 9), kept + by_chance),
        (np.sum((predicted != MASK) & (predicted != 9)), random - 2 * by_chance),
    ):
        if share in (0, 1):
            assert count == n * share
        else:  # 6 deviations, and a tail where few are expected
            assert abs(count - n * share) < 6 * np.sqrt(n * share * (1 - share)) + 6
    others = predicted[(predicted != MASK) & (predicted != 9)] / VOCABULARY
    if random > 0.1:  # uniform, of the whole vocabulary: 6 deviations
        assert abs(others.mean() - 0.5) < 6 * np.sqrt(1 / 12 / len(others))


def test_shares_above_1_are_refused():
    for masked in range(11):  # the sums of such floats may round above 1
        PretrainingDataOptions(mask_token_share=masked / 10, random_token_share=1 - masked / 10)
        PretrainingDataOptions(mask_token_share=masked / 10, random_token_share=(10 - masked) / 10)
    wrong = r"mask_token_share 0\.9 and random_token_share 0\.2 are more than 1 together"
    refused(wrong, PretrainingDataOptions, mask_token_share=0.9, random_token_share=0.2)


def plain_words(row):
    """Lists of positions, one for each word."""
    words = []
    for i, token in enumerate(row):
        if token in (CLS, SEP):
            continue
        if IS_CONTINUATION[token] and words and words[-1][-1] == i - 1:
            words[-1].append(i)
        else:
            words.append([i])
    return words


def plain_spans(words, sizes):
    """Words joined to spans of `sizes` words one after the other, cut between segments."""
    ends = list(itertools.accumulate(sizes))
    spans = []
    for i, word in enumerate(words):
        same = i and bisect.bisect_right(ends, i) == bisect.bisect_right(ends, i - 1)
        if same and spans[-1][-1] == word[0] - 1:
            spans[-1] += word
        else:
            spans.append(list(word))
    return spans


def plain_choice(units, scores, wanted):
    """The original's walk through the units, the highest score first."""
    chosen = []
    for _, unit in sorted(zip(scores, units, strict=False), key=lambda scored: -scored[0]):
        if len(chosen) + len(unit) <= wanted:
            chosen += unit
    return sorted(chosen)


# A word is a number of pieces; 0 stands for a [SEP] between words.
rows_of_words = st.lists(
    st.lists(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4, 7, 12]), min_size=1, max_size=30),
    min_size=1,
    max_size=16,
)


@settings(max_examples=80, deadline=None)
@given(
    rows=rows_of_words,
    begins_with_continuation=st.booleans(),
    whole_word_masking=st.booleans(),
    max_ngram=st.integers(1, 5),
    predictions=st.integers(1, 30),
    prob=st.sampled_from([0.02, 0.15, 0.5, 0.95]),
    seed=st.integers(0, 2**40),
)
def test_tokens_words_and_spans_are_chosen_as_one_by_one(
    rows, begins_with_continuation, whole_word_masking, max_ngram, predictions, prob, seed
):
    texts = []
    for row in rows:
        words = [[SEP] if n == 0 else [100 + n] + [40_000 + n] * (n - 1) for n in row]
        if begins_with_continuation and row[0]:
            words[0][0] = 41_000  # what truncation leaves of a word
        texts.append([CLS, *itertools.chain(*words), SEP])
    length = max(map(len, texts))
    token_ids = np.array([text + [0] * (length - len(text)) for text in texts])
    padding_mask = np.array([[1] * len(text) + [0] * (length - len(text)) for text in texts])
    how = {"whole_word_masking": whole_word_masking, "max_ngram": max_ngram}
    made = mask(token_ids, padding_mask, seed, predictions, prob, **how)
    shown, positions, labels, weights = made
    assert (shown >= 0).all() and (shown < VOCABULARY).all()

    order_seed = tf.random.split(tf.constant([seed, 7], tf.int64), 3)[0]
    scores = tf.random.stateless_uniform(token_ids.shape, order_seed).numpy()
    length_seed = tf.random.fold_in(order_seed, max_ngram)
    draws = tf.random.stateless_uniform(token_ids.shape, length_seed).numpy()
    shares = np.cumsum(1 / np.arange(1, max_ngram + 1))
    sizes = 1 + np.searchsorted(shares[:-1] / shares[-1], draws, side="right")
    for i, text in enumerate(texts):
        words = plain_words(text)
        tokens = [[position] for word in words for position in word]
        wanted = min(predictions, max(1, round(len(text) * prob)), len(tokens))
        units, of_units = plain_spans(words, sizes[i].tolist()), scores[i].tolist()
        if not whole_word_masking and max_ngram == 1:
            units, of_units = tokens, [scores[i, position] for (position,) in tokens]
        for finer in (words, tokens):
            if all(len(unit) > wanted for unit in units):
                units = finer
        expected = plain_choice(units, of_units, wanted)
        assert bool(expected) == bool(tokens)
        assert len(expected) <= wanted
        n = len(expected)
        assert weights[i].tolist() == [1.0] * n + [0.0] * (predictions - n)
        assert positions[i].tolist() == expected + [0] * (predictions - n)
        assert labels[i].tolist() == [text[p] for p in expected] + [0] * (predictions - n)
        untouched = np.setdiff1d(np.arange(length), expected)
        assert shown[i, untouched].tolist() == token_ids[i, untouched].tolist()


@for_each("what", {}, WORDS, SPANS, ids=["tokens", "words", "spans"])
def test_places_are_as_likely_and_tokens_of_a_word_masked_apart(what):
    # [CLS] words [SEP] words [SEP], words of 1 to 4 pieces; every token of a row is distinct.
    continues = np.random.default_rng(1).random([2000, 128]) < 0.3
    token_ids = np.where(continues, 40_000, 10_000) + np.arange(128)
    token_ids[:, 0], token_ids[:, [64, 127]] = CLS, SEP
    shown, positions, _, weights = mask(token_ids, np.ones_like(token_ids), **what)
    chosen = np.zeros(token_ids.shape, bool)
    for i in range(len(token_ids)):
        chosen[i, positions[i][weights[i] > 0]] = True
    assert np.delete(chosen, [0, 64, 127], axis=1).mean(0) == pytest.approx(19 / 125, abs=0.035)
    # Neighbours in a word share no fate: both hidden in 0.8 of 0.8 of the cases.
    is_hidden = shown == MASK
    both = chosen[:, 1:] & (token_ids[:, 1:] >= 40_000) & chosen[:, :-1]
    assert (is_hidden[:, 1:] & is_hidden[:, :-1])[both].mean() == pytest.approx(0.64, abs=0.02)


def test_without_a_token_to_mask_nothing_is_predicted():
    token_ids = np.array([[CLS, SEP, 0], [CLS, 200, SEP]])
    for what in ({}, WORDS, SPANS):
        shown, _, _, weights = mask(token_ids, token_ids > 0, **what)
        assert weights.sum(-1).tolist() == [0, 1]
        assert shown[0].tolist() == [CLS, SEP, 0]
        assert mask(np.zeros([0, 8]), np.zeros([0, 8]), **what)[1].shape == (0, 20)

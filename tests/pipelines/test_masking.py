import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.masking import mask_tokens

CLS, SEP, MASK, VOCABULARY = 2, 3, 4, 50_000


def mask(token_ids, padding_mask, seed=1, predictions=20, prob=0.15):
    masked = mask_tokens(
        tf.constant(token_ids, tf.int32),
        tf.constant(padding_mask),
        seed=tf.constant([seed, 7], tf.int64),
        vocabulary_size=VOCABULARY,
        cls_token_id=CLS,
        sep_token_id=SEP,
        mask_token_id=MASK,
        max_predictions_per_seq=predictions,
        masked_lm_prob=prob,
    )
    return [values.numpy() for values in masked]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 60), min_size=1, max_size=8),
    width=st.integers(60, 70),
    predictions=st.integers(1, 80),
    prob=st.sampled_from([0.01, 0.15, 0.5, 0.95]),
    seed=st.integers(0, 2**40),
)
def test_masks_follow_the_rules(lengths, width, predictions, prob, seed):
    rows = np.arange(width)
    token_ids = np.stack([100 + rows + 1000 * i for i in range(len(lengths))])
    padding_mask = np.stack([rows < length for length in lengths])
    token_ids[:, 0] = CLS
    for i, length in enumerate(lengths):
        token_ids[i, length - 1] = SEP
    token_ids = np.where(padding_mask, token_ids, 0)
    shown, positions, labels, weights = mask(token_ids, padding_mask, seed, predictions, prob)

    for i, length in enumerate(lengths):
        wanted = min(predictions, max(1, round(length * prob)), length - 2)
        assert weights[i].tolist() == [1.0] * wanted + [0.0] * (predictions - wanted)
        chosen = positions[i, :wanted]
        assert np.all(np.diff(chosen) > 0)
        assert np.all((chosen > 0) & (chosen < length - 1))
        assert labels[i, :wanted].tolist() == token_ids[i, chosen].tolist()
        assert not positions[i, wanted:].any()
        assert not labels[i, wanted:].any()
        untouched = np.setdiff1d(rows, chosen)
        assert shown[i, untouched].tolist() == token_ids[i, untouched].tolist()
    assert shown.min() >= 0
    assert shown.max() < VOCABULARY


def test_shares_and_positions_are_uniform():
    token_ids = np.full([4000, 64], 9, np.int32)
    token_ids[:, 0], token_ids[:, 40], token_ids[:, 63] = CLS, SEP, SEP
    shown, positions, labels, weights = mask(token_ids, np.ones_like(token_ids))
    assert np.all(weights.sum(-1) == 10)
    predicted = np.take_along_axis(shown, positions, -1)[weights > 0]
    assert np.all(labels[weights > 0] == 9)
    assert abs(np.mean(predicted == MASK) - 0.8) < 0.01
    assert abs(np.mean(predicted == 9) - 0.1) < 0.01
    random = predicted[(predicted != MASK) & (predicted != 9)]
    assert abs(random.mean() / VOCABULARY - 0.5) < 0.02
    counts = np.bincount(positions[weights > 0], minlength=64)
    assert not counts[[0, 40, 63]].any()
    possible = np.delete(counts, [0, 40, 63]) / 4000
    assert np.all(abs(possible - 10 / 61) < 0.03)


def test_special_tokens_inside_the_text_are_never_chosen():
    token_ids = np.array([[CLS, SEP, 9, CLS, SEP, SEP]])
    for seed in range(5):
        _, positions, labels, weights = mask(token_ids, np.ones_like(token_ids), seed, prob=0.9)
        assert weights.sum() == 1
        assert (positions[0, 0], labels[0, 0]) == (2, 9)


def test_masks_are_a_function_of_the_seed():
    token_ids = np.arange(100, 164)[None].repeat(3, 0)
    first, again, other = (mask(token_ids, np.ones_like(token_ids), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])

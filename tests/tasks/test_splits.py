import numpy as np
from cases import for_each

from bert_tf.tasks.splits import split


@for_each("count", 1, 2, 7, 100, 1001)
@for_each("share", 0.001, 0.1, 0.34, 0.9)
def test_different_examples_are_split_as_ever(count, share):
    """Runs from before examples were kept together can be resumed."""
    targets = np.random.default_rng(count).integers(0, 3, count)
    order = np.random.default_rng(5).permutation(count)
    order = order[np.argsort(targets[order], kind="stable")]
    number = min(count, max(1, round(count * share)))
    places = ((np.arange(number) + 0.5) * count / number).astype(int)
    kept, aside = split(targets, range(count), share, 5)
    assert aside.tolist() == sorted(order[places])
    assert sorted([*kept, *aside]) == list(range(count))


@for_each("seed", *range(5))
def test_examples_with_one_key_stay_together(seed):
    draw = np.random.default_rng(seed)
    keys = draw.integers(0, 100, 1000)
    kept, aside = split(draw.integers(0, 2, 1000), keys, 0.1, seed)
    assert not set(keys[kept]) & set(keys[aside])
    assert sorted([*kept, *aside]) == list(range(1000))
    largest = np.bincount(keys).max()
    assert abs(len(aside) - 100) <= largest / 2  # of the key that is due next
    assert aside.tolist() != split(np.zeros(1000), keys, 0.1, seed + 1)[1].tolist()


def test_keys_larger_than_the_share():
    """The smallest context is set aside, if there is another; a text is divided."""
    kept, aside = split(np.zeros(10), [*"aaaaaabbbb"], 0.1, 1, unit="context")
    assert (kept.tolist(), aside.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9])
    kept, aside = split(np.zeros(10), ["a"] * 10, 0.1, 1, unit="context")
    assert (len(kept), len(aside)) == (0, 10)
    keys = ["frequent"] * 60 + [str(n // 2) for n in range(40)]
    kept, aside = split(np.zeros(100), keys, 0.1, 1)
    assert not {keys[i] for i in kept} & {keys[i] for i in aside} - {"frequent"}
    assert (aside < 60).sum() == 6 and len(aside) == 10

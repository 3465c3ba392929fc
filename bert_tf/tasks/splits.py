"""Examples of one file, divided into those to train on and those to validate on."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from bert_tf.tasks.kinds.kind import TEXT


def split(
    targets: np.ndarray, keys: Sequence[Hashable], share: float, seed: int, *, unit: str = TEXT
) -> tuple[np.ndarray, np.ndarray]:
    """The indices of examples that stay, and those of a stratified share set aside, at least one.

    Every class (or range of values) of `targets` [E] gives its part; arrays [E, ...] give no
    classes. Examples of one key (see `Kind.split_keys`) stay together, and count for the class of
    the first of them; only a text of more examples than the share is divided.
    """
    count = len(targets)
    number = min(count, max(1, round(count * share)))
    if unit == TEXT:
        sizes = Counter(keys)
        keys = [(key, i if sizes[key] > number else -1) for i, key in enumerate(keys)]
    numbers: dict[Hashable, int] = {}
    of_key = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    _, first, size = np.unique(of_key, return_index=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(first))
    if targets.ndim == 1:
        order = order[np.argsort(targets[first[order]], kind="stable")]  # shuffled within a class
    places = ((np.arange(number) + 0.5) * count / number).astype(int)
    # A key follows as soon as its examples are no further from the share than without them.
    due = np.searchsorted(places, np.cumsum(size[order]))
    chosen: list[int] = []
    aside = 0
    for key, by_now in zip(order.tolist(), due.tolist(), strict=True):
        if by_now - aside >= size[key] / 2:
            chosen.append(key)
            aside += int(size[key])
    is_aside = np.isin(of_key, chosen or [order[np.argmin(size[order])]])
    return np.flatnonzero(~is_aside), np.flatnonzero(is_aside)

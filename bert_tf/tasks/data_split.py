"""The split of examples into training and validation, and what the splits of a data set share."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.tasks.task import Task
from pipelines.examples.labelled_text import Examples

# Of `Kind.split_keys`, where only equal examples have to stay together.
TEXT = "text"


def split(
    targets: np.ndarray, keys: Sequence[Hashable], share: float, seed: int, *, unit: str = TEXT
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a stratified share of the examples: every class (or range of values) gives its part.

    Args:
        targets: numbers [E]; arrays [E, ...] give no classes.
        keys: E keys, as `Kind.split_keys` gives them; examples with the same key stay together, and
            count for the class of the first of them.
        share: share to set aside, at least one example.
        seed: random seed.
        unit: what the keys stand for. A text of more examples than the share is divided.

    Returns:
        The indices that stay and the indices set aside.
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


def duplicates(task: Task, splits: Mapping[str, Examples]) -> str:
    """A sentence that counts the examples of one split that are in another, too.

    `splits` are "train", "validation" and possibly "test", with or without labels.
    """
    rows = {name: row_keys(task, examples) for name, examples in splits.items()}
    labels = {name: _labels(examples) for name, examples in splits.items()}
    units = {name: task.kind.split_keys(task, examples) for name, examples in splits.items()}
    parts = []
    for name, others in {"train": ["validation", "test"], "validation": ["test"]}.items():
        known: dict[Hashable, set[Hashable]] = {}
        for row, label in zip(rows[name], labels[name] or rows[name], strict=True):
            known.setdefault(row, set()).add(label)
        unit, keys = units[name][0], set(units[name][1])
        counted = []
        for other in filter(splits.__contains__, others):
            pairs = zip(rows[other], labels[other] or rows[other], strict=True)
            agree = [label in known[row] for row, label in pairs if row in known]
            line = f"{len(agree):,} of {len(rows[other]):,} {other} examples"
            if agree and labels[name] and labels[other]:
                line += f" ({sum(agree):,} with the same label)"
            if unit == units[other][0] != TEXT:
                line += f" and the {unit} of {sum(map(keys.__contains__, units[other][1])):,}"
            counted.append(line)
        parts += [f"also in {name}: {', '.join(counted)}"] * bool(counted)
    return "; ".join(parts)


def row_keys(task: Task, examples: Examples) -> list[Hashable]:
    """What the model reads of each example."""
    columns = [map(_hashable, examples.columns[name]) for name in task.kind.inputs(task)]
    return list(zip(*columns, strict=True))


def _labels(examples: Examples) -> list[Hashable]:
    """The labels, or the right answers to questions; none for examples without."""
    columns = examples.columns
    return [_hashable(value) for value in columns.get("label", columns.get("answers", ()))]


def _hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value

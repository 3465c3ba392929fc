"""Examples of one file, divided into those to train on and those to validate on."""

import functools
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Kind
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.kinds.tagging import Tagging
from bert_tf.tasks.task import Task

TEXT = "text"  # of `split_keys`, where only equal examples have to stay together


@functools.singledispatch
def split_keys(kind: Kind, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
    """What stays together in splits: its name, and a key for each example. Here equal texts."""
    return TEXT, row_keys(task, examples)


@split_keys.register
def _contexts(kind: Span, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
    return "context", examples.columns["context"]


@split_keys.register
def _documents(kind: Tagging, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
    """All sentences of a document stay together, if the file divides documents."""
    if not examples.documents:
        return TEXT, row_keys(task, examples)
    texts: dict[int, list[str]] = defaultdict(list)
    for document, words in zip(examples.documents, examples.columns["words"], strict=True):
        texts[document].append(words)
    text_of = {document: "\n".join(words) for document, words in texts.items()}
    return "document", [text_of[document] for document in examples.documents]


def row_keys(task: Task, examples: Examples) -> list[Hashable]:
    """What the model reads of each example."""
    columns = [map(hashable, examples.columns[name]) for name in task.inputs]
    return list(zip(*columns, strict=True))


def hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value


def split(
    targets: np.ndarray, keys: Sequence[Hashable], share: float, seed: int, *, unit: str = TEXT
) -> tuple[np.ndarray, np.ndarray]:
    """The indices of examples that stay, and of a stratified share set aside, at least one.

    Every class (or range of values) of `targets` [E] gives its part; arrays [E, ...] give no
    classes. Examples of one key (see `split_keys`) stay together, and count for the class of
    the first of them; only a text of more examples than the share is divided.
    """
    count = len(targets)
    number = min(count, max(1, round(count * share)))
    if unit == TEXT:
        sizes = Counter(keys)
        keys = [(key, i if sizes[key] > number else -1) for i, key in enumerate(keys)]
    numbers: dict[Hashable, int] = {}
    key_numbers = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    _, first, size = np.unique(key_numbers, return_index=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(first))
    if targets.ndim == 1:
        order = order[np.argsort(targets[first[order]], kind="stable")]  # shuffled within a class
    positions = ((np.arange(number) + 0.5) * count / number).astype(int)
    # A key follows as soon as its examples are no further from the share than without them.
    due = np.searchsorted(positions, np.cumsum(size[order]))
    chosen: list[int] = []
    aside = 0
    for key, by_now in zip(order.tolist(), due.tolist(), strict=True):
        if by_now - aside >= size[key] / 2:
            chosen.append(key)
            aside += int(size[key])
    is_aside = np.isin(key_numbers, chosen or [order[np.argmin(size[order])]])
    return np.flatnonzero(~is_aside), np.flatnonzero(is_aside)

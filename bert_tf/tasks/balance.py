"""How often each label occurs, and what that says before a model is trained."""

from collections.abc import Sequence

import numpy as np

from bert_tf.errors import InputError

_LISTED = 6  # labels with their counts


def label_counts(targets: np.ndarray, labels: Sequence[str]) -> list[int]:
    """Number of examples, or of words, with each label [C].

    `targets` are class ids [E], of words [E, W] padded with -1, or float32 marks 0 and 1 [E, C];
    without labels, anything else.
    """
    if not labels:
        return []
    if targets.dtype.kind == "f":
        return targets.sum(axis=0, dtype=np.int64).tolist()
    return np.bincount(targets[targets >= 0], minlength=len(labels)).tolist()


def listed_counts(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Labels with their counts; of many, the most frequent ones and the rarest."""
    named = [f"{label[:40]} {count:,}" for label, count in zip(labels, counts, strict=True)]
    if len(named) <= _LISTED:
        return ", ".join(named)
    *frequent, last = [named[i] for i in np.argsort(-np.array(counts), kind="stable")]
    shown = frequent[: _LISTED - 2]
    return f"{', '.join(shown)}, {len(frequent) - len(shown)} more, rarest {last}"


def baseline(
    labels: Sequence[str], targets: np.ndarray, scored: np.ndarray, name: str
) -> list[str]:
    """A sentence with the accuracy of always giving the most frequent label; none if undefined.

    `targets` belong to the training data, `scored` are the targets of the data called `name`.
    """
    if not labels or targets.dtype.kind == "f":
        return []
    most = int(np.argmax(label_counts(targets, labels)))
    share = float(np.mean(scored[scored >= 0] == most))
    return [f"always answering {labels[most]!r} has an accuracy of {share:.1%} on the {name}"]


def class_weights(targets: np.ndarray) -> np.ndarray:
    """Weights, float32, that give each class the same total weight.

    For class ids [R], weights [R] whose mean is 1. For marks 0 and 1 [R, C], weights [R, C] with
    which the examples that have a label count as much as those that lack it.
    """
    if targets.ndim == 1 and targets.dtype.kind == "i":
        _, numbers, counts = np.unique(targets, return_inverse=True, return_counts=True)
        return (len(targets) / (len(counts) * counts[numbers])).astype(np.float32)
    if targets.ndim == 1 or targets.dtype.kind != "f":
        raise InputError("--class_weights is for tasks with classes: leave it out")
    has = targets.astype(bool)
    share = has.mean(axis=0)
    weights = np.where(has, share, 1 - share)
    # A label that all examples have, or none, has nothing to balance.
    return (0.5 / np.where((share == 0) | (share == 1), 0.5, weights)).astype(np.float32)

"""Scores of any number of labels per example, and the thresholds that choose them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OfLabel:
    """How well one label is predicted; a share is None where nothing is in its denominator."""

    label: str
    gold: int  # examples that have it
    found: int  # examples predicted to have it
    right: int
    average_precision: float | None

    @property
    def precision(self) -> float | None:
        return self.right / self.found if self.found else None

    @property
    def recall(self) -> float | None:
        return self.right / self.gold if self.gold else None

    @property
    def f1(self) -> float | None:
        total = self.gold + self.found
        return 2 * self.right / total if total else None


@dataclass(frozen=True, eq=False)
class LabelSets:
    """True and predicted labels of examples, bool [E, C], and probabilities, float [E, C]."""

    labels: Sequence[str]
    truth: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray

    def by_label(self) -> Iterator[OfLabel]:
        for number, label in enumerate(self.labels):
            truth, predicted = self.truth[:, number], self.predicted[:, number]
            yield OfLabel(
                label, int(truth.sum()), int(predicted.sum()), int((truth & predicted).sum()),
                average_precision(truth, self.probabilities[:, number]),
            )  # fmt: skip

    def scores(self) -> dict[str, float | None]:
        """Name -> score; None where no example has a label, nor is predicted to have it.

        `average_precision`, the mean over the labels that some example has, needs no thresholds.
        `f1_macro` is the mean F1 of the labels that occur, true or predicted; `f1_micro` counts
        all decisions together; `exact_match` is the share of examples with all labels right.
        """
        every = list(self.by_label())
        together = OfLabel(
            "", sum(x.gold for x in every), sum(x.found for x in every),
            sum(x.right for x in every), None,
        )  # fmt: skip
        return {
            **{f"f1_{each.label}": each.f1 for each in every},
            "average_precision": _mean([each.average_precision for each in every]),
            "f1_micro": together.f1,
            "f1_macro": mean_f1(every),
            "exact_match": float((self.truth == self.predicted).all(axis=1).mean()),
        }


def mean_f1(labels: Sequence[OfLabel]) -> float | None:
    """The mean F1 of the labels that occur, true or predicted."""
    return _mean([each.f1 for each in labels])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def average_precision(truth: np.ndarray, scores: np.ndarray) -> float | None:
    """The mean precision at each recall, as scikit-learn defines it; None without a true one."""
    if not truth.any():
        return None
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(truth, scores))


def best_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> list[float]:
    """The threshold of each label with the best F1; of equal ones the nearest to 0.5.

    It lies halfway between two probabilities. 0.5 for a label that no example has, or all have.
    """
    found = []
    for has, shares in zip(truth.T, probabilities.T, strict=True):
        if has.all() or not has.any():
            found.append(0.5)
            continue
        # For each different probability, of the examples with it or more: right ones, and number.
        order = np.argsort(-shares, kind="stable")
        ordered = shares[order].astype(np.float64)
        last = np.flatnonzero(np.append(np.diff(ordered) != 0, True))
        right, chosen, lowest = np.cumsum(has[order])[last], last + 1, ordered[last]
        limits = (lowest + np.append(lowest[1:], 0.0)) / 2
        f1 = 2 * right / (chosen + has.sum())
        best = np.flatnonzero(f1 == f1.max())
        found.append(float(limits[best[np.argmin(abs(limits[best] - 0.5))]]))
    return found

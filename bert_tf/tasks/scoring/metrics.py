"""Scores, larger for better models. They import scikit-learn and SciPy, which take a second.

A new score is a function here, named among the `scores` of tasks in `tasks.task_table`. Kinds whose
answers are not one array (several labels, words, spans, vectors) compute their scores themselves.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# The scores of masked words, which their kind computes; the first chooses the best model.
MASKED_WORDS = ("accuracy", "pseudo_perplexity", "masked_lm_accuracy", "masked_lm_perplexity")

# (true values [n], predicted values [n]) -> the score, or None where it is undefined.
Score = Callable[[np.ndarray, np.ndarray], float | None]

_QUESTIONS_AT_ONCE = 1024
_SMALLEST = np.finfo(np.float32).eps  # of a probability with a finite logit, and of its complement
_ROUNDING = 4 * 2**-8  # of a logit of 4, a probability of 0.98 or 0.02, in bfloat16


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    return float(np.mean(truth == predicted))


def f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """F1 of class 1 among two classes, as GLUE scores MRPC and QQP; 0 if it never occurs."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth == 1, predicted == 1, zero_division=0.0))


def macro_f1(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The mean F1 of the classes that occur among the true or the predicted ones."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, predicted, average="macro", zero_division=0.0))


def matthews_correlation(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Matthews' correlation for any number of classes; 0 if all predictions are the same."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a single label: the result is 0, as it should be
        return float(matthews_corrcoef(truth, predicted))


def pearson(truth: np.ndarray, predicted: np.ndarray) -> float | None:
    """Pearson's correlation; undefined if either side is constant."""
    return _correlation("pearsonr", truth, predicted)


def spearman(truth: np.ndarray, predicted: np.ndarray) -> float | None:
    """Spearman's rank correlation; undefined if either side is constant."""
    return _correlation("spearmanr", truth, predicted)


def _correlation(function: str, truth: np.ndarray, predicted: np.ndarray) -> float | None:
    from scipy import stats

    if len(truth) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller reports an undefined score
        value = float(getattr(stats, function)(truth, predicted).statistic)
    return value if math.isfinite(value) else None


class Counts(NamedTuple):
    """How often a label, or any of several, is the true one, the predicted one, and both."""

    gold: int
    predicted: int
    right: int

    @property
    def shares(self) -> list[float | None]:
        """Precision, recall and F1; None where nothing is in the denominator."""
        wholes = self.predicted, self.gold, (self.gold + self.predicted) / 2
        return [self.right / whole if whole else None for whole in wholes]

    @property
    def f1(self) -> float | None:
        return self.shares[2]


def count_classes(
    labels: Sequence[str], truth: np.ndarray, predicted: np.ndarray
) -> dict[str, Counts]:
    """Counts of each label, from the numbers of true and predicted ones, int [E]."""
    sides = (truth, predicted, truth[truth == predicted])
    numbers = (np.bincount(side, minlength=len(labels)).tolist() for side in sides)
    return dict(zip(labels, map(Counts, *numbers), strict=True))


def mean_known(values: Sequence[float | None]) -> float | None:
    """The mean of the defined values."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


@dataclass(frozen=True, eq=False)
class LabelSets:
    labels: Sequence[str]  # C
    truth: np.ndarray  # bool [E, C], as `predicted`
    predicted: np.ndarray
    probabilities: np.ndarray  # float [E, C]

    def counts(self) -> dict[str, Counts]:
        sides = (self.truth, self.predicted, self.truth & self.predicted)
        counts = map(Counts, *(side.sum(axis=0).tolist() for side in sides))
        return dict(zip(self.labels, counts, strict=True))

    def average_precisions(self) -> list[float | None]:
        return [*map(average_precision, self.truth.T, self.probabilities.T)]

    def scores(self) -> dict[str, float | None]:
        """Name -> score; None where no example has a label, nor is predicted to have it.

        `average_precision` and `f1_macro` are means over the labels that have them; `f1_micro`
        counts all decisions together; `exact_match` is the share of examples with all right.
        """
        counts = self.counts()
        return {
            **{f"f1_{label}": x.f1 for label, x in counts.items()},
            "average_precision": mean_known(self.average_precisions()),
            "f1_micro": Counts(*map(sum, zip(*counts.values(), strict=True))).f1,
            "f1_macro": mean_known([x.f1 for x in counts.values()]),
            "exact_match": float((self.truth == self.predicted).all(axis=1).mean()),
        }


def average_precision(truth: np.ndarray, scores: np.ndarray) -> float | None:
    """The mean precision at each recall, as scikit-learn defines it; None without a true one."""
    if not truth.any():
        return None
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(truth, scores))


def best_thresholds(truth: np.ndarray, probabilities: np.ndarray) -> list[float]:
    """Returns for each label the threshold with the best F1 that other precisions keep, too.

    `truth` bool and `probabilities` are [E, C]. F1 is the lowest that it can be with all logits off
    by `_ROUNDING`, so that no threshold stands between two close probabilities if another does
    about as well. In a tie it is F1 itself that decides, then the distance from 0.5. A label that
    all examples have, or none, keeps 0.5.
    """
    pairs = zip(truth.T, probabilities.T, strict=True)
    return [0.5 if has.all() or not has.any() else _best_threshold(has, p) for has, p in pairs]


def _best_threshold(has: np.ndarray, probabilities: np.ndarray) -> float:
    order = np.argsort(-probabilities, kind="stable")
    ordered = probabilities[order].astype(np.float64)
    values = np.unique(ordered)
    limits = (values + np.append(0.0, values[:-1])) / 2
    right = np.append(0, np.cumsum(has[order]))  # of the first 0, 1, ... E
    ranked = -logits_of(ordered)
    cuts = -logits_of(limits)

    def f1(error: float) -> np.ndarray:
        sure, possible = (np.searchsorted(ranked, cuts + x, "right") for x in (-error, error))
        return 2 * right[sure] / (right[sure] + possible - right[possible] + has.sum())

    best = np.lexsort([-abs(limits - 0.5), f1(0.0), f1(_ROUNDING)])[-1]
    return float(limits[best])


def logits_of(probabilities: np.ndarray) -> np.ndarray:
    """Logits of probabilities of any shape, finite for 0 and 1, too."""
    shares = np.clip(probabilities, _SMALLEST, 1 - _SMALLEST)
    return np.log(shares) - np.log1p(-shares)


def retrieval_scores(
    questions: np.ndarray,
    answers: np.ndarray,
    texts: Sequence[str],
    right: Sequence[str],
    by_cosine: bool = True,
) -> dict[str, float | None]:
    """Mean reciprocal rank, and the share of right answers among the first 1 and 10.

    The vectors, float [E, W], of the questions `texts` and of their `right` answers are compared by
    cosine or by dot product. A question is asked once; the best of its answers is its right one.
    Equal answers are one candidate.
    """
    if by_cosine:
        questions = _normal(questions)
        answers = _normal(answers)
    first = {text: row for row, text in reversed(list(enumerate(right)))}
    number_of = {text: number for number, text in enumerate(first)}
    matrix = answers[list(first.values())]
    wanted: dict[str, list[int]] = {}
    for text, answer in zip(texts, right, strict=True):
        wanted.setdefault(text, []).append(number_of[answer])
    rows = {text: row for row, text in reversed(list(enumerate(texts)))}
    ranks = []
    questions_asked = list(wanted.items())
    for start in range(0, len(questions_asked), _QUESTIONS_AT_ONCE):
        chunk = questions_asked[start : start + _QUESTIONS_AT_ONCE]
        similarities = questions[[rows[text] for text, _ in chunk]] @ matrix.T
        for scores, (_, right_numbers) in zip(similarities, chunk, strict=True):
            best = scores[right_numbers].max()
            # Among equal scores the right answer is in the middle: no model gains by constants.
            ranks.append(1 + (scores > best).sum() + ((scores == best).sum() - 1) / 2)
    rank = np.array(ranks)
    recalls = {f"recall_at_{number}": float(np.mean(rank <= number)) for number in (1, 10)}
    return {"mrr": float(np.mean(1 / rank)), **recalls}


def _normal(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

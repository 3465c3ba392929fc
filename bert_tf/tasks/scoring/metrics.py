"""Scores, larger for better models. They import scikit-learn and SciPy, which take a second."""

import math
import warnings
from collections.abc import Callable

import numpy as np

# The scores of masked words, which their kind computes; the first chooses the best model.
MASKED_WORDS = ("accuracy", "pseudo_perplexity", "masked_lm_accuracy", "masked_lm_perplexity")

# (true values [n], predicted values [n]) -> the score, or None where it is undefined.
Score = Callable[[np.ndarray, np.ndarray], float | None]


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """The share of equal entries."""
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

"""Scores of classifiers, as the GLUE tasks report them."""

import numpy as np


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Share of equal entries of two int arrays [n]."""
    return float(np.mean(truth == predicted))


def confusion_matrix(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Counts [classes, classes]: rows are true classes, columns predicted ones."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(
        classes, classes
    )


def f1_scores(confusion: np.ndarray) -> np.ndarray:
    """F1 of each class [classes]; 0 for a class neither met nor predicted."""
    hits = np.diag(confusion).astype(float)
    met_and_predicted = confusion.sum(0) + confusion.sum(1)
    return np.divide(2 * hits, met_and_predicted, out=np.zeros_like(hits), where=hits > 0)


def matthews_correlation(confusion: np.ndarray) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004); 0 where undefined."""
    counts = confusion.astype(float)
    total, hits = counts.sum(), np.trace(counts)
    truth, predicted = counts.sum(1), counts.sum(0)
    covariance = hits * total - truth @ predicted
    spread = np.sqrt((total**2 - predicted @ predicted) * (total**2 - truth @ truth))
    return float(covariance / spread) if spread else 0.0


def classification_scores(
    truth: np.ndarray, predicted: np.ndarray, classes: int
) -> dict[str, float]:
    """Accuracy, F1 and Matthews' correlation of predicted classes.

    Args:
        truth: int [n], the true classes.
        predicted: int [n].
        classes: how many there are.

    Returns:
        `accuracy`, `matthews_correlation`, and for two classes `f1` of class 1 (the positive
        one, as GLUE counts MRPC and QQP), for more `macro_f1`.
    """
    confusion = confusion_matrix(truth, predicted, classes)
    f1 = f1_scores(confusion)
    return {
        "accuracy": accuracy(truth, predicted),
        **({"f1": float(f1[1])} if classes == 2 else {"macro_f1": float(f1.mean())}),
        "matthews_correlation": matthews_correlation(confusion),
    }

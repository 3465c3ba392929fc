"""Labels that are probably wrong, by models that have not seen them.

Each example is judged by a model that was trained on the others (cross-validation): a logistic
regression on the words of the text. Its probabilities are calibrated on the given labels. Bayes'
rule then tells how probably a label is wrong, if a share of all are: a label whose probability is
as low as that of a random mistake is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MOST_FEATURES = 200_000
_FOLDS = 5
_LEAST = 0.8  # probability of a doubt, which is also about the share that is right
_LOG_TEMPERATURES = (-3.0, 3.0)


@dataclass(frozen=True)
class Doubt:
    """An example whose label is doubted."""

    place: int
    label: str
    proposed: str  # the most probable other label
    probability: float  # that the label is wrong


def doubted_labels(
    texts: Sequence[str],
    labels: Sequence[str],
    *,
    wrong_share: float = 0.05,
    seed: int = 1,
) -> list[Doubt]:
    """The examples whose labels are probably wrong, the most probable first.

    Args:
        texts: the texts to classify; both texts of a pair as one string.
        labels: a label for each; those of fewer than five examples are neither doubted nor
            proposed.
        wrong_share: share of all labels that is assumed to be wrong.
        seed: random seed of the folds.
    """
    names, targets, counts = np.unique(labels, return_inverse=True, return_counts=True)
    known = np.flatnonzero(counts >= _FOLDS)
    if len(known) < 2:
        return []
    kept = np.flatnonzero(np.isin(targets, known))
    targets, names = np.searchsorted(known, targets[kept]), names[known]
    shares = _calibrated(_probabilities([texts[i] for i in kept.tolist()], targets, seed), targets)
    places = np.arange(len(targets))
    own = np.maximum(shares[places, targets], 1e-12)
    shares[places, targets] = -1
    # The given label is another one by mistake; `true` is that its text really has it.
    mistake = wrong_share / (len(names) - 1)
    true = np.clip((own - mistake) / (1 - wrong_share - mistake), 0, 1)
    wrong = np.minimum(mistake * (1 - true) / own, 1 - true)
    chosen = sorted(np.flatnonzero(wrong >= _LEAST).tolist(), key=lambda i: (-wrong[i], own[i]))
    proposed = shares.argmax(axis=1)
    return [
        Doubt(int(kept[i]), str(names[targets[i]]), str(names[proposed[i]]), float(wrong[i]))
        for i in chosen
    ]


def _probabilities(texts: list[str], targets: np.ndarray, seed: int) -> np.ndarray:
    """Probabilities [N, C] of each label by models that have not seen the example."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, max_features=_MOST_FEATURES),
        OneVsRestClassifier(LogisticRegression(C=10.0, solver="liblinear")),
    )
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=seed)
    found = cross_val_predict(model, texts, targets, cv=folds, method="predict_proba")
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _calibrated(shares: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The probabilities at the temperature that fits the labels best."""
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    logits = np.log(np.maximum(shares, 1e-12))
    places = np.arange(len(targets))

    def loss(logarithm: float) -> float:
        return -float(log_softmax(logits * np.exp(-logarithm), axis=1)[places, targets].mean())

    best = minimize_scalar(loss, bounds=_LOG_TEMPERATURES, method="bounded").x
    return np.exp(log_softmax(logits * np.exp(-best), axis=1))

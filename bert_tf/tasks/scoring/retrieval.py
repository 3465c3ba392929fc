"""Scores of finding, for each text, the one that belongs to it among all others."""

from collections.abc import Sequence

import numpy as np

_AT_ONCE = 1024  # questions


def retrieval_scores(
    questions: np.ndarray, answers: np.ndarray, texts: Sequence[str], right: Sequence[str]
) -> dict[str, float | None]:
    """Mean reciprocal rank, and the share of right answers among the first 1 and 10.

    Args:
        questions: vectors, float [E, W].
        answers: vectors, float [E, W]; that of a row is its question's right one.
        texts: the questions. One that comes with several answers is asked once, and the best of
            them is its right one.
        right: the answers. Equal ones are one candidate.
    """
    first = {text: place for place, text in reversed(list(enumerate(right)))}
    candidates = list(first)
    number_of = {text: number for number, text in enumerate(candidates)}
    matrix = _normal(answers)[list(first.values())]
    wanted: dict[str, list[int]] = {}
    for text, answer in zip(texts, right, strict=True):
        wanted.setdefault(text, []).append(number_of[answer])
    rows = {text: place for place, text in reversed(list(enumerate(texts)))}
    ranks = []
    every = list(wanted.items())
    for some in (every[start : start + _AT_ONCE] for start in range(0, len(every), _AT_ONCE)):
        found = _normal(questions)[[rows[text] for text, _ in some]] @ matrix.T
        for scores, (_, own) in zip(found, some, strict=True):
            best = scores[own].max()
            higher = scores > best
            ties = scores == best
            # Among equal scores the right answer is in the middle: no model gains by constants.
            ranks.append(1 + higher.sum() + (ties.sum() - 1) / 2)
    rank = np.array(ranks)
    return {
        "mrr": float(np.mean(1 / rank)),
        "recall_at_1": float(np.mean(rank <= 1)),
        "recall_at_10": float(np.mean(rank <= 10)),
    }


def _normal(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

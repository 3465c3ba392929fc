"""The official scores of SQuAD, in percent: evaluate-v1.1.py and evaluate-v2.0.py."""

import functools
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

SQUAD_1 = ("f1", "exact_match")  # reported; the first chooses the best model
SQUAD_2 = ("best_f1", "best_exact", "f1", "exact")

_PUNCTUATION = str.maketrans("", "", string.punctuation)


@functools.lru_cache(1 << 14)  # each answer is scored several times
def normalize(text: str) -> str:
    """Lower-cases, drops ASCII punctuation and the articles, and collapses whitespace."""
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(answer: str, gold: str) -> float:
    return float(normalize(answer) == normalize(gold))


def f1(answer: str, gold: str) -> float:
    """F1 of the words that both have; 0 if one has none."""
    answer_words = normalize(answer).split()
    gold_words = normalize(gold).split()
    same = sum((Counter(answer_words) & Counter(gold_words)).values())
    # 2 * precision * recall / (precision + recall)
    return 2 * same / (len(answer_words) + len(gold_words)) if same else 0.0


def squad_1_scores(gold: Mapping[str, list[str]], answers: Mapping[str, str]) -> dict[str, float]:
    """The scores of SQuAD 1.1, means over the questions, by id; one without an answer scores 0."""
    scores = {}
    for name, metric in (("exact_match", exact_match), ("f1", f1)):
        best = {i: max(metric(answers[i], text) for text in gold[i]) for i in gold if i in answers}
        scores[name] = _mean(best.get(id_, 0.0) for id_ in gold)
    return scores


def squad_2_scores(
    gold: Mapping[str, list[str]],
    answers: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The scores of SQuAD 2.0: over all questions, and those with (HasAns_) and without (NoAns_).

    A question without an entry in `answers` is left out; an empty one is not answered. With
    `null_odds`, for the best thresholds, `answers` hold the best texts, whatever their odds.
    """
    scored = [id_ for id_ in gold if id_ in answers]
    right = {id_: [text for text in gold[id_] if normalize(text)] or [""] for id_ in scored}
    exact = {id_: max(exact_match(answers[id_], text) for text in right[id_]) for id_ in scored}
    # Unlike in SQuAD 1.1, F1 is 1 where both texts are empty.
    overlap = {id_: exact[id_] or max(f1(answers[id_], x) for x in right[id_]) for id_ in scored}
    raw = {"exact": exact, "f1": overlap}
    scores: dict[str, float] = {}
    parts = {
        "": scored,
        "HasAns_": [id_ for id_ in scored if gold[id_]],
        "NoAns_": [id_ for id_ in scored if not gold[id_]],
    }
    for prefix, ids in parts.items():
        if ids or not prefix:
            for name, values in raw.items():
                scores[prefix + name] = _mean(values[id_] for id_ in ids)
            scores[f"{prefix}total"] = len(ids)
    if null_odds is not None:
        for name, values in raw.items():
            # The best score over all thresholds, and the first threshold that reaches it.
            current = best = float(sum(not texts for texts in gold.values()))  # nothing answered
            best_odds = 0.0
            for id_ in sorted(null_odds, key=null_odds.__getitem__):
                if id_ in values:
                    current += values[id_] if gold[id_] else -float(bool(answers[id_]))
                    if current > best:
                        best = current
                        best_odds = null_odds[id_]
            scores[f"best_{name}"] = 100.0 * best / max(len(scored), 1)
            scores[f"best_{name}_thresh"] = best_odds
    return scores


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return 100.0 * sum(values) / max(len(values), 1)

"""Ensembles of question answering models: the mean probability of each answer's text.

The probabilities are those of nbest_predictions.json, a softmax over a model's best answers. An
answer that is not among them has the probability 0. The models may have tokenizers and windows of
their own, as nothing but texts is compared.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.tasks.kinds.answer_spans import BEST, NO_CANDIDATE
from bert_tf.tasks.kinds.kind import Answers

_PREFIX = "answers_"


def average_answers(answers: Sequence[Answers], *, unanswerable: bool, threshold: float) -> Answers:
    """Averages answers as of `best_answers`, which names the columns.

    Logits and null odds are means, too, over the models that have them. The place of a text is
    that of the first model that has it.

    Args:
        answers: answers of each model to the same B questions.
        unanswerable: whether a question may have no answer.
        threshold: largest null odds of a question that gets an answer.
    """
    names = [
        name for name, values in answers[0].items() if name.startswith(_PREFIX) and values.ndim == 2
    ]
    result = {name: np.zeros_like(answers[0][name]) for name in names}
    result["answers_text"][:] = b""
    counts = []
    for question in range(len(answers[0]["answers_count"])):
        rows = _rows(answers, names, question)
        is_kept = [rank < BEST or not row["answers_text"] for rank, row in enumerate(rows)]
        rows = [row for row, kept in zip(rows, is_kept, strict=True) if kept]
        counts.append(len(rows))
        for name in names:
            result[name][question, : len(rows)] = [row[name] for row in rows]
    count = np.array(counts, np.int32)
    is_answer = (result["answers_text"] != b"") & (np.arange(BEST + unanswerable) < count[:, None])
    best = is_answer.argmax(axis=1)  # (B,), the first
    has_answer = is_answer.any(axis=1)

    odds = np.stack([each["null_odds"] for each in answers])
    known = odds < NO_CANDIDATE
    null_odds = np.where(known, odds, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    null_odds = np.where(has_answer, null_odds, NO_CANDIDATE).astype(odds.dtype)
    given = has_answer & (null_odds <= threshold) if unanswerable else has_answer
    no_answer = np.mean([each["no_answer_probability"] for each in answers], axis=0)

    def of_best(name: str) -> np.ndarray:
        return result[f"{_PREFIX}{name}"][np.arange(len(best)), best]

    places = ("start", "end", "start_byte", "end_byte")
    return {
        "answer": np.where(given, of_best("text"), b""),
        **{name: np.where(given, of_best(name), 0) for name in places},
        "score": np.where(given, of_best("probability"), no_answer),
        "no_answer_probability": no_answer,
        "null_odds": null_odds,
        "answers_count": count,
        **result,
    }


def _rows(answers: Sequence[Answers], names: Sequence[str], question: int) -> list[dict[str, Any]]:
    """All answers to a question, the most probable first."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    for each in answers:
        for place in range(each["answers_count"][question]):
            row = {name: each[name][question, place] for name in names}
            found.setdefault(row["answers_text"], []).append(row)
    rows = []
    for same in found.values():
        row = dict(same[0])
        for name in ("answers_start_logit", "answers_end_logit"):
            row[name] = np.mean([each[name] for each in same])
        row["answers_probability"] = sum(each["answers_probability"] for each in same) / len(
            answers
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -row["answers_probability"])

"""From the logits of windows to answers, in graph: `write_predictions` of the original's run_squad.

It differs in two ways. An answer is the slice of the context that its pieces were made of, where
the original goes back to whole words and then guesses the slice. And only tokens of the context
compete for the best starts and ends, so that fewer questions are left without a candidate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.tokenization.windows import QuestionWindows
from bert_tf.tokenization.words import code_points, hashes, spans, valid_utf_8

BEST = 20  # starts and ends of a window, and answers of a question
NO_CANDIDATE = 1e30  # the null odds of a question without a candidate; no logit is larger
_APART = 1442695040888963407  # odd: equal texts of two questions keep different keys

Columns = dict[str, tf.Tensor]


def best_answers(
    logits: tf.Tensor,
    windows: QuestionWindows,
    contexts: tf.Tensor,
    *,
    longest: int,
    unanswerable: bool,
    threshold: float,
) -> Columns:
    """The best answers to B questions, from logits [W, T, 2] of their windows: docs/signatures.md.

    With `unanswerable`, "no answer" is a candidate, too: an empty string, with the logits of [CLS]
    in the window where their sum is lowest. A question gets an answer if its null odds are at most
    `threshold`: the score of "no answer" minus the best answer's. Contexts are string [B], and an
    answer has at most `longest` pieces.
    """
    batch = tf.size(contexts, tf.int64)
    logits = tf.where(tf.math.is_nan(logits), -NO_CANDIDATE, tf.cast(logits, tf.float32))
    logits = tf.clip_by_value(logits, -NO_CANDIDATE, NO_CANDIDATE)
    candidates = _candidates(logits, windows, longest)
    null = _no_answers(logits, windows, batch)
    null_score = null["start_logit"] + null["end_logit"]  # (B,)
    if unanswerable:
        candidates = {
            name: tf.concat([values, null[name]], 0) for name, values in candidates.items()
        }

    # By question, the best first; both sorts are stable. The same text once, where it is best.
    order = tf.argsort(candidates["start_logit"] + candidates["end_logit"], direction="DESCENDING")
    candidates = _take(candidates, order)
    candidates = _take(candidates, tf.argsort(candidates["question"], stable=True))
    key = hashes(contexts, candidates["question"], candidates["start_byte"], candidates["end_byte"])
    texts, text = tf.unique(key + candidates["question"] * _APART)
    best = tf.math.unsorted_segment_min(tf.range(tf.size(text)), text, tf.size(texts))
    candidates = _take(candidates, best)
    first = tf.searchsorted(candidates["question"], tf.range(batch))  # of each question
    rank = tf.range(tf.size(candidates["question"])) - tf.gather(first, candidates["question"])
    is_empty = candidates["start_byte"] == candidates["end_byte"]
    candidates = _take(candidates, tf.where((rank < BEST) | is_empty)[:, 0])

    # One row a question: [B, N].
    question = candidates.pop("question")
    text = spans(contexts, question, candidates["start_byte"], candidates["end_byte"])
    candidates["text"] = valid_utf_8(text)
    for name in ("start", "end"):
        candidates[name] = code_points(contexts, question, candidates[f"{name}_byte"])
    lists = tf.RaggedTensor.from_value_rowids(question, question, nrows=batch)
    shape = [None, BEST + unanswerable]
    rows = {name: lists.with_values(x).to_tensor(shape=shape) for name, x in candidates.items()}
    count = tf.math.bincount(tf.cast(question, tf.int32), minlength=tf.size(contexts))
    is_real = tf.sequence_mask(count, BEST + unanswerable)
    score = tf.where(is_real, rows["start_logit"] + rows["end_logit"], tf.float32.min)
    rows["probability"] = tf.where(is_real, tf.nn.softmax(score), 0.0)
    is_answer = is_real & (rows["text"] != "")
    best_score = tf.reduce_max(tf.where(is_answer, score, tf.float32.min), -1)
    no_answer = tf.reduce_sum(tf.where(is_answer, 0.0, rows["probability"]), -1)
    return _answers(rows, count, null_score - best_score, no_answer, unanswerable, threshold)


def average_answers(
    answers: Sequence[Mapping[str, np.ndarray]], unanswerable: bool, threshold: float
) -> dict[str, np.ndarray]:
    """Joint answers of models, from what `best_answers` returns for each; other arguments are its.

    Only texts are compared, as tokenizers may differ: the probability of a text is the mean, 0
    where it is not among a model's best. Logits and null odds are means over the models that have
    them; the span of a text is the first model's.
    """
    lists = [n for n, x in answers[0].items() if n.startswith("answers_") and x.ndim == 2]
    rows = {name.removeprefix("answers_"): np.zeros_like(answers[0][name]) for name in lists}
    rows["text"][:] = b""
    count = np.zeros_like(answers[0]["answers_count"])
    for question in range(len(count)):
        same: dict[bytes, list[dict[str, Any]]] = {}
        for model in answers:
            for rank in range(model["answers_count"][question]):
                row = {name: model[f"answers_{name}"][question, rank] for name in rows}
                same.setdefault(row["text"], []).append(row)
        joint = [_average(texts, len(answers)) for texts in same.values()]
        joint.sort(key=lambda row: -row["probability"])
        joint = [row for rank, row in enumerate(joint) if rank < BEST or not row["text"]]
        count[question] = len(joint)
        for name, values in rows.items():
            values[question, : len(joint)] = [row[name] for row in joint]
    odds = np.stack([model["null_odds"] for model in answers])
    known = odds < NO_CANDIDATE
    null_odds = np.where(known, odds, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    no_answer = np.mean([model["no_answer_probability"] for model in answers], axis=0)
    tensors = {name: tf.constant(values) for name, values in rows.items()}
    null, nothing = (tf.constant(x, tf.float32) for x in (null_odds, no_answer))
    averaged = _answers(tensors, tf.constant(count), null, nothing, unanswerable, threshold)
    return {name: values.numpy() for name, values in averaged.items()}


def _average(same: list[dict[str, Any]], models: int) -> dict[str, Any]:
    """One text of a question, from the rows of the models that have it."""
    logits = {name: np.mean([row[name] for row in same]) for name in ("start_logit", "end_logit")}
    return {**same[0], **logits, "probability": sum(row["probability"] for row in same) / models}


def _answers(
    rows: Columns,
    count: tf.Tensor,
    null_odds: tf.Tensor,
    no_answer: tf.Tensor,
    unanswerable: bool,
    threshold: float,
) -> Columns:
    """The columns of `best_answers`, from lists [B, N] of `count` candidates, the best first."""
    is_answer = tf.sequence_mask(count, BEST + unanswerable) & (rows["text"] != "")
    best = tf.argmax(is_answer, axis=-1, output_type=tf.int32)  # the first
    answer = {name: tf.gather(values, best, batch_dims=1) for name, values in rows.items()}
    has_answer = tf.reduce_any(is_answer, -1)
    null_odds = tf.where(has_answer, null_odds, NO_CANDIDATE)
    no_answer = tf.where(has_answer, no_answer, 1.0)
    is_answered = has_answer & (null_odds <= threshold) if unanswerable else has_answer
    offsets = ("start", "end", "start_byte", "end_byte")
    return {
        "answer": tf.where(is_answered, answer["text"], ""),
        **{name: tf.where(is_answered, answer[name], 0) for name in offsets},
        "score": tf.where(is_answered, answer["probability"], no_answer),
        "no_answer_probability": no_answer,
        "null_odds": null_odds,
        "answers_count": count,
        **{f"answers_{name}": values for name, values in rows.items()},
    }


def _candidates(logits: tf.Tensor, windows: QuestionWindows, longest: int) -> Columns:
    """The best starts with the best ends of each window that may be an answer, in their order."""
    in_context = windows.starts >= 0
    scores = tf.where(in_context[:, :, tf.newaxis], logits, -tf.float32.max)
    k = tf.minimum(BEST, tf.shape(logits)[1])
    start_logit, start = tf.math.top_k(scores[:, :, 0], k)  # (W, K)
    end_logit, end = tf.math.top_k(scores[:, :, 1], k)
    may_start = tf.gather(windows.has_most_context, start, batch_dims=1)
    may_end = tf.gather(in_context, end, batch_dims=1)
    size = end[:, tf.newaxis, :] - start[:, :, tf.newaxis] + 1  # (W, K, K)
    is_span = may_start[:, :, tf.newaxis] & may_end[:, tf.newaxis, :]
    pairs = tf.where(is_span & (size >= 1) & (size <= longest))  # (M, 3)
    window = pairs[:, 0]
    of_start = tf.stack([window, pairs[:, 1]], 1)
    of_end = tf.stack([window, pairs[:, 2]], 1)
    first = tf.stack([window, tf.cast(tf.gather_nd(start, of_start), tf.int64)], 1)
    last = tf.stack([window, tf.cast(tf.gather_nd(end, of_end), tf.int64)], 1)
    return {
        "question": tf.gather(windows.question, window),
        "start_byte": tf.gather_nd(windows.starts, first),
        "end_byte": tf.gather_nd(windows.ends, last),
        "start_logit": tf.gather_nd(start_logit, of_start),
        "end_logit": tf.gather_nd(end_logit, of_end),
    }


def _no_answers(logits: tf.Tensor, windows: QuestionWindows, batch: tf.Tensor) -> Columns:
    """The candidate "no answer" of each question: [CLS] of the first window with the lowest sum."""
    null = logits[:, 0]  # (W, 2)
    score = tf.reduce_sum(null, -1)
    lowest = tf.math.unsorted_segment_min(score, windows.question, batch)
    number = tf.range(tf.size(score))
    number = tf.where(score == tf.gather(lowest, windows.question), number, tf.size(score))
    null = tf.gather(null, tf.math.unsorted_segment_min(number, windows.question, batch))
    span = dict.fromkeys(("start_byte", "end_byte"), tf.zeros([batch], tf.int64))
    return {"question": tf.range(batch), **span, "start_logit": null[:, 0], "end_logit": null[:, 1]}


def _take(columns: Columns, rows: tf.Tensor) -> Columns:
    return {name: tf.gather(values, rows) for name, values in columns.items()}

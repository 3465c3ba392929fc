"""Hard negatives for sentence encoders, found by the model that is trained."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bert_tf.commands.finetuning_data import FinetuningData
from bert_tf.serving.predictor import answer
from bert_tf.text.answerer import Answerer

# A text that is about as similar as the right answer may be right, too: NV-Retriever's best of the
# thresholds tried (Moreira et al. 2024), which sentence-transformers calls `relative_margin`.
_MARGIN = 0.05
_SIMILARITIES = 2**23  # at once: 32 MB, and 64 MB for their order

Working = Callable[[str, int, int], object]  # called with what is done, how much, and the total


def with_mined_negatives(
    data: FinetuningData, model: Answerer, count: int, batch_size: int, working: Working
) -> FinetuningData:
    """The data with `count` hard negatives for each training pair, by the model's own vectors."""
    columns = data.train.columns
    questions, answers = columns["text"], columns["text_pair"]
    texts = [*dict.fromkeys(answers + questions)]  # the candidates first
    number_of = {text: number for number, text in enumerate(texts)}
    pairs = np.array([[number_of[text] for text in side] for side in (questions, answers)]).T
    vectors = answer(
        model.function(),
        {"text": texts},
        batch_size,
        answered=lambda done: working("embedding texts", done, len(texts)),
    )["vector"]
    chosen = hard_negatives(vectors, pairs, count, working)
    fewer = int((chosen == pairs[:, 1:]).any(1).sum())
    remark = f"hard negatives: {count} for each pair" + f"; {fewer:,} have fewer" * bool(fewer)
    wrong = [[texts[number] for number in row] for row in chosen]
    train = replace(data.train, columns={**columns, "negatives": wrong})
    rows, targets = data.task.kind.training_rows(data.task, train, data.labels, data.tokenizer)
    return replace(
        data, train=train, columns=rows, arrays=[targets], remarks=[*data.remarks, remark]
    )


def hard_negatives(
    vectors: np.ndarray, pairs: np.ndarray, count: int, working: Working = lambda *_: None
) -> np.ndarray:
    """The nearest texts to each question that are not right, the nearest first: int [E, count].

    Candidates are the second texts of all pairs, without the question itself, its right answers
    and texts whose similarity is less than 5% below the pair's. If they are too few, the pair's own
    second text, which the loss masks, takes their place. The search is exact. Beside the vectors it
    takes 100 MB, or 12 bytes for each candidate if there are more than 8 million.

    `vectors`, [T, W], are compared by cosine. `pairs`, [E, 2], have the numbers of both texts of
    each pair; second texts have the lowest.
    """
    vectors = np.asarray(vectors, np.float32)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    candidates = vectors[: pairs[:, 1].max() + 1]
    excluded: dict[int, set[int]] = defaultdict(set)
    for question, right in pairs.tolist():
        excluded[question] |= {x for x in (question, right) if x < len(candidates)}
    chosen = np.repeat(pairs[:, 1:], count, axis=1)
    kept = min(count, len(candidates))
    at_once = max(1, _SIMILARITIES // len(candidates))
    for start in range(0, len(pairs), at_once):
        questions, right = pairs[start : start + at_once].T
        similarities = vectors[questions] @ candidates.T  # (B, C)
        own = np.take_along_axis(similarities, right[:, np.newaxis], 1)
        similarities[similarities > own - _MARGIN * np.abs(own)] = -np.inf
        for row, question in enumerate(questions.tolist()):
            similarities[row, [*excluded[question]]] = -np.inf
        nearest = np.argpartition(similarities, -kept, axis=1)[:, -kept:]
        nearest.sort(axis=1)  # of equal similarities the first
        found = np.take_along_axis(similarities, nearest, 1)
        order = np.argsort(-found, axis=1, kind="stable")
        nearest, found = (np.take_along_axis(x, order, 1) for x in (nearest, found))
        block = chosen[start : start + at_once, :kept]
        np.copyto(block, nearest, where=np.isfinite(found))
        working("finding hard negatives", start + len(block), len(pairs))
    return chosen

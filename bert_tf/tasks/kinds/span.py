"""Answers that are spans of a context: SQuAD 1.1 and 2.0 (paper, sections 4.2 and 4.3)."""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import SPANS
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.answer_spans import NO_CANDIDATE, best_answers
from bert_tf.tasks.kinds.kind import Answered, Answers, Kind
from bert_tf.tasks.readers import QuestionReader
from bert_tf.tasks.scoring.squad_scores import SQUAD_1, SQUAD_2, squad_1_scores, squad_2_scores
from bert_tf.tasks.signatures import DEFAULT, TEXTS, AnswererProtocol, Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import SpanOptions
from bert_tf.tokenization.windows import QuestionPacker, map_rows, token_targets

_CHUNK = 64  # questions whose windows are made at once


@dataclass(frozen=True)
class Span(QuestionReader, Kind):
    """A span of the context for each question.

    Settings are named as the original's options. `truncated` counts pieces of the question alone.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    # Largest null odds of a question that gets an answer; tuned on the validation examples.
    null_score_diff_threshold: float = 0.0

    options = SpanOptions
    tuned_settings: ClassVar[Mapping[str, str]] = {"null_score_diff_threshold": "f1"}
    model_class = "BertSpanClassifier"
    losses = SPANS

    def signatures(self, task: Task) -> dict[str, Signature]:
        default = Signature({"question": TEXTS, "context": TEXTS}, self.respond)
        return super().signatures(task) | {DEFAULT: default}

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Whether each question has an answer, int32 [E]; training needs windows."""
        return np.array([bool(texts) for texts in examples.columns["answers"]], np.int32)

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """A row for each window; targets are start and end token, or [CLS] without the answer."""
        pack = self._packer(tokenizer, task.max_length)
        columns = (examples.columns[name] for name in ("question", "context", "span"))
        answerable = [row for row in zip(*columns, strict=True) if row[2] is not None]
        if not answerable:
            raise InputError(f"{examples.path}: no answer is in its context; check answer_start")
        rows = []
        numbers = []
        targets = []
        for first in range(0, len(answerable), _CHUNK):
            chunk = answerable[first : first + _CHUNK]
            questions, contexts, spans = zip(*chunk, strict=True)
            windows = pack(tf.constant(questions), tf.constant(contexts))
            pairs = zip(contexts, spans, strict=True)
            offsets = [[len(text[:at].encode()) for at in span or [0, 0]] for text, span in pairs]
            targets.append(token_targets(windows, tf.constant(offsets, tf.int64)).numpy())
            numbers.append(windows.number.numpy())
            rows += [chunk[question][:2] for question in windows.question.numpy()]
        question, context = map(list, zip(*rows, strict=True))
        window: Any = np.concatenate(numbers)
        return {"question": question, "context": context, "window": window}, np.concatenate(targets)

    def model_inputs(self, strings: Tensors, tokenizer: Any, max_length: int) -> Any:
        """Model inputs for one window of each context, [B, T]: the first, unless it is named."""
        pack = self._packer(tokenizer, max_length)
        number = strings.get("window", tf.zeros_like(strings["question"], tf.int64))
        return pack(strings["question"], strings["context"], number).inputs

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        pack = self._packer(answerer.tokenizer, answerer.max_length)
        windows = pack(strings["question"], strings["context"])
        answers = best_answers(
            map_rows(answerer.predict, windows.inputs),
            windows,
            strings["context"],
            longest=self.max_answer_length,
            unanswerable=self.unanswerable,
            threshold=self.null_score_diff_threshold,
        )
        return {**answers, "truncated": windows.truncated}

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        """Logits of the start and the end, float32 [B, T]."""
        start, end = tf.unstack(outputs, axis=-1)
        return {"start_logits": start, "end_logits": end}

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The official names; a model of SQuAD 2.0 is chosen by F1 at the best threshold."""
        return list(SQUAD_2 if self.unanswerable else SQUAD_1)

    def scores(self, answered: Answered) -> dict[str, Any]:
        def by_id(values: Iterable[Any]) -> dict[str, Any]:
            return dict(zip(answered.examples.columns["id"], values, strict=True))

        gold = by_id(answered.examples.columns["answers"])
        answers = by_id(best_texts(answered.answers))
        if not self.unanswerable:
            return squad_1_scores(gold, answers)
        texts = ((row["text"] for row in rows if row["text"]) for rows in n_best(answered.answers))
        best = by_id(next(candidates, "") for candidates in texts)
        odds = by_id(answered.answers["null_odds"].tolist())
        # The official script is run twice: on predictions.json, and for the best thresholds on the
        # texts that it would hold if every question were answered.
        return {**squad_2_scores(gold, best, odds), **squad_2_scores(gold, answers)}

    def tuned(self, answered: Answered) -> "Span":
        """The threshold with the best F1, half-way between two odds: rounding flips no answer."""
        odds = sorted(x for x in answered.answers["null_odds"].tolist() if x < NO_CANDIDATE)
        if not self.unanswerable or not odds:
            return self
        scores = self.scores(answered)
        if scores["best_f1"] == 100.0 * scores.get("NoAns_total", 0.0) / scores["total"]:
            return replace(self, null_score_diff_threshold=odds[0] - 1.0)  # nothing answered
        number = max(1, bisect.bisect_right(odds, scores["best_f1_thresh"]))
        around = odds[number - 1 : number + 1]
        return replace(self, null_score_diff_threshold=float(np.mean(around)))

    def _packer(self, tokenizer: Any, max_length: int) -> QuestionPacker:
        return QuestionPacker(tokenizer, max_length, self.doc_stride, self.max_query_length)


def best_texts(answers: Answers) -> list[str]:
    """The answer to each question; empty without one."""
    return [text.decode() for text in answers["answer"]]


def n_best(answers: Answers) -> list[list[dict[str, Any]]]:
    """The n best answers to each question, as nbest_predictions.json has them."""
    names = ("text", "probability", "start_logit", "end_logit")
    columns = [answers[f"answers_{name}"].tolist() for name in names]
    return [
        [
            {"text": text.decode(), **dict(zip(names[1:], numbers, strict=True))}
            for text, *numbers in zip(*(values[:count] for values in row), strict=True)
        ]
        for count, *row in zip(answers["answers_count"].tolist(), *columns, strict=True)
    ]

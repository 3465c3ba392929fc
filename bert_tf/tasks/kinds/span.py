"""Answers that are spans of a context: SQuAD 1.1 and 2.0 (paper, sections 4.2 and 4.3)."""

import bisect
import itertools
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json
from bert_tf.models.task_models import BertSpanClassifier
from bert_tf.networks.tensorflow.losses import Values, accuracy, cross_entropy
from bert_tf.pipelines.examples.squad import read_questions
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.answer_spans import NO_CANDIDATE, average_answers, best_answers
from bert_tf.tasks.kinds.kind import Answered, Answers, Kind
from bert_tf.tasks.reports.report import Report, ReportTable, calibration, confusion, worst
from bert_tf.tasks.scoring.squad_scores import SQUAD_1, SQUAD_2, squad_1_scores, squad_2_scores
from bert_tf.tasks.signatures import DEFAULT, TEXTS, Signature, Tensors
from bert_tf.tasks.task import Layout, Task
from bert_tf.tasks.task_options import SpanOptions
from bert_tf.tokenization.windows import QuestionPacker, map_rows, token_targets
from bert_tf.training.distillation import soft_cross_entropy

if TYPE_CHECKING:
    from bert_tf.models.answerer import Answerer

_CHUNK = 64  # questions whose windows are made at once
_QUESTIONS = (
    "how many",
    "how much",
    "who",
    "whom",
    "whose",
    "what",
    "which",
    "when",
    "where",
    "why",
    "how",
)


def span_loss(targets: Any, logits: Any) -> Any:
    """Cross-entropies [B, 2] of starts and ends [B, 2] for logits [B, T, 2]."""
    return cross_entropy(targets, tf.transpose(logits, [0, 2, 1]))


def span_accuracy(targets: Any, logits: Any) -> Any:
    """1.0 for each right start and end, [B, 2]."""
    return accuracy(targets, tf.transpose(logits, [0, 2, 1]))


@dataclass(frozen=True)
class Span(Kind):
    """A span of the context for each question.

    Settings are named as the original's options. `truncated` counts pieces of the question alone.
    """

    unanswerable: bool = False  # whether a question may have no answer
    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    # Largest null odds of a question that gets an answer; tuned on the validation examples.
    null_score_diff_threshold: float = 0.0

    options = SpanOptions
    tuned_settings = ("null_score_diff_threshold",)
    decided_score = "f1"
    model_class = BertSpanClassifier
    scores_are_percentages = True
    loss_function = staticmethod(span_loss)
    metrics: ClassVar[Mapping[str, Values]] = {"accuracy": span_accuracy}

    def soft_loss(self, temperature: float) -> Values:
        soft = soft_cross_entropy(temperature)
        return lambda *logits: soft(*(tf.transpose(x, [0, 2, 1]) for x in logits))  # (B, 2)

    def soft_targets(self, outputs: Any, inputs: Any) -> Any:
        """Logits [B, T, 2] that give padding no probability: a teacher computes none for it."""
        is_token = inputs["padding_mask"][:, :, tf.newaxis] != 0
        return tf.where(is_token, tf.cast(outputs, tf.float32), -NO_CANDIDATE)

    def signatures(self, task: Task) -> dict[str, Signature]:
        return {DEFAULT: Signature({"question": TEXTS, "context": TEXTS}, self.respond)}

    def read(self, layout: Layout, path: str | Path) -> Examples:
        return read_questions(path, labelled=layout.labelled, unanswerable=self.unanswerable)

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Whether each question has an answer, int32 [E]; training needs windows."""
        return np.array([bool(texts) for texts in examples.columns["answers"]], np.int32)

    def split_keys(self, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
        return "context", examples.columns["context"]

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """A row for each window; targets are start and end token, or [CLS] without the answer."""
        pack = self._packer(tokenizer, task.max_length)
        columns = (examples.columns[name] for name in ("question", "context", "span"))
        kept = [row for row in zip(*columns, strict=True) if row[2] is not None]
        if not kept:
            raise InputError(f"{examples.path}: no answer is in its context; check answer_start")
        rows, numbers, targets = [], [], []
        for chunk in (kept[first : first + _CHUNK] for first in range(0, len(kept), _CHUNK)):
            questions, contexts, spans = zip(*chunk, strict=True)
            windows = pack(tf.constant(questions), tf.constant(contexts))
            pairs = zip(contexts, spans, strict=True)
            places = [[len(text[:place].encode()) for place in at or [0, 0]] for text, at in pairs]
            targets.append(token_targets(windows, tf.constant(places, tf.int64)).numpy())
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

    def truncation(self, number: int, count: int, max_length: int) -> str:
        longest = min(self.max_query_length, (max_length - 3) // 2)  # as of `QuestionPacker`
        return (
            f"cut at {longest} word pieces: {number} of {count} questions; contexts are read in "
            "windows"
        )

    def respond(self, strings: Tensors, answerer: "Answerer") -> Tensors:
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

    def token_answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        """Logits of the start and the end, float32 [B, T]."""
        start, end = tf.unstack(outputs, axis=-1)
        return {"start_logits": start, "end_logits": end}

    def in_ensemble(self, kinds: Sequence[Kind]) -> "Span":
        thresholds = [kind.settings()["null_score_diff_threshold"] for kind in kinds]
        return replace(self, null_score_diff_threshold=float(np.mean(thresholds)))

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        return average_answers(answers, self.unanswerable, self.null_score_diff_threshold)

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The official names; a model of SQuAD 2.0 is chosen by F1 at the best threshold."""
        return list(SQUAD_2 if self.unanswerable else SQUAD_1)

    def scores(self, given: Answered) -> dict[str, Any]:
        def by_id(values: Iterable[Any]) -> dict[str, Any]:
            return dict(zip(given.examples.columns["id"], values, strict=True))

        gold, answers = by_id(given.examples.columns["answers"]), by_id(_texts(given.answers))
        if not self.unanswerable:
            return squad_1_scores(gold, answers)
        texts = ([x["text"] for x in n_best if x["text"]] for n_best in _n_best(given.answers))
        best = by_id(next(iter(each), "") for each in texts)
        odds = by_id(given.answers["null_odds"].tolist())
        # The official script is run twice: on predictions.json, and for the best thresholds on the
        # texts that it would hold if every question were answered.
        return {**squad_2_scores(gold, best, odds), **squad_2_scores(gold, answers)}

    def tuned(self, given: Answered) -> "Span":
        """The threshold with the best F1, half-way between two odds: rounding flips no answer."""
        odds = sorted(x for x in given.answers["null_odds"].tolist() if x < NO_CANDIDATE)
        if not self.unanswerable or not odds:
            return self
        scores = self.scores(given)
        if scores["best_f1"] == 100.0 * scores.get("NoAns_total", 0.0) / scores["total"]:
            return replace(self, null_score_diff_threshold=odds[0] - 1.0)  # nothing answered
        answered = max(1, bisect.bisect_right(odds, scores["best_f1_thresh"]))
        around = odds[answered - 1 : answered + 1]
        return replace(self, null_score_diff_threshold=float(np.mean(around)))

    def report(self, given: Answered) -> Report:
        answers, confidence = _texts(given.answers), given.answers["score"]
        questions, gold = (given.examples.columns[name] for name in ("question", "answers"))
        score = squad_2_scores if self.unanswerable else squad_1_scores
        each = [score({"q": g}, {"q": a}) for g, a in zip(gold, answers, strict=True)]
        exact = np.array([one.get("exact", one.get("exact_match", 0.0)) for one in each])
        f1 = np.array([one["f1"] for one in each])
        groups: dict[str, list[int]] = defaultdict(list)
        for index, question in enumerate(questions):
            for group in _groups(question, gold[index]):
                groups[group].append(index)
        ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
        rows = [[name, len(own), np.mean(exact[own]), np.mean(f1[own])] for name, own in ordered]
        columns = ["group", "examples", "exact match", "f1"]
        title = "Scores by question word and by right answer"
        report: Report = [ReportTable("groups", title, columns, rows, brief=True)]
        if self.unanswerable:
            truth, found = (np.array([not x for x in values], int) for values in (gold, answers))
            report += confusion(["answer", "no answer"], truth, found)
        shown: dict[str, Any] = {
            "question": questions,
            "right": [" / ".join(dict.fromkeys(right)) or "(no answer)" for right in gold],
            "answer": [text or "(no answer)" for text in answers],
            "f1": f1,
            "probability": confidence,
        }
        title, badness = "Wrong answers with the highest probability", confidence - f1 / 100
        errors = worst(title, given.examples.place, badness, exact < 100, shown)
        return [*report, *calibration(confidence, exact == 100), errors]

    def write_predictions(self, folder: Path, given: Answered) -> None:
        """Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
        files: dict[str, list[Any]] = {"predictions": _texts(given.answers)}
        files["nbest_predictions"] = _n_best(given.answers)
        if self.unanswerable:
            files["null_odds"] = given.answers["null_odds"].tolist()
        for name, values in files.items():
            content = dict(zip(given.examples.columns["id"], values, strict=True))
            write_json(folder / f"{name}.json", content, indent=4)

    def _packer(self, tokenizer: Any, max_length: int) -> QuestionPacker:
        return QuestionPacker(tokenizer, max_length, self.doc_stride, self.max_query_length)


def _texts(answers: Answers) -> list[str]:
    return [text.decode() for text in answers["answer"]]


def _n_best(answers: Answers) -> list[list[dict[str, Any]]]:
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


def _groups(question: str, right: Sequence[str]) -> tuple[str, str]:
    """A question's first known question word, and a simple type of its first right answer."""
    words = re.findall(r"\w+", question.lower())
    found = [*map(" ".join, itertools.pairwise(words)), *words]
    word, answer = next((known for known in _QUESTIONS if known in found), "other"), "other"
    if not right:
        answer = "none"
    elif re.search(r"\d", right[0]):
        answer = "with a number"
    elif right[0][:1].isupper():
        answer = "capitalized"
    return f"question: {word}", f"answer: {answer}"

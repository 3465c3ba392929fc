"""Answers that are spans of a context: SQuAD 1.1 and 2.0 (paper, sections 4.2 and 4.3)."""

import bisect
import itertools
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.atomic import write_json
from bert_tf.errors import InputError
from bert_tf.models.task_models import BertSpanClassifier
from bert_tf.serving.signatures import DEFAULT, TEXTS, Signature
from bert_tf.tasks.kinds.answer_ensemble import average_answers
from bert_tf.tasks.kinds.answer_spans import NO_CANDIDATE, best_answers
from bert_tf.tasks.kinds.kind import Answers, Kind, count_pieces
from bert_tf.tasks.options import SpanOptions
from bert_tf.tasks.reports.report import Report, ReportTable, calibration, confusion, worst
from bert_tf.tasks.scoring.squad_scores import squad_1_scores, squad_2_scores
from bert_tf.tasks.task import Task
from bert_tf.tokenization.question_windows import QuestionPacker, token_targets
from bert_tf.tokenization.word_windows import map_rows
from bert_tf.training.means import Values, accuracy, cross_entropy
from pipelines.examples.labelled_text import Examples
from pipelines.examples.squad import read_questions

_CHUNK = 64  # questions whose windows are made at once


def span_loss(targets: Any, logits: Any) -> Any:
    """Cross-entropies [B, 2] of starts and ends [B, 2] for logits [B, T, 2]."""
    return cross_entropy(targets, tf.transpose(logits, [0, 2, 1]))


def span_accuracy(targets: Any, logits: Any) -> Any:
    """1.0 for each right start and end, [B, 2]."""
    return accuracy(targets, tf.transpose(logits, [0, 2, 1]))


@dataclass(frozen=True)
class Span(Kind):
    """A span of the context for each question.

    The answers are those of `answer_spans.best_answers`, and `truncated`, int32 [B],
    the number of word pieces that the question lost; the context loses none. The settings have the
    names of the original's options.

    Attributes:
        unanswerable: whether a question may have no answer.
        doc_stride: pieces between the beginnings of two windows over a context.
        max_query_length: maximum pieces of a question.
        max_answer_length: maximum pieces of an answer.
        null_score_diff_threshold: largest null odds of a question that gets an answer; tuned on
            the validation examples.
    """

    unanswerable: bool = False
    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0

    options = SpanOptions
    model_class = BertSpanClassifier
    scores_are_percentages = True
    loss_function = staticmethod(span_loss)
    metrics: ClassVar[Mapping[str, Values]] = {"accuracy": span_accuracy}

    def settings(self) -> dict[str, Any]:
        """All attributes but `unanswerable`, which the dataset says."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def signatures(self, task: Task) -> dict[str, Signature]:
        """Question and context."""
        return {DEFAULT: Signature({"question": TEXTS, "context": TEXTS}, self.respond)}

    def read(self, task: Task, path: str | Path, *, labelled: bool = True) -> Examples:
        """Reads questions: see `read_questions`."""
        return read_questions(path, labelled=labelled, unanswerable=self.unanswerable)

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Whether each question has an answer, int32 [E]; training needs windows."""
        return np.array([bool(texts) for texts in examples.columns["answers"]], np.int32)

    def split_keys(self, task: Task, examples: Examples) -> tuple[str, Sequence[Hashable]]:
        """All questions of a context stay together."""
        return "context", examples.columns["context"]

    def training_rows(
        self, task: Task, examples: Examples, labels: Sequence[str], tokenizer: Any
    ) -> tuple[Mapping[str, Sequence[Any]], np.ndarray]:
        """A row for each window: its start and end token, or [CLS] without the whole answer.

        Questions whose answer is not in the context are skipped.
        """
        pack = self._packer(tokenizer, task.max_length)
        kept = [row for row in zip(*(examples.columns[name] for name in
                ("question", "context", "span")), strict=True) if row[2] is not None]  # fmt: skip
        if not kept:
            raise InputError(f"{examples.path}: no answer is in its context; check answer_start")
        rows, numbers, targets = [], [], []
        for first in range(0, len(kept), _CHUNK):
            chunk = kept[first : first + _CHUNK]
            questions, contexts, spans = zip(*chunk, strict=True)
            windows = pack(tf.constant(questions), tf.constant(contexts))
            places = [
                [len(context[:place].encode()) for place in span or [0, 0]]
                for context, span in zip(contexts, spans, strict=True)
            ]
            targets.append(token_targets(windows, tf.constant(places, tf.int64)).numpy())
            numbers.append(windows.number.numpy())
            rows += [chunk[question] for question in windows.question.numpy()]
        columns: dict[str, Any] = {
            "question": [row[0] for row in rows],
            "context": [row[1] for row in rows],
            "window": np.concatenate(numbers),
        }
        return columns, np.concatenate(targets)

    def model_inputs(self, strings: dict[str, tf.Tensor], tokenizer: Any, max_length: int) -> Any:
        """Model inputs for one window of each context, [B, T]."""
        pack = self._packer(tokenizer, max_length)
        return pack(strings["question"], strings["context"], strings["window"]).inputs

    def cut(
        self, columns: Mapping[str, Sequence[Any]], tokenizer: Any, max_length: int
    ) -> tuple[int, str]:
        """Questions are cut; contexts are read in windows."""
        longest = self._packer(tokenizer, max_length).max_question
        pieces = count_pieces(columns["question"], tokenizer)
        number = int(np.sum(pieces > longest))
        return number, (
            f"cut at {longest} word pieces: {number} of {len(pieces)} questions; contexts are read "
            "in windows"
        )

    def respond(
        self, strings: dict[str, tf.Tensor], model: Any, tokenizer: Any, labels: Sequence[str],
        max_length: int,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """The best answers from all windows over each context."""
        windows = self._packer(tokenizer, max_length)(strings["question"], strings["context"])
        logits = map_rows(lambda part: model(part, training=False), windows.inputs)
        answers = best_answers(
            logits,
            windows,
            strings["context"],
            longest=self.max_answer_length,
            unanswerable=self.unanswerable,
            threshold=self.null_score_diff_threshold,
        )
        return {**answers, "truncated": windows.truncated}

    def token_answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """Logits of the start and the end, float32 [B, T]."""
        start, end = tf.unstack(outputs, axis=-1)
        return {"start_logits": start, "end_logits": end}

    def in_ensemble(self, kinds: Sequence[Kind]) -> "Span":
        """The mean of the models' thresholds."""
        thresholds = [kind.settings()["null_score_diff_threshold"] for kind in kinds]
        return replace(self, null_score_diff_threshold=float(np.mean(thresholds)))

    def averaged(
        self, examples: Examples, answers: Sequence[Answers], labels: Sequence[Sequence[str]]
    ) -> Answers:
        """The answers with the best mean probability; see `bert_tf.tasks.kinds.answer_ensemble`."""
        return average_answers(
            answers, unanswerable=self.unanswerable, threshold=self.null_score_diff_threshold
        )

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        """The official names; a model of SQuAD 2.0 is chosen by F1 at the best threshold."""
        return ["best_f1", "best_exact", "f1", "exact"] if self.unanswerable else [
            "f1", "exact_match"]  # fmt: skip

    def scores(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> dict[str, float | None]:
        """The official scores, in percent."""
        return dict(self._scores(examples, answers))

    def _scores(self, examples: Examples, answers: Answers) -> dict[str, float]:
        ids = examples.columns["id"]
        gold = dict(zip(ids, examples.columns["answers"], strict=True))
        given = dict(zip(ids, (text.decode() for text in answers["answer"]), strict=True))
        if not self.unanswerable:
            return squad_1_scores(gold, given)
        odds = dict(zip(ids, answers["null_odds"].tolist(), strict=True))
        best = dict(zip(ids, map(_best_text, _n_best(answers)), strict=True))
        # The official script is run twice: on predictions.json, and for the best thresholds on the
        # texts that it would hold if every question were answered.
        return {**squad_2_scores(gold, best, odds), **squad_2_scores(gold, given)}

    def tuned(self, examples: Examples, answers: Answers) -> "Span":
        """The threshold with the best F1.

        It is half-way between two odds, so that rounding flips no answer, and below all of them if
        it is best to answer nothing.
        """
        odds = sorted(x for x in answers["null_odds"].tolist() if x < NO_CANDIDATE)
        if not self.unanswerable or not odds:
            return self
        scores = self._scores(examples, answers)
        if scores["best_f1"] == 100.0 * scores.get("NoAns_total", 0.0) / scores["total"]:
            return replace(self, null_score_diff_threshold=odds[0] - 1.0)  # nothing answered
        answered = max(1, bisect.bisect_right(odds, scores["best_f1_thresh"]))
        around = odds[answered - 1 : answered + 1]
        return replace(self, null_score_diff_threshold=float(np.mean(around)))

    def report(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Report:
        """Scores by question word and by answer; calibration; worst errors."""
        given = [text.decode() for text in answers["answer"]]
        gold = examples.columns["answers"]
        score = squad_2_scores if self.unanswerable else squad_1_scores
        each = [score({"q": g}, {"q": a}) for g, a in zip(gold, given, strict=True)]
        exact = np.array([one.get("exact", one.get("exact_match", 0.0)) for one in each])
        f1 = np.array([one["f1"] for one in each])
        confidence = answers["score"]
        groups: dict[str, list[int]] = {}
        for index, question in enumerate(examples.columns["question"]):
            for group in (_question_group(question), _answer_group(gold[index])):
                groups.setdefault(group, []).append(index)
        rows = [
            [name, len(members), np.mean(exact[members]), np.mean(f1[members])]
            for name, members in sorted(
                groups.items(), key=lambda item: (item[0][0], -len(item[1]))
            )
        ]
        tables: Report = [
            ReportTable(
                "groups",
                "Scores by question word and by right answer",
                ["group", "examples", "exact match", "f1"],
                rows,
                brief=True,
            )
        ]
        if self.unanswerable:
            names = ["answer", "no answer"]
            truth = np.array([not right for right in gold], int)
            tables += confusion(names, truth, np.array([not text for text in given], int))
        shown: dict[str, Any] = {
            "question": examples.columns["question"],
            "right": [" / ".join(dict.fromkeys(right)) or "(no answer)" for right in gold],
            "answer": [text or "(no answer)" for text in given],
            "f1": f1,
            "probability": confidence,
        }
        badness = confidence - f1 / 100
        return [
            *tables,
            *calibration(confidence, exact == 100),
            worst("Wrong answers with the highest probability", examples.place, badness,
                  exact < 100, shown),
        ]  # fmt: skip

    def write_predictions(
        self, folder: Path, task: Task, examples: Examples, answers: Answers,
        labels: Sequence[str],
    ) -> None:  # fmt: skip
        """Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
        ids = examples.columns["id"]
        files: dict[str, list[Any]] = {
            "predictions": [text.decode() for text in answers["answer"]],
            "nbest_predictions": _n_best(answers),
        }
        if self.unanswerable:
            files["null_odds"] = answers["null_odds"].tolist()
        for name, values in files.items():
            content = dict(zip(ids, values, strict=True))
            write_json(folder / f"{name}.json", content, indent=4)

    def _packer(self, tokenizer: Any, max_length: int) -> QuestionPacker:
        return QuestionPacker(tokenizer, max_length, self.doc_stride, self.max_query_length)


_QUESTION_WORDS = ("who", "whom", "whose", "what", "which", "when", "where", "why", "how")
_SETTINGS = [field.name for field in fields(Span) if field.name != "unanswerable"]


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


def _question_group(question: str) -> str:
    words = re.findall(r"\w+", question.lower())
    known = ("how many", "how much", *_QUESTION_WORDS)
    pairs = [*(" ".join(pair) for pair in itertools.pairwise(words)), *words]
    return "question: " + next((word for word in known if word in pairs), "other")


def _answer_group(right: Sequence[str]) -> str:
    """A simple type of the answer, by its first right text."""
    if not right:
        return "answer: none"
    if re.search(r"\d", right[0]):
        return "answer: with a number"
    if right[0][:1].isupper():
        return "answer: capitalized"
    return "answer: other"


def _best_text(n_best: list[dict[str, Any]]) -> str:
    """The best text of a question, empty if there is none."""
    return next((each["text"] for each in n_best if each["text"]), "")

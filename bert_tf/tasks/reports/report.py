"""Reports of evaluations, by the kind of task: tables and pictures beside the scores."""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.classification import Classification, probabilities_in_order
from bert_tf.tasks.kinds.kind import Answered, Kind
from bert_tf.tasks.kinds.masked_language_model import MaskedLanguageModel, guessed_pieces
from bert_tf.tasks.kinds.multi_label import HALF, MultiLabel, predicted_labels
from bert_tf.tasks.kinds.regression import Regression
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding, pair_scores
from bert_tf.tasks.kinds.span import Span, best_texts
from bert_tf.tasks.kinds.tagging import Tagging, Tags, entity_scores, labels_of
from bert_tf.tasks.reports.pictures import scatter
from bert_tf.tasks.reports.tables import (
    Picture,
    Report,
    ReportTable,
    calibration,
    classes_report,
    confusion,
    per_class,
    worst,
)
from bert_tf.tasks.scoring import conlleval
from bert_tf.tasks.scoring.squad_scores import squad_1_scores, squad_2_scores

_RANGES = 5  # of the true numbers
_SMALLEST = np.finfo(np.float32).eps  # of a probability with a finite logarithm
_QUESTIONS = ("who", "whom", "whose", "what", "which", "when", "where", "why", "how")


@functools.singledispatch
def report(kind: Kind, answered: Answered) -> Report:
    """Tables and pictures of answers to labelled examples; none for a kind of a user's own."""
    return []


@report.register
def _classes(kind: Classification, answered: Answered) -> Report:
    labels = answered.task.ordered(answered.labels)
    truth = kind.targets(answered.examples, labels)
    return classes_report(
        answered.examples, labels, truth, probabilities_in_order(answered.answers, labels)
    )


@report.register
def _choices(kind: Choice, answered: Answered) -> Report:
    probabilities = answered.answers["probabilities"]
    numbers = [str(number) for number in range(probabilities.shape[-1])]
    truth = kind.targets(answered.examples, answered.labels)
    return classes_report(answered.examples, numbers, truth, probabilities)


@report.register
def _label_sets(kind: MultiLabel, answered: Answered) -> Report:
    sets = kind.sets(answered)
    measured = ["precision", "recall", "f1", "average precision"]
    columns = ["label", *measured, "threshold", "examples", "predicted"]
    rows = []
    precisions = sets.average_precisions()
    for (label, counts), average in zip(sets.counts().items(), precisions, strict=True):
        threshold = kind.thresholds.get(label, HALF)
        rows.append([label, *counts.shares, average, threshold, counts.gold, counts.predicted])
    truth = sets.truth
    shares = np.maximum(sets.probabilities, _SMALLEST)
    loss = -np.log(np.where(truth, shares, np.maximum(1 - shares, _SMALLEST))).sum(axis=1)
    predicted = predicted_labels(kind, answered.answers)
    shown: dict[str, Any] = {**answered.examples.columns, "predicted": predicted, "loss": loss}
    wrong = (truth != sets.predicted).any(axis=1)
    table = ReportTable("classes", "Scores of each label", columns, rows, brief=True)
    errors = worst("Errors with the highest loss", answered.examples.location, loss, wrong, shown)
    return [table, *calibration(sets.probabilities.ravel(), truth.ravel()), errors]


@report.register
def _numbers(kind: Regression, answered: Answered) -> Report:
    truth, predicted = kind.compared(answered)
    errors = predicted - truth
    edges = np.linspace(truth.min(), truth.max(), _RANGES + 1)
    number = np.clip(np.searchsorted(edges, truth, "right") - 1, 0, _RANGES - 1)
    rows = []
    for index in range(_RANGES):
        inside = errors[number == index]
        mean, size = (np.mean(x) if len(x) else None for x in (inside, abs(inside)))
        rows.append([f"{edges[index]:.2f} to {edges[index + 1]:.2f}", len(inside), mean, size])
    title = "Predicted and true numbers"
    texts = {role: x for role, x in answered.examples.columns.items() if role != "label"}
    shown = {**texts, "label": truth, "predicted": predicted, "error": errors}
    columns = ["true", "examples", "mean error", "mean absolute error"]
    note = f"mean absolute error {abs(errors).mean():.4f}"
    by_range = "Errors by range of the true number"
    return [
        ReportTable("errors", by_range, columns, rows, note, brief=True),
        Picture("scatter", lambda: scatter(title, truth, predicted, "true", "predicted")),
        worst("Largest errors", answered.examples.location, abs(errors), errors != 0, shown),
    ]


@report.register
def _entities(kind: Tagging, answered: Answered) -> Report:
    by_type = entity_scores(answered).by_type.items()
    rows = [
        [name, *conlleval.defined(counts), counts.gold, counts.predicted]
        for name, counts in by_type
    ]
    columns = ["type", "precision", "recall", "f1", "examples", "predicted"]
    title = "Scores of entities, as conlleval computes them"
    table = ReportTable("types", title, columns, rows, brief=True)
    return [table, *_words(kind, answered, lambda label: label.partition("-")[2] or "O")]


@report.register
def _tags(kind: Tags, answered: Answered) -> Report:
    return [per_class(answered.labels, *kind.compared(answered)), *_words(kind, answered, str)]


def _words(kind: Tagging, answered: Answered, class_of: Callable[[str], str]) -> Report:
    """Confusion of the classes of labels, calibration and errors of words."""
    sentences = list(kind.sentences(answered))
    gold, predicted = labels_of(sentences)
    scores = np.array([score for sentence in sentences for score in sentence.scores])
    words = [(sentence, index) for sentence in sentences for index in range(len(sentence.words))]
    classes = sorted({*map(class_of, answered.labels), *map(class_of, gold.tolist())})
    numbers = [np.array([classes.index(class_of(x)) for x in side]) for side in (gold, predicted)]
    shown: dict[str, Any] = {"words": [_in_context(x.words, index) for x, index in words]}
    shown |= {"label": gold, "predicted": predicted, "probability": scores}
    locations = [answered.examples.location(sentence.example) for sentence, _ in words]
    title = "Wrong labels of words with the highest probability"
    errors = worst(title, locations.__getitem__, scores, predicted != gold, shown)
    return [*confusion(classes, *numbers), *calibration(scores, predicted == gold), errors]


def _in_context(words: list[str], index: int) -> str:
    """A word in brackets, with five words on both sides."""
    before = words[max(0, index - 5) : index]
    after = words[index + 1 : index + 6]
    return " ".join([*before, f"[{words[index]}]", *after])


@report.register
def _masked_words(kind: MaskedLanguageModel, answered: Answered) -> Report:
    row, column = np.nonzero(guessed_pieces(answered.answers)[0])
    names = ("pieces_text", "pieces_guess", "pieces_log_probability")
    piece, guess, probability = (answered.answers[name][row, column] for name in names)
    shown: dict[str, Sequence[Any]] = {
        "text": [answered.examples.columns["sentence"][index] for index in row],
        "piece": [text.decode() for text in piece],
        "guess": [text.decode() for text in guess],
        "log probability": probability.tolist(),
    }
    title = "Wrong guesses for the pieces with the lowest probability"
    locations = [answered.examples.location(index) for index in row.tolist()]
    return [worst(title, locations.__getitem__, -probability, piece != guess, shown)]


@report.register
def _questions(kind: Span, answered: Answered) -> Report:
    answers = best_texts(answered.answers)
    confidence = answered.answers["score"]
    questions, gold = (answered.examples.columns[name] for name in ("question", "answers"))
    score = squad_2_scores if kind.unanswerable else squad_1_scores
    scores = [score({"q": g}, {"q": a}) for g, a in zip(gold, answers, strict=True)]
    exact = np.array([x["exact" if kind.unanswerable else "exact_match"] for x in scores])
    f1 = np.array([x["f1"] for x in scores])
    groups: dict[str, list[int]] = defaultdict(list)
    for index, question in enumerate(questions):
        for group in _groups(question, gold[index]):
            groups[group].append(index)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1])))
    rows = [
        [name, len(group), np.mean(exact[group]), np.mean(f1[group])] for name, group in ordered
    ]
    columns = ["group", "examples", "exact match", "f1"]
    title = "Scores by question word and by right answer"
    parts: Report = [ReportTable("groups", title, columns, rows, brief=True)]
    if kind.unanswerable:
        truth, predicted = (np.array([not x for x in side], int) for side in (gold, answers))
        parts += confusion(["answer", "no answer"], truth, predicted)
    shown: dict[str, Any] = {
        "question": questions,
        "right": [" / ".join(dict.fromkeys(right)) or "(no answer)" for right in gold],
        "answer": [text or "(no answer)" for text in answers],
        "f1": f1,
        "probability": confidence,
    }
    title = "Wrong answers with the highest probability"
    badness = confidence - f1 / 100
    errors = worst(title, answered.examples.location, badness, exact < 100, shown)
    return [*parts, *calibration(confidence, exact == 100), errors]


def _groups(question: str, right: Sequence[str]) -> tuple[str, str]:
    """A question's first known question word, and a simple type of its first right answer."""
    words = re.findall(r"\w+", question.lower())
    quantity = re.search(r"\bhow (many|much)\b", " ".join(words))
    known = [word for word in _QUESTIONS if word in words]
    word = quantity[0] if quantity else next(iter(known), "other")
    answer = "other"
    if not right:
        answer = "none"
    elif re.search(r"\d", right[0]):
        answer = "with a number"
    elif right[0][:1].isupper():
        answer = "capitalized"
    return f"question: {word}", f"answer: {answer}"


@report.register
def _pairs(kind: SentenceEmbedding, answered: Answered) -> Report:
    score = answered.answers["score"]
    shown: dict[str, Any] = {**answered.examples.columns, "cosine": score}
    if not kind.is_scored:
        title = "Pairs with the lowest cosine"
        badness = -score
        wrong = np.ones(len(score), bool)
    else:
        truth = pair_scores(answered.examples)
        ranks = [np.argsort(np.argsort(x)) / max(1, len(x) - 1) for x in (truth, score)]
        shown["difference"] = badness = abs(ranks[1] - ranks[0])
        title = "Pairs whose rank by cosine is furthest from that by score"
        wrong = badness > 0
    return [worst(title, answered.examples.location, badness, wrong, shown)]

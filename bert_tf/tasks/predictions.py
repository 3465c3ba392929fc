"""Files of predictions: a table for most kinds, the official files of others, GLUE's tables."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json, write_text, write_tsv
from bert_tf.pipelines.examples.reading import is_dataset_name
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.classification import Classification, probabilities_in_order
from bert_tf.tasks.kinds.kind import Answered, Kind, RowKind
from bert_tf.tasks.kinds.masked_language_model import MaskedLanguageModel, guessed_pieces
from bert_tf.tasks.kinds.multi_label import MultiLabel, predicted_labels
from bert_tf.tasks.kinds.regression import Regression
from bert_tf.tasks.kinds.sentence_embedding import Embedding
from bert_tf.tasks.kinds.span import Span, best_texts, n_best
from bert_tf.tasks.kinds.tagging import Tagging, entity_scores
from bert_tf.tasks.task import Task

Columns = Sequence[tuple[str, Iterable[object]]]  # of a file: name and values of each


@functools.singledispatch
def predicted(kind: Kind, answered: Answered) -> Columns:
    """Columns of predictions.tsv after texts and labels: the answers of one value per example.

    The first is called "predicted".
    """
    single = [name for name, values in answered.answers.items() if values.ndim == 1]
    names = [name for name in single if name != "truncated"]
    if not names:
        raise InputError(
            f"the answers of {answered.task.name} have no value per example to write: leave "
            "--submission out, or register bert_tf.tasks.predictions.predicted for the kind"
        )
    columns = [(name, _cells(answered.answers[name])) for name in names]
    return [("predicted", values) for _, values in columns[:1]] + columns[1:]


def _cells(values: np.ndarray) -> Iterable[object]:
    if values.dtype.kind == "f":
        return map("{:.6f}".format, values)
    return [value.decode() if isinstance(value, bytes) else value for value in values.tolist()]


@predicted.register
def _classes(kind: Classification, answered: Answered) -> Columns:
    """The predicted label, and the probability of each label."""
    return [("predicted", _cells(answered.answers["label"])), *_shares(answered)]


@predicted.register
def _label_sets(kind: MultiLabel, answered: Answered) -> Columns:
    return [("predicted", predicted_labels(kind, answered.answers)), *_shares(answered)]


def _shares(answered: Answered) -> Columns:
    """A column with the probabilities of each label; a SavedModel tells no order of labels."""
    labels = answered.labels or sorted(label.decode() for label in answered.answers["labels"][0])
    shares = zip(labels, probabilities_in_order(answered.answers, labels).T, strict=True)
    return [(label, _cells(column)) for label, column in shares]


@predicted.register
def _choices(kind: Choice, answered: Answered) -> Columns:
    columns = answered.examples.columns
    shares = enumerate(answered.answers["probabilities"].T)
    texts = [(f"choices{i}", x) for i, x in enumerate(zip(*columns["choices"], strict=True))]
    probabilities = [(f"probability{i}", _cells(column)) for i, column in shares]
    choice = ("predicted", answered.answers["choice"].tolist())
    return [("context", columns["context"]), *texts, choice, *probabilities]


@predicted.register
def _masked_words(kind: MaskedLanguageModel, answered: Answered) -> Columns:
    """Each text's number of pieces, right guesses and log-likelihood."""
    is_piece, right = guessed_pieces(answered.answers)
    logs = answered.answers["pieces_log_probability"]
    total = np.where(is_piece, logs, 0).sum(-1, dtype=np.float64)
    return [
        ("text", answered.examples.columns["sentence"]),
        ("pieces", answered.answers["pieces_count"]),
        ("right", right.sum(-1)),
        ("pseudo_log_likelihood", _cells(total)),
    ]


@functools.singledispatch
def submitted(kind: Kind, answered: Answered) -> Iterable[object] | None:
    """The predictions [E] of an official file in GLUE's format; None for a kind without."""
    return None


@submitted.register
def _rows(kind: RowKind, answered: Answered) -> Iterable[object]:
    return dict(predicted(kind, answered))["predicted"]


@submitted.register
def _numbers(kind: Regression, answered: Answered) -> Iterable[object]:
    scores = np.clip(answered.answers["score"], kind.lowest, kind.highest)
    return [f"{score:.3f}" for score in scores]


@functools.singledispatch
def write_predictions(kind: Kind, folder: Path, answered: Answered) -> None:
    """Writes predictions.tsv: texts and known labels, then the predictions.

    A name that is taken gets a number.
    """
    columns: dict[str, Iterable[object]] = {}
    known = []
    for role, column in answered.task.columns().items():
        if role in answered.examples.columns:
            by_role = role == "label" or (column.isdecimal() and not answered.task.header)
            known.append((role if by_role else column, answered.examples.columns[role]))
    for name, values in [*known, *predicted(kind, answered)]:
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        columns[next(free for free in names if free not in columns)] = values
    rows = itertools.chain([list(columns)], zip(*columns.values(), strict=True))
    write_tsv(folder / "predictions.tsv", rows)


@write_predictions.register
def _questions(kind: Span, folder: Path, answered: Answered) -> None:
    """Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
    files: dict[str, list[Any]] = {"predictions": best_texts(answered.answers)}
    files["nbest_predictions"] = n_best(answered.answers)
    if kind.unanswerable:
        files["null_odds"] = answered.answers["null_odds"].tolist()
    for name, values in files.items():
        content = dict(zip(answered.examples.columns["id"], values, strict=True))
        write_json(folder / f"{name}.json", content, indent=4)


@write_predictions.register
def _words(kind: Tagging, folder: Path, answered: Answered) -> None:
    """Writes predictions.conll: word, label and predicted label; for labels conlleval.txt."""
    lines = []
    for _, words, gold, guessed, _ in kind.sentences(answered):
        columns = [words, guessed] if gold is None else [words, gold, guessed]
        lines += [" ".join(row) for row in zip(*columns, strict=True)] + [""]
    write_text(folder / "predictions.conll", "\n".join(lines) + "\n")
    if kind.are_entities and "label" in answered.examples.columns:
        write_text(folder / "conlleval.txt", entity_scores(answered).report())


@write_predictions.register
def _vectors(kind: Embedding, folder: Path, answered: Answered) -> None:
    raise InputError("vectors have no official file: leave --submission out")


def check_submission(task: Task, split: str, examples: Examples, labels: Sequence[str]) -> None:
    """Refuses, before the work, missing rows and labels that an official file cannot have."""
    if split not in task.submissions:
        return
    if is_dataset_name(examples.path) and examples.lines != list(range(len(examples))):
        lost = set(range(len(examples))) - set(examples.lines)
        raise InputError(
            f"{examples.path} lacks row {min(lost)}, and {task.submissions[split]} needs every "
            "row: give the folder of the published files"
        )
    if task.labels and set(labels) - set(task.labels):
        raise InputError(
            f"the model's labels are {', '.join(labels)}, those of {task.name} are "
            f"{', '.join(task.labels)}: match them with --label_map"
        )


def write_submission(folder: Path, split: str, answered: Answered) -> None:
    """Writes GLUE's table of predictions for a split that has one, or else the kind's files."""
    task = answered.task
    values = submitted(task.kind, answered) if split in task.submissions else None
    if values is None:
        write_predictions(task.kind, folder, answered)
        return
    texts = [str(value) for value in values]
    check_submission(task, split, answered.examples, sorted(set(texts) if task.labels else ()))
    write_tsv(folder / task.submissions[split], [("index", "prediction"), *enumerate(texts)])

"""Classification of texts, or of pairs of texts (paper, section 4.1)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.task_models import BertClassifier
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.balance import list_separator
from bert_tf.tasks.kinds.kind import Answered, Answers, Columns
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.reports.report import Report, classes_report
from bert_tf.tasks.signatures import CLASSIFY, DEFAULT, Signature, Tensors, of_examples
from bert_tf.tasks.task import Task

_AT_ONCE = 1 << 20  # probabilities put in order
_SMALLEST = np.finfo(np.float32).tiny  # a probability with a finite logarithm


def with_classify(own: dict[str, Signature]) -> dict[str, Signature]:
    outputs = {"classes": "labels", "scores": "probabilities"}
    return {**own, "classify": of_examples(own[DEFAULT], CLASSIFY, outputs)}


@dataclass(frozen=True)
class Classification(LongTextKind):
    """One label for each example."""

    model_class = BertClassifier
    has_probabilities = True

    def signatures(self, task: Task) -> dict[str, Signature]:
        return with_classify(super().signatures(task))

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        labels = list(task.labels) or sorted(set(examples.columns["label"]))
        if len(labels) < 2:
            raise InputError(
                f"{examples.path} has one label only, {labels[0]!r}: give examples of two or more"
            )
        return labels

    def doubts(self, examples: Examples) -> list[str]:
        labels = set(examples.columns["label"])
        fractions = sorted(label for label in labels if "." in label)
        found = super().doubts(examples)
        if fractions and all(re.fullmatch(r"-?\d+(\.\d+)?", label) for label in labels):
            found.append(
                f"{examples.path}: labels such as {fractions[0]} are numbers with decimals; for "
                "regression give --task regression"
            )
        from bert_tf.pipelines.examples.data_faults import spelt_twice  # with SciPy

        for label, usual in spelt_twice(examples.columns["label"]).items():
            found.append(
                f"{examples.path}: the label {label!r} is a class beside {usual!r}; to spell both "
                "in one way run bert-tf check --clean"
            )
        if bare := examples.columns["label"].count("-"):
            found.append(
                f"{examples.path}: the label '-' of {bare} examples is a class; in SNLI and MNLI "
                "it marks those without an agreed label: remove them"
            )
        if lists := list_separator(labels):
            separator, label = lists
            found.append(
                f"{examples.path}: labels such as {label!r} contain {separator!r}: did you mean "
                f'--task multi_label --label_separator "{separator}"?'
            )
        return found

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Class ids, int32 [E]."""
        number_of = {label: number for number, label in enumerate(labels)}
        numbers = [number_of.get(label) for label in examples.columns["label"]]
        if None in numbers:
            index = numbers.index(None)
            raise InputError(
                f"{examples.place(index)}: the label {examples.columns['label'][index]!r} is not "
                f"one of the model's ({', '.join(labels)}); correct or remove the line"
            )
        return np.array(numbers, np.int32)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = keras.ops.softmax(outputs, axis=-1)
        ordered, classes = tf.math.top_k(probabilities, k=len(labels))  # (B, C) both
        names = tf.gather(tf.constant(list(labels)), classes)
        best = {"label": names[:, 0], "probability": ordered[:, 0]}
        return {**best, "labels": names, "probabilities": ordered}

    def pair_scores(self, outputs: Any) -> tf.Tensor:
        """The probability of the last label."""
        return tf.nn.softmax(tf.cast(outputs, tf.float32))[:, -1]

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        return np.log(np.maximum(in_order(answers, labels), _SMALLEST))

    def compared(self, given: Answered) -> tuple[np.ndarray, np.ndarray]:
        labels = _labels(given.task, given.labels)
        number_of = {label.encode(): number for number, label in enumerate(labels)}
        predicted = np.array([number_of[label] for label in given.answers["label"]], np.int32)
        return self.targets(given.examples, labels), predicted

    def score_remarks(self, task: Task, labels: Sequence[str]) -> list[str]:
        if "f1" not in task.score_names(labels):
            return []
        return [f"f1 is the F1 score of the label {_labels(task, labels)[-1]!r}"]

    def report(self, given: Answered) -> Report:
        labels = _labels(given.task, given.labels)
        probabilities = np.exp(self.to_outputs(given.answers, labels))
        truth = self.targets(given.examples, labels)
        return classes_report(given.examples, labels, truth, probabilities)

    def predicted(self, given: Answered) -> Columns:
        """The predicted label, and the probability of each label (a SavedModel tells no order)."""
        predicted = [label.decode() for label in given.answers["label"]]
        return [("predicted", predicted), *share_columns(given)]


def share_columns(given: Answered) -> Columns:
    """A column with the probabilities of each label."""
    labels = given.labels or sorted(label.decode() for label in given.answers["labels"][0])
    shares = zip(labels, in_order(given.answers, labels).T, strict=True)
    return [(label, map("{:.6f}".format, column)) for label, column in shares]


def in_order(answers: Answers, labels: Sequence[str]) -> np.ndarray:
    """Probabilities, float32 [E, C], in the order of `labels`."""
    number_of = {label.encode(): number for number, label in enumerate(labels)}
    found = np.empty_like(answers["probabilities"])
    step = max(1, _AT_ONCE // len(labels))
    for rows in (slice(first, first + step) for first in range(0, len(found), step)):
        names = answers["labels"][rows]
        numbers = np.fromiter(map(number_of.__getitem__, names.flat), np.int64, names.size)
        chosen = numbers.reshape(names.shape)
        np.put_along_axis(found[rows], chosen, answers["probabilities"][rows], axis=1)
    return found


def _labels(task: Task, labels: Sequence[str]) -> Sequence[str]:
    """A model's labels in the task's order, if it names them; the model may have another."""
    return task.labels if sorted(task.labels) == sorted(labels) else labels

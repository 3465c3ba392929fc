"""Several labels for a text or a pair of texts: each label is decided on its own."""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import LABELS
from bert_tf.pipelines.examples.table import Examples, Table
from bert_tf.tasks.kinds.classification import in_order, with_classify
from bert_tf.tasks.kinds.kind import Answered, Answers
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.kinds.rows import padded_lists
from bert_tf.tasks.scoring.metrics import LabelSets, best_thresholds, logits_of
from bert_tf.tasks.signatures import Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import MultiLabelOptions

_ITEM = r"""\s*('([^'\\]|\\.)*'|"([^"\\]|\\.)*"|-?\d+(\.\d+)?)\s*"""
_LIST = re.compile(rf"\s*\[({_ITEM}(,{_ITEM})*)?\s*\]\s*")
_BRACKETS = re.compile(r"""\s*\[\s*(['"\d-].*)?\]\s*""", re.DOTALL)
HALF = 0.5  # threshold of a label without one of its own


@dataclass(frozen=True)
class MultiLabel(LongTextKind):
    """Any number of labels for each example.

    In examples they are one string, the labels in alphabetical order with the separator between.
    """

    label_separator: str = ","
    # Label -> the smallest probability with which a text gets it; tuned on validation examples.
    thresholds: Mapping[str, float] = field(default_factory=dict)

    options = MultiLabelOptions
    tuned_settings: ClassVar[Mapping[str, str]] = {"thresholds": "f1_micro"}
    model_class = "BertMultiLabelClassifier"
    losses = LABELS

    def signatures(self, task: Task) -> dict[str, Signature]:
        return with_classify(super().signatures(task))

    def read(self, table: Table, columns: Mapping[str, str]) -> Examples:
        """Reads labels from one column, or a column of 0 and 1 for each; a JSON list is taken."""
        texts = {role: name for role, name in columns.items() if role != "label"}
        examples = table.examples(texts)
        if "label" not in columns:
            return examples
        names = label_columns(columns["label"])
        roles = [f"--label_column {name}" for name in names] if len(names) > 1 else ["labels"]
        cells_of = [table.column(role, name) for role, name in zip(roles, names, strict=True)]
        joined, lists = [], []
        for index, row in enumerate(zip(*cells_of, strict=True)):
            location = examples.location(index)
            cells: list[Any] = [
                [table.text(index, "label", name, x) for x in cell]
                if isinstance(cell, list)
                else table.text(index, "label", name, cell)
                for name, cell in zip(names, row, strict=True)
            ]
            if len(names) > 1:
                labels = _marked(names, cells, location)
            else:
                labels = listed(cells[0], location)
                lists.append(labels if isinstance(labels, list) else [])
            joined.append(self.joined(labels, location))
        if lists and all(len(x) == len(lists[0]) > 1 and {*x} <= {"0", "1"} for x in lists):
            raise InputError(
                f"{examples.location(0)}: the labels are {len(lists[0])} marks of 0 and 1 without "
                "names; write the names of the labels, or a column for each (--label_column a,b)"
            )
        examples.columns["label"] = joined
        return examples

    def joined(self, labels: str | Collection[str], location: str) -> str:
        """An example's labels, a string as in a file or their names, as one string."""
        if isinstance(labels, str):
            return self.label_separator.join(sorted(set(self.parts(labels))))
        names = {label.strip() for label in labels}
        if odd := [name for name in sorted(names) if not name or self.label_separator in name]:
            raise InputError(
                f"{location}: the label {odd[0]!r} is empty or has the separator "
                f"{self.label_separator!r} in it: rename it, or give another --label_separator"
            )
        return self.label_separator.join(sorted(names))

    def parts(self, text: str) -> list[str]:
        return [part.strip() for part in text.split(self.label_separator) if part.strip()]

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        labels = {label for text in examples.columns["label"] for label in self.parts(text)}
        if not labels:
            raise InputError(f"{examples.path}: no example has a label; give some that have")
        return list(task.labels) or sorted(labels)

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """1 for each label of each example, else 0: float32 [E, C]."""
        number_of = {label: number for number, label in enumerate(labels)}
        targets = np.zeros((len(examples), len(labels)), np.float32)
        for index, text in enumerate(examples.columns["label"]):
            for label in self.parts(text):
                if label not in number_of:
                    raise InputError(
                        f"{examples.location(index)}: the label {label!r} is not one of the "
                        f"model's ({', '.join(labels)}); correct or remove it, or, if it is "
                        f"several, give their --label_separator (now {self.label_separator!r})"
                    )
                targets[index, number_of[label]] = 1
        return targets

    def renamed(self, names: Mapping[str, str]) -> "MultiLabel":
        limits = {names.get(label, label): limit for label, limit in self.thresholds.items()}
        return replace(self, thresholds=limits)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = tf.sigmoid(tf.cast(outputs, tf.float32))  # (B, C)
        ordered, classes = tf.math.top_k(probabilities, k=len(labels))
        names = tf.gather(tf.constant(list(labels)), classes)
        limits = tf.constant([self.thresholds.get(label, HALF) for label in labels])
        is_chosen = ordered >= tf.gather(limits, classes)
        chosen = {"label": names, "probability": ordered}
        chosen = {name: tf.boolean_mask(values, is_chosen) for name, values in chosen.items()}
        count = tf.shape(ordered, tf.int64)[0]
        lists = padded_lists("predicted", chosen, tf.where(is_chosen)[:, 0], count)
        return {"labels": names, "probabilities": ordered, **lists}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """Logits of the probabilities, float32 [E, C], in the order of `labels`."""
        return logits_of(in_order(answers, labels))

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return [*super().score_names(task, labels), *(f"f1_{label}" for label in labels)]

    def scores(self, answered: Answered) -> dict[str, float | None]:
        scores = self.sets(answered).scores()
        return {name: scores[name] for name in self.score_names(answered.task, answered.labels)}

    def sets(self, answered: Answered) -> LabelSets:
        """The true and the predicted labels of each example."""
        truth = self.targets(answered.examples, answered.labels).astype(bool)
        predicted = np.zeros_like(truth)
        number_of = {label.encode(): number for number, label in enumerate(answered.labels)}
        for index, count in enumerate(answered.answers["predicted_count"]):
            chosen = answered.answers["predicted_label"][index][:count]
            predicted[index, [number_of[label] for label in chosen]] = True
        return LabelSets(
            answered.labels, truth, predicted, in_order(answered.answers, answered.labels)
        )

    def tuned(self, answered: Answered) -> "MultiLabel":
        sets = self.sets(answered)
        limits = best_thresholds(sets.truth, sets.probabilities)
        return replace(self, thresholds=dict(zip(answered.labels, limits, strict=True)))

    def compared(self, answered: Answered) -> tuple[np.ndarray, np.ndarray]:
        sets = self.sets(answered)
        return sets.truth, sets.predicted


def predicted_labels(kind: MultiLabel, answers: Answers) -> list[str]:
    """The predicted labels of each example, joined as in the column of labels."""
    rows = zip(answers["predicted_count"], answers["predicted_label"], strict=True)
    return [
        kind.label_separator.join(sorted(label.decode() for label in row[:count]))
        for count, row in rows
    ]


def label_columns(column: str) -> list[str]:
    """The column of labels, or the column of each label: their names, with commas between."""
    return [name.strip() for name in column.split(",") if name.strip()] or [column]


def listed(labels: Any, location: str) -> Any:
    """The items of a list in brackets, as data frames write it into a cell; else the labels."""
    if not isinstance(labels, str) or not _BRACKETS.fullmatch(labels):
        return labels
    if not _LIST.fullmatch(labels):
        raise InputError(
            f"{location}: the labels {labels[:40]!r} are a list in brackets that has no commas; "
            "write commas between the names"
        )
    return [str(item) for item in ast.literal_eval(labels.strip())]


def _marked(names: Sequence[str], cells: Sequence[str], location: str) -> list[str]:
    """The labels whose columns have a 1."""
    values = {"1": True, "0": False, "true": True, "false": False}
    labels = []
    for name, cell in zip(names, cells, strict=True):
        number = cell.strip().lower().removesuffix(".0")
        if number not in values:
            raise InputError(f"{location}: {name} is {cell!r}; give 1 if it has the label, else 0")
        labels += [name] * values[number]
    return labels

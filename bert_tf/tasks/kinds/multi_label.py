"""Several labels for a text or a pair of texts: each label is decided on its own."""

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.task_models import BertMultiLabelClassifier
from bert_tf.networks.tensorflow.losses import Values
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.balance import list_separator
from bert_tf.tasks.kinds.classification import in_order, share_columns, with_classify
from bert_tf.tasks.kinds.kind import Answered, Answers, Columns, Kind, padded_lists
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.reports.report import Report, ReportTable, calibration, worst
from bert_tf.tasks.scoring.metrics import LabelSets, best_thresholds, logits_of
from bert_tf.tasks.signatures import Signature, Tensors
from bert_tf.tasks.task import Layout, Task
from bert_tf.tasks.task_options import MultiLabelOptions
from bert_tf.training.distillation import soft_binary_cross_entropy

_ITEM = r"""\s*('([^'\\]|\\.)*'|"([^"\\]|\\.)*"|-?\d+(\.\d+)?)\s*"""
_LIST = re.compile(rf"\s*\[({_ITEM}(,{_ITEM})*)?\s*\]\s*")
_BRACKETS = re.compile(r"""\s*\[\s*(['"\d-].*)?\]\s*""", re.DOTALL)
_HALF = 0.5  # threshold of a label without one of its own
_SMALLEST = np.finfo(np.float32).eps  # of a probability with a finite logarithm


def binary_cross_entropy(labels: Any, outputs: Any) -> Any:
    """Cross-entropies, float32 [B, C], of labels 0 or 1 [B, C] for logits [B, C]."""
    outputs = tf.cast(outputs, tf.float32)
    return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), outputs)


def right_decisions(labels: Any, outputs: Any) -> Any:
    """1.0 where a label [B, C] is what a probability of 0.5 decides, else 0.0."""
    return tf.cast((tf.cast(labels, tf.float32) > _HALF) == (outputs > 0), tf.float32)


@dataclass(frozen=True)
class MultiLabel(LongTextKind):
    """Any number of labels for each example.

    In examples they are one string, the labels in alphabetical order with the separator between.
    """

    label_separator: str = ","
    # Label -> the smallest probability with which a text gets it; tuned on validation examples.
    thresholds: Mapping[str, float] = field(default_factory=dict)

    options = MultiLabelOptions
    tuned_settings = ("thresholds",)
    decided_score = "f1_micro"
    model_class = BertMultiLabelClassifier
    has_probabilities = True
    many_labels = True
    undefined = "without an example"
    loss_function = staticmethod(binary_cross_entropy)
    metrics: ClassVar[Mapping[str, Values]] = {"accuracy": right_decisions}

    def soft_loss(self, temperature: float) -> Values:
        return soft_binary_cross_entropy(temperature)

    def signatures(self, task: Task) -> dict[str, Signature]:
        return with_classify(super().signatures(task))

    def read(self, layout: Layout, path: str | Path) -> Examples:
        """Reads labels from one column, or a column of 0 and 1 for each; a JSON list is taken."""
        if not layout.labelled:
            return super().read(layout, path)
        texts = {role: name for role, name in layout.columns.items() if role != "label"}
        names = label_columns(layout.columns["label"])
        roles = [f"--label_column {name}" for name in names] if len(names) > 1 else ["labels"]
        examples = layout.read(path, {**texts, **dict(zip(roles, names, strict=True))})
        found = [examples.columns.pop(role) for role in roles]
        examples.columns["label"] = []
        lists = []
        for index, cells in enumerate(zip(*found, strict=True)):
            place = examples.place(index)
            own = _marked(names, cells, place) if len(names) > 1 else listed(cells[0], place)
            lists.append(own if len(names) == 1 and isinstance(own, list) else [])
            examples.columns["label"].append(self.joined(own, place))
        if all(len(x) == len(lists[0]) > 1 and {*x} <= {"0", "1"} for x in lists):
            raise InputError(
                f"{examples.place(0)}: the labels are {len(lists[0])} marks of 0 and 1 without "
                "names; write the names of the labels, or a column for each (--label_column a,b)"
            )
        return examples

    def joined(self, labels: str | Collection[str], place: str) -> str:
        """An example's labels, a string as in a file or their names, as one string."""
        if isinstance(labels, str):
            return self.label_separator.join(sorted(set(self.parts(labels))))
        names = {label.strip() for label in labels}
        if odd := [name for name in sorted(names) if not name or self.label_separator in name]:
            raise InputError(
                f"{place}: the label {odd[0]!r} is empty or has the separator "
                f"{self.label_separator!r} in it: rename it, or give another --label_separator"
            )
        return self.label_separator.join(sorted(names))

    def cells(self, column: str, text: str) -> dict[str, Any]:
        """An example's labels as `read` has them from such columns: column -> its cell."""
        names, own = label_columns(column), self.parts(text)
        return {column: text} if len(names) == 1 else {name: int(name in own) for name in names}

    def parts(self, text: str) -> list[str]:
        return [part.strip() for part in text.split(self.label_separator) if part.strip()]

    def doubts(self, examples: Examples) -> list[str]:
        found = super().doubts(examples)
        if bare := examples.columns["label"].count(""):
            found.append(f"{examples.path}: {bare:,} of {len(examples):,} examples have no label")
        labels = {part for text in examples.columns["label"] for part in self.parts(text)}
        if lists := list_separator(labels):
            separator, label = lists
            found.append(
                f"{examples.path}: labels such as {label!r} contain {separator!r}: did you mean "
                f'--label_separator "{separator}"?'
            )
        return found

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        found = {label for text in examples.columns["label"] for label in self.parts(text)}
        if not found:
            raise InputError(f"{examples.path}: no example has a label; give some that have")
        return list(task.labels) or sorted(found)

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """1 for each label of each example, else 0: float32 [E, C]."""
        number_of = {label: number for number, label in enumerate(labels)}
        targets = np.zeros((len(examples), len(labels)), np.float32)
        for index, text in enumerate(examples.columns["label"]):
            for label in self.parts(text):
                if label not in number_of:
                    raise InputError(
                        f"{examples.place(index)}: the label {label!r} is not one of the model's "
                        f"({', '.join(labels)}); correct or remove it, or, if it is several, give "
                        f"their --label_separator (now {self.label_separator!r})"
                    )
                targets[index, number_of[label]] = 1
        return targets

    def class_weights(self, targets: np.ndarray) -> np.ndarray:
        """Weights float32 [R, C]: of each label, the examples with it count as those without."""
        has = targets.astype(bool)
        share = has.mean(axis=0)
        weights = np.where(has, share, 1 - share)
        # A label that all examples have, or none, has nothing to balance.
        return (0.5 / np.where((share == 0) | (share == 1), 0.5, weights)).astype(np.float32)

    def renamed(self, names: Mapping[str, str]) -> "MultiLabel":
        own = {names.get(label, label): limit for label, limit in self.thresholds.items()}
        return replace(self, thresholds=own)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = tf.sigmoid(tf.cast(outputs, tf.float32))  # (B, C)
        ordered, classes = tf.math.top_k(probabilities, k=len(labels))
        names = tf.gather(tf.constant(list(labels)), classes)
        limits = tf.constant([self.thresholds.get(label, _HALF) for label in labels])
        is_chosen = ordered >= tf.gather(limits, classes)
        chosen = {"label": names, "probability": ordered}
        chosen = {name: tf.boolean_mask(values, is_chosen) for name, values in chosen.items()}
        count = tf.shape(ordered, tf.int64)[0]
        lists = padded_lists("predicted", chosen, tf.where(is_chosen)[:, 0], count)
        return {"labels": names, "probabilities": ordered, **lists}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """Logits of the probabilities, float32 [E, C], in the order of `labels`."""
        return logits_of(in_order(answers, labels))

    def in_ensemble(self, kinds: Sequence[Kind]) -> "MultiLabel":
        """The kind with thresholds whose logits are the means: `averaged` takes mean logits, too.

        So a label that all models give is given, and one that none gives is not.
        """
        every = [kind.thresholds for kind in kinds if isinstance(kind, MultiLabel)]
        if len(every) == 1:
            return self
        names = sorted({label for each in every for label in each})
        limits = np.array([[each.get(name, _HALF) for name in names] for each in every])
        means = 1 / (1 + np.exp(-logits_of(limits).mean(axis=0)))
        return replace(self, thresholds=dict(zip(names, means.tolist(), strict=True)))

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return [*super().score_names(task, labels), *(f"f1_{label}" for label in labels)]

    def scores(self, given: Answered) -> dict[str, float | None]:
        found = self._sets(given).scores()
        return {name: found[name] for name in self.score_names(given.task, given.labels)}

    def _sets(self, given: Answered) -> LabelSets:
        truth = self.targets(given.examples, given.labels).astype(bool)
        predicted = np.zeros_like(truth)
        number_of = {label.encode(): number for number, label in enumerate(given.labels)}
        for index, count in enumerate(given.answers["predicted_count"]):
            chosen = given.answers["predicted_label"][index][:count]
            predicted[index, [number_of[label] for label in chosen]] = True
        return LabelSets(given.labels, truth, predicted, in_order(given.answers, given.labels))

    def tuned(self, given: Answered) -> "MultiLabel":
        sets = self._sets(given)
        limits = best_thresholds(sets.truth, sets.probabilities)
        return replace(self, thresholds=dict(zip(given.labels, limits, strict=True)))

    def report(self, given: Answered) -> Report:
        sets = self._sets(given)
        columns = [
            "label",
            "precision",
            "recall",
            "f1",
            "average precision",
            "threshold",
            "examples",
            "predicted",
        ]
        each = zip(sets.counts().items(), sets.average_precisions(), strict=True)
        rows = [
            [label, *own.shares, average, self.thresholds.get(label, _HALF), own.gold, own.found]
            for (label, own), average in each
        ]
        truth, shares = sets.truth, np.maximum(sets.probabilities, _SMALLEST)
        loss = -np.log(np.where(truth, shares, np.maximum(1 - shares, _SMALLEST))).sum(axis=1)
        shown: dict[str, Any] = {**given.examples.columns, "predicted": self._predicted(given)}
        shown["loss"] = loss
        wrong = (truth != sets.predicted).any(axis=1)
        table = ReportTable("classes", "Scores of each label", columns, rows, brief=True)
        errors = worst("Errors with the highest loss", given.examples.place, loss, wrong, shown)
        return [table, *calibration(sets.probabilities.ravel(), truth.ravel()), errors]

    def compared(self, given: Answered) -> tuple[np.ndarray, np.ndarray]:
        sets = self._sets(given)
        return sets.truth, sets.predicted

    def predicted(self, given: Answered) -> Columns:
        return [("predicted", self._predicted(given)), *share_columns(given)]

    def _predicted(self, given: Answered) -> list[str]:
        """The predicted labels of each example, joined as in the column of labels."""
        counts, rows = given.answers["predicted_count"], given.answers["predicted_label"]
        return [
            self.label_separator.join(sorted(label.decode() for label in row[:count]))
            for count, row in zip(counts, rows, strict=True)
        ]


def label_columns(column: str) -> list[str]:
    """The column of labels, or the column of each label: their names, with commas between."""
    return [name.strip() for name in column.split(",") if name.strip()] or [column]


def listed(labels: Any, place: str) -> Any:
    """The items of a list in brackets, as data frames write it into a cell; else the labels."""
    if not isinstance(labels, str) or not _BRACKETS.fullmatch(labels):
        return labels
    if not _LIST.fullmatch(labels):
        raise InputError(
            f"{place}: the labels {labels[:40]!r} are a list in brackets that has no commas; write "
            "commas between the names"
        )
    return [str(item) for item in ast.literal_eval(labels.strip())]


def _marked(names: Sequence[str], cells: Sequence[str], place: str) -> list[str]:
    """The labels whose columns have a 1."""
    values = {"1": True, "0": False, "true": True, "false": False}
    found = []
    for name, cell in zip(names, cells, strict=True):
        number = cell.strip().lower().removesuffix(".0")
        if number not in values:
            raise InputError(f"{place}: {name} is {cell!r}; give 1 if it has the label, else 0")
        found += [name] * values[number]
    return found

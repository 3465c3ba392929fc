"""Several labels for a text or a pair of texts: each label is decided on its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.networks.tensorflow.losses import LABELS
from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.classification import probabilities_in_order, with_classify
from bert_tf.tasks.kinds.kind import Answered, Answers
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.readers import LabelSetReader, label_numbers
from bert_tf.tasks.scoring.metrics import LabelSets, best_thresholds, logits_of
from bert_tf.tasks.signatures import Signature, Tensors
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import MultiLabelOptions

HALF = 0.5  # threshold of a label without one of its own


@dataclass(frozen=True)
class MultiLabel(LabelSetReader, LongTextKind):
    """Any number of labels for each example.

    In examples they are one string, the labels in alphabetical order with the separator between.
    """

    # Label -> the smallest probability with which a text gets it; tuned on validation examples.
    thresholds: Mapping[str, float] = field(default_factory=dict)

    options = MultiLabelOptions
    tuned_settings: ClassVar[Mapping[str, str]] = {"thresholds": "f1_micro"}
    model_class = "BertMultiLabelClassifier"
    losses = LABELS

    def signatures(self, task: Task) -> dict[str, Signature]:
        return with_classify(super().signatures(task))

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """1 for each label of each example, else 0: float32 [E, C]."""
        refuse([*self.label_faults(examples, labels).values()])
        number_of = label_numbers(labels)
        targets = np.zeros((len(examples), len(labels)), np.float32)
        for index, text in enumerate(examples.columns["label"]):
            targets[index, [number_of[label] for label in self.parts(text)]] = 1
        return targets

    def renamed(self, names: Mapping[str, Any]) -> "MultiLabel":
        limits = {names.get(label, label): limit for label, limit in self.thresholds.items()}
        return replace(self, thresholds=limits)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = tf.sigmoid(tf.cast(outputs, tf.float32))  # (B, C)
        ordered, classes = tf.math.top_k(probabilities, k=len(labels))
        names = tf.gather(tf.constant(list(labels)), classes)
        limits = tf.constant([self.thresholds.get(label, HALF) for label in labels])
        is_chosen = ordered >= tf.gather(limits, classes)
        count = tf.reduce_sum(tf.cast(is_chosen, tf.int32), -1)  # (B,)
        # Chosen ones first, in operations that converters to other runtimes know.
        place = tf.range(len(labels))
        _, first = tf.math.top_k(tf.where(is_chosen, len(labels), 0) - place, k=len(labels))
        width = tf.maximum(tf.reduce_max(count), 0)  # an empty batch has the least integer
        is_filled = place[:width] < count[:, tf.newaxis]
        lists = {"predicted_count": count}
        for name, values in {"label": names, "probability": ordered}.items():
            chosen = tf.gather(values, first[:, :width], batch_dims=1)
            lists[f"predicted_{name}"] = tf.where(is_filled, chosen, tf.zeros([], values.dtype))
        return {"labels": names, "probabilities": ordered, **lists}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """Logits of the probabilities, float32 [E, C], in the order of `labels`."""
        return logits_of(probabilities_in_order(answers, labels))

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
            answered.labels,
            truth,
            predicted,
            probabilities_in_order(answered.answers, answered.labels),
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

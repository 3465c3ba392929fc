"""Classification of texts, or of pairs of texts (paper, section 4.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.pipelines.examples.bad_rows import refuse
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered, Answers
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.kinds.rows import with_rerank
from bert_tf.tasks.readers import ClassReader, label_numbers
from bert_tf.tasks.signatures import CLASSIFY, DEFAULT, Signature, Tensors, for_tf_examples
from bert_tf.tasks.task import Task

_AT_ONCE = 1 << 20  # probabilities put in order
_SMALLEST = np.finfo(np.float32).tiny  # a probability with a finite logarithm


def with_classify(signatures: dict[str, Signature]) -> dict[str, Signature]:
    outputs = {"classes": "labels", "scores": "probabilities"}
    return {**signatures, "classify": for_tf_examples(signatures[DEFAULT], CLASSIFY, outputs)}


@dataclass(frozen=True)
class Classification(ClassReader, LongTextKind):
    """One label for each example."""

    model_class = "BertClassifier"

    def signatures(self, task: Task) -> dict[str, Signature]:
        signatures = with_classify(super().signatures(task))
        return with_rerank(signatures, task, lambda logits: tf.nn.softmax(logits)[:, -1])

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Class ids, int32 [E]."""
        refuse([*self.label_faults(examples, labels).values()])
        number_of = label_numbers(labels)
        return np.array([number_of[label] for label in examples.columns["label"]], np.int32)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        probabilities = keras.ops.softmax(outputs, axis=-1)
        ordered, classes = tf.math.top_k(probabilities, k=len(labels))  # (B, C) both
        names = tf.gather(tf.constant(list(labels)), classes)
        best = {"label": names[:, 0], "probability": ordered[:, 0]}
        return {**best, "labels": names, "probabilities": ordered}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        return np.log(np.maximum(probabilities_in_order(answers, labels), _SMALLEST))

    def compared(self, answered: Answered) -> tuple[np.ndarray, np.ndarray]:
        labels = answered.task.ordered(answered.labels)
        number_of = {label.encode(): number for number, label in enumerate(labels)}
        predicted = np.array([number_of[label] for label in answered.answers["label"]], np.int32)
        return self.targets(answered.examples, labels), predicted


def probabilities_in_order(answers: Answers, labels: Sequence[str]) -> np.ndarray:
    """Probabilities, float32 [E, C], in the order of `labels`."""
    number_of = {label.encode(): number for number, label in enumerate(labels)}
    ordered = np.empty_like(answers["probabilities"])
    step = max(1, _AT_ONCE // len(labels))
    for rows in (slice(first, first + step) for first in range(0, len(ordered), step)):
        names = answers["labels"][rows]
        numbers = np.fromiter(map(number_of.__getitem__, names.flat), np.int64, names.size)
        chosen = numbers.reshape(names.shape)
        np.put_along_axis(ordered[rows], chosen, answers["probabilities"][rows], axis=1)
    return ordered

"""Regression: one number for each text or pair of texts, such as STS-B's similarity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.networks.tensorflow.losses import NUMBERS
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered, Answers, numbers
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.kinds.rows import with_rerank
from bert_tf.tasks.readers import NumberReader
from bert_tf.tasks.signatures import DEFAULT, REGRESS, Signature, Tensors, for_tf_examples
from bert_tf.tasks.task import Task


@dataclass(frozen=True)
class Regression(NumberReader, LongTextKind):
    """One number for each example."""

    lowest: float = -math.inf  # of the numbers in the official file
    highest: float = math.inf

    model_class = "BertRegressor"
    losses = NUMBERS

    def signatures(self, task: Task) -> dict[str, Signature]:
        signatures = super().signatures(task)
        signatures["regress"] = for_tf_examples(signatures[DEFAULT], REGRESS, {"outputs": "score"})
        return with_rerank(signatures, task, lambda outputs: outputs)

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        return numbers(examples, NumberReader)

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        return {"score": tf.cast(outputs, tf.float32)}

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        return answers["score"]

    def compared(self, answered: Answered) -> tuple[np.ndarray, np.ndarray]:
        """The true and the predicted numbers, rounded: noise of the last bits breaks no ties.

        The unit is what the noise can reach: float32 has 24 bits, and a sum of some 1,000 products
        as the head computes loses 5 of them.
        """
        scores = answered.answers["score"].astype(np.float64)
        largest = np.abs(scores).max(initial=0)
        unit = 2.0 ** (math.frexp(largest)[1] - 19) if largest else 1.0
        return self.targets(answered.examples, answered.labels), np.round(scores / unit) * unit

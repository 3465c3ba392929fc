"""Regression: one number for each text or pair of texts, such as STS-B's similarity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.models.task_models import BertRegressor
from bert_tf.networks.tensorflow.losses import Values
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered, Answers, Columns, numbers
from bert_tf.tasks.kinds.long_texts import LongTextKind
from bert_tf.tasks.reports.report import Picture, Report, ReportTable, scatter, worst
from bert_tf.tasks.signatures import DEFAULT, REGRESS, Signature, Tensors, of_examples
from bert_tf.tasks.task import Task

_RANGES = 5  # of the true numbers, in a report


def squared_error(labels: Any, outputs: Any) -> Any:
    """Squared errors, float32 [B], for labels [B] and outputs [B]."""
    return tf.square(tf.cast(outputs, tf.float32) - labels)


@dataclass(frozen=True)
class Regression(LongTextKind):
    """One number for each example."""

    lowest: float = -math.inf  # of the numbers in the official file
    highest: float = math.inf

    model_class = BertRegressor
    loss_function = staticmethod(squared_error)
    metrics: ClassVar[Mapping[str, Values]] = {}

    def soft_loss(self, temperature: float) -> Values:
        return squared_error

    def signatures(self, task: Task) -> dict[str, Signature]:
        own = super().signatures(task)
        return {**own, "regress": of_examples(own[DEFAULT], REGRESS, {"outputs": "score"})}

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        return numbers(examples, "label", "give --task classification")

    def answers(self, outputs: Any, labels: Sequence[str]) -> Tensors:
        return {"score": tf.cast(outputs, tf.float32)}

    def pair_scores(self, outputs: Any) -> tf.Tensor:
        return tf.cast(outputs, tf.float32)

    def to_outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        return answers["score"]

    def compared(self, given: Answered) -> tuple[np.ndarray, np.ndarray]:
        """The true and the predicted numbers, rounded: noise of the last bits breaks no ties.

        The unit is what the noise can reach: float32 has 24 bits, and a sum of some 1,000 products
        as the head computes loses 5 of them.
        """
        scores = given.answers["score"].astype(np.float64)
        largest = np.abs(scores).max(initial=0)
        unit = 2.0 ** (math.frexp(largest)[1] - 19) if largest else 1.0
        return self.targets(given.examples, given.labels), np.round(scores / unit) * unit

    def report(self, given: Answered) -> Report:
        truth, found = self.compared(given)
        errors = found - truth
        edges = np.linspace(truth.min(), truth.max(), _RANGES + 1)
        number = np.clip(np.searchsorted(edges, truth, "right") - 1, 0, _RANGES - 1)
        rows = []
        for place in range(_RANGES):
            inside = errors[number == place]
            mean, size = (np.mean(x) if len(x) else None for x in (inside, abs(inside)))
            rows.append([f"{edges[place]:.2f} to {edges[place + 1]:.2f}", len(inside), mean, size])
        title = "Predicted and true numbers"
        texts = {role: x for role, x in given.examples.columns.items() if role != "label"}
        shown = {**texts, "label": truth, "predicted": found, "error": errors}
        columns = ["true", "examples", "mean error", "mean absolute error"]
        note = f"mean absolute error {abs(errors).mean():.4f}"
        by_range = "Errors by range of the true number"
        return [
            ReportTable("errors", by_range, columns, rows, note, brief=True),
            Picture("scatter", lambda: scatter(title, truth, found, "true", "predicted")),
            worst("Largest errors", given.examples.place, abs(errors), errors != 0, shown),
        ]

    def predicted(self, given: Answered) -> Columns:
        return [("predicted", [f"{score:.6f}" for score in given.answers["score"]])]

    def submitted(self, given: Answered) -> Sequence[object]:
        scores = np.clip(given.answers["score"], self.lowest, self.highest)
        return [f"{score:.3f}" for score in scores]

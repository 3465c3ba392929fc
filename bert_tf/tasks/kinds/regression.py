"""Regression: one number for each text or pair of texts, such as STS-B's similarity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.task_models import BertRegressor
from bert_tf.serving.signatures import DEFAULT, REGRESS, Signature, of_examples
from bert_tf.tasks.kinds.kind import Answers, RowKind
from bert_tf.tasks.reports.pictures import scatter
from bert_tf.tasks.reports.report import Picture, Report, ReportTable, worst
from bert_tf.tasks.task import Task
from bert_tf.training.means import Values
from pipelines.examples.labelled_text import Examples

_RANGES = 5  # of the true numbers, in a report


def squared_error(labels: Any, outputs: Any) -> Any:
    """Squared errors, float32 [B], for labels [B] and outputs [B]."""
    return tf.square(tf.cast(outputs, tf.float32) - labels)


@dataclass(frozen=True)
class Regression(RowKind):
    """One number for each example. The only answer is `score`, float32 [B].

    Attributes:
        lowest: lowest number in the official file.
        highest: highest number there.
    """

    lowest: float = -math.inf
    highest: float = math.inf

    model_class = BertRegressor
    loss_function = staticmethod(squared_error)
    metrics: ClassVar[Mapping[str, Values]] = {}

    def signatures(self, task: Task) -> dict[str, Signature]:
        """The same for tf.Examples, by the API regress."""
        own = super().signatures(task)
        return {**own, "regress": of_examples(own[DEFAULT], REGRESS, {"outputs": "score"})}

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """The numbers, float32 [E]."""
        values = []
        for index, text in enumerate(examples.columns["label"]):
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise InputError(
                    f"{examples.place(index)}: the label {text!r} is not a number; correct the "
                    "line, or give --task classification"
                )
            values.append(value)
        return np.array(values, np.float32)

    def answers(self, outputs: Any, labels: Sequence[str]) -> dict[str, tf.Tensor]:
        """The number."""
        return {"score": tf.cast(outputs, tf.float32)}

    def outputs(self, answers: Answers, labels: Sequence[str]) -> np.ndarray:
        """The numbers."""
        return answers["score"]

    def compared(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The true and the predicted numbers, rounded: noise of the last bits breaks no ties."""
        return self.targets(examples, labels), answers["score"].round(4)

    def report(
        self, task: Task, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Report:
        """Predicted beside true numbers, mean errors by range, worst errors."""
        truth, found = self.compared(task, examples, answers, labels)
        edges = np.linspace(truth.min(), truth.max(), _RANGES + 1)
        number = np.clip(np.searchsorted(edges, truth, "right") - 1, 0, _RANGES - 1)
        rows = []
        for place in range(_RANGES):
            errors = (found - truth)[number == place]
            mean, size = (np.mean(x) if len(x) else None for x in (errors, abs(errors)))
            name = f"{edges[place]:.2f} to {edges[place + 1]:.2f}"
            rows.append([name, len(errors), mean, size])
        texts = {role: values for role, values in examples.columns.items() if role != "label"}
        shown = {**texts, "label": truth, "predicted": found, "error": found - truth}
        error = abs(found - truth)
        return [
            ReportTable(
                "errors",
                "Errors by range of the true number",
                ["true", "examples", "mean error", "mean absolute error"],
                rows,
                f"mean absolute error {error.mean():.4f}",
                brief=True,
            ),
            Picture("scatter", scatter("Predicted and true numbers", truth, found, "true",
                                       "predicted")),
            worst("Largest errors", examples.place, error, error > 0, shown),
        ]  # fmt: skip

    def predicted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> list[tuple[str, Sequence[object]]]:
        """The predicted number."""
        return [("predicted", [f"{score:.6f}" for score in answers["score"]])]

    def submitted(
        self, examples: Examples, answers: Answers, labels: Sequence[str]
    ) -> Sequence[object]:
        """The numbers with three decimals, within the range."""
        scores = np.clip(answers["score"], self.lowest, self.highest)
        return [f"{score:.3f}" for score in scores]

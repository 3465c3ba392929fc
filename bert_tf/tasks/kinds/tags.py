"""Tags of words that are no entities, such as parts of speech: any labels, each on its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_tf.errors import InputError
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.tagging import Tagging, labels_of
from bert_tf.tasks.reports.report import Report, per_class
from bert_tf.tasks.scoring.label_sets import OfLabel, mean_f1
from bert_tf.tasks.task import Task
from pipelines.examples.labelled_text import Examples


@dataclass(frozen=True)
class Tags(Tagging):
    """A label for each word, such as its part of speech.

    Long texts are read in windows, as for `Tagging`. Labels are the file's own; none has a meaning.
    """

    are_entities = False

    def accepts(self, labels: Sequence[str]) -> bool:
        return True

    def label_names(self, task: Task, examples: Examples) -> list[str]:
        """The task's labels, or the sorted labels of the training examples."""
        found = sorted({label for text in examples.columns["label"] for label in text.split()})
        if len(found) < 2:
            raise InputError(f"{examples.path}: every label is {found[0]}; give two or more")
        return list(task.labels) or found

    def score_names(self, task: Task, labels: Sequence[str]) -> list[str]:
        return ["accuracy", "f1", *(f"f1_{label}" for label in labels)]

    def scores(self, given: Answered) -> dict[str, float | None]:
        """Accuracy of words, F1 of each label, and `f1`, the mean of the labels that occur."""
        gold, found = labels_of([*self.sentences(given)])
        every = [
            OfLabel(
                label, int((gold == label).sum()), int((found == label).sum()),
                int(((gold == label) & (found == label)).sum()), None,
            )
            for label in given.labels
        ]  # fmt: skip
        return {
            "accuracy": float((gold == found).mean()),
            "f1": mean_f1(every),
            **{f"f1_{each.label}": each.f1 for each in every},
        }

    def report(self, given: Answered) -> Report:
        number_of = {label: number for number, label in enumerate(given.labels)}
        numbers = [
            np.array([number_of[x] for x in each]) for each in labels_of([*self.sentences(given)])
        ]
        return [per_class(given.labels, *numbers), *self.words_report(given, str)]

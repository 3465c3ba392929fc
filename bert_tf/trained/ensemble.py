"""Ensembles: several fine-tuned models of one task answer together (paper, section 4.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.tasks.kinds.kind import Answered, Answers, Kind
from bert_tf.trained.fine_tuned import Evaluation, FineTuned
from pipelines.examples.labelled_text import Examples


@dataclass(frozen=True)
class Ensemble:
    """Models of one task with the same labels; the first names columns and order of labels."""

    members: Sequence[FineTuned]

    @classmethod
    def from_directories(
        cls, directories: Sequence[str | Path], settings: Mapping[str, Any] | None = None
    ) -> "Ensemble":
        """Loads the models; `settings` as of `FineTuned.from_directory`, for all of them."""
        models = [FineTuned.from_directory(directory, settings) for directory in directories]
        for directory, model in zip(directories, models, strict=True):
            for what, (own, others) in {
                "task": (model.task.name, models[0].task.name),
                "inputs": (model.inputs, models[0].inputs),
                "labels": (sorted(model.labels), sorted(models[0].labels)),
            }.items():
                if own != others:
                    raise InputError(
                        f"the {what} of {directory} ({_listed(own)}) and of {directories[0]} "
                        f"({_listed(others)}) differ: give models of one task"
                    )
        return cls(models)

    def evaluate(
        self,
        examples: Examples,
        batch_size: int,
        *,
        labelled: bool = True,
        answered: Callable[[Evaluation], object] = lambda evaluation: None,
    ) -> Evaluation:
        """What the models answer together; `answered` is told the evaluation of each."""
        first = self.members[0]
        if missing := set(first.inputs) - examples.columns.keys():
            raise InputError(
                f"{examples.path} has no {', '.join(sorted(missing))}: give a file that bert-tf "
                "evaluate reads, with or without labels"
            )
        if labelled:
            first.task.kind.targets(examples, first.labels)
        kinds = [member.task.kind for member in self.members]
        answers: list[Answers] = []
        for member in self.members:
            given = _as_member(member, kinds).answers(examples, batch_size)
            answers.append(given.answers)
            given = replace(given, task=member.task)
            answered(member.judged(given, labelled=labelled))
        together = _as_member(first, kinds)
        labels = [member.labels for member in self.members]
        averaged = together.task.kind.averaged(examples, answers, labels)
        if "truncated" in answers[0]:
            averaged["truncated"] = np.max([each["truncated"] for each in answers], axis=0)
        given = Answered(together.task, examples, averaged, first.labels)
        return together.judged(given, labelled=labelled)


def _as_member(model: FineTuned, kinds: Sequence[Kind]) -> FineTuned:
    return replace(model, task=replace(model.task, kind=model.task.kind.in_ensemble(kinds)))


def _listed(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names) or "none"

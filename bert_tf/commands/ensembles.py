"""Ensembles: several fine-tuned models of one task answer together (paper, section 4.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.labelled_text import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.trained.fine_tuned import Evaluation, FineTuned


def load_members(directories: Sequence[str | Path], settings: Mapping[str, Any]) -> list[FineTuned]:
    """Loads models of one task and labels; the first names columns and the labels' order."""
    members = [FineTuned.from_directory(directory, settings) for directory in directories]
    for directory, member in zip(directories, members, strict=True):
        for what, (own, others) in {
            "task": (member.task.name, members[0].task.name),
            "inputs": (member.inputs, members[0].inputs),
            "labels": (sorted(member.labels), sorted(members[0].labels)),
        }.items():
            if own != others:
                raise InputError(
                    f"the {what} of {directory} ({_listed(own)}) and of {directories[0]} "
                    f"({_listed(others)}) differ: give models of one task"
                )
    return members


def evaluate_together(
    members: Sequence[FineTuned],
    examples: Examples,
    batch_size: int,
    *,
    labelled: bool = True,
    answered: Callable[[Evaluation], object] = lambda evaluation: None,
) -> Evaluation:
    """Evaluates the models' joint answers; `answered` receives each one's own evaluation."""
    first = members[0]
    if missing := set(first.inputs) - examples.columns.keys():
        raise InputError(
            f"{examples.path} has no {', '.join(sorted(missing))}: give a file that bert-tf "
            "evaluate reads, with or without labels"
        )
    if labelled:
        first.task.kind.targets(examples, first.labels)
    answers = []
    for member in members:
        # Decided with its own thresholds: only the joint answers are decided with their means.
        detailed = replace(member.task, kind=member.task.kind.in_ensemble([member.task.kind]))
        given = replace(member, task=detailed).answers(examples, batch_size)
        answers.append(given.answers)
        answered(member.judged(replace(given, task=member.task), labelled=labelled))
    kind = first.task.kind.in_ensemble([member.task.kind for member in members])
    averaged = kind.averaged(examples, answers, [member.labels for member in members])
    if "truncated" in answers[0]:
        averaged["truncated"] = np.max([each["truncated"] for each in answers], axis=0)
    joint = replace(first, task=replace(first.task, kind=kind))
    return joint.judged(Answered(joint.task, examples, averaged, first.labels), labelled=labelled)


def _listed(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names) or "none"

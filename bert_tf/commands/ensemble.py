r"""Average the answers of several fine-tuned models of one task.

  bert-tf ensemble runs/rte/seed-*/best --data glue/RTE --output runs/rte/ensemble
  bert-tf ensemble runs/rte/seed-*/best --data glue/RTE --submission submission

Averages probabilities for classification, multiple choice and tagging, scores for regression, and
the logits of probabilities and thresholds for multi-label classification. For SQuAD it takes the
answer with the highest mean probability among the models' best answers, and compares the mean null
odds with the mean threshold. Labels are matched by name; the models may differ in length and
vocabulary. Prints the scores as JSON and writes the same files as bert-tf evaluate. With
--submission it writes the official files instead, as bert-tf predict does, and needs no labels.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import console, progress, scores_line
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.owners import EVALUATION, owned
from bert_tf.options import PathName, option
from bert_tf.tasks.task_options import EvaluationOptions

if TYPE_CHECKING:
    from bert_tf.pipelines.examples.table import Examples
    from bert_tf.text.answerer import Answerer, Evaluation


@dataclass(kw_only=True)
class Options(CommandOptions, EvaluationOptions):
    """Options of `bert-tf ensemble`."""

    models: list[PathName] = option(positional=True, path=True, model=True)
    """fine-tuned model directories, such as runs/seed-1/best runs/seed-2/best, or models of the
    Hugging Face hub, ORG/NAME."""
    split: str | None = None
    """split to read from a data set; by default validation, with --submission test."""
    submission: PathName | None = option(None, writes="folder")
    """folder for the official files of the task, for data with or without labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.submission is not None and self.output is not None:
            raise InputError("--output and --submission cannot be combined: give one of them")


@dataclass(kw_only=True, repr=False, eq=False)
class EnsembleResult(Result):
    """The outcome of `ensemble`.

    Attributes:
        scores: score -> its value, None for an undefined one; none with a submission.
        evaluation: the examples with the joint answers.
        models: number of models.
        output: folder of the scores and predictions, if they were written.
        submission: folder of the official files, if they were written.
    """

    scores: dict[str, float | None]
    evaluation: "Evaluation"
    models: int
    output: Path | None = None
    submission: Path | None = None

    def lines(self) -> list[str]:
        lines = list(self.evaluation.remarks)
        for files, folder in (
            ("Scores, predictions and report.md", self.output),
            ("Official files", self.submission),
        ):
            if folder is not None:
                lines.append(f"{files} of {self.models} models together: {folder}")
        return lines


def run(options: Options) -> EnsembleResult:
    """Averages the answers of several models of one task, as `bert-tf ensemble` does.

    Returns:
        The scores of the joint answers.
    """
    labelled = options.submission is None
    output = options.output or options.submission
    folder = output and check_output_folder(output)
    with (
        owned(folder if labelled else None, EVALUATION),
        progress("answering", total=len(options.models), shown=options.shown) as bar,
    ):
        from bert_tf.commands.report_files import write_report
        from bert_tf.tasks.predictions import check_submission, write_submission
        from bert_tf.text.answerer import Evaluation

        members = load_members(options.models, vars(options))
        first = members[0]
        split = options.split or ("validation" if labelled else "test")
        examples = first.task.read(options.data, split, labelled=labelled)
        split = first.task.split_of(options.data, split)
        if not labelled:
            check_submission(first.task, split, examples, first.labels)
        numbered = enumerate(options.models, 1)

        def answered(evaluation: Evaluation) -> None:
            done, model = next(numbered)
            if labelled:
                bar.print(f"{model}: {scores_line(evaluation.scores)}")
            bar.update(done)

        evaluation = evaluate_together(
            members, examples, options.batch_size, labelled=labelled, answered=answered
        )
        if folder and labelled:
            evaluation.write(folder)
            write_report(evaluation.report(), folder)
        elif folder:
            write_submission(folder, split, evaluation.answered)
    return EnsembleResult(
        scores=evaluation.scores if labelled else {},
        evaluation=evaluation,
        models=len(options.models),
        notices=bar.notices,
        output=Path(options.output) if options.output else None,
        submission=Path(options.submission) if options.submission else None,
    )


def show(result: EnsembleResult, options: Options) -> None:
    if result.submission is None:
        print(json.dumps(result.scores, indent=2))
    for line in result.lines():
        console.print(line)


def load_members(
    directories: Sequence[str | Path], settings: Mapping[str, Any]
) -> "list[Answerer]":
    """Loads models of one task and labels; the first names columns and the labels' order."""
    from bert_tf.text.opening import load_answerer

    members = [load_answerer(directory, settings) for directory in directories]
    facts = [
        {"task": [x.task.name], "inputs": x.inputs, "labels": sorted(x.labels)} for x in members
    ]
    for directory, others in zip(directories, facts, strict=True):
        for noun, names in others.items():
            if names != facts[0][noun]:
                here, first = (", ".join(x) or "none" for x in (names, facts[0][noun]))
                raise InputError(
                    f"the {noun} of {directory} ({here}) and of {directories[0]} "
                    f"({first}) differ: give models of one task"
                )
    return members


def evaluate_together(
    members: "Sequence[Answerer]",
    examples: "Examples",
    batch_size: int,
    *,
    labelled: bool = True,
    answered: "Callable[[Evaluation], object]" = lambda evaluation: None,
) -> "Evaluation":
    """Evaluates the models' joint answers; `answered` receives each one's own evaluation."""
    import numpy as np

    from bert_tf.tasks.ensembles import averaged, joint_kind
    from bert_tf.tasks.kinds.kind import Answered

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
        kind = joint_kind(member.task.kind, [member.task.kind])
        detailed = replace(member.task, kind=kind)
        detailed_answers = replace(member, task=detailed).answers(examples, batch_size)
        answers.append(detailed_answers.answers)
        answered(member.judged(replace(detailed_answers, task=member.task), labelled=labelled))
    kind = joint_kind(first.task.kind, [member.task.kind for member in members])
    together = averaged(kind, examples, answers, [member.labels for member in members])
    if "truncated" in answers[0]:
        together["truncated"] = np.max([x["truncated"] for x in answers], axis=0)
    joint = replace(first, task=replace(first.task, kind=kind))
    return joint.judged(Answered(joint.task, examples, together, first.labels), labelled=labelled)


COMMAND = Command(name="ensemble", help=__doc__, options=Options, run=run, show=show)
ensemble = COMMAND.function("ensemble")

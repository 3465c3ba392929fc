r"""Average the answers of several fine-tuned models of one task.

  bert-tf ensemble runs/rte/seed-*/best --data glue/RTE --output runs/rte/ensemble
  bert-tf ensemble runs/rte/seed-*/best --data glue/RTE --no_labels --output submission

Classification, choice and tagging average probabilities, regression averages scores. Of questions
it takes the answer with the highest mean probability among the models' best answers, and compares
the mean null odds with the mean threshold. Labels are matched by name; the models may differ in
length and vocabulary. Prints the scores as JSON and writes what bert-tf evaluate writes; with
--no_labels the official files of the split test, as bert-tf predict --submission.
"""

import dataclasses
import json
from dataclasses import dataclass

from bert_tf.cli.progress import console, progress
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.tasks.options import FileOptions, TaskOptions


@dataclass(kw_only=True)
class Options(TaskOptions, FileOptions):
    """Options of `bert-tf ensemble`.

    Attributes:
        models: fine-tuned model directories, such as runs/seed-1/best runs/seed-2/best.
        data: examples: a .tsv, .csv or .jsonl file; the folder of a data set's published files; or
            its name in TensorFlow Datasets, such as tfds:glue/rte; "-" for standard input.
        split: split to read from a data set; by default validation, with --no_labels test.
        labels: whether the examples have labels to score the answers with.
        label_column: column of the label, by name or number.
        label_map: names in the data for labels of the models, as MODEL_LABEL=LABEL.
        output: folder for metrics.json and the task's predictions; without it none are written.
        batch_size: examples per batch.
    """

    models: list[str] = option(positional=True)
    data: str
    split: str | None = None
    labels: bool = True
    label_column: str | None = None
    label_map: list[str] = option(factory=list)
    output: str | None = None
    batch_size: int = option(32, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.labels and self.output is None:
            raise InputError("without labels there are predictions alone: give --output")


def run(options: Options) -> None:
    inputs = [*options.models, options.data]
    output = options.output and check_output_folder(options.output, inputs)
    with progress("answering", total=len(options.models)) as bar:
        from bert_tf.tasks.ensemble import Ensemble
        from bert_tf.tasks.fine_tuned import Evaluation
        from bert_tf.tasks.report import write_report

        ensemble = Ensemble.from_directories(options.models, dataclasses.asdict(options))
        task = ensemble.members[0].task
        split = options.split or ("validation" if options.labels else "test")
        try:
            examples = task.read(options.data, split, labelled=options.labels)
        except InputError as error:
            hint = "; if the data has no labels, give --no_labels" if options.labels else ""
            raise InputError(f"{error}{hint}") from error
        each: list[dict[str, float | None]] = []

        def answered(evaluation: Evaluation) -> None:
            scores = {n: v for n, v in evaluation.scores.items() if n != "examples"}
            if scores:
                bar.print(f"{options.models[len(each)]}: {_shown(scores)}")
            each.append(scores)
            bar.update(len(each))

        together, evaluation = ensemble.evaluate(
            examples, options.batch_size, labelled=options.labels, answered=answered
        )
        if output and options.labels:
            together.write(evaluation, output)
            write_report(together.report(evaluation), output)
        elif output:
            task.kind.write_submission(
                output, task, task.split_of(options.data, split), examples, evaluation.answers,
                together.labels,
            )  # fmt: skip
    if options.labels:
        print(json.dumps(evaluation.scores, indent=2))
    lines = [*evaluation.remarks]
    if output:
        what = "Scores, predictions and report.md" if options.labels else "Predictions"
        lines.append(f"{what} of {len(options.models)} models together: {options.output}")
    for line in lines:
        console.print(line)


def _shown(scores: dict[str, float | None]) -> str:
    return "  ".join(
        f"{name} {'undefined' if value is None else f'{value:.4g}'}"
        for name, value in scores.items()
    )

r"""Score a fine-tuned model on labelled data.

  bert-tf evaluate --model runs/classifier/best --data test.tsv --output runs/test

Prints the scores of the model's task as JSON: accuracy, F1 and Matthews' correlation for
classification, Pearson's and Spearman's correlation for regression. F1 is that of the second of
two labels; for more labels it is the mean over all, macro_f1. docs/tasks.md leads to the scores and
files of other tasks; --task masked_words scores a pre-trained model on plain text. With --output
it writes metrics.json, the predictions, such as predictions.tsv, and a report: scores of each
label, confusion matrix, calibration and the worst errors, as tables (report.md, .tsv), pictures
(.png) and in TensorBoard. Columns and length are by default those of the fine-tuning.

A classifier of Hugging Face's works too; name its columns, and its labels where they differ:
  bert-tf evaluate --model models/nli --data dev.tsv --text_column premise \
    --pair_column hypothesis --label_map LABEL_0=contradiction LABEL_1=neutral LABEL_2=entailment
"""

import dataclasses
import json
from dataclasses import dataclass

import rich.table

from bert_tf.cli.progress import console, export_line, progress, typed
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.tasks.options import EvaluationOptions

_MOST_ROWS = 20  # of a table on the terminal


@dataclass(kw_only=True)
class Options(EvaluationOptions):
    """Options of `bert-tf evaluate`."""

    model: str = option(path=True, model=True)
    """fine-tuned model directory, such as runs/classifier/best, or a model of the Hugging Face hub,
    ORG/NAME."""
    split: str = "validation"
    """split to read from a data set: train, validation, test, or of MNLI also
    validation_mismatched."""


def run(options: Options) -> None:
    output = options.output and check_output_folder(options.output, [options.model, options.data])
    with progress("evaluating", total=1) as bar:
        from bert_tf.tasks.reports.report import Picture, write_report
        from bert_tf.trained.fine_tuned import FineTuned

        model = FineTuned.from_directory(options.model, dataclasses.asdict(options))
        examples = model.task.read(options.data, options.split)
        evaluation = model.evaluate(
            examples,
            options.batch_size,
            answered=lambda number: bar.update(number, total=len(examples)),
        )
        report = evaluation.report()
        if output:
            evaluation.write(output)
            write_report(report, output)
    print(json.dumps(evaluation.scores, indent=2))
    for part in report:
        if isinstance(part, Picture):
            continue
        if part.brief:
            shown = rich.table.Table(*part.columns, title=part.title, title_justify="left")
            for row in part.texts()[:_MOST_ROWS]:
                shown.add_row(*row)
            console.print(shown)
        if part.note:
            console.print(f"{part.title}: {part.note}")
    for remark in evaluation.remarks:
        console.print(remark)
    if output and not report:
        console.print(f"Scores and predictions: {options.output}")
    elif output:
        console.print(f"Scores, predictions and report.md: {options.output}")
        console.print(f"Pictures: {typed('bert-tf')} monitor {options.output}")
    console.print(export_line(options.model, f" --task {options.task}" * bool(options.task)))

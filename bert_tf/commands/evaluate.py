r"""Score a fine-tuned model on labelled data.

  bert-tf evaluate --model runs/classifier/best --data test.tsv --output runs/test

Prints the scores of the model's task as JSON: accuracy, F1 and Matthews' correlation for
classification, Pearson's and Spearman's correlation for regression. With two labels, F1 is
the F1 of the second; with more, macro_f1 is the mean over all. docs/task-files.md links to the
scores and files of other tasks; --task masked_words scores a pre-trained model on plain text.

--output writes metrics.json, the predictions, such as predictions.tsv, and a report with the scores
of each label, the confusion matrix, calibration and the worst errors, as tables (report.md, .tsv),
pictures (.png) and in TensorBoard. Columns and length are by default the ones of the fine-tuning.

Classifiers from Hugging Face work too. Name the columns, and the labels where they differ:
  bert-tf evaluate --model models/nli --data dev.tsv --text_column premise \
    --pair_column hypothesis --label_map LABEL_0=contradiction LABEL_1=neutral LABEL_2=entailment
"""

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.box
import rich.table

from bert_tf.commands.command import EXAMPLES, Command, CommandOptions
from bert_tf.commands.data_in_memory import examples_in_memory, is_in_memory
from bert_tf.commands.progress import command_line, console, export_line, progress, scores_line
from bert_tf.commands.result import MOST_ROWS, Result, Table, report_pictures, score_table
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.owners import EVALUATION, owned
from bert_tf.options import PathName, option
from bert_tf.startup import pack_weights
from bert_tf.tasks.task_options import EvaluationOptions

if TYPE_CHECKING:
    from bert_tf.tasks.reports.tables import Report
    from bert_tf.text.answerer import Evaluation


@dataclass(kw_only=True)
class Options(CommandOptions, EvaluationOptions):
    """Options of `bert-tf evaluate`."""

    model: PathName = option(path=True, model=True)
    """fine-tuned model directory, such as runs/classifier/best, its URL, a model of the Hugging
    Face hub, ORG/NAME, or the model.xml of bert-tf export --format openvino."""
    split: str = "validation"
    """split to read from a data set: train, validation, test, or of MNLI also
    validation_mismatched."""
    data: Any = option(path=True, data=EXAMPLES)


@dataclass(kw_only=True, repr=False, eq=False)
class EvaluateResult(Result):
    """The outcome of `evaluate`.

    Attributes:
        scores: score -> its value, None for an undefined one; "examples" is their number.
        evaluation: the scores with the examples and their answers.
        report: tables and pictures beside the scores.
        output: folder of metrics.json, the predictions and the report, if they were written.
    """

    scores: dict[str, float | None]
    evaluation: "Evaluation"
    report: "Report"
    output: Path | None = None

    def lines(self) -> list[str]:
        """The scores, what a reader of them should know, and the path."""
        lines = [scores_line(self.scores), *self.evaluation.remarks]
        if self.output is not None:
            what = "Scores, predictions and report.md" if self.report else "Scores and predictions"
            lines.append(f"{what}: {self.output}")
        return lines

    def tables(self) -> Iterable[Table]:
        from bert_tf.tasks.reports.tables import ReportTable

        yield score_table("Scores", self.scores)
        for part in self.report:
            if isinstance(part, ReportTable):
                note = f": {part.note}" if part.note else ""
                yield Table(f"{part.title}{note}", part.columns, part.texts())

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        return report_pictures(self.report)


def run(options: Options) -> EvaluateResult:
    """Scores a fine-tuned model on labelled examples, as `bert-tf evaluate` does.

    ```python
    bert_tf.evaluate(model="runs/reviews/best", data=(texts, labels)).scores["accuracy"]
    ```

    Returns:
        The scores, with tables and pictures.
    """
    output = options.output and check_output_folder(options.output)
    with owned(output, EVALUATION), progress("evaluating", total=1, shown=options.shown) as bar:
        from bert_tf.commands.report_files import write_report
        from bert_tf.text.opening import for_pairs, load_answerer, open_answerer

        is_openvino = Path(options.model).suffix == ".xml"
        model = (open_answerer if is_openvino else load_answerer)(options.model, vars(options))
        if is_in_memory(options.data):
            task, examples = examples_in_memory(model.task, options.data, model.labels)
            if task.pair != model.task.pair:
                model = for_pairs(model, options.model)
        else:
            examples = model.task.read(options.data, options.split)
        answered = functools.partial(bar.update, total=len(examples))
        evaluation = model.evaluate(examples, options.batch_size, answered)
        report = evaluation.report()
        if output:
            evaluation.write(output)
            write_report(report, output)
    return EvaluateResult(
        scores=evaluation.scores,
        evaluation=evaluation,
        report=report,
        notices=bar.notices,
        output=Path(options.output) if options.output else None,
    )


def show(result: EvaluateResult, options: Options) -> None:
    print(json.dumps(result.scores, indent=2))
    from bert_tf.tasks.reports.tables import Picture

    for part in result.report:
        if isinstance(part, Picture):
            continue
        if part.brief:
            shown = rich.table.Table(
                *part.columns,
                title=part.title,
                title_justify="left",
                box=rich.box.SIMPLE_HEAD,
                padding=(0, 1, 0, 0),
            )
            for row in part.texts()[:MOST_ROWS]:
                shown.add_row(*row)
            console.print(shown)
        if part.note:
            console.print(f"{part.title}: {part.note}")
    for line in result.lines()[1:]:  # without the scores
        console.print(line)
    if result.output is not None and result.report:
        console.print(f"Pictures: {command_line('monitor', options.output)}")
    task = ["--task", options.task] if options.task else []
    console.print(export_line(options.model, *task))


COMMAND = Command(
    name="evaluate",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    prepare_process=lambda _: pack_weights(),
)
evaluate = COMMAND.function("evaluate")

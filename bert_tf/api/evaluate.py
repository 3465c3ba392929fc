"""`bert_tf.evaluate`."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.api.data import examples_in_memory, is_in_memory
from bert_tf.api.keywords import Data, PathName, Verbosity, keywords
from bert_tf.api.progress import progress, scores_line
from bert_tf.api.result import Result, Table, report_pictures, score_table
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.owners import EVALUATION, owned
from bert_tf.options import option
from bert_tf.tasks.task_options import EvaluationOptions

if TYPE_CHECKING:
    from bert_tf.tasks.reports.report import Report
    from bert_tf.trained.fine_tuned import Evaluation


@dataclass(kw_only=True)
class EvaluateOptions(EvaluationOptions):
    """Options of `bert-tf evaluate`."""

    model: str = option(path=True, model=True)
    """fine-tuned model directory, such as runs/classifier/best, its URL, or a model of the Hugging
    Face hub, ORG/NAME."""
    split: str = "validation"
    """split to read from a data set: train, validation, test, or of MNLI also
    validation_mismatched."""


@dataclass(kw_only=True)
class _Keywords(Verbosity, EvaluateOptions):
    model: PathName = option(path=True)  # type: ignore[assignment]
    output: PathName | None = option(None, writes="folder")  # type: ignore[assignment]
    data: Data = option(path=True)  # type: ignore[assignment]
    """labelled examples: a .tsv, .csv or .jsonl file; the folder of a data set's published files;
    or its name in TensorFlow Datasets, such as tfds:glue/mrpc; or in memory, a tuple (inputs,
    labels), or columns: a data frame, a datasets.Dataset, a dict of lists or a list of dicts."""


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
        from bert_tf.tasks.reports.report import ReportTable

        yield score_table("Scores", self.scores)
        for part in self.report:
            if isinstance(part, ReportTable):
                note = f": {part.note}" if part.note else ""
                yield Table(f"{part.title}{note}", part.columns, part.texts())

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        return report_pictures(self.report)


@keywords(_Keywords)
def evaluate(options: EvaluateOptions, *, shown: bool = True) -> EvaluateResult:
    """Scores a fine-tuned model on labelled examples, as `bert-tf evaluate` does.

    ```python
    bert_tf.evaluate(model="runs/reviews/best", data=(texts, labels)).scores["accuracy"]
    ```

    Returns:
        The scores, with tables and pictures.

    Raises:
        InputError: the data, the model or the options cannot be used; the message says why.
    """
    output = options.output and check_output_folder(options.output)
    with owned(output, EVALUATION), progress("evaluating", total=1, shown=shown) as bar:
        from bert_tf.tasks.reports.report import write_report
        from bert_tf.trained.fine_tuned import FineTuned

        model = FineTuned.from_directory(options.model, vars(options))
        if is_in_memory(options.data):
            task, examples = examples_in_memory(model.task, options.data, model.labels)
            model = dataclasses.replace(model, task=task)
        else:
            examples = model.task.read(options.data, options.split)
        answered = functools.partial(bar.update, total=len(examples))
        evaluation = model.evaluate(examples, options.batch_size, answered)
        report = evaluation.report()
        if output:
            evaluation.write(output)
            write_report(report, output)
    return EvaluateResult(
        scores=evaluation.scores, evaluation=evaluation, report=report, notices=bar.notices,
        output=Path(options.output) if options.output else None,
    )  # fmt: skip

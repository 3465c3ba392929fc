"""`bert_tf.finetune`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.api.data import examples_as_files
from bert_tf.api.keywords import Data, PathName, Verbosity, keywords
from bert_tf.api.progress import RunProgress, outcome_lines, progress, scores_line
from bert_tf.api.result import Result, Table, report_pictures, score_table
from bert_tf.errors import InputError
from bert_tf.files.mirror import joined, mirrored
from bert_tf.files.storage import is_remote
from bert_tf.finetuning.finetuning_options import FinetuningOptions
from bert_tf.options import option

if TYPE_CHECKING:
    from bert_tf.finetuning.finetune import FinetuningResult
    from bert_tf.finetuning.restarts import Restarts


@dataclass(kw_only=True)
class TrainingData(Verbosity):
    """Examples in memory or in files."""

    model: PathName = option(path=True)
    output: PathName = option(writes="folder or URL")
    data: Data | None = option(None, path=True)
    """data set with training and validation examples: the folder of its published files, its name
    in TensorFlow Datasets, such as tfds:glue/mrpc, or a dict of both in memory, such as a
    datasets.DatasetDict."""
    train: Data | None = option(None, path=True)
    """labelled examples in place of `data`: a .tsv, .csv or .jsonl file; or in memory, a tuple
    (inputs, labels), or columns: a data frame, a datasets.Dataset, a dict of lists or a list of
    dicts."""
    validation: Data | None = option(None, path=True)
    """labelled examples that choose the best model, as `train`; by default those of the data set,
    or else a share of the training examples."""


@dataclass(kw_only=True)
class _Keywords(TrainingData, FinetuningOptions):  # type: ignore[misc]
    pass


@dataclass(kw_only=True, repr=False, eq=False)
class FinetuneResult(Result):
    """The outcome of `finetune`.

    Attributes:
        output: the run directory, or its URL.
        best: the best model's directory; None after a dry run and on workers but the chief.
        scores: its validation scores, or the means of several seeds; None for an undefined one.
        best_by: name of the score that chooses the best model.
        run: its `training` and `evaluation`; None with several seeds, and where `best` is.
        restarts: the scores of several seeds, if there are any.
    """

    output: Path | str
    best: Path | str | None = None
    scores: dict[str, float | None]
    best_by: str = ""
    run: "FinetuningResult | None" = None
    restarts: "Restarts | None" = None
    total_steps: int = 0

    def lines(self) -> list[str]:
        if self.best is None:
            return []
        lines = [] if self.restarts is None else [*self.restarts.lines()]
        if self.run is not None and self.run.evaluation is not None:
            scores, count = scores_line(self.scores), self.run.train_examples
            lines += outcome_lines(self.run.training, self.total_steps)
            lines.append(f"Fine-tuned on {count:,} examples; validation: {scores}")
            lines += self.run.evaluation.remarks
        return [*lines, f"Best model: {self.best}"]

    def tables(self) -> Iterable[Table]:
        if self.scores:
            several = "means of several seeds, " if self.restarts is not None else ""
            yield score_table(f"Scores, {several}validation examples", self.scores)

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        if self.run is not None and self.run.evaluation is not None:
            yield from report_pictures(self.run.evaluation.report())


@keywords(_Keywords)
def finetune(options: FinetuningOptions, *, shown: bool = True) -> FinetuneResult:
    """Fine-tunes a model on labelled examples, as `bert-tf finetune` does, with the same bytes.

    Examples in memory are written to OUTPUT/data as JSON lines. The same call resumes a run.

    ```python
    result = bert_tf.finetune(
        model="models/base", train=(texts, labels), output="runs/reviews", epochs=3
    )
    result.scores["accuracy"], result.best
    ```

    Returns:
        The scores of the best model and where it is.

    Raises:
        InputError: the data, the model or the options cannot be used; the message says why.
        Preempted: SIGTERM ended the run after a checkpoint.
    """
    output, best = joined(options.output), joined(options.output, "best")
    if options.seeds > 1 and is_remote(options.output):
        raise InputError("--seeds needs a local --output: give one seed, or a folder")
    with (
        mirrored(options.output),
        examples_as_files(options) as options,
        progress("fine-tuning", shown=shown) as bar,
    ):
        from bert_tf.finetuning.finetune import finetune
        from bert_tf.finetuning.restarts import finetune_seeds

        told = RunProgress(bar)
        if options.seeds > 1:
            restarts = finetune_seeds(options, told)
            scores = {name: each["mean"] for name, each in restarts.summary().items()}
            return FinetuneResult(
                output=output, best=best if restarts.runs else None, scores=scores,
                best_by=restarts.best_by, restarts=restarts, notices=bar.notices,
            )  # fmt: skip
        result = finetune(options, told)
    evaluation = result and result.evaluation
    return FinetuneResult(
        output=output, best=best if evaluation else None, run=result,
        scores=evaluation.scores if evaluation else {}, best_by=result.best_by if result else "",
        total_steps=told.total_steps, notices=bar.notices,
    )  # fmt: skip

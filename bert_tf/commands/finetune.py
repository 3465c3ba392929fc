r"""Fine-tune a model on labelled examples: classification, NER, question answering and more.

  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier
  bert-tf finetune --model models/base --task mrpc --data glue/MRPC --output runs/mrpc
  bert-tf finetune --model models/base --task regression --train sts.csv --label_column score \
    --pair_column sentence2 --text_column sentence1 --output runs/sts

The examples are a .tsv or .csv file with a header, or a .jsonl file. Name the columns with
--text_column, --pair_column and --label_column; for other files see --format and --no_header.
Named tasks (--task mrpc, squad, swag) know their columns, labels and scores: docs/task-files.md
lists them, and docs/adding-a-task.md shows how to write one. The paper tries batches of 16 and 32,
learning rates of 5e-5, 3e-5 and 2e-5, and 2 to 4 epochs. The same command resumes a stopped run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.commands.command import Command
from bert_tf.commands.data_in_memory import examples_as_files
from bert_tf.commands.finetuning_options import FinetuningOptions as Options
from bert_tf.commands.finetuning_options import refuse_bad_rows
from bert_tf.commands.progress import (
    RunProgress,
    best_model_line,
    command_line,
    console,
    export_line,
    outcome_lines,
    progress,
    scores_line,
)
from bert_tf.commands.result import Result, Table, report_pictures, score_table
from bert_tf.errors import InputError
from bert_tf.files.mirror import joined, mirrored
from bert_tf.files.owners import RUN, SEEDS
from bert_tf.files.storage import is_remote

if TYPE_CHECKING:
    from bert_tf.commands.finetuning_run import FinetuningResult
    from bert_tf.commands.seeds import Restarts


@dataclass(kw_only=True, repr=False, eq=False)
class FinetuneResult(Result):
    """The outcome of `finetune`.

    Attributes:
        output: the run directory, or its URL.
        best: the best model's directory; None after a dry run and on workers but the chief.
        scores: its validation scores and loss, or the means of several seeds; None for an undefined
            one. `best/metrics.json` has the scores alone, as `evaluate` computes them.
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
            scores = scores_line(self.scores)
            count = self.run.train_examples
            lines += outcome_lines(self.run.training, self.total_steps)
            lines.append(f"Fine-tuned on {count:,} examples; validation: {scores}")
            lines += self.run.evaluation.remarks
        training = None if self.run is None else self.run.training
        return [*lines, best_model_line(self.best, training)]

    def tables(self) -> Iterable[Table]:
        if self.scores:
            several = "means of several seeds, " if self.restarts is not None else ""
            yield score_table(f"Scores, {several}validation examples", self.scores)

    def pictures(self) -> Iterator[tuple[str, bytes]]:
        if self.run is not None and self.run.evaluation is not None:
            yield from report_pictures(self.run.evaluation.report())


def run(options: Options) -> FinetuneResult:
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
        Preempted: SIGTERM ended the run after a checkpoint.
    """
    output = joined(options.output)
    best = joined(options.output, "best")
    if options.seeds > 1 and is_remote(options.output):
        raise InputError("--seeds needs a local --output: give one seed, or a folder")
    with (
        mirrored(options.output),
        examples_as_files(options, SEEDS if options.seeds > 1 else RUN) as options,
        progress("fine-tuning", shown=options.shown) as bar,
    ):
        from bert_tf.commands.finetuning_run import run_finetuning
        from bert_tf.commands.seeds import finetune_seeds

        shorten = "" if options.max_steps else "give --max_steps and another --output"
        watcher = RunProgress(bar, shorten=shorten)
        result = FinetuneResult(output=output, scores={}, notices=bar.notices)
        if options.seeds > 1:
            result.restarts = finetune_seeds(options, watcher)
            summary = result.restarts.summary()
            result.scores = {name: row["mean"] for name, row in summary.items()}
            result.best_by = result.restarts.best_by
            result.best = best if result.restarts.runs else None
        elif (single := run_finetuning(options, watcher)) is not None:
            result.run = single
            result.best_by = single.best_by
            if single.evaluation is not None:
                result.scores = single.scores
                result.best = best
        result.total_steps = watcher.total_steps
    return result


def show(result: FinetuneResult, options: Options) -> None:
    if result.best is None:  # a dry run, or a worker other than the chief
        return
    console.print(str(result))
    console.print(export_line(result.best))
    console.print(f"Curves: {command_line('monitor', options.output)}")


COMMAND = Command(
    name="finetune",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    prepare=refuse_bad_rows,
    common="model train validation data task output label_column text_column validation_share "
    "class_weights best_by epochs batch_size learning_rate max_length",
)
finetune = COMMAND.function("finetune")

r"""Fine-tune a model from labelled examples: classify, score, choose, tag or answer.

  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier
  bert-tf finetune --model models/base --task mrpc --data glue/MRPC --output runs/mrpc
  bert-tf finetune --model models/base --task regression --train sts.csv --label_column score \
    --pair_column sentence2 --text_column sentence1 --output runs/sts

The examples are a .tsv or .csv file with a header, or .jsonl; name the columns with
--text_column, --pair_column and --label_column. For other files see --format and --no_header. A
task with a name (--task mrpc, squad, swag, conll2003) knows its columns, labels and scores; see
docs/task-files.md, and docs/adding-a-task.md to write one. The paper tries batches of 16 and 32,
learning rates of 5e-5, 3e-5 and 2e-5, and 2 to 4 epochs. The same command resumes a stopped run.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_tf.commands.data_in_memory import examples_as_files
from bert_tf.commands.function import EXAMPLES, CommandOptions, function
from bert_tf.commands.progress import (
    RunProgress,
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
from bert_tf.options import PathName, extended, option
from bert_tf.tasks.task_options import FileOptions, TaskOptions
from bert_tf.training.training_options import TeacherOptions, TrainingOptions

if TYPE_CHECKING:
    from bert_tf.commands.finetuning import FinetuningResult
    from bert_tf.commands.seeds import Restarts
    from bert_tf.training.run import Run

COMMON = (
    "model",
    "train",
    "validation",
    "data",
    "task",
    "output",
    "epochs",
    "batch_size",
    "learning_rate",
    "max_length",
)
_SPLITS = "a dict of both, such as a datasets.DatasetDict"


@dataclass(kw_only=True)
class FinetuningSetup(CommandOptions, TaskOptions, FileOptions, TrainingOptions, TeacherOptions):
    """Options that `bert-tf finetune` and `search` share."""

    model: PathName = option(path=True, model=True)
    """model directory to start from, its URL, or a model of the Hugging Face hub, ORG/NAME."""
    data: Any = option(None, path=True, data=_SPLITS)
    """data set with training and validation examples: the folder of its published files, or its
    name in TensorFlow Datasets, such as tfds:glue/mrpc."""
    train: Any = option(None, path=True, data=EXAMPLES)
    """labelled examples in place of --data: a .tsv, .csv or .jsonl file."""
    validation: Any = option(None, path=True, data=EXAMPLES)
    """labelled examples that choose the best model; by default those of the data set, or else a
    share of the training examples."""
    validation_share: float = option(0.1, above=0, below=1, identity=False)
    """share of the training examples to validate on, without a validation file; equal texts, the
    questions of a context and the sentences of a document stay together."""
    label_column: str | None = option(None, identity=False)
    """column of the label, by name or number."""
    from_scratch: bool = False
    """start from random weights, with the size and vocabulary of the model; compare with a normal
    run to see what pre-training gains."""
    dropout: float | None = option(None, at_least=0, below=1)
    """dropout of hidden states and attention; by default the model's."""
    max_steps: int | None = option(None, at_least=1)
    """end the training after this many steps, whatever the epochs."""
    evaluate_every: int | None = option(None, at_least=1)
    """steps between two evaluations on the validation examples; by default an epoch."""
    best_by: str | None = None
    """score that chooses the best model, such as accuracy or f1; by default the task's first."""
    warmup_share: float = option(0.1, at_least=0, at_most=1)
    """share of the steps with linear warm-up."""
    label_smoothing: float = option(0.0, at_least=0, below=1)
    """share of each target to spread over all classes."""
    class_weights: Literal["balanced"] | None = None
    """balanced weighs the examples so that all classes count the same."""
    calibrate: bool = option(False, identity=False)
    """divide the best model's logits by the temperature that fits the validation examples best, so
    that probabilities are shares of right answers; for tasks with classes."""
    seeds: int = option(1, at_least=1, identity=False)
    """number of runs, each with the next seed; reports mean, deviation and best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.train is None):
            raise InputError("give exactly one of --data and --train")

    @property
    def source(self) -> str:
        """The path that the training examples are read from."""
        return self.data or self.train or ""

    def usual_rates(self, rates: list[float], *, tried: bool) -> list[float]:
        """Default learning rates, of a run or `tried` by a search; `rates` are those of a BERT."""
        return rates

    def config_changes(self, model_class: type) -> dict[str, Any]:
        """Values of the model's `BertConfig` for what stands between its encoder and its head."""
        return {"feature_layers": None, "feature_lstm_layers": 0}

    def begin_training(self, run: "Run", model: Any) -> Callable[[], object]:
        """Prepares a model for its training; returns what to call after its end."""
        return lambda: None


@extended("finetuning options")
@dataclass(kw_only=True)
class Options(FinetuningSetup):
    """Options of `bert-tf finetune`; the defaults lie within the paper's (section A.3)."""

    batch_size: int | None = option(None, at_least=1)
    """examples per step, over all devices; by default the task's, mostly 32."""
    learning_rate: float | None = option(None, above=0)
    """peak learning rate; by default the task's, mostly 5e-5."""
    epochs: int | None = option(None, at_least=1)
    """passes over the training examples; by default the task's, mostly 3."""


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
    output, best = joined(options.output), joined(options.output, "best")
    if options.seeds > 1 and is_remote(options.output):
        raise InputError("--seeds needs a local --output: give one seed, or a folder")
    with (
        mirrored(options.output),
        examples_as_files(options, SEEDS if options.seeds > 1 else RUN) as options,
        progress("fine-tuning", shown=options.shown) as bar,
    ):
        from bert_tf.commands.finetuning import finetune
        from bert_tf.commands.seeds import finetune_seeds

        watcher = RunProgress(bar)
        result = FinetuneResult(output=output, scores={}, notices=bar.notices)
        if options.seeds > 1:
            result.restarts = finetune_seeds(options, watcher)
            summary = result.restarts.summary()
            result.scores = {name: row["mean"] for name, row in summary.items()}
            result.best_by = result.restarts.best_by
            result.best = best if result.restarts.runs else None
        elif (one := finetune(options, watcher)) is not None:
            result.run, result.best_by = one, one.best_by
            if one.evaluation is not None:
                result.scores, result.best = one.evaluation.scores, best
        result.total_steps = watcher.total_steps
    return result


def show(result: FinetuneResult, options: Options) -> None:
    if result.best is None:  # a dry run, or a worker other than the chief
        return
    console.print(str(result))
    console.print(export_line(result.best))
    console.print(f"Curves: {command_line('monitor', options.output)}")


finetune = function("finetune", Options, run)

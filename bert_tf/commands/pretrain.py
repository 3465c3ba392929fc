r"""Pre-train a BERT on shards: masked words and next sentences.

  bert-tf pretrain --shards shards/ --size small --output runs/pretrained
  bert-tf pretrain --config recipes/pretrain-base.yaml --shards shards/128 \
    --long_shards shards/512 --output runs/base    # 90% of the steps short, the rest long
  bert-tf pretrain --shards shards/ --objective ltr --output runs/ltr    # a language model

The same command resumes a stopped run; after SIGTERM it saves a checkpoint and exits with code 75.
The run directory holds the model with the lowest held-out loss (best/) and the last one (last/),
which load in Hugging Face, too (docs/objectives.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.commands.function import function
from bert_tf.commands.pretraining_options import PretrainingOptions as Options
from bert_tf.commands.progress import (
    RunProgress,
    command_line,
    console,
    outcome_lines,
    progress,
)
from bert_tf.commands.result import Result, Table, score_table
from bert_tf.files.mirror import joined, mirrored

if TYPE_CHECKING:
    from bert_tf.training.loop import TrainingResult

COMMON = (
    "shards",
    "long_shards",
    "size",
    "model",
    "output",
    "batch_size",
    "learning_rate",
    "steps",
    "warmup_steps",
    "precision",
)


@dataclass(kw_only=True, repr=False, eq=False)
class PretrainResult(Result):
    """The outcome of `pretrain`.

    Attributes:
        output: the run directory, or its URL.
        training: steps, their time and the lowest held-out loss; None after a dry run.
        steps: number of steps of the whole run.
    """

    output: Path | str
    training: "TrainingResult | None"
    steps: int

    @property
    def model(self) -> Path | str | None:
        """The directory of the best model, or the last if nothing was held out.

        None after a dry run, and on workers but the chief.
        """
        if self.training is None or not self.training.is_chief:
            return None
        return joined(self.output, "last" if self.training.best is None else "best")

    @property
    def loss(self) -> float | None:
        """The lowest held-out loss; None if nothing was held out."""
        return None if self.training is None else self.training.best

    def lines(self) -> list[str]:
        if self.model is None or self.training is None:
            return []
        loss = "" if self.loss is None else f" (held-out loss {self.loss:.4f})"
        return [*outcome_lines(self.training, self.steps), f"Pre-trained model{loss}: {self.model}"]

    def tables(self) -> Iterable[Table]:
        if self.loss is not None:
            yield score_table("Held-out examples", {"loss": self.loss})


def run(options: Options) -> PretrainResult:
    """Pre-trains a BERT on shards, as `bert-tf pretrain` does.

    The same call resumes a stopped run.

    Returns:
        The model's directory and its loss.

    Raises:
        Preempted: SIGTERM ended the run after a checkpoint.
    """
    with progress("pre-training", total=options.steps, shown=options.shown) as bar:
        from bert_tf.commands.pretraining_run import run_pretraining

        with mirrored(options.output, [options.shards, *options.mixed, options.long_shards]):
            training = run_pretraining(options, RunProgress(bar))
    return PretrainResult(
        output=joined(options.output), training=training, steps=options.steps, notices=bar.notices
    )


def show(result: PretrainResult, options: Options) -> None:
    if result.model is None:  # a dry run, or a worker other than the chief
        return
    from bert_tf.commands.word_frequencies import plateau_notice

    console.print(str(result))
    data = ("--train", "train.tsv", "--output", "runs/classifier")
    following = command_line("finetune", "--model", result.model, *options.to_finetune, *data)
    console.print(plateau_notice(str(result.model)) or f"Next: {following}")
    console.print(f"Curves: {command_line('monitor', options.output)}")


pretrain = function("pretrain", Options, run)

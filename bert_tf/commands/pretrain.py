r"""Pre-train a BERT on shards: masked language modelling and next-sentence prediction.

  bert-tf pretrain --shards shards/ --size small --steps 10000 --output runs/pretrained
  bert-tf pretrain --config recipes/pretrain-base.yaml --shards shards/128 \
    --long_shards shards/512 --output runs/base    # 90% of the steps short, the rest long
  bert-tf pretrain --shards shards/ --objective ltr --output runs/ltr    # a language model

The same command resumes a stopped run; after SIGTERM it saves a checkpoint and exits with code 75.
The run directory holds the model with the lowest held-out loss (best/) and the last one (last/);
Hugging Face opens both, too (docs/objectives.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.commands.command import Command
from bert_tf.commands.pretraining_options import PretrainingOptions as Options
from bert_tf.commands.progress import (
    RunProgress,
    best_model_line,
    command_line,
    console,
    outcome_lines,
    progress,
)
from bert_tf.commands.result import Result, Table, score_table
from bert_tf.files.mirror import joined, mirrored

if TYPE_CHECKING:
    from bert_tf.training.loop import TrainingResult


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
        lines = outcome_lines(self.training, self.steps)
        if self.loss is None:
            return [*lines, f"Last model: {self.model}; nothing was held out to choose the best by"]
        loss = f"held-out loss {self.loss:.4f}"
        return [*lines, best_model_line(self.model, self.training, loss)]

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
    is_default = options.steps == Options.steps
    shorten = "give --steps or a smaller --size, and another --output" if is_default else ""
    with progress("pre-training", total=options.steps, shown=options.shown) as bar:
        from bert_tf.commands.pretraining_run import run_pretraining

        with mirrored(options.output, [options.shards, *options.mixed, options.long_shards]):
            training = run_pretraining(options, RunProgress(bar, shorten=shorten))
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


COMMAND = Command(
    name="pretrain",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    common="shards long_shards size model output batch_size learning_rate steps "
    "warmup_steps precision",
)
pretrain = COMMAND.function("pretrain")

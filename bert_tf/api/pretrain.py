"""`bert_tf.pretrain`."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.api.keywords import PathName, Verbosity, keywords
from bert_tf.api.progress import RunProgress, outcome_lines, progress
from bert_tf.api.result import Result, Table, score_table
from bert_tf.files.mirror import joined, mirrored
from bert_tf.options import option
from bert_tf.pretraining.pretraining_options import PretrainingOptions

if TYPE_CHECKING:
    from bert_tf.training.loop import TrainingResult


@dataclass(kw_only=True)
class _Keywords(Verbosity, PretrainingOptions):
    shards: PathName = option(path=True)  # type: ignore[assignment]
    model: PathName | None = option(None, path=True)  # type: ignore[assignment]
    output: PathName = option(writes="folder or URL")  # type: ignore[assignment]


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


@keywords(_Keywords)
def pretrain(options: PretrainingOptions, *, shown: bool = True) -> PretrainResult:
    """Pre-trains a BERT on shards, as `bert-tf pretrain` does.

    The same call resumes a stopped run.

    Returns:
        The model's directory and its loss.

    Raises:
        InputError: the shards, the model or the options cannot be used; the message says why.
        Preempted: SIGTERM ended the run after a checkpoint.
    """
    with progress("pre-training", total=options.steps, shown=shown) as bar:
        from bert_tf.pretraining.pretrain import pretrain

        with mirrored(options.output, [options.shards, *options.mixed, options.long_shards]):
            training = pretrain(options, RunProgress(bar))
    return PretrainResult(
        output=joined(options.output), training=training, steps=options.steps, notices=bar.notices
    )

"""The trials of a search: settings and their scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bert_tf.finetuning.restarts import Restarts


@dataclass(frozen=True, order=True)
class Setting:
    """One combination of the values that a search varies.

    Attributes:
        batch_size: examples per step.
        learning_rate: peak learning rate.
        epochs: passes over the training examples.
    """

    batch_size: int
    learning_rate: float
    epochs: int

    def __str__(self) -> str:
        """For messages."""
        rate = f"learning rate {self.learning_rate:g}"
        epochs = f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        return f"batch size {self.batch_size}, {rate}, {epochs}"

    @property
    def folder(self) -> str:
        """Name of its folder, and of its runs in TensorBoard."""
        return f"batch-{self.batch_size}_rate-{self.learning_rate:g}_epochs-{self.epochs}"


@dataclass
class Trial:
    """A setting and the scores of its runs."""

    setting: Setting
    restarts: Restarts = field(default_factory=Restarts)

    @property
    def score(self) -> float | None:
        """The mean of the score that chooses; None if it is undefined in every run."""
        summary = self.restarts.summary().get(self.restarts.best_by)
        return summary["mean"] if summary else None


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a score, the best first."""
    scored = [trial for trial in trials if trial.score is not None]
    return sorted(scored, key=lambda trial: -(trial.score or 0.0))


def best_by(trials: Sequence[Trial]) -> str:
    """The name of the score that ranks them."""
    return next((t.restarts.best_by for t in trials if t.restarts.best_by), "score")

"""The trials of a search, and what is shown of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bert_tf.finetuning.restarts import Restarts, best_of
from bert_tf.tasks.reports.pictures import curves
from bert_tf.tasks.reports.report import markdown


@dataclass(frozen=True, order=True)
class Setting:
    """One combination of the values that a search varies."""

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
class Trial(Restarts):
    """A setting and the scores of its runs."""

    setting: Setting = field(kw_only=True)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a score, the best first."""
    scored = [trial for trial in trials if trial.score is not None]
    return sorted(scored, key=lambda trial: -(trial.score or 0.0))


def best_by(trials: Sequence[Trial]) -> str:
    """The name of the score that ranks them."""
    return next((trial.best_by for trial in trials if trial.best_by), "score")


def table(trials: Sequence[Trial]) -> list[list[str]]:
    """A row of column names, and one for each setting: the best first, those without a score last.

    After the setting come mean, deviation and each run of the score that chooses, the evaluations
    that each run is the best of, then the means of the other scores.
    """
    score = best_by(trials)
    others = dict.fromkeys(name for t in trials for name in t.summary() if name != score)
    rows = [
        ["batch size", "learning rate", "epochs", score, "deviation", "runs", "evaluations",
         *others]
    ]  # fmt: skip
    best = ranked(trials)
    for trial in [*best, *(trial for trial in trials if trial not in best)]:
        setting, summary = trial.setting, trial.summary()
        scores = [_shown(scores.get(score)) for scores in trial.runs.values()]
        has_deviation = len(scores) > 1 and score in summary
        rows.append(
            [
                str(setting.batch_size),
                f"{setting.learning_rate:g}",
                str(setting.epochs),
                _shown(trial.score),
                f"{summary[score]['deviation']:.2g}" if has_deviation else "-",
                " ".join(scores),
                " ".join(map(str, trial.evaluations.values())) or "-",
                *(_shown(summary[name]["mean"] if name in summary else None) for name in others),
            ]
        )
    return rows


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{score:.4g}"


def page(trials: Sequence[Trial]) -> str:
    """The table as Markdown, and what its scores are."""
    evaluations = [number for trial in trials for number in trial.evaluations.values()]
    return (
        f"{markdown(table(trials))}\n\n"
        f"Each run is the {best_of(evaluations) or 'model'} on the validation examples, which "
        "choose the setting, too: a development score. Report one of other examples.\n"
    )


def picture(trials: Sequence[Trial]) -> np.ndarray:
    """Scores over the learning rate, a line for each batch size and number of epochs."""
    name = best_by(trials)
    series: dict[str, list[tuple[float, list[float]]]] = {}
    for trial in sorted(ranked(trials), key=lambda trial: trial.setting):
        setting, values = trial.setting, trial.summary()[name]["scores"].values()
        line = series.setdefault(f"batch {setting.batch_size}, epochs {setting.epochs}", [])
        line.append((setting.learning_rate, list(values)))
    return curves(f"best {name} on the validation examples", series, "learning rate", name)

"""What a search shows: a table, a picture, and the columns of TensorBoard's HParams tab."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.atomic import write_text, write_tsv
from bert_tf.finetuning.restarts import best_of
from bert_tf.finetuning.trials import Trial, best_by, ranked
from bert_tf.tasks.reports.pictures import curves, save_png
from bert_tf.tasks.reports.report import markdown
from bert_tf.training.hyper_parameters import write_columns


def table(trials: Sequence[Trial]) -> list[list[str]]:
    """A row of column names, and one for each setting, the best first.

    After the setting come mean, deviation and each run of the score that chooses, the evaluations
    that each run is the best of, then the means of the other scores. Settings without a score come
    last.
    """
    score = best_by(trials)
    others = dict.fromkeys(
        name for trial in trials for name in trial.restarts.summary() if name != score
    )
    header = [
        "batch size", "learning rate", "epochs", score, "deviation", "runs", "evaluations", *others
    ]  # fmt: skip
    rows = [header]
    best = ranked(trials)
    for trial in [*best, *(trial for trial in trials if trial not in best)]:
        setting, summary = trial.setting, trial.restarts.summary()
        runs = trial.restarts.runs.values()
        scores = [_shown(scores.get(score)) for scores in runs]
        rows.append(
            [
                str(setting.batch_size),
                f"{setting.learning_rate:g}",
                str(setting.epochs),
                _shown(trial.score),
                f"{summary[score]['deviation']:.2g}"
                if len(scores) > 1 and score in summary
                else "-",
                " ".join(scores),
                " ".join(map(str, trial.restarts.evaluations.values())) or "-",
                *(_shown(summary[name]["mean"] if name in summary else None) for name in others),
            ]
        )
    return rows


def page(trials: Sequence[Trial]) -> str:
    """The table as Markdown, and what its scores are."""
    all_evaluations = [n for trial in trials for n in trial.restarts.evaluations.values()]
    return (
        f"{markdown(table(trials))}\n\n"
        f"Each run is the {best_of(all_evaluations) or 'model'} on the validation examples, which "
        "choose the setting, too: a development score. Report one of other examples.\n"
    )


def write_report(
    trials: Sequence[Trial], output: Path, values: Mapping[str, Sequence[float]]
) -> None:
    """Writes search.tsv, search.md, search.png, and the columns of TensorBoard's HParams tab.

    Args:
        trials: trials so far.
        output: folder of the search.
        values: see `write_columns`.
    """
    write_tsv(output / "search.tsv", table(trials))
    write_text(output / "search.md", page(trials))
    save_png(output / "search.png", picture(trials))
    write_columns(output / "logs", values, f"best_{best_by(trials)}")


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{score:.4g}"


def picture(trials: Sequence[Trial]) -> np.ndarray:
    """Scores over the learning rate, a line for each batch size and number of epochs."""
    name = best_by(trials)
    series: dict[str, list[tuple[float, list[float]]]] = {}
    for trial in sorted(ranked(trials), key=lambda trial: trial.setting):
        setting, values = trial.setting, trial.restarts.summary()[name]["scores"].values()
        line = series.setdefault(f"batch {setting.batch_size}, epochs {setting.epochs}", [])
        line.append((setting.learning_rate, list(values)))
    return curves(f"best {name} on the validation examples", series, "learning rate", name)

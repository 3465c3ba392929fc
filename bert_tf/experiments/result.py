"""The outcome of a plan: our scores beside the paper's, as Markdown, JSON and a picture."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.atomic import write_json, write_text
from bert_tf.experiments.plan import Plan
from bert_tf.experiments.run import Cache
from bert_tf.experiments.table import Column
from bert_tf.experiments.training_runs import Finetuning, Pretraining
from bert_tf.finetuning.restarts import best_of
from bert_tf.pretraining.word_frequencies import is_on_plateau, losses_per_word
from bert_tf.tasks.reports import pictures
from bert_tf.tasks.reports.report import markdown
from bert_tf.tasks.table import find_task

# Title of a pre-training -> its held-out scores.
HeldOut = Mapping[str, Mapping[str, float]]

# What the scores of every table are.
NOTE = (
    "Ours are development scores: each is the best of a run's evaluations on the validation "
    "examples, at the best of the learning rates tried with the first seed."
)
NOT_RUN, NOT_PUBLISHED, NO_SCORE = "not run here", "not in the paper", "no score"


@dataclass(frozen=True)
class Cell:
    """A score of ours, in the paper's units.

    Attributes:
        scores: one for each seed.
        setting: setting of the fine-tuning, if it is one.
        run: name of the run's folder.
        best_of: what a score is, "best of 3 evaluations"; empty if it is of one, or unknown.
    """

    scores: list[float]
    setting: str
    run: str
    best_of: str = ""

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None without a score."""
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """The sample's standard deviation; None for fewer than two seeds."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    def __str__(self) -> str:
        if self.mean is None:
            return NO_SCORE
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")


def read_cells(plan: Plan, cache: Cache) -> dict[tuple[int, int], Cell]:
    """The scores of a plan whose runs are finished."""
    cells = {}
    for (row, number), run in plan.cells.items():
        outcome = cache.outcome(run)
        assert outcome is not None
        if not isinstance(run, Finetuning):
            held_out = outcome["held_out"]
            losses = [held_out[n] for n in ("mlm_loss", "loss") if n in held_out]
            cells[row, number] = Cell([math.exp(losses[0])], "", run.name)
            continue
        name = plan.columns[number].score or outcome["best_by"]
        factor = 1.0 if find_task(run.data.task).kind.scores_are_percentages else 100.0
        scores = [factor * score for score in outcome["scores"].get(name, [])]
        of_evaluations = best_of(outcome.get("evaluations", ()))
        cells[row, number] = Cell(scores, outcome["setting"], run.name, of_evaluations)
    return cells


def write_result(plan: Plan, cache: Cache, folder: Path) -> list[list[str]]:
    """Writes table.md, table.json and table.png; returns the table, its header first."""
    cells = read_cells(plan, cache)
    rows = table_rows(plan, cells)
    held_out = _held_out(plan, cache)
    write_json(folder / "table.json", _json(plan, cells, held_out))
    pictures.save_png(folder / "table.png", _picture(plan, cells))
    write_text(folder / "table.md", _page(plan, cells, rows, held_out))
    return rows


def _held_out(plan: Plan, cache: Cache) -> HeldOut:
    outcomes = {run.title: cache.outcome(run) for run in plan.runs if isinstance(run, Pretraining)}
    return {title: outcome["held_out"] for title, outcome in outcomes.items() if outcome}


def _published_columns(plan: Plan) -> list[str]:
    """The paper's columns."""
    return [*dict.fromkeys(title for row in plan.table.published.values() for title in row)]


def table_rows(plan: Plan, cells: Mapping[tuple[int, int], Cell]) -> list[list[str]]:
    """Our systems, then the paper's others; each of the paper's columns beside ours.

    A column of ours that the paper lacks says so in its title.
    """
    published = _published_columns(plan)
    ours = {column.title: number for number, column in enumerate(plan.columns)}
    titles = [*dict.fromkeys([*published, *ours])]
    header = ["system"]
    for title in titles:
        header += [title, "paper"] if title in published else [f"{title}, {NOT_PUBLISHED}"]
    rows = [header]
    systems = {system.name: row for row, system in enumerate(plan.systems)}
    for name in dict.fromkeys([*systems, *plan.table.published]):
        cellsof = [name]
        for title in titles:
            cell = cells.get((systems.get(name, -1), ours.get(title, -1)))
            cellsof.append(NOT_RUN if cell is None else str(cell))
            if title in published:
                number = plan.table.published.get(name, {}).get(title)
                cellsof.append(NOT_PUBLISHED if number is None else f"{number:g}")
        rows.append(cellsof)
    return rows


def _settings(plan: Plan) -> dict[str, Any]:
    """The settings of each system, by run."""
    return {
        run.title: {"run": run.name, **run.identity}
        for run in plan.runs
        if not isinstance(run, Finetuning)
    }


def _json(plan: Plan, cells: Mapping[tuple[int, int], Cell], held_out: HeldOut) -> dict[str, Any]:
    rows = []
    for row, system in enumerate(plan.systems):
        scores = {}
        for number, column in enumerate(plan.columns):
            cell = cells[row, number]
            scores[column.title] = {
                "mean": cell.mean,
                "deviation": cell.deviation,
                "scores": cell.scores,
                "setting": cell.setting,
                "best_of": cell.best_of,
                "run": cell.run,
            }
        rows.append(
            {
                "system": system.name,
                "scores": scores,
                "paper": dict(plan.table.published.get(system.name, {})),
            }
        )
    return {
        "table": plan.table.name,
        "title": plan.table.title,
        "paper": plan.table.source,
        "scale": plan.scale.name,
        "seeds": _seeds(plan),
        "rows": rows,
        "published": {name: dict(row) for name, row in plan.table.published.items()},
        "settings": _settings(plan),
        "held_out": held_out,
    }


def _seeds(plan: Plan) -> list[int]:
    """The seeds of the fine-tunings."""
    for run in plan.cells.values():
        if isinstance(run, Finetuning):
            return [*range(run.options.seed, run.options.seed + run.options.seeds)]
    return []


def _page(
    plan: Plan,
    cells: Mapping[tuple[int, int], Cell],
    rows: list[list[str]],
    held_out: HeldOut,
) -> str:
    table, seeds = plan.table, _seeds(plan)
    finetuned = [column for column in plan.columns if column.task]
    lines = [
        f"# {table.title}",
        f"`bert-tf reproduce {table.name} --scale {plan.scale.name}`, beside the paper's "
        f"{table.source} (Devlin et al., arXiv 1810.04805v2).",
        markdown(rows),
        f"Ours: mean ± standard deviation over {len(seeds)} seed(s) of the fine-tuning"
        f"{', on the validation examples' if finetuned else ''}; one pre-training each. "
        f"{NOTE if finetuned else ''}",
        *table.remarks,
        f"![{table.title}](table.png)",
        "## Pre-training",
        *_pretraining_lines(held_out),
        "## Settings",
        *_setting_lines(plan),
        "## Fine-tunings",
        markdown(
            [
                ["system", "score", "setting", "seeds", "each the", "run"],
                *_finetuning_rows(plan, cells),
            ]
        ),
    ]
    return "\n\n".join(lines) + "\n"


def _pretraining_lines(held_out: HeldOut) -> list[str]:
    """What each model knows of held-out words; which of them is hardly worth a comparison."""
    rows = [["run", "best step", "loss per word", "of word frequencies alone", "words guessed"]]
    for title, scores in held_out.items():
        losses = losses_per_word(scores)
        shown = " / ".join(f"{loss:.2f}" for loss in losses.values())
        guessed = " / ".join(f"{scores[f'{head}_accuracy']:.1%}" for head in losses)
        frequencies = f"{scores['word_frequency_loss']:.2f}"
        rows.append([title, f"{scores['step']:,}", shown, frequencies, guessed])
    stuck = [title for title, scores in held_out.items() if is_on_plateau(scores)]
    lines = [f"Learned little but how frequent words are: {'; '.join(stuck)}."] if stuck else []
    return [markdown(rows), *lines]


def _setting_lines(plan: Plan) -> list[str]:
    rows = [["run", "options", "folder"]]
    for run in plan.runs:
        if not isinstance(run, Finetuning):
            shown = ", ".join(f"{name} {value}" for name, value in _flat(run.identity).items())
            rows.append([run.title, shown, run.name])
    return [markdown(rows)]


def _flat(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a run for reading; hashes of files are too long."""
    flat: dict[str, Any] = {}
    for name, value in identity.items():
        if name == "lengths":
            flat |= value[0]
        elif name not in ("corpus", "content"):
            flat[name] = value
    return flat


def _finetuning_rows(plan: Plan, cells: Mapping[tuple[int, int], Cell]) -> list[list[str]]:
    return [
        [
            plan.systems[row].name,
            plan.columns[number].title,
            cell.setting,
            " ".join(f"{score:.1f}" for score in cell.scores) or NO_SCORE,
            cell.best_of or "-",
            cell.run,
        ]
        for (row, number), cell in cells.items()
        if cell.setting
    ]


def _picture(plan: Plan, cells: Mapping[tuple[int, int], Cell]) -> np.ndarray:
    if any(system.line for system in plan.systems):
        drawn = [_curves(plan, cells, number, each) for number, each in enumerate(plan.columns)]
        width = max(each.shape[1] for each in drawn)
        padded = [
            np.pad(each, [(0, 0), (0, width - each.shape[1]), (0, 0)], constant_values=255)
            for each in drawn
        ]
        return np.concatenate(padded)
    columns = {
        column.title: [cells[row, number].scores for row in range(len(plan.systems))]
        for number, column in enumerate(plan.columns)
    }
    names = [system.name for system in plan.systems]
    return pictures.compared(plan.table.title, names, columns)


def _curves(
    plan: Plan, cells: Mapping[tuple[int, int], Cell], number: int, column: Column
) -> np.ndarray:
    series: dict[str, list[tuple[float, list[float]]]] = {}
    for row, system in enumerate(plan.systems):
        if scores := cells[row, number].scores:
            series.setdefault(system.line, []).append((system.step or 0, scores))
    return pictures.curves(plan.table.title, series, "steps of pre-training", column.title)

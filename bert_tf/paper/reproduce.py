"""Makes a table: plans its stages, makes what is missing, writes our scores beside the paper's."""

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.commands.word_frequencies import is_on_plateau, losses_per_word
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json, write_text
from bert_tf.files.outputs import check_output_folder
from bert_tf.paper.plan import Plan
from bert_tf.paper.stage import Cache, Show, Stage
from bert_tf.paper.step_speed import StepSpeed
from bert_tf.paper.training_stages import NO_SCORE, Score
from bert_tf.pipelines.examples.reading import is_dataset_name
from bert_tf.tasks.reports.pictures import compared, curves, save_png
from bert_tf.tasks.reports.tables import markdown
from bert_tf.training.workers import hold_run_directory

NOTE = (
    "Ours are development scores: each is the best of a run's evaluations on the validation "
    "examples, at the best of the learning rates tried with the first seed."
)
NOT_RUN = "not run here"
NOT_PUBLISHED = "not in the paper"


@dataclass(frozen=True)
class PlannedStage:
    """A stage, and estimates of the time and the disk space that it still takes."""

    stage: Stage
    is_done: bool
    seconds: float
    bytes: float


class Reproduction:
    """A table to make, from its plan; `output` is the folder of all tables."""

    def __init__(self, plan: Plan, output: str) -> None:
        inputs = [*plan.corpus.named, *(data.train for data in plan.tasks if data.train)]
        files = [path for path in inputs if not is_dataset_name(path)]
        self.output = check_output_folder(output, files)
        self.plan = plan
        self._cache = Cache(self.output / "runs")

    def estimate(self, notice: Callable[[str], object] = lambda line: None) -> list[PlannedStage]:
        """Every stage with its cost; `notice` gets a line before each measurement of a step."""
        speed = StepSpeed(notice)
        lines = []
        for stage in self.plan.stages:
            is_done = self._cache.outcome(stage) is not None
            cost = (0.0, 0.0) if is_done else (stage.seconds(speed), stage.bytes)
            lines.append(PlannedStage(stage, is_done, *cost))
        return lines

    @property
    def free_bytes(self) -> int:
        folders = (self.output, *self.output.parents)
        return shutil.disk_usage(next(folder for folder in folders if folder.exists())).free

    def make(self, started: Callable[[Stage, int, int], Show]) -> list[list[str]]:
        """Makes missing stages; writes table.md, table.json and table.png; returns the table.

        `started` is called before each stage, with its number from 1 and the number of all; it
        returns what shows the stage's progress. After Preempted, the same call resumes.
        """
        stages = self.plan.stages
        with hold_run_directory(self.output, tf.distribute.get_strategy()):
            for number, stage in enumerate(stages, 1):
                if self._cache.outcome(stage) is None:
                    self._cache.make(stage, started(stage, number, len(stages)))
                counts = (self._cache.outcome(stage) or {}).get("instances", [])
                if not all(count["held_out"] for count in counts):
                    raise InputError("no text was held out: give a corpus of more documents")
            result = _Result(self.plan, self._cache)
            folder = self.output / self.plan.table.name
            write_json(folder / "table.json", result.as_json())
            save_png(folder / "table.png", result.picture())
            write_text(folder / "table.md", result.page())
            return result.rows


@dataclass(frozen=True)
class _Result:
    plan: Plan
    cache: Cache

    def _outcome(self, stage: Stage) -> dict[str, Any]:
        return self.cache.outcome(stage) or {}

    @functools.cached_property
    def scores(self) -> dict[tuple[int, int], Score]:
        return {
            (row, number): stage.score(self._outcome(stage), self.plan.columns[number].score)
            for (row, number), stage in self.plan.cells.items()
        }

    @functools.cached_property
    def held_out(self) -> dict[str, Mapping[str, float]]:
        """Title of a pre-training -> its held-out scores."""
        return {run.title: self._outcome(run)["held_out"] for run in self.plan.pretrainings}

    @property
    def _seeds(self) -> list[int]:
        return self.plan.finetunings[0].seeds if self.plan.finetunings else []

    @functools.cached_property
    def rows(self) -> list[list[str]]:
        """Our systems, then the paper's others; each of the paper's columns beside ours."""
        published = self.plan.table.published
        in_paper = list(dict.fromkeys(title for row in published.values() for title in row))
        ours = {column.title: number for number, column in enumerate(self.plan.columns)}
        titles = list(dict.fromkeys([*in_paper, *ours]))
        header = ["system"]
        for title in titles:
            header += [title, "paper"] if title in in_paper else [f"{title}, {NOT_PUBLISHED}"]
        rows = [header]
        systems = {system.name: row for row, system in enumerate(self.plan.systems)}
        for name in dict.fromkeys([*systems, *published]):
            row = [name]
            for title in titles:
                score = self.scores.get((systems.get(name, -1), ours.get(title, -1)))
                row.append(NOT_RUN if score is None else str(score))
                if title in in_paper:
                    number = published.get(name, {}).get(title)
                    row.append(NOT_PUBLISHED if number is None else f"{number:g}")
            rows.append(row)
        return rows

    def as_json(self) -> dict[str, Any]:
        table = self.plan.table
        scores: list[dict[str, Any]] = [{} for _ in self.plan.systems]
        for (row, number), score in self.scores.items():
            scores[row][self.plan.columns[number].title] = {
                "mean": score.mean,
                "deviation": score.deviation,
                "scores": score.values,
                "setting": score.setting,
                "best_of": score.best_of,
                "run": self.plan.cells[row, number].name,
            }
        rows = [
            {"system": system.name, "scores": ours, "paper": table.published.get(system.name, {})}
            for system, ours in zip(self.plan.systems, scores, strict=True)
        ]
        return {
            "table": table.name,
            "title": table.title,
            "paper": table.source,
            "scale": self.plan.scale.name,
            "seeds": self._seeds,
            "rows": rows,
            "published": table.published,
            "settings": {one.title: {"run": one.name, **one.identity} for one in self._untuned},
            "held_out": self.held_out,
        }

    @property
    def _untuned(self) -> list[Stage]:
        return [stage for stage in self.plan.stages if stage not in self.plan.finetunings]

    def page(self) -> str:
        table = self.plan.table
        scale = self.plan.scale
        finetuned = [column for column in self.plan.columns if column.task]
        lines = [
            f"# {table.title}",
            f"`bert-tf reproduce {table.name} --scale {scale.name}`, beside the paper's "
            f"{table.source} (Devlin et al., arXiv 1810.04805v2).",
            markdown(self.rows),
            f"Ours: mean ± standard deviation over {len(self._seeds)} seed(s) of the fine-tuning"
            f"{', on the validation examples' if finetuned else ''}; one pre-training each. "
            f"{NOTE if finetuned else ''}",
            *table.remarks,
            f"![{table.title}](table.png)",
            "## Pre-training",
            *self._pretraining_lines(),
            "## Settings",
            markdown([["run", "options", "folder"], *map(_setting_row, self._untuned)]),
            "## Fine-tunings",
            markdown([*self._finetuning_rows()]),
        ]
        return "\n\n".join(lines) + "\n"

    def _pretraining_lines(self) -> list[str]:
        """What each model knows of held-out words; which of them is hardly worth a comparison."""
        rows = [["run", "best step", "loss per word", "of word frequencies alone", "words guessed"]]
        for title, scores in self.held_out.items():
            losses = losses_per_word(scores)
            shown = " / ".join(f"{loss:.2f}" for loss in losses.values())
            guessed = " / ".join(f"{scores[f'{head}_accuracy']:.1%}" for head in losses)
            frequencies = f"{scores['word_frequency_loss']:.2f}"
            rows.append([title, f"{scores['step']:,}", shown, frequencies, guessed])
        stuck = "; ".join(title for title, s in self.held_out.items() if is_on_plateau(s))
        warning = [f"Learned little but how frequent words are: {stuck}."] if stuck else []
        return [markdown(rows), *warning]

    def _finetuning_rows(self) -> Iterator[list[str]]:
        yield ["system", "score", "setting", "seeds", "each the", "run"]
        for (row, number), score in self.scores.items():
            if score.setting:
                yield [
                    self.plan.systems[row].name,
                    self.plan.columns[number].title,
                    score.setting,
                    " ".join(f"{value:.1f}" for value in score.values) or NO_SCORE,
                    score.best_of or "-",
                    self.plan.cells[row, number].name,
                ]

    def picture(self) -> np.ndarray:
        """Bars, or curves over the steps of pre-training for systems that are points of lines."""
        systems = self.plan.systems
        columns = self.plan.columns
        title = self.plan.table.title
        values = {
            column.title: [self.scores[row, number].values for row in range(len(systems))]
            for number, column in enumerate(columns)
        }
        if not any(system.line for system in systems):
            return compared(title, [system.name for system in systems], values)
        pictures = []
        for name, of_systems in values.items():
            lines: dict[str, list[tuple[float, list[float]]]] = {}
            for system, scores in zip(systems, of_systems, strict=True):
                if scores:
                    lines.setdefault(system.line, []).append((system.step or 0, scores))
            pictures.append(curves(title, lines, "steps of pre-training", name))
        width = max(picture.shape[1] for picture in pictures)
        return np.concatenate(
            [
                np.pad(x, [(0, 0), (0, width - x.shape[1]), (0, 0)], constant_values=255)
                for x in pictures
            ]
        )


def _setting_row(stage: Stage) -> list[str]:
    """Options of a stage for reading; hashes of files are too long."""
    values = dict(stage.identity)
    values |= values.pop("lengths", [{}])[0]
    shown = [f"{name} {v}" for name, v in values.items() if name not in ("corpus", "content")]
    return [stage.title, ", ".join(shown), stage.name]

"""Several runs of a fine-tuning, with one seed each (paper, section 4.1)."""

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import tensorflow as tf

from bert_tf.commands.finetuning_options import FinetuningOptions, FinetuningSetup
from bert_tf.commands.finetuning_run import FinetuningResult, run_finetuning
from bert_tf.errors import InputError
from bert_tf.files.atomic import replace_directory, write_json
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.owners import SEEDS
from bert_tf.options import differing, identity
from bert_tf.training.loop import LOSS, DivergedError, merit
from bert_tf.training.watcher import Watcher
from bert_tf.training.workers import hold_run_directory

OneRun = Callable[[FinetuningOptions, Watcher], FinetuningResult | None]


@dataclass
class Restarts:
    """Scores of runs that differ in their seed alone."""

    best_by: str = ""  # name of the score that chooses the best run
    # Seed -> defined scores of its best model on the validation examples; none if it diverged.
    runs: dict[int, dict[str, float]] = field(default_factory=dict)
    # Seed -> evaluations that the best model is the best of, if known.
    evaluations: dict[int, int] = field(default_factory=dict)

    def make(
        self, options: FinetuningOptions, watcher: Watcher, run: OneRun, title: str = ""
    ) -> None:
        """Makes the run of a seed and adds its outcome; notifies the watcher if it diverged."""
        try:
            result = run(options, watcher)
        except DivergedError as error:
            self.runs[options.seed] = {}
            watcher.notice(f"{title}seed {options.seed} diverged: {error}")
            return
        assert result is not None and result.evaluation is not None  # no dry run, and one worker
        scores = result.scores.items()
        self.best_by = result.best_by
        self.evaluations[options.seed] = result.evaluations
        self.runs[options.seed] = {n: v for n, v in scores if n != "examples" and v is not None}

    def merit(self, scores: Mapping[str, float]) -> tuple[float, float] | None:
        """Ranks scores of runs, or their means: the best is the largest; None without the score."""
        name = self.best_by
        return merit(name, scores[name], scores.get(LOSS)) if name in scores else None

    @property
    def best_seed(self) -> int | None:
        """The seed of the best run, of equal runs the largest; None if no run has the score."""
        merits = ((self.merit(scores), seed) for seed, scores in self.runs.items())
        return max(((x, seed) for x, seed in merits if x is not None), default=(None, None))[1]

    @property
    def means(self) -> dict[str, float]:
        """Score -> its mean over the runs that have it."""
        return {name: score["mean"] for name, score in self.summary().items()}

    @property
    def score(self) -> float | None:
        """The mean of the score that chooses; None if no run has it."""
        return self.means.get(self.best_by)

    def summary(self) -> dict[str, dict[str, Any]]:
        """Score -> "mean", "deviation" (of the sample), "best", "runs", and "scores" by seed."""
        summary = {}
        for name in dict.fromkeys(name for run in self.runs.values() for name in run):
            scores = {seed: run[name] for seed, run in self.runs.items() if name in run}
            values = list(scores.values())
            summary[name] = {
                "mean": statistics.fmean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
                "best": min(values) if name == LOSS else max(values),
                "runs": len(values),
                "scores": scores,
            }
        return summary

    def lines(self) -> Iterator[str]:
        """The summary, a line for each score."""
        for name, score in self.summary().items():
            scores = ", ".join(f"{value:.4g}" for value in score["scores"].values())
            yield (
                f"{name}: mean {score['mean']:.4g}, deviation {score['deviation']:.2g}, "
                f"best {score['best']:.4g} of {scores}"
            )
        if several := best_of(self.evaluations.values()):
            yield f"Each run's scores are those of the {self.best_by} that is the {several}"


def best_of(evaluations: Iterable[int]) -> str:
    """The words "best of 3 evaluations"; empty for one evaluation, or an unknown number."""
    numbers = sorted(set(evaluations))
    if not numbers or numbers[-1] == 1:
        return ""
    return f"best of {' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} evaluations"


def finetune_seeds(
    options: FinetuningOptions, watcher: Watcher, run: OneRun = run_finetuning
) -> Restarts:
    """Fine-tunes with several seeds, in `<output>/seed-N`, and keeps the best model as `best/`.

    The runs count their seed up from the options'. The summary of the scores is written to
    `seeds.json`; a dry run has none. Raises InputError if the runs would need several workers, or
    another process trains there; DivergedError if every run diverged.
    """
    refuse_workers(options, "--seeds")
    restarts = Restarts()
    if options.dry_run:
        for seed_run in seed_options(options):
            run(seed_run, watcher)
        return restarts
    inputs = [options.model, options.source, options.validation]
    output = check_output_folder(options.output, inputs)
    with hold_run_directory(output, tf.distribute.get_strategy(), SEEDS) as mark:
        assert mark is not None  # one worker
        settings = json.loads(json.dumps({**identity(options), "seed": None}))
        before = mark.settings if (output / "best").exists() else None
        changed: list[str] = []
        if before is not None:
            changed = [x for x in differing(before, settings, options.implied()) if x in settings]
        if changed and not options.override:
            raise InputError(
                f"{output} holds runs with another --{', --'.join(changed)}: give the same, "
                "another --output, or --override to replace them"
            )
        mark.settings = settings
        mark.write()
        for seed_run in seed_options(options):
            restarts.make(seed_run, watcher, run)
        finished = [seed for seed, scores in restarts.runs.items() if scores]
        if not finished:
            raise DivergedError("every seed diverged: give a smaller --learning_rate")
        best = restarts.best_seed
        if best is None:
            best = finished[0]
            watcher.notice(
                f"{restarts.best_by} was undefined in every run: best/ is that of seed {best}"
            )
        keep_best(seed_folder(output, best), output)
        write_json(output / "seeds.json", restarts.summary())
    return restarts


def refuse_workers(options: FinetuningSetup, what: str) -> None:
    """Refuses several workers: runs follow each other in one process."""
    if options.strategy == "multi_worker":
        raise InputError(f"{what} and --strategy multi_worker cannot be combined: leave one out")


def seed_options(options: FinetuningOptions) -> Iterator[FinetuningOptions]:
    for seed in range(options.seed, options.seed + options.seeds):
        yield replace(options, seeds=1, seed=seed, output=str(seed_folder(options.output, seed)))


def seed_folder(output: str | Path, seed: int) -> Path:
    return Path(output) / f"seed-{seed}"


def keep_best(run: Path, output: str | Path) -> None:
    """Copies a run's best model to `<output>/best`."""
    with replace_directory(Path(output) / "best") as temporary:
        copytree(run / "best", temporary, dirs_exist_ok=True)

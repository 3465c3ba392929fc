"""Search for the settings of a fine-tuning: batch size, learning rate and epochs (section A.3)."""

import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.commands.finetuning_data import run_identity
from bert_tf.commands.finetuning_options import (
    FinetuningOptions,
    FinetuningSetup,
    SearchOptions,
)
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.commands.seeds import (
    OneRun,
    Restarts,
    best_of,
    keep_best,
    refuse_workers,
    seed_folder,
    seed_options,
)
from bert_tf.errors import InputError, pip_install
from bert_tf.files.atomic import write_json, write_text, write_tsv
from bert_tf.files.outputs import check_output_folder
from bert_tf.files.owners import SEARCH, Mark
from bert_tf.options import differing, identity, joined
from bert_tf.pipelines.examples.reading import is_dataset_name
from bert_tf.tasks.reports.pictures import curves, save_png
from bert_tf.tasks.reports.tables import markdown
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.monitoring import write_columns
from bert_tf.training.training_options import save_config
from bert_tf.training.watcher import Watcher
from bert_tf.training.workers import hold_run_directory
from bert_tf.version import TRAJECTORY

_RECORD = "search.json"
_DATA = (  # options that name the examples, beside their content
    "data",
    "train",
    "validation",
    "validation_share",
    "text_column",
    "pair_column",
    "label_column",
    "format",
    "header",
)
_SHOWN = {
    "content": "content of the data",
    "model_content": "content of --model",
    "teacher_content": "content of --teacher",
    "tokenizer": "vocabulary or tokenizer of --model",
    "version": "version of bert-tf",
}
_ATTEMPTS = 100  # proposals to look at for one that was not tried


@dataclass(frozen=True, order=True)
class Setting:
    """One combination of the values that a search varies."""

    batch_size: int
    learning_rate: float
    epochs: int

    def __str__(self) -> str:
        epochs = f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        return f"batch size {self.batch_size}, learning rate {self.learning_rate:g}, {epochs}"

    @property
    def folder(self) -> str:
        """Name of its folder, and of its runs in TensorBoard."""
        return f"batch-{self.batch_size}_rate-{self.learning_rate:g}_epochs-{self.epochs}"


@dataclass
class Trial(Restarts):
    setting: Setting = field(kw_only=True)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a score, the best first; of equal ones, the later first."""
    merits = ((trial.merit(trial.means), number) for number, trial in enumerate(trials))
    ranks = sorted(((x, number) for x, number in merits if x is not None), reverse=True)
    return [trials[number] for _, number in ranks]


def best_by(trials: Sequence[Trial]) -> str:
    """The name of the score that ranks them."""
    return next((trial.best_by for trial in trials if trial.best_by), "score")


def table(trials: Sequence[Trial]) -> list[list[str]]:
    """A row of column names, and one for each setting: the best first, those without a score last.

    `runs` are the scores of each run, `evaluations` what each is the best of; others are means.
    """
    score = best_by(trials)
    others = dict.fromkeys(name for t in trials for name in t.summary() if name != score)
    columns = ["batch size", "learning rate", "epochs", score, "deviation", "runs", "evaluations"]
    rows = [[*columns, *others]]
    best = ranked(trials)
    for trial in [*best, *(trial for trial in trials if trial not in best)]:
        setting = trial.setting
        summary = trial.summary()
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
    evaluations = (number for trial in trials for number in trial.evaluations.values())
    return (
        f"{markdown(table(trials))}\n\n"
        f"Each run is the {best_of(evaluations) or 'model'} on the validation examples, "
        "which choose the setting, too: a development score. Report one of other examples.\n"
    )


def picture(trials: Sequence[Trial]) -> np.ndarray:
    """Scores over the learning rate, a line for each batch size and number of epochs."""
    name = best_by(trials)
    series: dict[str, list[tuple[float, list[float]]]] = {}
    for trial in sorted(ranked(trials), key=lambda trial: trial.setting):
        setting = trial.setting
        values = trial.summary()[name]["scores"].values()
        line = series.setdefault(f"batch {setting.batch_size}, epochs {setting.epochs}", [])
        line.append((setting.learning_rate, list(values)))
    return curves(f"best {name} on the validation examples", series, "learning rate", name)


def search(options: SearchOptions, watcher: Watcher, run: OneRun = run_finetuning) -> list[Trial]:
    """Fine-tunes with one setting after another, in `<output>/<setting>/seed-N`.

    The search of the folder goes on, perhaps with more values, trials or seeds; no finished run is
    repeated. Returns the settings tried, in their order; none for a dry run. Raises InputError if
    options or data cannot be used, or the folder has another search; Preempted if a run stopped.
    """
    refuse_workers(options, "a search")
    inputs = [options.model, options.source, options.validation]
    output = check_output_folder(options.output, inputs)
    state = _Search(options, output)
    if options.dry_run:
        run(next(state.runs(state.grid[0])), watcher)
        watcher.notice(f"The search has {state.size} settings with {options.seeds} run(s) each")
        return []
    with hold_run_directory(output, tf.distribute.get_strategy(), SEARCH):
        state.read()
        for trial in state.unfinished():
            watcher.started(str(trial.setting), state.trials.index(trial) + 1, state.size)
            for seed_run in state.runs(trial.setting):
                if seed_run.seed not in trial.runs:
                    trial.make(seed_run, watcher, run, f"{trial.setting}: ")
                    state.write()
                    save_config(options, output)
            state.report()
        state.report()
        for line in state.remarks():
            watcher.notice(line)
    return state.trials


class _Search:
    """The state of a search, in a file of its folder that is replaced after every run."""

    def __init__(self, options: SearchOptions, output: Path) -> None:
        self.options = options
        self.output = output
        self.task = options.task_to_train()
        self.trials: list[Trial] = []
        self.best: str | None = None  # run that best/ is a copy of, relative to `output`
        values = itertools.product(options.batch_size, options.rates, options.epochs)
        self.grid = list(dict.fromkeys(itertools.starmap(Setting, values)))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same when the search goes on."""
        options = self.options
        settings = {
            **identity(options, FinetuningSetup),
            **{name: getattr(options, name) for name in _DATA},
            "content": data_content(options),
            "gradient_accumulation_steps": options.gradient_accumulation_steps,
            "version": TRAJECTORY,
            "teacher_content": None,
            **run_identity(options, self.task, BertTokenizer.from_directory(options.model)),
        }
        del settings["seed"]  # more seeds may be added
        return json.loads(json.dumps(settings))  # as it will be read again

    def read(self) -> None:
        """Takes up the search of the folder, if there is one."""
        settings = self.identity
        path = self.output / _RECORD
        if not path.exists():
            return
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            for trial in stored["trials"]:
                runs, evaluations = (
                    {int(seed): value for seed, value in trial.get(name, {}).items()}
                    for name in ("runs", "evaluations")
                )
                setting = Setting(**trial["setting"])
                self.trials.append(Trial(trial["best_by"], runs, evaluations, setting=setting))
            stored_settings = stored["options"]
            self.best = stored.get("best")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} cannot be read ({error}): restore or delete it") from error
        changed = differing(stored_settings, settings, self.options.implied())
        if changed and not self.options.override:
            listed = ", ".join(_SHOWN.get(name, f"--{name}") for name in changed)
            raise InputError(
                f"{self.output} holds a search with another {listed}: give the same, or another "
                "--output"
            )

    def write(self) -> None:
        trials = [asdict(trial) for trial in self.trials]
        record = {"options": self.identity, "best": self.best, "trials": trials}
        write_json(self.output / _RECORD, record)

    @property
    def size(self) -> int:
        """The number of trials of the whole search."""
        known = {trial.setting for trial in self.trials}
        return max(self.options.trials or len(known.union(self.grid)), len(known))

    def runs(self, setting: Setting) -> Iterator[FinetuningOptions]:
        run_class = joined(FinetuningOptions, self.task.kind.options)
        names = {x.name for x in fields(run_class)} & vars(self.options).keys()
        values = {name: getattr(self.options, name) for name in names}
        values |= {"output": str(self.output / setting.folder), **asdict(setting)}
        return seed_options(run_class(**values))

    def unfinished(self) -> Iterator[Trial]:
        """The trials of the given values with a run to make: known ones, then new ones."""
        yield from self._lacking()
        while (setting := self._next_setting()) is not None:
            self.trials.append(Trial(setting=setting))
            yield self.trials[-1]

    def _lacking(self) -> list[Trial]:
        """The known trials of the given values that lack runs of some seeds."""
        options = self.options
        seeds = set(range(options.seed, options.seed + options.seeds))
        known = [t for t in self.trials if options.trials is not None or t.setting in self.grid]
        return [trial for trial in known if not seeds <= trial.runs.keys()]

    def _next_setting(self) -> Setting | None:
        known = {trial.setting for trial in self.trials}
        proposals: Iterable[Setting] = self.grid
        if self.options.trials is not None:
            attempts = _ATTEMPTS if len(known) < self.options.trials else 0
            proposals = map(self._proposal, range(attempts))
        return next((setting for setting in proposals if setting not in known), None)

    def _proposal(self, attempt: int) -> Setting:
        """What TPE would try next; a function of the trials, the seed and the attempt."""
        try:
            import optuna
        except ImportError as error:
            raise InputError(f"--trials needs Optuna: {pip_install('search')}") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        options = self.options
        distributions = optuna.distributions
        rates = options.rates
        epochs = options.epochs
        space: dict[str, distributions.BaseDistribution] = {
            "batch_size": distributions.CategoricalDistribution(options.batch_size),
            "learning_rate": distributions.FloatDistribution(min(rates), max(rates), log=True),
            "epochs": distributions.IntDistribution(min(epochs), max(epochs)),
        }
        sampler = optuna.samplers.TPESampler(
            seed=options.seed + _ATTEMPTS * len(self.trials) + attempt
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for trial in ranked(self.trials):
            params = asdict(trial.setting)
            value = trial.merit(trial.means)
            with contextlib.suppress(ValueError):  # it is outside the given values
                known = optuna.create_trial(
                    params=params, distributions=space, value=value and value[0]
                )
                study.add_trial(known)
        proposed = study.ask(space).params
        rate = float(f"{proposed['learning_rate']:.3g}")  # as short as its folder's name
        return Setting(
            proposed["batch_size"], min(max(rate, min(rates)), max(rates)), proposed["epochs"]
        )

    def report(self) -> None:
        """Writes best/, the table, the picture and the columns; deletes what is not kept.

        Trials with different numbers of runs do not compare yet: until each known one has its
        runs, best/ stays, and no model is deleted. The checkpoints of finished runs are.
        """
        options = self.options
        output = self.output
        trials = self.trials
        complete = not self._lacking()
        best_runs = self._keep_best() if complete else []
        for trial in trials:
            for seed in trial.runs:
                folder = self._folder(trial, seed)
                is_kept = not complete or folder in best_runs
                mark = Mark.find(folder)
                for name in ("checkpoints", "last", *(() if is_kept else ("best",))):
                    if mark is not None:
                        mark.remove(name)
        write_tsv(output / "search.tsv", table(trials))
        write_text(output / "search.md", page(trials))
        save_png(output / "search.png", picture(trials))
        values: dict[str, Any] = {
            "batch_size": options.batch_size,
            "learning_rate": options.rates,
            "epochs": options.epochs,
        }
        if options.trials is not None:
            values |= {n: (min(values[n]), max(values[n])) for n in ("learning_rate", "epochs")}
        values["seed"] = (options.seed, options.seed + options.seeds - 1)
        write_columns(output / "logs", values, f"best_{best_by(trials)}")

    def _keep_best(self) -> list[Path]:
        """Copies the best model that is there to best/; returns the runs of the best settings."""
        models = [run for trial in ranked(self.trials) if (run := self._best_kept(trial))]
        if models:
            best = str(models[0].relative_to(self.output))
            if best != self.best or not (self.output / "best").is_dir():
                keep_best(models[0], self.output)
                self.best = best
                self.write()
        return models[: self.options.keep_models]

    def _folder(self, trial: Trial, seed: int) -> Path:
        return seed_folder(self.output / trial.setting.folder, seed)

    def _best_kept(self, trial: Trial) -> Path | None:
        """The run of the best seed whose model is there: further seeds may find it deleted."""
        runs = trial.runs.items()
        runs_left = {s: scores for s, scores in runs if (self._folder(trial, s) / "best").is_dir()}
        seed = Restarts(trial.best_by, runs_left).best_seed
        return None if seed is None else self._folder(trial, seed)

    def remarks(self) -> Iterator[str]:
        """Sentences on missing settings, and on where best/ comes from."""
        if len(self.trials) < (self.options.trials or 0):
            yield (
                f"{len(self.trials)} of {self.options.trials} trials were made: no further setting "
                "was found; give more values to try"
            )
        best = ranked(self.trials)[:1]
        if best and self.best is not None:
            yield f"best/ is the best model of {self.best}"
            if Path(self.best).parts[0] != best[0].setting.folder:
                yield (
                    "the models of the best setting were deleted before it was the best: for one, "
                    f"give bert-tf finetune its values ({best[0].setting})"
                )


def data_content(options: SearchOptions) -> str:
    """SHA-256 of the files with training and validation examples; of a dataset's name no more."""
    task = options.task_to_train()
    digest = hashlib.sha256()
    for data, split in ((options.source, "train"), (options.validation, "validation")):
        data = data or (options.source if task.has(options.source, split) else None)
        if data and not is_dataset_name(data) and (path := task.file(data, split)).is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()

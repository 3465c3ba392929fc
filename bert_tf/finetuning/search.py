"""Search for the settings of a fine-tuning: batch size, learning rate and epochs (section A.3)."""

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.atomic import write_json
from bert_tf.checkpoints.formats import content_hash
from bert_tf.errors import InputError
from bert_tf.finetuning.finetune import finetune, task_to_train
from bert_tf.finetuning.options import FinetuningOptions, FinetuningSetup, SearchOptions
from bert_tf.finetuning.restarts import (
    OneRun,
    Restarts,
    keep_best,
    refuse_workers,
    seed_folder,
    seed_options,
)
from bert_tf.finetuning.search_report import write_report
from bert_tf.finetuning.trials import Setting, Trial, ranked
from bert_tf.options import identity
from bert_tf.outputs import check_output_folder
from bert_tf.training.listener import Listener
from bert_tf.training.options import save_config
from bert_tf.training.workers import hold_run_directory
from bert_tf.version import TRAJECTORY
from pipelines.examples.records import is_dataset_name

_RECORD = "search.json"
# Options that name the examples, beside their content.
_DATA = (
    "data", "train", "validation", "validation_share",
    "text_column", "pair_column", "label_column", "format", "header",
)  # fmt: skip
_SHOWN = {
    "content": "content of the data",
    "split": "split into training and validation examples",
    "model_content": "content of --model",
    "version": "version of bert-tf",
}
_ATTEMPTS = 100  # proposals to look at for one that was not tried


def search(options: SearchOptions, listener: Listener, run: OneRun = finetune) -> list[Trial]:
    """Fine-tunes with one setting after another, in `<output>/<setting>/seed-N`.

    A search that was stopped goes on with the run that was stopped; it repeats no finished one. It
    may go on with more values, trials or seeds. Beside best/, the best model of the best setting,
    it keeps the logs of every run, and `keep_models` models.

    Args:
        options: options of the command.
        listener: is told how the runs go, and of each setting before its first run.
        run: makes one run.

    Returns:
        The settings tried, in their order; none for a dry run.

    Raises:
        InputError: the options or the data cannot be used, or the search of the folder is another.
        Preempted: a run was stopped.
    """
    refuse_workers(options, "a search")
    inputs = [options.model, options.source, options.validation]
    output = check_output_folder(options.output, inputs)
    if options.dry_run:
        first = next(iter(_grid(options)))
        run(next(seed_options(_finetuning(options, first))), listener)
        listener.notice(
            f"The search has {_number(options, [])} settings with {options.seeds} run(s) each"
        )
        return []
    with hold_run_directory(output, tf.distribute.get_strategy()):
        record = _Record.read(output, options)
        for trial in record.unfinished(options):
            number = record.trials.index(trial) + 1
            listener.started(str(trial.setting), number, _number(options, record.trials))
            for one in seed_options(_finetuning(options, trial.setting)):
                if one.seed in trial.restarts.runs:
                    continue
                if (line := trial.restarts.make(one, listener, run)) is not None:
                    listener.notice(f"{trial.setting}: {line}")
                record.write()
                save_config(options, output)
            record.report(options)
        record.report(options)
        for line in record.remarks():
            listener.notice(line)
    return record.trials


@dataclass
class _Record:
    """The trials of a search, in a file of its folder that is replaced after every run.

    Attributes:
        output: folder of the search.
        identity: what must be the same when the search goes on.
        trials: settings tried, and their scores.
        best: run that best/ is a copy of, relative to `output`; None for none yet.
    """

    output: Path
    identity: dict[str, Any]
    trials: list[Trial]
    best: str | None = None

    @classmethod
    def read(cls, output: Path, options: SearchOptions) -> "_Record":
        data = {name: getattr(options, name) for name in _DATA}
        data["content"] = data_content(options)
        own = {
            **identity(options, FinetuningSetup),
            **data,
            "gradient_accumulation_steps": options.gradient_accumulation_steps,
            "version": TRAJECTORY,
            "model_content": content_hash(options.model),
        }
        del own["seed"]  # more seeds may be added
        if not (options.validation or task_to_train(options).has(options.source, "validation")):
            own["split"] = "undivided texts, contexts and documents"
        path = output / _RECORD
        if not path.exists():
            return cls(output, own, [])
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            trials = [
                Trial(
                    Setting(**trial["setting"]),
                    Restarts(
                        trial["best_by"],
                        _by_seed(trial["runs"]),
                        _by_seed(trial.get("evaluations", {})),
                    ),
                )
                for trial in stored["trials"]
            ]
            kept, best = {"split": "by example", **stored["options"]}, stored.get("best")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path} cannot be read ({error}): restore or delete it") from error
        # Searches of earlier versions lack some.
        changed = [
            _SHOWN.get(name, f"--{name}")
            for name in own if name in kept and kept[name] != own[name]
        ]  # fmt: skip
        if changed and not options.override:
            raise InputError(
                f"{output} holds a search with another {', '.join(changed)}: give the same, or "
                "another --output"
            )
        return cls(output, own, trials, best)

    def write(self) -> None:
        trials = [
            {
                "setting": asdict(trial.setting),
                "best_by": trial.restarts.best_by,
                "runs": trial.restarts.runs,
                "evaluations": trial.restarts.evaluations,
            }
            for trial in self.trials
        ]
        found = {"options": self.identity, "best": self.best, "trials": trials}
        write_json(self.output / _RECORD, found)

    def _lacking(self, options: SearchOptions) -> list[Trial]:
        """The known trials of the given values that lack runs of some seeds."""
        seeds = set(range(options.seed, options.seed + options.seeds))
        wanted = _grid(options) if options.trials is None else {t.setting for t in self.trials}
        known = [trial for trial in self.trials if trial.setting in wanted]
        return [trial for trial in known if not seeds <= trial.restarts.runs.keys()]

    def unfinished(self, options: SearchOptions) -> Iterator[Trial]:
        """The trials of the given values with a run to make: known ones, then new ones."""
        yield from self._lacking(options)
        while (setting := _next_setting(options, self.trials)) is not None:
            self.trials.append(Trial(setting))
            yield self.trials[-1]

    def report(self, options: SearchOptions) -> None:
        """Writes best/, the table, the picture and the columns; deletes what is not kept.

        Trials with different numbers of runs do not compare yet: until each known one has its
        runs, best/ stays, and no model is deleted. The checkpoints of finished runs are.
        """
        complete = not self._lacking(options)
        kept = self._keep_best(options.keep_models) if complete else []
        for trial in self.trials:
            for seed in trial.restarts.runs:
                folder = seed_folder(self.output / trial.setting.folder, seed)
                is_kept = not complete or folder in kept
                for name in ("checkpoints", "last", *(() if is_kept else ("best",))):
                    shutil.rmtree(folder / name, ignore_errors=True)
        seeds = [options.seed, options.seed + options.seeds - 1]
        values: dict[str, Any] = {
            "batch_size": options.batch_size,
            "learning_rate": options.rates,
            "epochs": options.epochs,
        }
        if options.trials is not None:
            values |= {n: (min(values[n]), max(values[n])) for n in ("learning_rate", "epochs")}
        write_report(self.trials, self.output, {**values, "seed": (min(seeds), max(seeds))})

    def _keep_best(self, number: int) -> list[Path]:
        """Copies the best model to best/; returns the runs of the best settings with a model.

        A setting that further seeds made the best may have lost its models: the next one that has
        a model takes its place.
        """
        models = [run for trial in ranked(self.trials) if (run := self._best_kept(trial))]
        if models:
            best = str(models[0].relative_to(self.output))
            if best != self.best or not (self.output / "best").is_dir():
                keep_best(models[0], self.output)
                self.best = best
                self.write()
        return models[:number]

    def remarks(self) -> Iterator[str]:
        """Sentences on where best/ comes from."""
        best = ranked(self.trials)[:1]
        if best and self.best is not None:
            yield f"best/ is the best model of {self.best}"
            folder = best[0].setting.folder
            if Path(self.best).parts[0] != folder:
                yield (
                    "the models of the best setting were deleted before it was the best: for one, "
                    f"give bert-tf finetune its values ({best[0].setting})"
                )

    def _best_kept(self, trial: Trial) -> Path | None:
        """The run of the best seed whose model is there."""
        folder = self.output / trial.setting.folder
        kept = {
            seed: scores
            for seed, scores in trial.restarts.runs.items()
            if (seed_folder(folder, seed) / "best").is_dir()
        }
        seed = Restarts(trial.restarts.best_by, kept).best_seed
        return None if seed is None else seed_folder(folder, seed)


def _by_seed(stored: Mapping[str, Any]) -> dict[int, Any]:
    """JSON's keys as numbers again."""
    return {int(seed): values for seed, values in stored.items()}


def data_content(options: SearchOptions) -> str:
    """SHA-256 of the files with training and validation examples; of a dataset's name no more."""
    task, found = task_to_train(options), hashlib.sha256()
    for data, split in ((options.source, "train"), (options.validation, "validation")):
        data = data or (options.source if task.has(options.source, split) else None)
        if data and not is_dataset_name(data) and (path := task.file(data, split)).is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def _finetuning(options: SearchOptions, setting: Setting) -> FinetuningOptions:
    shared = {each.name: getattr(options, each.name) for each in fields(FinetuningSetup)}
    shared["output"] = str(Path(options.output) / setting.folder)
    return FinetuningOptions(**shared, **asdict(setting))


def _grid(options: SearchOptions) -> dict[Setting, None]:
    """Every combination of the values given, in their order."""
    values = itertools.product(options.batch_size, options.rates, options.epochs)
    return dict.fromkeys(itertools.starmap(Setting, values))


def _number(options: SearchOptions, trials: Sequence[Trial]) -> int:
    """The number of trials of the whole search."""
    known = {trial.setting for trial in trials}
    return max(options.trials or len(known | _grid(options).keys()), len(known))


def _next_setting(options: SearchOptions, trials: Sequence[Trial]) -> Setting | None:
    known = {trial.setting for trial in trials}
    if options.trials is None:
        return next((setting for setting in _grid(options) if setting not in known), None)
    if len(trials) >= options.trials:
        return None
    proposals = (_proposal(options, trials, attempt) for attempt in range(_ATTEMPTS))
    return next((setting for setting in proposals if setting not in known), None)


def _proposal(options: SearchOptions, trials: Sequence[Trial], attempt: int) -> Setting:
    """What TPE would try next; a function of the trials, the seed and the attempt.

    Raises:
        InputError: Optuna is missing.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError("--trials needs Optuna: pip install 'bert-tf[search]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rates, epochs = options.rates, options.epochs
    space: dict[str, optuna.distributions.BaseDistribution] = {
        "batch_size": optuna.distributions.CategoricalDistribution(options.batch_size),
        "learning_rate": optuna.distributions.FloatDistribution(min(rates), max(rates), log=True),
        "epochs": optuna.distributions.IntDistribution(min(epochs), max(epochs)),
    }
    seed = options.seed + _ATTEMPTS * len(trials) + attempt
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for trial in ranked(trials):
        if _lies_in(options, trial.setting):
            study.add_trial(
                optuna.create_trial(
                    params=asdict(trial.setting), distributions=space, value=trial.score
                )
            )
    found = study.ask(space).params
    rate = float(f"{found['learning_rate']:.3g}")  # as short as its folder's name
    return Setting(found["batch_size"], min(max(rate, min(rates)), max(rates)), found["epochs"])


def _lies_in(options: SearchOptions, setting: Setting) -> bool:
    return (
        setting.batch_size in options.batch_size
        and min(options.rates) <= setting.learning_rate <= max(options.rates)
        and min(options.epochs) <= setting.epochs <= max(options.epochs)
    )

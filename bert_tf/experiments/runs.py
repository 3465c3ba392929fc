"""The runs of an experiment: text, vocabulary, shards, pre-training, fine-tuning.

A run's folder is named by a hash of its options and of what it is made from, so that tables share
the runs that they have in common, and a finished run is never repeated. When a run has ended, a
file beside its folder says so and holds its outcome.
"""

import functools
import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

from bert_tf.atomic import replace_directory, write_json
from bert_tf.checkpoints.formats import CONFIG
from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.language_model import BertLanguageModel
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.options import CheckedOptions
from bert_tf.tasks.finetuning import finetune
from bert_tf.tasks.options import FinetuningOptions, PretrainingOptions, SearchOptions
from bert_tf.tasks.pretraining import pretrain
from bert_tf.tasks.restarts import Restarts
from bert_tf.tasks.search import data_content, search
from bert_tf.tasks.trials import Trial
from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary
from bert_tf.training.state import load_weights
from pipelines.corpus.formats import input_errors, read_lines
from pipelines.corpus.sources import open_corpus
from pipelines.examples.passages import SPLITS, documentation, write_task
from pipelines.examples.records import is_dataset_name
from pipelines.options import CorpusOptions, PretrainingDataOptions
from pipelines.shards.manifest import Manifest, sha256
from pipelines.shards.writing import write_shards_of_lengths

# Options that do not change what a run makes, or that name its inputs, which count by content.
_NO_PART_OF_IDENTITY = {
    "output", "shards", "long_shards", "model", "data", "train", "validation", "seeds",
    "keep_every", "keep", "save_every", "log_every",
}  # fmt: skip
_DOCUMENTATION_BYTES = 12_000_000
FOLDER = "(folder)"  # in declared options, for what the plan fills in


class Show(Protocol):
    """What the user sees of a run."""

    def notice(self, line: str) -> None:
        """Shows a line."""

    def update(self, completed: int, total: int | None = None) -> None:
        """Moves the bar."""


@dataclass(frozen=True)
class Cache:
    """The folder of all runs."""

    folder: Path

    def of(self, run: "Run") -> Path:
        """The folder of a run."""
        return self.folder / run.name

    def outcome(self, run: "Run") -> dict[str, Any] | None:
        """The outcome of a finished run, else None."""
        try:
            return json.loads(self._record(run).read_text(encoding="utf-8"))["outcome"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._record(run)} cannot be read ({error}): delete it to repeat the run"
            ) from error

    def make(self, run: "Run", show: Show) -> None:
        """Makes a run whose inputs are finished, or goes on with it, and writes its outcome."""
        started = time.perf_counter()
        outcome = run.make(self, show)
        write_json(
            self._record(run),
            {
                "run": run.title,
                "options": run.identity,
                "inputs": [one.name for one in run.inputs],
                "seconds": round(time.perf_counter() - started, 1),
                "outcome": outcome,
            },
        )
        run.tidy(self)

    def _record(self, run: "Run") -> Path:
        return self.folder / f"{run.record}.json"


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(ABC):
    """One run.

    Attributes:
        title: what the user reads.
    """

    title: str

    @property
    @abstractmethod
    def inputs(self) -> "tuple[Run, ...]":
        """The runs that it needs."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What it is made from, beside its inputs, as JSON values."""

    @abstractmethod
    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Makes the run's folder, or goes on with it; returns the outcome.

        Raises:
            InputError: the data cannot be used.
            Preempted: the run was stopped; it goes on where it was.
        """

    @functools.cached_property
    def name(self) -> str:
        """Name of its folder."""
        made_from = [self.identity, [one.name for one in self.inputs]]
        content = json.dumps(made_from, sort_keys=True).encode()
        return f"{type(self).__name__.lower()}-{hashlib.sha256(content).hexdigest()[:12]}"

    @property
    def record(self) -> str:
        """Name of the file of its outcome."""
        return self.name

    def tidy(self, cache: Cache) -> None:  # noqa: B027
        """Deletes what nobody needs once the outcome is written."""

    def with_inputs(self) -> "list[Run]":
        """The run after the runs that it needs, directly or not."""
        found = {each.name: each for one in self.inputs for each in one.with_inputs()}
        return [*found.values(), self]


def chosen_options(options: CheckedOptions) -> dict[str, Any]:
    """The options that differ from their defaults, without those that leave the result as it is."""
    chosen = {}
    for field in fields(options):
        made = field.default_factory
        default = field.default if made is MISSING else made()
        value = getattr(options, field.name)
        if field.name not in _NO_PART_OF_IDENTITY and value != default:
            chosen[field.name] = value
    return chosen


@dataclass(frozen=True, eq=False, kw_only=True)
class Documentation(Run):
    """The installed documentation: a corpus, and a task of telling its packages apart."""

    title: str = "text: documentation of the installed packages"

    @property
    def inputs(self) -> tuple[Run, ...]:
        """None."""
        return ()

    @property
    def identity(self) -> dict[str, Any]:
        """The seed; text once written is kept when packages change."""
        return {"seed": 1}

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Writes corpus.txt, and the labelled passages."""
        with replace_directory(cache.of(self)) as folder:
            documents = documentation(progress=show.update)
            written = write_task(
                documents, self.corpus(folder), folder, has_names=True, seed=self.identity["seed"]
            )
        return {"documents": len(documents), "examples": written.examples}

    @staticmethod
    def corpus(folder: Path) -> Path:
        """The corpus in the run's folder."""
        return folder / "corpus.txt"


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """The text to pre-train on: a user's, or the documentation."""

    given: Sequence[str]
    options: CorpusOptions

    @functools.cached_property
    def run(self) -> Documentation | None:
        """The run that makes it; None for text of the user."""
        return None if self.given else Documentation()

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Options and content."""
        if self.run:
            return {}
        opened = open_corpus(self.given, self.options)
        content = [sha256(Path(file)) for file in opened.files]
        datasets = [source for source in opened.sources if source not in opened.files]
        return {"corpus": [*content, *datasets], **chosen_options(self.options)}

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        return (
            _DOCUMENTATION_BYTES if self.run else open_corpus(self.given, self.options).text_bytes
        )

    def paths(self, cache: Cache) -> list[str]:
        """Files or names of data sets, once the run is finished."""
        return [str(Documentation.corpus(cache.of(self.run)))] if self.run else [*self.given]


@dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary(Run):
    """A WordPiece vocabulary."""

    corpus: Corpus
    size: int
    do_lower_case: bool

    @property
    def inputs(self) -> tuple[Run, ...]:
        """The text, if a run makes it."""
        return (self.corpus.run,) if self.corpus.run else ()

    @property
    def identity(self) -> dict[str, Any]:
        """Size, case and text."""
        return {
            "size": self.size, "do_lower_case": self.do_lower_case, **self.corpus.identity
        }  # fmt: skip

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Learns it, as `bert-tf vocab`."""
        corpus = open_corpus(self.corpus.paths(cache), self.corpus.options)
        with input_errors():
            lines = read_lines(corpus)
            counts = count_words(lines, do_lower_case=self.do_lower_case, progress=show.update)
        pieces = learn_vocabulary(counts, self.size)
        with replace_directory(cache.of(self)) as folder:
            BertTokenizer(pieces, do_lower_case=self.do_lower_case).save(folder)
        return {"pieces": len(pieces)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Shards(Run):
    """Pre-training instances of one length, or of two.

    Attributes:
        vocabulary: its run, whose corpus it reads.
        options: options of every length.
    """

    vocabulary: Vocabulary
    options: Sequence[PretrainingDataOptions]

    @property
    def inputs(self) -> tuple[Run, ...]:
        """The vocabulary."""
        return (self.vocabulary,)

    @property
    def identity(self) -> dict[str, Any]:
        """The options of each length."""
        return {"lengths": [chosen_options(one) for one in self.options]}

    def folders(self, cache: Cache) -> list[Path]:
        """A folder for each length."""
        names = [str(one.max_seq_length) for one in self.options]
        return [cache.of(self) / name for name in (names if len(names) > 1 else [""])]

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Writes them, as `bert-tf shards`."""
        manifests = write_shards_of_lengths(
            self.vocabulary.corpus.paths(cache),
            cache.of(self),
            BertTokenizer.from_directory(cache.of(self.vocabulary)),
            self.options,
            progress=lambda done: show.update(done.bytes_read, done.total_bytes),
        )
        return {"instances": [_counted(manifest) for manifest in manifests]}


def _counted(manifest: Manifest) -> dict[str, int]:
    return {split: manifest.instances(split) for split in ("train", "held_out")}


@dataclass(frozen=True, eq=False, kw_only=True)
class Pretraining(Run):
    """A pre-training.

    Attributes:
        shards: its run.
        options: options, without folders; a model is kept for every `keep_every` steps.
    """

    shards: Shards
    options: PretrainingOptions

    @property
    def inputs(self) -> tuple[Run, ...]:
        """The shards."""
        return (self.shards,)

    @property
    def identity(self) -> dict[str, Any]:
        """The options."""
        return chosen_options(self.options)

    def model(self, cache: Cache, step: int | None = None) -> Path:
        """The model of a step; by default the best one."""
        return cache.of(self) / ("best" if step is None else f"step-{step}")

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Pre-trains, as `bert-tf pretrain`."""
        short, *long = map(str, self.shards.folders(cache))
        folder = cache.of(self)
        options = replace(
            self.options, shards=short, long_shards=long[0] if long else None, output=str(folder)
        )
        result = pretrain(
            options,
            lambda *line: None,
            notice=show.notice,
            on_step=lambda step: show.update(step, self.options.steps),
        )
        assert result is not None
        for path in sorted((folder / "checkpoints").glob("step-*.safetensors")):
            step = int(path.stem.removeprefix("step-"))
            if step % (self.options.keep_every or self.options.steps) == 0:
                self._keep_model(path, self.model(cache, step))
        best = json.loads((folder / "best" / "metrics.json").read_text(encoding="utf-8"))
        return {"held_out": best}

    def _keep_model(self, checkpoint: Path, folder: Path) -> None:
        last = folder.parent / "last"
        direction = BertConfig.from_json(last / CONFIG).attention_direction
        model = load_model(last, BertPreTrainer if direction == "both" else BertLanguageModel)
        load_weights(model, checkpoint)
        with replace_directory(folder) as temporary:
            save_model(model, temporary, tokenizer=BertTokenizer.from_directory(last))

    def tidy(self, cache: Cache) -> None:
        """Deletes the checkpoints."""
        shutil.rmtree(cache.of(self) / "checkpoints", ignore_errors=True)


@dataclass(frozen=True, eq=False)
class TaskData:
    """The examples of a task: a user's, or passages of the documentation.

    Attributes:
        task: name of the task.
        train: data set, or file of the training examples; "" for the passages.
        validation: file of the validation examples, if it is another.
    """

    task: str
    train: str = ""
    validation: str | None = None

    @functools.cached_property
    def run(self) -> Documentation | None:
        """The run that makes it; None for data of the user."""
        return None if self.train else Documentation()

    @functools.cached_property
    def content(self) -> list[str]:
        """Names of data sets, and a hash of files."""
        options = SearchOptions(model=FOLDER, output=FOLDER, **self.options(None))
        given = (self.train, self.validation or "")
        return [*(name for name in given if is_dataset_name(name)), data_content(options)]

    def options(self, cache: Cache | None) -> dict[str, Any]:
        """What `SearchOptions` says of it; of passages no files without a cache."""
        if self.run is None:
            return {"task": self.task, "data": self.train, "validation": self.validation}
        folder = cache.of(self.run) if cache else Path(FOLDER)
        train, validation, _ = (str(folder / f"{split}.tsv") for split in SPLITS)
        return {"task": self.task, "data": train, "validation": validation}


@dataclass(frozen=True, eq=False, kw_only=True)
class Finetuning(Run):
    """Fine-tunings: every setting with one seed, then the best setting with all seeds.

    Attributes:
        pretraining: its run.
        step: step of its model; None for the best one.
        data: examples.
        options: options, without folders.
    """

    pretraining: Pretraining
    step: int | None
    data: TaskData
    options: SearchOptions

    @property
    def inputs(self) -> tuple[Run, ...]:
        """The pre-training, and the examples if a run makes them."""
        return (self.pretraining, *([self.data.run] if self.data.run else []))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Options, step, and content of the user's examples."""
        content = {} if self.data.run else {"content": self.data.content}
        return {**chosen_options(self.options), "step": self.step, **content}

    @property
    def record(self) -> str:
        """With the number of seeds: runs of more seeds go on in the same folder."""
        return f"{self.name}-seeds-{self.options.seeds}"

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Fine-tunes, as `bert-tf search`."""
        options = replace(
            self.options,
            model=str(self.pretraining.model(cache, self.step)),
            output=str(cache.of(self)),
            **self.data.options(cache),
        )
        total = 0

        def planned(steps: int) -> None:
            nonlocal total
            total = steps

        told: set[str] = set()

        def notice(line: str) -> None:
            if line not in told:  # most lines are the same for every run
                show.notice(line)
            told.add(line)

        def one_run(one: FinetuningOptions) -> Any:
            return finetune(
                one,
                lambda *line: None,
                notice=notice,
                planned=planned,
                on_step=lambda step: show.update(step, total),
            )

        tried = search(replace(options, seeds=1), one_run, notice=show.notice)
        best = _best(tried, options.seed)
        if best is None:
            raise InputError(f"{self.title}: no setting has a score: give a lower learning rate")
        chosen = best.setting
        options = replace(
            options,
            batch_size=[chosen.batch_size],
            learning_rate=[chosen.learning_rate],
            epochs=[chosen.epochs],
        )
        for trial in search(options, one_run, notice=show.notice):
            if trial.setting == chosen:
                best = trial
        seeds = range(options.seed, options.seed + options.seeds)
        of_seeds = Restarts(best.restarts.best_by, {s: best.restarts.runs[s] for s in seeds})
        return {
            "setting": str(best.setting),
            "best_by": of_seeds.best_by,
            "scores": {n: list(s["scores"].values()) for n, s in of_seeds.summary().items()},
        }


def _best(trials: Sequence[Trial], seed: int) -> Trial | None:
    """The trial with the best score of one seed: further seeds do not change the choice."""

    def score(trial: Trial) -> float | None:
        return trial.restarts.runs.get(seed, {}).get(trial.restarts.best_by)

    scored = [trial for trial in trials if score(trial) is not None]
    return max(scored, key=lambda trial: score(trial) or 0.0, default=None)

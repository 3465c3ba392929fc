"""The plan of a table: the stages that it needs, and the stage behind each of its scores."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.commands.search import Options as SearchOptions
from bert_tf.errors import InputError, nearest
from bert_tf.paper.data_stages import BYTES_PER_TOKEN, Corpus, Shards, TaskData, Vocabulary
from bert_tf.paper.stage import FOLDER, Stage
from bert_tf.paper.tables import TABLES, Column, PaperTable, Scale, System
from bert_tf.paper.training_stages import Finetuning, Pretraining
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.examples.reading import is_dataset_name
from bert_tf.tasks.task_table import find_task

_MOST_EPOCHS = 100  # beyond these a model learns the corpus by heart; the paper made 40


def find_table(name: str) -> PaperTable:
    if name not in TABLES:
        near = nearest(name, TABLES)
        hint = f"did you mean {near}? There are" if near else "give one of"
        raise InputError(f"there is no table {name!r}: {hint} {', '.join(TABLES)}")
    return TABLES[name]


def task_data(named: Sequence[str]) -> list[TaskData]:
    """The examples that a user names: TASK=DATA or TASK=DATA,VALIDATION each."""
    tasks: dict[str, TaskData] = {}
    for text in named:
        name, equals, data = text.partition("=")
        train, _, validation = data.partition(",")
        if not (name and equals and train):
            raise InputError(f"--tasks {text!r}: give TASK=FOLDER, such as mrpc=glue/MRPC")
        if name in tasks:
            raise InputError(f"--tasks names {name} twice: give each task once")
        task = find_task(name)
        if not task.kind.is_trained:
            raise InputError(f"--tasks {text}: {name} is no task to fine-tune on: leave it out")
        for path in filter(None, (train, validation)):
            if not is_dataset_name(path) and not Path(path).exists():
                raise InputError(f"--tasks {text}: {path} does not exist: check the path")
        if not is_dataset_name(train):
            task.file(train, "train")  # refuses a folder without it
        tasks[name] = TaskData(name, train, validation or None)
    return [*tasks.values()] or [TaskData("classification")]


@dataclass(frozen=True)
class Plan:
    table: PaperTable
    scale: Scale
    corpus: Corpus  # text to pre-train on
    tasks: Sequence[TaskData]  # examples to fine-tune on
    seeds: int | None = None  # runs of every fine-tuning; by default the scale's

    @functools.cached_property
    def systems(self) -> list[System]:
        return list(self.table.systems(self.scale))

    @functools.cached_property
    def columns(self) -> list[Column]:
        return self.table.columns_of([data.task for data in self.tasks])

    @functools.cached_property
    def cells(self) -> dict[tuple[int, int], Pretraining | Finetuning]:
        """(Row, column) -> the stage that has the score."""
        cells: dict[tuple[int, int], Pretraining | Finetuning] = {}
        for row, system in enumerate(self.systems):
            pretraining = self._pretraining(system)
            for number, column in enumerate(self.columns):
                tuned = self._finetuning(system, column, pretraining) if column.task else None
                cells[row, number] = tuned or pretraining
        return cells

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """All stages, each after those that it needs."""
        stages: dict[str, Stage] = {}
        for cell in self.cells.values():
            for stage in cell.in_order():
                stages.setdefault(stage.name, stage)
        return [*stages.values()]

    @property
    def pretrainings(self) -> list[Pretraining]:
        return [stage for stage in self.stages if isinstance(stage, Pretraining)]

    @property
    def finetunings(self) -> list[Finetuning]:
        return [stage for stage in self.stages if isinstance(stage, Finetuning)]

    @property
    def corpus_shortage(self) -> str | None:
        """A line for the user if the corpus is too small, else None."""
        tokens = max(
            stage.steps * stage.options.mean_batch_size * stage.shards.lengths[0]
            for stage in self.pretrainings
        )
        text_bytes = self.corpus.text_bytes
        needed = tokens * BYTES_PER_TOKEN / _MOST_EPOCHS
        if text_bytes >= needed:
            return None
        return (
            f"{text_bytes / 1e6:.1f} MB of text are too few to pre-train on: the steps would read "
            f"them {_MOST_EPOCHS * needed / text_bytes:,.0f} times: give at least "
            f"{needed / 1e6:,.0f} MB with --corpus"
        )

    def _pretraining(self, system: System) -> Pretraining:
        scale = self.scale
        vocabulary = Vocabulary(
            corpus=self.corpus, size=scale.vocabulary_size, do_lower_case=scale.do_lower_case
        )
        options = {**dataclasses.asdict(self.corpus.options), **scale.shards, **system.shards}
        lengths = [PretrainingDataOptions(**options, max_seq_length=n) for n in scale.lengths]
        settings = {**system.pretraining, **system.shards}.items()
        listed = ", ".join(f"{name} {value}" for name, value in settings)
        return Pretraining(
            title=f"pre-training: {listed or 'BERT'}",
            shards=Shards(vocabulary=vocabulary, options=lengths),
            options=PretrainingOptions(
                shards=FOLDER,
                output=FOLDER,
                keep_every=scale.checkpoint_every,
                long_shards=FOLDER if len(scale.lengths) > 1 else None,
                **{**scale.pretraining, **system.pretraining},
            ),
        )

    def _finetuning(self, system: System, column: Column, pretraining: Pretraining) -> Finetuning:
        scale = self.scale
        settings = dict(system.finetuning)
        (data,) = (data for data in self.tasks if data.task == column.task)
        if column.features:
            settings["features_only"] = scale.all_layers
        frozen = scale.features if "features_only" in settings else {}
        options = {
            **scale.finetuning,
            **scale.tasks.get(column.task, {}),
            **frozen,
            **settings,
            **data.options(None),
            "seeds": self.seeds or scale.seeds,
        }
        return Finetuning(
            title=f"fine-tuning: {system.name}, {column.title}",
            pretraining=pretraining,
            step=system.step,
            data=data,
            options=SearchOptions(model=FOLDER, output=FOLDER, **options),
        )

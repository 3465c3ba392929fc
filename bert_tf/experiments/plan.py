"""The plan of a table: the runs that it needs, and the run behind each of its scores."""

import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.experiments.data_runs import Corpus, Shards, TaskData, Vocabulary
from bert_tf.experiments.run import FOLDER, Run
from bert_tf.experiments.scale import Scale
from bert_tf.experiments.table import Column, System, Table
from bert_tf.experiments.tables import TABLES
from bert_tf.experiments.training_runs import Finetuning, Pretraining
from bert_tf.finetuning.options import SearchOptions
from bert_tf.pretraining.options import PretrainingOptions
from bert_tf.tasks.table import find_task
from pipelines.examples.records import is_dataset_name
from pipelines.options import PretrainingDataOptions

# Passes over the corpus from which on a model learns it by heart; the paper made 40.
_MOST_EPOCHS = 100
BYTES_PER_TOKEN = 5  # of text; 4.5 in English


@dataclass(frozen=True)
class Plan:
    """What a table needs.

    Attributes:
        table: the table.
        scale: its settings.
        systems: its rows.
        columns: its scores.
        cells: (row, column) -> the run that has the score.
        runs: all runs, each after those that it needs.
    """

    table: Table
    scale: Scale
    systems: Sequence[System]
    columns: Sequence[Column]
    cells: Mapping[tuple[int, int], Run]
    runs: Sequence[Run]


def find_table(name: str) -> Table:
    """The table of a name.

    Raises:
        InputError: there is no such table; the message names those that there are.
    """
    if name not in TABLES:
        near = difflib.get_close_matches(name, TABLES, n=1)
        hint = f"did you mean {near[0]}? There are" if near else "give one of"
        raise InputError(f"there is no table {name!r}: {hint} {', '.join(TABLES)}")
    return TABLES[name]


def task_data(given: Sequence[str]) -> list[TaskData]:
    """The examples that a user names.

    Args:
        given: texts TASK=DATA or TASK=DATA,VALIDATION, where DATA is a folder of published files, a
            file, or a name of TensorFlow Datasets. Without any, passages of the documentation.

    Raises:
        InputError: a text has another form; there is no such task; a file or folder is missing.
    """
    found: dict[str, TaskData] = {}
    for text in given:
        name, equals, data = text.partition("=")
        train, _, validation = data.partition(",")
        if not (name and equals and train):
            raise InputError(f"--tasks {text!r}: give TASK=FOLDER, such as mrpc=glue/MRPC")
        if name in found:
            raise InputError(f"--tasks names {name} twice: give each task once")
        task = find_task(name)
        if not task.kind.is_trained:
            raise InputError(f"--tasks {text}: {name} is no task to fine-tune on: leave it out")
        for path in filter(None, (train, validation)):
            if not is_dataset_name(path) and not Path(path).exists():
                raise InputError(f"--tasks {text}: {path} does not exist: check the path")
        if not is_dataset_name(train):
            task.file(train, "train")  # refuses a folder without it
        found[name] = TaskData(name, train, validation or None)
    return [*found.values()] or [TaskData("classification")]


def make_plan(
    table: Table,
    scale: Scale,
    corpus: Corpus,
    tasks: Sequence[TaskData],
    seeds: int | None = None,
) -> Plan:
    """The runs of a table.

    Args:
        table: the table.
        scale: settings.
        corpus: text to pre-train on.
        tasks: examples to fine-tune on.
        seeds: runs of every fine-tuning; by default the scale's.

    Raises:
        InputError: options of the table or the scale cannot be used.
    """
    by_name = {data.task: data for data in tasks}
    systems = list(table.systems(scale))
    columns = table.columns_of(list(by_name))
    cells: dict[tuple[int, int], Run] = {}
    for row, system in enumerate(systems):
        pretraining = _pretraining(scale, system, corpus)
        for number, column in enumerate(columns):
            if not column.task:
                cells[row, number] = pretraining
                continue
            options = _finetuning_options(scale, system, column, by_name[column.task])
            options["seeds"] = seeds or scale.seeds
            cells[row, number] = Finetuning(
                title=f"fine-tuning: {system.name}, {column.title}",
                pretraining=pretraining,
                step=system.step,
                data=by_name[column.task],
                options=SearchOptions(model=FOLDER, output=FOLDER, **options),
            )
    runs: dict[str, Run] = {}
    for each in itertools.chain.from_iterable(run.with_inputs() for run in cells.values()):
        runs.setdefault(each.name, each)  # named for the first row that needs it
    return Plan(table, scale, systems, columns, cells, [*runs.values()])


def _pretraining(scale: Scale, system: System, corpus: Corpus) -> Pretraining:
    vocabulary = Vocabulary(
        title="vocabulary",
        corpus=corpus,
        size=scale.vocabulary_size,
        do_lower_case=scale.do_lower_case,
    )
    options = {**scale.shards, **system.shards}
    shards = Shards(
        title="shards",
        vocabulary=vocabulary,
        options=[
            PretrainingDataOptions(**dataclasses.asdict(corpus.options), **options,
                                   max_seq_length=length)
            for length in scale.lengths
        ],
    )  # fmt: skip
    own = [f"{name} {value}" for name, value in {**system.pretraining, **system.shards}.items()]
    return Pretraining(
        title=f"pre-training: {', '.join(own) or 'BERT'}",
        shards=shards,
        options=PretrainingOptions(
            shards=FOLDER,
            output=FOLDER,
            keep_every=scale.checkpoint_every,
            long_shards=FOLDER if len(scale.lengths) > 1 else None,
            **{**scale.pretraining, **system.pretraining},
        ),
    )


def _finetuning_options(
    scale: Scale, system: System, column: Column, data: TaskData
) -> dict[str, Any]:
    own = dict(system.finetuning)
    if column.features:
        own["features_only"] = scale.all_layers
    frozen = scale.features if "features_only" in own else {}
    return {
        **scale.finetuning, **scale.tasks.get(column.task, {}), **frozen, **own,
        **data.options(None),
    }  # fmt: skip


def corpus_shortage(plan: Plan, text_bytes: int) -> str | None:
    """What a corpus is too small for, in a line for the user; None if it is large enough.

    Args:
        plan: the plan.
        text_bytes: approximate bytes of its text.
    """
    tokens = max(
        run.options.steps * run.options.mean_batch_size * run.shards.options[0].max_seq_length
        for run in plan.runs
        if isinstance(run, Pretraining)
    )
    needed = tokens * BYTES_PER_TOKEN / _MOST_EPOCHS
    if text_bytes >= needed:
        return None
    return (
        f"{text_bytes / 1e6:.1f} MB of text are too few to pre-train on: the steps would read them "
        f"{_MOST_EPOCHS * needed / text_bytes:,.0f} times: give at least {needed / 1e6:,.0f} MB "
        "with --corpus"
    )


def check_held_out(outcome: Mapping[str, Any]) -> None:
    """Refuses shards without held-out instances, before the training.

    Args:
        outcome: outcome of a run; those of other runs are not looked at.

    Raises:
        InputError: nothing was held out.
    """
    if not all(counts["held_out"] for counts in outcome.get("instances", [])):
        raise InputError("no text was held out to evaluate on: give a corpus of more documents")

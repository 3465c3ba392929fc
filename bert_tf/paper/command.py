r"""Make a table of the paper: pre-train and fine-tune its systems, and compare with its numbers.

  bert-tf reproduce model-size --dry_run
  bert-tf reproduce model-size
  bert-tf reproduce pretraining-tasks --corpus text/ --tasks mrpc=glue/MRPC sst2=glue/SST-2

TABLE is glue, squad1, squad2, swag or ner (scores of two sizes), pretraining-tasks, model-size,
features, training-steps or masking (the ablations), or recipe (later recipes). The command
plans the runs, shows how long they will take on this machine, makes those that are missing, and
writes OUTPUT/TABLE/table.md, table.json and table.png. After a stop, the same command continues
without repeating finished runs. Tables share runs.

Without --corpus and --tasks it uses the documentation of the installed packages and a task made
from it. --scale paper uses the paper's settings; --dry_run shows how long they take.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.table import Table

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import command_line, console, duration, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.options import PathName, option
from bert_tf.pipelines.data_options import CorpusOptions
from bert_tf.startup import share_cores

if TYPE_CHECKING:
    from bert_tf.paper.reproduce import PlannedStage


@dataclass(kw_only=True)
class Options(CommandOptions, CorpusOptions):
    """Options of `bert-tf reproduce`."""

    table: str = option(positional=True)
    """table of the paper."""
    scale: Literal["small", "paper"] = "small"
    """small for minutes to hours on a few cores; paper for the paper's own settings."""
    corpus: list[PathName] = option(factory=list, path=True)
    """text to pre-train on: files, folders, globs, or names of TensorFlow Datasets; by default the
    documentation of the installed packages."""
    tasks: list[str] = option(factory=list)
    """examples to fine-tune on, as TASK=FOLDER or TASK=TRAIN,VALIDATION with the names of bert-tf
    tasks, such as mrpc=glue/MRPC; by default passages of the documentation."""
    seeds: int | None = option(None, at_least=1)
    """number of runs per fine-tuning, each with the next seed; by default 3, with --scale paper
    5."""
    output: str = "runs/reproduce"
    """folder of all tables and their runs."""
    dry_run: bool = False
    """show the plan and the time it takes, and write nothing."""


@dataclass(kw_only=True, repr=False, eq=False)
class ReproduceResult(Result):
    """The outcome of `reproduce`.

    Attributes:
        table: rows of the table, the first with the columns' names; none after a dry run.
        folder: folder of table.md, table.json and table.png.
        runs: folder of all runs.
    """

    table: list[list[str]]
    folder: Path
    runs: Path

    def lines(self) -> list[str]:
        if not self.table:
            return []
        return [
            f"Table, settings and picture: {self.folder}/table.md, table.json, table.png",
            f"Curves of all runs: {command_line('monitor', self.runs)}",
        ]


def run(options: Options) -> ReproduceResult:
    """Makes a table of the paper, as `bert-tf reproduce` does.

    Returns:
        The table, and its folder.

    Raises:
        Preempted: SIGTERM ended a run after a checkpoint.
    """
    share_cores()  # before a run's data is made with TensorFlow's ops
    with progress("planning", shown=options.shown) as bar:
        from bert_tf.paper.data_stages import Corpus
        from bert_tf.paper.plan import Plan, find_table, task_data
        from bert_tf.paper.reproduce import Reproduction
        from bert_tf.paper.stage import Show, Stage
        from bert_tf.paper.tables import SCALES

        read_as = {field.name: getattr(options, field.name) for field in fields(CorpusOptions)}
        corpus = Corpus(named=options.corpus, options=CorpusOptions(**read_as))
        table = find_table(options.table)
        scale = SCALES[options.scale]
        plan = Plan(table, scale, corpus, task_data(options.tasks), options.seeds)
        reproduction = Reproduction(plan, options.output)
        shortage = plan.corpus_shortage
        if shortage and not options.dry_run:
            raise InputError(shortage)
        planned = reproduction.estimate(bar.print)
    needed = sum(line.bytes for line in planned)
    free = reproduction.free_bytes
    if options.shown:
        _show_plan(planned, free, f"Plan of {options.table}, {options.scale} scale")
    if needed > free:
        shortage = (
            f"{options.output}: the runs need about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
            "are free: free some space, or give another --output"
        )
    output = Path(options.output)
    result = ReproduceResult(table=[], folder=output / options.table, runs=output / "runs")
    if options.dry_run:
        result.notices.append(
            shortage or "Nothing was written: leave --dry_run out to make the table"
        )
        return result
    if shortage:
        raise InputError(shortage)

    with progress("making runs", total=1, shown=options.shown) as bar:

        def started(stage: Stage, number: int, total: int) -> Show:
            bar.print(f"run {number} of {total}: {stage.title}")
            return functools.partial(bar.update, note=stage.title)

        result.table = reproduction.make(started)
    return result


def _show_plan(planned: "Sequence[PlannedStage]", free: float, title: str) -> None:
    table = Table("run", "steps", "time", title=title)
    for line in planned:
        steps = f"{line.stage.steps:,}" if line.stage.steps else ""
        time = "done" if line.is_done else duration(line.seconds / 60)
        table.add_row(line.stage.title, steps, time)
    console.print(table)
    seconds, needed = (
        sum(getattr(line, name) for line in planned) for name in ("seconds", "bytes")
    )
    console.print(
        f"About {duration(seconds / 60)} in all on this machine, and {needed / 1e9:.2f} GB; "
        f"{free / 1e9:.0f} GB are free"
    )


def show(result: ReproduceResult, options: Options) -> None:
    from bert_tf.paper.reproduce import NOTE
    from bert_tf.tasks.reports.tables import markdown

    if result.table:
        print(markdown(result.table))
        console.print(NOTE)
    for line in [*result.notices, *result.lines()]:
        console.print(line)


COMMAND = Command(name="reproduce", help=__doc__, options=Options, run=run, show=show)
reproduce = COMMAND.function("reproduce")

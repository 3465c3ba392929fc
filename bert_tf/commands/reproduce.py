r"""Make a table of the paper: pre-train and fine-tune its systems, and compare with its numbers.

  bert-tf reproduce model-size --dry_run
  bert-tf reproduce model-size
  bert-tf reproduce pretraining-tasks --corpus text/ --tasks mrpc=glue/MRPC sst2=glue/SST-2

TABLE is glue, squad1, squad2, swag or ner (scores of two sizes), pretraining-tasks, model-size,
features, training-steps or masking (the ablations), or recipe (later recipes). It plans the runs,
shows how long they will take on this machine, makes those that are missing, and writes
OUTPUT/TABLE/table.md, table.json and table.png. The same command goes on after a stop, and repeats
no finished run; tables share runs.

Without --corpus and --tasks it takes the documentation of the installed packages, and a task made
of it. With --scale paper the settings are the paper's: see --dry_run for the time they take.
"""

import functools
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from rich.table import Table

from bert_tf.api.progress import console, duration, progress, typed
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.pipelines.data_options import CorpusOptions
from bert_tf.startup import share_cores


@dataclass(kw_only=True)
class Options(CorpusOptions):
    """Options of `bert-tf reproduce`."""

    table: str = option(positional=True)
    """table of the paper."""
    scale: Literal["small", "paper"] = "small"
    """small for minutes to hours on a few cores; paper for the paper's own settings."""
    corpus: list[str] = option(factory=list, path=True)
    """text to pre-train on: files, folders, globs, or names of TensorFlow Datasets; by default the
    documentation of the installed packages."""
    tasks: list[str] = option(factory=list)
    """examples to fine-tune on, as TASK=FOLDER or TASK=TRAIN,VALIDATION with the names of bert-tf
    tasks, such as mrpc=glue/MRPC; by default passages of the documentation."""
    seeds: int | None = option(None, at_least=1)
    """runs of every fine-tuning, each with the next seed; by default 3, with --scale paper 5."""
    output: str = "runs/reproduce"
    """folder of all tables and their runs."""
    dry_run: bool = False
    """show the plan and the time it takes, and write nothing."""


def run(options: Options) -> None:
    share_cores()  # before a run's data is made with TensorFlow's ops
    with progress("planning") as bar:
        from bert_tf.paper.data_stages import Corpus
        from bert_tf.paper.plan import Plan, find_table, task_data
        from bert_tf.paper.reproduce import NOTE, Reproduction
        from bert_tf.paper.stage import Show, Stage
        from bert_tf.paper.tables import SCALES
        from bert_tf.tasks.reports.report import markdown

        read_as = {field.name: getattr(options, field.name) for field in fields(CorpusOptions)}
        corpus = Corpus(given=options.corpus, options=CorpusOptions(**read_as))
        table, scale = find_table(options.table), SCALES[options.scale]
        plan = Plan(table, scale, corpus, task_data(options.tasks), options.seeds)
        reproduction = Reproduction(plan, options.output)
        shortage = plan.corpus_shortage
        if shortage and not options.dry_run:
            raise InputError(shortage)
        planned = reproduction.estimate(bar.print)
    shown = Table("run", "steps", "time", title=f"Plan of {options.table}, {options.scale} scale")
    for line in planned:
        steps = f"{line.stage.steps:,}" if line.stage.steps else ""
        time = "done" if line.is_done else duration(line.seconds / 60)
        shown.add_row(line.stage.title, steps, time)
    console.print(shown)
    needed, free = sum(line.bytes for line in planned), reproduction.free_bytes
    console.print(
        f"About {duration(sum(line.seconds for line in planned) / 60)} in all on this machine, and "
        f"{needed / 1e9:.2f} GB; {free / 1e9:.0f} GB are free"
    )
    if needed > free:
        shortage = (
            f"{options.output}: the runs need about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
            "are free: free some space, or give another --output"
        )
    if options.dry_run:
        console.print(shortage or "Nothing was written: leave --dry_run out to make the table")
        return
    if shortage:
        raise InputError(shortage)

    with progress("making runs", total=1) as bar:

        def started(stage: Stage, number: int, total: int) -> Show:
            bar.print(f"run {number} of {total}: {stage.title}")
            return functools.partial(bar.update, note=stage.title)

        rows = reproduction.make(started)
    print(markdown(rows))
    folder = Path(options.output) / options.table
    console.print(NOTE)
    console.print(f"Table, settings and picture: {folder}/table.md, table.json, table.png")
    console.print(f"Curves of all runs: {typed('bert-tf')} monitor {options.output}/runs")

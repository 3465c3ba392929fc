r"""List the tasks and data sets that --task knows, with their defaults and scores.

  bert-tf tasks
  bert-tf tasks rte
  bert-tf tasks path/to/my_task.py

The first score chooses the best model. "paper" is what the paper reached with BERT-base and
BERT-large: on the test sets of GLUE, SWAG and CoNLL-2003, on the development sets of SQuAD.
"reached" is a development score of bert-tf with the weights named: MiniLM is all-MiniLM-L6-v2, a
fifth of BERT-base; docs/scores.md has the recipe. With a name, shows one task in full:
columns, labels, files, an example.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import console
from bert_tf.commands.result import Result
from bert_tf.commands.result import Table as ResultTable
from bert_tf.options import option
from bert_tf.startup import import_tensorflow
from bert_tf.tasks.task import KindName, Task

_DEFAULTS = ("max_length", "epochs", "batch_size", "learning_rate")


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf tasks`."""

    name: str | None = option(None, positional=True)
    """task to show in full: a name in the table, or a Python file that defines TASK."""


@dataclass(kw_only=True, repr=False, eq=False)
class TasksResult(Result):
    """The outcome of `list_tasks`.

    Attributes:
        columns: titles of the columns of all tasks; none for one task.
        rows: a row for each task, or for each property of one.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def lines(self) -> list[str]:
        return ["  ".join(row).rstrip() for row in self.rows]

    def tables(self) -> Iterable[ResultTable]:
        yield ResultTable("Tasks", self.columns, self.rows)


def run(options: Options) -> TasksResult:
    """Lists the tasks and data sets that `task` knows, as `bert-tf tasks` does.

    Returns:
        The table of all tasks, or of one.
    """
    from bert_tf.tasks.task_table import TASKS, find_task

    if options.name is None:
        columns, *rows = overview(TASKS.data.values())
        return TasksResult(columns=columns, rows=rows)
    if options.name not in TASKS:
        import_tensorflow()
    task = TASKS.data.get(options.name) or find_task(options.name)
    return TasksResult(columns=(), rows=[*describe(task)])


def show(result: TasksResult, options: Options) -> None:
    if options.name is None:
        table = Table(*result.columns, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    else:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for row in result.rows:
        table.add_row(*row)
    results = Console(highlight=False, markup=False, emoji=False)
    if not results.is_terminal:
        results.width = 200  # files and pipes get whole rows
    results.print(table)
    if options.name is None:
        console.print("One in full: bert-tf tasks NAME. One of your own: docs/adding-a-task.md")


def overview(tasks: Iterable[Task]) -> list[list[str]]:
    """A row of column names, and one for each task; loads no kinds."""
    rows = [["task", "kind", "scores", "length", "epochs", "batch", "rate", "paper", "reached"]]
    for task in tasks:
        paper = [str(task.paper.get(size, "-")) for size in ("base", "large")]
        paper += [task.paper_split] * (task.paper_split != "test")
        defaults = [_defaults(task).get(name, "") for name in _DEFAULTS]
        row = [task.name, task.kind_name, ", ".join(_scores(task)[:2]), *defaults]
        rows.append([*row, " ".join(paper) if task.paper else "", _by_name(task.reached)])
    return rows


def describe(task: Task) -> list[list[str]]:
    """One task in full: a name and a value in each row."""
    columns = {"text": task.text, "pair": task.pair, "label": task.label}
    files = [f"{split}: {' or '.join(names)}" for split, names in task.files.items()]
    scores = ", ".join(_scores(task))
    stem = Path(task.name).stem
    command = "evaluate"
    options = f"--data text.txt --output runs/{stem}"
    if task.kind.is_trained:
        data = "--data FOLDER" if files else "--train train.tsv --validation dev.tsv"
        command = "finetune"
        options = f"{data} --output runs/{stem}"
        scores += "; the first chooses the best model"
    elif not scores:
        command = "export"
        options = f"--name {stem}"
    rows = {
        "task": task.name,
        "kind": task.kind_line,
        "columns": ", ".join(f"{role} {name!r}" for role, name in columns.items() if name),
        "labels": ", ".join(task.labels),
        "scores": scores,
        "files": "\n".join(files) or "any; name the columns that differ",
        "submission": ", ".join(f"{split}: {name}" for split, name in task.submissions.items()),
        "defaults": " ".join(f"--{name} {value}" for name, value in _defaults(task).items()),
        "paper": f"{_by_name(task.paper)}, {task.paper_split} set" if task.paper else "",
        "reached": _by_name(task.reached),
        "example": f"bert-tf {command} --task {task.name} --model models/base {options}",
    }
    return [[name, value] for name, value in rows.items() if value]


def _defaults(task: Task) -> dict[str, str]:
    """Option -> the task's value; only --max_length for a task that is not trained."""
    names = _DEFAULTS if task.kind.is_trained else _DEFAULTS[:1]
    return {name: f"{getattr(task, name):g}" for name in names}


def _scores(task: Task) -> list[str]:
    if isinstance(task.kind, KindName):
        return task.score_names(task.labels)
    return task.kind.score_names(task, task.labels)


def _by_name(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{score:.1f} ({name})" for name, score in scores.items())


# TensorFlow is imported for a task of one's own alone.
COMMAND = Command(
    name="tasks", help=__doc__, options=Options, run=run, show=show, needs_tensorflow=False
)
list_tasks = COMMAND.function("list_tasks")

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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from bert_tf.commands.function import CommandOptions, function
from bert_tf.commands.progress import console
from bert_tf.commands.result import Result
from bert_tf.commands.result import Table as ResultTable
from bert_tf.options import option
from bert_tf.startup import import_tensorflow

needs_tensorflow = False  # but for a task of one's own


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

    Raises:
        InputError: there is no such task; the message names a similar one.
    """
    from bert_tf.tasks.overview import describe, overview
    from bert_tf.tasks.table import TASKS, find_task

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


list_tasks = function("list_tasks", Options, run)

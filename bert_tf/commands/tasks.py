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

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from bert_tf.api.progress import console
from bert_tf.options import CheckedOptions, option
from bert_tf.startup import import_tensorflow

needs_tensorflow = False  # but for a task of one's own


@dataclass(kw_only=True)
class Options(CheckedOptions):
    """Options of `bert-tf tasks`."""

    name: str | None = option(None, positional=True)
    """task to show in full: a name in the table, or a Python file that defines TASK."""


def run(options: Options) -> None:
    from bert_tf.tasks.overview import describe, overview
    from bert_tf.tasks.table import TASKS, find_task

    if options.name is not None:
        if options.name not in TASKS:
            import_tensorflow()
        rows = describe(TASKS.data.get(options.name) or find_task(options.name))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    else:
        header, *rows = overview(TASKS.data.values())
        table = Table(*header, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    results = Console(highlight=False, markup=False, emoji=False)
    if not results.is_terminal:
        results.width = 200  # files and pipes get whole rows
    results.print(table)
    if options.name is None:
        console.print("One in full: bert-tf tasks NAME. One of your own: docs/adding-a-task.md")

"""The tables and pages of `bert-tf tasks`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bert_tf.tasks.task import Task

_HEADER = [
    "task", "kind", "scores", "length", "epochs", "batch", "rate", "paper", "reached",
]  # fmt: skip


def overview(tasks: Iterable[Task]) -> list[list[str]]:
    """A row of column names, and one for each task."""
    return [
        _HEADER,
        *(
            [
                task.name,
                _kind(task),
                ", ".join(_scores(task)[:2]),
                str(task.max_length),
                *(_defaults(task).values() if task.kind.is_trained else ("", "", "")),
                " ".join(
                    [str(task.paper.get(size, "-")) for size in ("base", "large")]
                    + [task.paper_split] * (task.paper_split != "test")
                )
                if task.paper
                else "",
                _by_name(task.reached),
            ]
            for task in tasks
        ),
    ]


def describe(task: Task) -> list[list[str]]:
    """One task in full: a name and a value in each row."""
    columns = {"text": task.text, "pair": task.pair, "label": task.label}
    files = [f"{split}: {' or '.join(names)}" for split, names in task.files.items()]
    data = "--data FOLDER" if task.files else "--train train.tsv --validation dev.tsv"
    command, defaults = "finetune", _defaults(task)
    if not task.kind.is_trained:
        command, data, defaults = "evaluate", "--data text.txt", {}
    example = f"{data} --output runs/{Path(task.name).stem}"
    if not task.kind.is_trained and not _scores(task):
        command, example = "export", f"--name {Path(task.name).stem}"
    options = {"max_length": task.max_length, **defaults}
    reads = " ".join((task.kind.__doc__ or "").partition("\n")[0].split())
    rows = {
        "task": task.name,
        "kind": f"{_kind(task)}: {reads}",
        "columns": ", ".join(f"{role} {name!r}" for role, name in columns.items() if name),
        "labels": ", ".join(task.labels),
        "scores": ", ".join(_scores(task)) + "; the first chooses the best model" * bool(defaults),
        "files": "\n".join(files) or "any; name the columns that differ",
        "submission": ", ".join(f"{split}: {name}" for split, name in task.submissions.items()),
        "defaults": " ".join(f"--{name} {value}" for name, value in options.items()),
        "paper": f"{_by_name(task.paper)}, {task.paper_split} set" if task.paper else "",
        "reached": _by_name(task.reached),
        "example": f"bert-tf {command} --task {task.name} --model models/base {example}",
    }
    return [[name, value] for name, value in rows.items() if value]


def _defaults(task: Task) -> dict[str, str]:
    """Options of fine-tuning -> the task's values."""
    return {
        "epochs": str(task.epochs),
        "batch_size": str(task.batch_size),
        "learning_rate": f"{task.learning_rate:g}",
    }


def _kind(task: Task) -> str:
    """The name of the kind's class in words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(task.kind).__name__).lower()


def _scores(task: Task) -> list[str]:
    return task.kind.score_names(task, task.labels)


def _by_name(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{score:.1f} ({name})" for name, score in scores.items())

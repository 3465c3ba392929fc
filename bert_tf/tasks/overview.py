"""The tables and pages of `bert-tf tasks`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bert_tf.tasks.task import KindName, Task

_OPTIONS = ("max_length", "epochs", "batch_size", "learning_rate")


def overview(tasks: Iterable[Task]) -> list[list[str]]:
    """A row of column names, and one for each task; loads no kinds."""
    rows = [["task", "kind", "scores", "length", "epochs", "batch", "rate", "paper", "reached"]]
    for task in tasks:
        paper = [str(task.paper.get(size, "-")) for size in ("base", "large")]
        paper += [task.paper_split] * (task.paper_split != "test")
        defaults = [_defaults(task).get(name, "") for name in _OPTIONS]
        row = [task.name, _kind(task), ", ".join(_scores(task)[:2]), *defaults]
        rows.append([*row, " ".join(paper) if task.paper else "", _by_name(task.reached)])
    return rows


def describe(task: Task) -> list[list[str]]:
    """One task in full: a name and a value in each row."""
    columns = {"text": task.text, "pair": task.pair, "label": task.label}
    files = [f"{split}: {' or '.join(names)}" for split, names in task.files.items()]
    scores, stem = ", ".join(_scores(task)), Path(task.name).stem
    command, options = "evaluate", f"--data text.txt --output runs/{stem}"
    if task.kind.is_trained:
        data = "--data FOLDER" if files else "--train train.tsv --validation dev.tsv"
        command, options = "finetune", f"{data} --output runs/{stem}"
        scores += "; the first chooses the best model"
    elif not scores:
        command, options = "export", f"--name {stem}"
    rows = {
        "task": task.name,
        "kind": kind_line(task),
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


def kind_line(task: Task) -> str:
    """The kind's name, and what it does."""
    kind = task.kind
    doc = kind.docstring() if isinstance(kind, KindName) else kind.__doc__ or ""
    says = doc.partition("\n")[0]
    return f"{_kind(task)}: {says}"


def _defaults(task: Task) -> dict[str, str]:
    """Option -> the task's value; those of fine-tuning only if there is one."""
    names = _OPTIONS if task.kind.is_trained else _OPTIONS[:1]
    return {name: f"{getattr(task, name):g}" for name in names}


def _kind(task: Task) -> str:
    name = task.kind.name if isinstance(task.kind, KindName) else type(task.kind).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _scores(task: Task) -> list[str]:
    if isinstance(task.kind, KindName):
        return task.score_names(task.labels)
    return task.kind.score_names(task, task.labels)


def _by_name(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{score:.1f} ({name})" for name, score in scores.items())

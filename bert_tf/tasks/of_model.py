"""Which task a model is for, and with which settings. Importing it imports no TensorFlow."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.config import read_json_object
from bert_tf.errors import InputError
from bert_tf.tasks.table import TASKS, find_task, recorded_task, task_of, with_options
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import check_stored

TASK_FILE = "task.json"
_ASSETS = "assets.extra"  # of exports
_DEFAULT = "classification"


def of_model(
    directory: str | Path | None,
    given: Mapping[str, Any] | None = None,
    *,
    model: Any = None,
    to_train: bool = False,
) -> Task | None:
    """Finds the task of a model directory or an export's version, with its settings.

    A source overrules those below it, for the task and for each setting:

    | source | task | settings |
    |---|---|---|
    | what the user said: `given` | its `task` | all that are not None |
    | task.json | its `task`, or classification | all; without columns if the task is another one |
    | files of others | the one whose kind reads them | what they record for the kind |
    | the class of the open `model` | the first of the table that has it | the table's |

    The class of an open `model` was the user's choice: a task of other models, in task.json or in
    files of others, is skipped. A model `to_train` becomes a classifier unless the user or
    task.json names a task that is trained, and takes settings of task.json for the same task alone.

    Returns:
        The task; None if only an open model could tell.

    Raises:
        InputError: the task cannot be found, task.json cannot be read, or an option in `given` is
            for tasks of another kind.
    """
    given = {name: value for name, value in (given or {}).items() if value is not None}
    name, stored = named_task(directory, given.get("task"), to_train=to_train)
    task = None
    if name is not None:
        task = find_task(name, brought_by=None if "task" in given else directory)
        if "task" not in given and not _may_be(task, model):
            task, stored = None, {}
    if task is None and directory is not None:
        recorded = recorded_task(directory)
        task = recorded if recorded is not None and _may_be(recorded, model) else None
    if task is None and model is not None:
        task = task_of(model) or TASKS[_DEFAULT]
    if task is None:
        return None
    if directory is not None:
        task = task.with_settings(task.kind.recorded(directory))
    if stored and not (to_train and stored.get("task", _DEFAULT) != task.name):
        task = task.with_model_settings(stored)
    return with_options(task, given)


def named_task(
    directory: str | Path | None, said: str | None = None, *, to_train: bool = False
) -> tuple[str | None, dict[str, Any]]:
    """Returns the name that the user `said` or task.json has, or None; and what task.json holds."""
    stored = None if directory is None else read_settings(directory)
    name = said or (None if stored is None else stored.get("task", _DEFAULT))
    is_trained = name is None or name not in TASKS or TASKS.data[name].kind.is_trained
    if to_train and not said and (name is None or not is_trained):
        name = _DEFAULT
    return name, stored or {}


def _may_be(task: Task, model: Any) -> bool:
    return model is None or isinstance(model, task.kind.model_class)


def read_settings(directory: str | Path) -> dict[str, Any] | None:
    """Reads the task.json of a model directory or of an export's version.

    None if there is none, or KerasHub's file of that name.
    """
    places = (Path(directory, TASK_FILE), Path(directory, _ASSETS, TASK_FILE))
    path = next(filter(Path.exists, places), None)
    stored = {} if path is None else read_json_object(path)
    if not isinstance(stored.get("task", ""), str):
        raise InputError(f"{path}: task is {stored['task']!r:.40}: write the name of a task")
    if not stored or "registered_name" in stored:
        return None
    try:
        check_stored(stored)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return stored

"""Which task a model is for, and with which settings. Importing it imports no TensorFlow."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.errors import InputError
from bert_tf.files.model_files import TASK_FILE, read_json
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import check_stored
from bert_tf.tasks.task_table import TASKS, find_task, with_options

_ASSETS = "assets.extra"  # of exports
_DEFAULT = "classification"
_OF_SENTENCES = "embedding"  # the task of files of sentence-transformers
_OF_FILES = ("text_column", "pair_column", "label_column", "format", "header")
# Classes of models that no kind trains -> the task that they are opened for.
_UNTRAINED = {"BertPreTrainer": "masked_words", "Encoder": "vectors"}


def task_of_model(
    directory: str | Path | None,
    options: Mapping[str, Any] | None = None,
    *,
    model: Any = None,
    to_train: bool = False,
) -> Task | None:
    """Finds the task of a model directory or an export's version, with its settings.

    A source overrules those below it, for the task and for each setting:

    | source | task | settings |
    |---|---|---|
    | the user's `options` | its `task` | all that are not None |
    | task.json | its `task`, or classification | all; without columns if the task is another one |
    | files of sentence-transformers | embedding | what they record |
    | the class of the open `model` | the one that it is opened for | the table's |

    The class of an open `model` was the user's choice: a task of other models, in task.json or in
    files of others, is skipped. A model `to_train` becomes a classifier unless the user or
    task.json names a task that is trained, and takes settings of task.json for the same task alone.

    Returns:
        The task; None if only an open model could tell.

    Raises:
        InputError: the task cannot be found, task.json cannot be read, or an option in `options` is
            for tasks of another kind.
    """
    options = {name: value for name, value in (options or {}).items() if value is not None}
    name, stored = named_task(directory, options.get("task"), to_train=to_train)
    task = None
    if name is not None:
        task = find_task(name, brought_by=None if "task" in options else directory)
        if "task" not in options and not _may_be(task, model):
            task = None
            stored = {}
    recorded = {} if directory is None else read_sentence_files(directory)
    if task is None and recorded and _may_be(TASKS[_OF_SENTENCES], model):
        task = TASKS[_OF_SENTENCES]
    if task is None and model is not None:
        task = TASKS[_task_of_class(model) or _DEFAULT]
    if task is None:
        return None
    if recorded.keys() & task.kind.settings().keys():
        task = task.with_settings(recorded)
    if stored.get("task", _DEFAULT) != task.name:
        stored = {} if to_train else {n: x for n, x in stored.items() if n not in _OF_FILES}
    return with_options(task.with_settings(stored), options)


def task_to_read(
    directory: str | Path | None, options: Mapping[str, Any], *, to_train: bool = False
) -> Task | None:
    """Like `task_of_model`, with the kind's reader alone; None for a task outside of the table."""
    name, stored = named_task(directory, options.get("task"), to_train=to_train)
    name = name or _DEFAULT
    if name not in TASKS or not TASKS.data[name].kind.is_trained:
        return None
    task = TASKS.data[name]
    task = replace(task, kind=task.kind.reader())
    if stored.get("task", _DEFAULT) == name:
        task = task.with_settings(stored)
    return task.with_settings(options)


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


def has_class(model: Any, task: Task) -> bool:
    """Whether a model has the class, which kinds name, of the models that the task trains."""
    named = task.kind.model_class
    return isinstance(model, named) if isinstance(named, type) else named in _class_names(model)


def is_opened_for(model: Any, task: Task) -> bool:
    """Whether a model can be used for the task, at least without its training."""
    name = _task_of_class(model)
    is_its_kind = name is not None and type(TASKS[name].kind) is type(task.kind)
    return is_its_kind or has_class(model, task)


def _may_be(task: Task, model: Any) -> bool:
    return model is None or has_class(model, task)


def _class_names(model: Any) -> list[str]:
    return [base.__name__ for base in type(model).__mro__ if base.__module__.startswith("bert_tf.")]


def _task_of_class(model: Any) -> str | None:
    """The first task that trains such a model, or else that it is opened for."""
    from bert_tf.pipelines.examples.tagged_words import are_entities  # with TensorFlow

    for name, task in TASKS.items():
        if has_class(model, task):
            is_tag = name == "tagging" and not are_entities(model.label_names)
            return "tags" if is_tag else name
    if not model.reads_text:  # its encoder does
        return "vectors"
    return next((_UNTRAINED[x] for x in _class_names(model) if x in _UNTRAINED), None)


def read_settings(directory: str | Path) -> dict[str, Any] | None:
    """Reads the task.json of a model directory or of an export's version.

    None if there is none, or KerasHub's file of that name.
    """
    paths = (Path(directory, TASK_FILE), Path(directory, _ASSETS, TASK_FILE))
    path = next(filter(Path.exists, paths), None)
    stored = {} if path is None else read_json(path)
    if not isinstance(stored.get("task", ""), str):
        raise InputError(f"{path}: task is {stored['task']!r:.40}: write the name of a task")
    if not stored or "registered_name" in stored:
        return None
    try:
        check_stored(stored)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return stored

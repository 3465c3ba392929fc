"""Models with their vocabulary, from a model directory: `from_preset`."""

import os
from pathlib import Path
from typing import Any

from bert_tf.checkpoints.formats import CONFIG
from bert_tf.checkpoints.model_directory import load_model
from bert_tf.checkpoints.presets import find_model, hub_hint
from bert_tf.errors import InputError
from bert_tf.raw_text.preprocessor import BertPreprocessor
from bert_tf.tasks.table import find_task
from bert_tf.tasks.task import Task
from bert_tf.trained.fine_tuned import TASK_FILE, read_settings, task_of


def open_preset(
    model_class: type,
    preset: str | os.PathLike,
    *,
    preprocessor: Any = "auto",
    task: str | None = None,
    max_length: int | None = None,
    **settings: Any,
) -> Any:
    """A model of a class from a preset; see `PretrainedModel.from_preset`."""
    if not isinstance(preset, str | os.PathLike):
        raise InputError(f"the preset is {preset!r:.40}: give a folder, or a name on the hub")
    directory = find_model(preset)
    if directory.is_file():
        raise InputError(f"{preset} is a file: give its folder, {directory.parent}")
    if not directory.is_dir():
        raise InputError(f"{preset}: no such folder: check the path{hub_hint(str(preset))}")
    settings.setdefault("allow_new_head", True)
    is_auto = isinstance(preprocessor, str) and preprocessor == "auto"
    vocabularies = (directory / name for name in ("vocab.txt", "tokenizer.json"))
    if is_auto and (directory / CONFIG).is_file() and not any(x.exists() for x in vocabularies):
        raise InputError(
            f"{directory} has no vocabulary: put its vocab.txt there, or give preprocessor=None "
            "for a model of token ids"
        )
    model: Any = load_model(directory, model_class, **settings)
    if is_auto:
        own, is_settled = _task(model, directory, task)
        length = max_length or min(own.max_length, model.config.max_position_embeddings)
        if length < 3:
            raise InputError(f"max_length is {length}: give 3 or more, [CLS] and [SEP] included")
        model.config.check_fits(length=length, pairs=own.pair is not None)
        preprocessor = BertPreprocessor(directory, own, length, is_settled)
    model.preprocessor = preprocessor
    return model


def _task(model: Any, directory: Path, name: str | None) -> tuple[Task, bool]:
    """The task, and whether the model was trained for it.

    It is the one that is named, else the directory's if it is the model's, else that of the class.
    """
    if name is not None:
        task = find_task(name)
        if not isinstance(model, (task.kind.model_class, *task.kind.opens)):
            raise InputError(
                f"task {name!r} is for {task.kind.model_class.__name__}, not for "
                f"{type(model).__name__}: open that class, or give another task"
            )
        return task, False
    stored = read_settings(directory / TASK_FILE) or {}
    if "task" in stored:
        task = find_task(stored["task"], brought_by=directory).with_model_settings(stored)
        if isinstance(model, task.kind.model_class):
            return task, True
    found = task_of(model)
    assert found is not None
    return found.with_settings(found.kind.recorded(directory)), False

"""Models with their vocabulary, from a model directory: `from_preset`."""

import os
from pathlib import Path
from typing import Any

from bert_tf.checkpoints.model_directory import load_model
from bert_tf.checkpoints.presets import find_model, hub_hint
from bert_tf.errors import InputError
from bert_tf.raw_text.preprocessor import BertPreprocessor
from bert_tf.tasks.table import TASKS, find_task
from bert_tf.tasks.task import Task
from bert_tf.trained.fine_tuned import TASK_FILE, read_settings


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
    directory = find_model(preset)
    if not directory.is_dir():
        raise InputError(f"{preset}: no such folder: check the path{hub_hint(str(preset))}")
    settings.setdefault("allow_new_head", True)
    model: Any = load_model(directory, model_class, **settings)
    if preprocessor == "auto":
        if not any((directory / name).exists() for name in ("vocab.txt", "tokenizer.json")):
            raise InputError(
                f"{directory} has no vocabulary: put its vocab.txt there, or give "
                "preprocessor=None for a model of token ids"
            )
        own = _task(model, directory, task)
        longest = model.config.max_position_embeddings
        length = min(max_length or own.max_length, longest) if max_length is None else max_length
        preprocessor = BertPreprocessor(directory, own, length)
        model.config.check_fits(length=length, pairs=own.pair is not None)
    model.preprocessor = preprocessor
    return model


def _task(model: Any, directory: Path, name: str | None) -> Task:
    """The task that is named, else that of the directory if it is the model's, else its kind's."""
    if name is not None:
        return find_task(name)
    stored = read_settings(directory / TASK_FILE) or {}
    if "task" in stored:
        task = find_task(stored["task"], brought_by=directory).with_model_settings(stored)
        if isinstance(model, task.kind.model_class):
            return task
    fits = (task for task in TASKS.values() if isinstance(model, task.kind.model_class))
    found = next(fits, None)
    if found is None:
        found = next(each for each in TASKS.values() if isinstance(model, each.kind.opens))
    return found

"""Models that come with their vocabulary: the presets of `from_preset`."""

import os
from pathlib import Path
from typing import Any

from bert_tf.checkpoints.formats import CONFIG, locate
from bert_tf.checkpoints.hub import find_model, hub_hint
from bert_tf.errors import InputError
from bert_tf.models.classes import class_of_kind
from bert_tf.models.loading import load_model
from bert_tf.models.preprocessor import BertPreprocessor
from bert_tf.models.pretrained_model import Encoder
from bert_tf.startup import prepare_training
from bert_tf.tasks.of_model import is_opened_for, named_task, of_model
from bert_tf.tasks.task import Task


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
        folder = locate(directory).folder  # InputError for most files
        raise InputError(f"{preset} is a file: give its folder, {folder}")
    if not directory.is_dir():
        raise InputError(f"{preset}: no such folder: check the path{hub_hint(str(preset))}")
    settings.setdefault("allow_new_head", True)
    if not issubclass(model_class, Encoder):  # it may be trained; threads are set before any op
        prepare_training()
    is_auto = isinstance(preprocessor, str) and preprocessor == "auto"
    vocabularies = (directory / name for name in ("vocab.txt", "tokenizer.json"))
    if is_auto and (directory / CONFIG).is_file() and not any(x.exists() for x in vocabularies):
        raise InputError(
            f"{directory} has no vocabulary: put its vocab.txt there, or give preprocessor=None "
            "for a model of token ids"
        )
    model: Any = load_model(directory, model_class, **settings)
    if is_auto:
        model_task, is_settled = _task_in(directory, model, task)
        length = max_length or min(model_task.max_length, model.config.max_position_embeddings)
        if length < 3:
            raise InputError(f"max_length is {length}: give 3 or more, [CLS] and [SEP] included")
        model.config.check_fits(length=length, pairs=model_task.pair is not None)
        preprocessor = BertPreprocessor(directory, model_task, length, is_settled)
    model.preprocessor = preprocessor
    return model


def _task_in(directory: Path, model: Any, name: str | None) -> tuple[Task, bool]:
    """The task of a model, as of `of_model`; and whether the model is trained for it."""
    task = of_model(directory, {"task": name}, model=model)
    assert task is not None
    if not is_opened_for(model, task):
        raise InputError(
            f"task {task.name!r} is for {class_of_kind(task.kind).__name__}, not for "
            f"{type(model).__name__}: open that class, or give another task"
        )
    return task, named_task(directory)[0] == task.name

"""Opens models with their task and vocabulary: the presets of `from_preset`, and answerers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.checkpoints.formats import locate
from bert_tf.checkpoints.hub import find_model, hub_hint
from bert_tf.errors import InputError
from bert_tf.files.model_files import CONFIG, VOCABULARY
from bert_tf.models.encoder import Encoder
from bert_tf.models.loading import class_of_kind, load_model, requiring_trained_head
from bert_tf.serving.openvino_model import SUFFIX
from bert_tf.serving.predictor import Predictor, ServedFunction
from bert_tf.startup import prepare_training
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding
from bert_tf.tasks.model_task import (
    has_class,
    is_opened_for,
    named_task,
    read_settings,
    task_of_model,
)
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_table import TASKS, with_options
from bert_tf.text.answerer import Answerer
from bert_tf.text.inputs import SINGLE_TEXTS
from bert_tf.text.preprocessor import BertPreprocessor
from bert_tf.tokenization.tokenizer import BertTokenizer


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
    model: Any = load_model(directory, model_class, **settings)
    vocabularies = (directory / name for name in ("vocab.txt", "tokenizer.json"))
    if is_auto and (directory / CONFIG).is_file() and not any(x.exists() for x in vocabularies):
        raise InputError(
            f"{directory} has no vocabulary: put its vocab.txt there, or give preprocessor=None "
            "for a model of token ids"
        )
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
    """The task of a model, as of `task_of_model`; and whether the model is trained for it."""
    task = task_of_model(directory, {"task": name}, model=model)
    assert task is not None
    if not is_opened_for(model, task):
        raise InputError(
            f"task {task.name!r} is for {class_of_kind(task.kind).__name__}, not for "
            f"{type(model).__name__}: open that class, or give another task"
        )
    return task, named_task(directory)[0] == task.name


def open_answerer(path: str | Path, settings: Mapping[str, Any] | None = None) -> Answerer:
    """Opens a model directory, `saved_models/<name>`, the folder of one version, or a model.xml.

    `settings` are as for `load_answerer`.
    """
    settings = settings or {}
    if (Path(path) / CONFIG).is_file():
        return load_answerer(path, settings)
    predictor = Predictor(path)
    task = TASKS["classification"]
    try:
        task = task_of_model(predictor.directory) or task
    except InputError:  # an export does not carry the code of a user's own task
        task = task.with_settings(read_settings(predictor.directory) or {})
    for name in ("task", "max_length", "label_map", *task.kind.settings()):
        if settings.get(name) not in (None, []):
            raise InputError(f"--{name} is fixed in an export: give it to bert-tf export")
    task = with_options(task, settings)
    if "text_pair" in predictor.inputs and task.pair is None and settings.get("input"):
        raise InputError(f"{path} takes pairs: name the second text's column with --pair_column")
    if isinstance(task.kind, SentenceEmbedding) and Path(path).suffix == SUFFIX:
        predictor.signatures["compare"] = _comparison(task, predictor.signature())
    tokenizer = None
    if (predictor.directory / VOCABULARY).is_file():  # beside OpenVINO's files
        tokenizer = BertTokenizer.from_directory(predictor.directory)
    return Answerer(task, predictor, tokenizer, predictor.labels)


def _comparison(task: Task, embed: ServedFunction) -> ServedFunction:
    """The signature `compare` by the one of single texts."""

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        one, other = (embed(text=inputs[name]) for name in ("text", "text_pair"))
        answers = task.kind.compared(one["vector"], other["vector"])
        truncated = np.maximum(one["truncated"], other["truncated"])
        return {**{name: np.asarray(x) for name, x in answers.items()}, "truncated": truncated}

    return ServedFunction(run, dict(task.kind.signatures(task)["compare"].inputs))


def for_pairs(answerer: Answerer, path: str | Path) -> Answerer:
    """The answerer of a path, for pairs of texts; refuses a model that was trained on single ones.

    A model without task.json may have been trained on either.
    """
    is_settled = isinstance(answerer.model, Predictor) or named_task(path)[0] == answerer.task.name
    task = replace(answerer.task, pair="text_pair")
    if is_settled or "text_pair" not in task.kind.signatures(task)[DEFAULT].inputs:
        raise InputError(SINGLE_TEXTS)
    return replace(answerer, task=task)


def load_answerer(
    directory: str | Path, settings: Mapping[str, Any] | None = None, dtype: str = "float32"
) -> Answerer:
    """Loads what `Answerer.save` wrote, or any model directory that a task can use.

    `task_of_model` finds the task: without task.json a pre-trained model guesses masked words, an
    encoder without a head embeds texts. `settings` replace task.json's; their
    `label_map` holds pairs "MODEL_LABEL=LABEL", and another `task` has its own columns.
    """
    settings = {name: value for name, value in (settings or {}).items() if value is not None}
    model: Any = None
    task = task_of_model(directory, settings)
    if task is None:
        model = load_model(directory, dtype=dtype)
        task = task_of_model(directory, settings, model=model)
    assert task is not None
    if not has_class(model, task):
        head = task.kind.head(())
        with requiring_trained_head():
            model = load_model(directory, class_of_kind(task.kind), dtype=dtype, **head)
    if read_settings(directory) is None and "max_length" not in settings:
        positions = model.config.max_position_embeddings
        task = task.with_settings({"max_length": min(task.max_length, positions)})
    answerer = Answerer.of(model, task, BertTokenizer.from_directory(directory))
    labels = _renamed(answerer.labels, settings.get("label_map") or [])
    if labels != answerer.labels and isinstance(task.kind, MultiLabel):
        names = dict(zip(answerer.labels, labels, strict=True))
        task = replace(task, kind=task.kind.renamed(names))
    return replace(answerer, task=task, labels=labels)


def _renamed(labels: Sequence[str], label_map: Sequence[str]) -> list[str]:
    """Labels under the names that data uses for them."""
    names = {}
    for entry in label_map:
        old, equals, new = entry.partition("=")
        if not equals or old not in labels:
            raise InputError(
                f"--label_map {entry}: give MODEL_LABEL=LABEL, with a label of the model "
                f"({', '.join(labels)})"
            )
        names[old] = new
    renamed = [names.get(label, label) for label in labels]
    if len(set(renamed)) < len(renamed):
        raise InputError(f"--label_map gives one name to two labels: {', '.join(renamed)}")
    return renamed

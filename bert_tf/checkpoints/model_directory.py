"""The model directory: config.json, model.safetensors, vocab.txt, tokenizer_config.json.

It is Hugging Face's: any BERT on disk from there loads here, and what is saved here loads there.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.checkpoints.formats import check_is_model_directory
from bert_tf.checkpoints.safetensors_file import WEIGHTS, open_weights, write_weights
from bert_tf.checkpoints.weight_names import (
    ARCHITECTURES,
    TensorFile,
    canonical_name,
    check_tied,
    find_tensors,
    is_head,
    named_weights,
)
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.classifier import BertClassifier
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.pretrained_model import PretrainedModel
from bert_tf.models.regressor import BertRegressor

if TYPE_CHECKING:
    from bert_tf.tokenization.tokenizer import BertTokenizer

CONFIG = "config.json"

Model = TypeVar("Model", bound=PretrainedModel)
_log = logging.getLogger(__name__)


def save_model(
    model: PretrainedModel,
    directory: str | os.PathLike,
    tokenizer: "BertTokenizer | None" = None,
) -> None:
    """Writes a model as a Hugging Face model directory.

    Each file appears whole or not at all, config.json last: a directory without it is no model
    yet. Other files of the directory (checkpoints, logs) stay.

    Args:
        model: a `BertEncoder`, `BertPreTrainer` or `BertClassifier`.
        directory: made if it does not exist.
        tokenizer: writes its vocab.txt and tokenizer_config.json too.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = _config_on_disk(model)
    path = directory / CONFIG
    if path.exists() and path.read_bytes() != config.to_json_text().encode():
        path.unlink()  # it describes other weights than those to come
    write_weights(
        directory / WEIGHTS, {weight.name: weight.to_tensor() for weight in named_weights(model)}
    )
    if tokenizer is not None:
        tokenizer.save(directory, model_max_length=config.max_position_embeddings)
    config.to_json(path)


def load_model(
    directory: str | os.PathLike,
    model_class: type[Model] = BertEncoder,
    *,
    allow_new_head: bool = False,
    num_classes: int | None = None,
    labels: Sequence[str] | None = None,
    seed: int | None = None,
    dtype: Any = None,
    **config: Any,
) -> Model:
    """Loads a model from a Hugging Face model directory.

    The weights may lie in one file or in several with an index, in float32, float16 or bfloat16,
    with or without the "bert." prefix. Heads that the model does not have are left out. A
    `BertEncoder` may lack its pooler, which then starts at random, with a warning.

    Args:
        directory: holds config.json and model.safetensors; `bert-tf convert` makes one of other
            formats.
        model_class: `BertEncoder`, `BertPreTrainer` or `BertClassifier`.
        allow_new_head: let what the directory lacks of the model's heads and pooler start at
            random, to train on from an encoder. So does a head of other classes.
        num_classes: of a classifier; None for as many as the directory's.
        labels: of a classifier; None for the directory's.
        seed: of dropout and of what starts at random.
        dtype: a Keras dtype policy such as "mixed_bfloat16".
        config: values that replace config.json's, such as `hidden_dropout_prob=0.0`.

    Returns:
        The model, its variables in float32 unless `dtype` says otherwise.

    Raises:
        InputError: if a file is missing or damaged, the directory is of another format, the
            vocabulary has more pieces than the config says, or a tensor is missing, unexpected or
            of another shape than the config asks for; the message names file and tensors.
    """
    directory = Path(directory)
    check_is_model_directory(directory)
    on_disk = BertConfig.from_json(directory / CONFIG)
    _check_vocabulary(directory / "vocab.txt", on_disk)
    options: dict[str, Any] = {"seed": seed, "dtype": dtype}
    with open_weights(directory) as tensors:
        new_classifier = False
        if issubclass(model_class, BertClassifier):
            classes_on_disk = _classes_on_disk(tensors)
            if labels is None and num_classes is None:
                labels, num_classes = on_disk.labels, classes_on_disk
            elif labels is None and num_classes == classes_on_disk:
                labels = on_disk.labels
            elif allow_new_head:
                # As many classes of other names are other classes.
                new_classifier = labels is None or list(labels) != on_disk.labels
            if labels is None and num_classes is None:
                raise InputError(
                    f"{tensors.path} holds no classifier: give num_classes or labels, and "
                    "allow_new_head=True, to start one."
                )
            options |= {"labels": labels, "num_classes": num_classes}
        elif issubclass(model_class, BertRegressor):
            new_classifier = allow_new_head and _classes_on_disk(tensors) != 1
        model = model_class(replace(on_disk, **{"id2label": None, **config}), **options)
        may_be_new: tuple[str, ...] = ()
        if allow_new_head:
            may_be_new = ("pooler.", "cls.", "classifier.")
        elif isinstance(model, BertEncoder):
            may_be_new = ("pooler.",)
        _fill(model, tensors, may_be_new, new_classifier)
    return model


def _config_on_disk(model: PretrainedModel) -> BertConfig:
    """The model's config as config.json is to hold it."""
    id2label = None
    if isinstance(model, BertClassifier):
        # Hugging Face reads the number of classes from here: without names, number them.
        labels = model.labels or [f"LABEL_{i}" for i in range(model.num_classes)]
        id2label = dict(enumerate(labels))
    extra = {key: value for key, value in model.config.extra.items() if key != "torch_dtype"}
    extra |= {"architectures": [ARCHITECTURES[type(model)]], "dtype": "float32"}
    extra.pop("problem_type", None)
    if isinstance(model, BertRegressor):
        id2label = {0: "LABEL_0"}
        extra["problem_type"] = "regression"
    return replace(model.config, id2label=id2label, extra=extra)


def _check_vocabulary(path: Path, config: BertConfig) -> None:
    """Refuses pieces that have no row in the word embedding table.

    The table may be longer than the vocabulary: some models pad it.
    """
    if not path.exists():
        return
    pieces = len(path.read_bytes().rstrip().split(b"\n"))
    if pieces > config.vocab_size:
        raise InputError(
            f"{path} has {pieces} pieces, {path.with_name(CONFIG)} a vocab_size of "
            f"{config.vocab_size}: put the model's own vocabulary there."
        )


def _classes_on_disk(tensors: TensorFile) -> int | None:
    """The number of classes of the file's classifier; None if it holds no classifier.

    The config does not always say: Hugging Face leaves out the labels of an unnamed pair.
    """
    if "classifier.weight" not in tensors.names():
        return None
    return tensors.shape("classifier.weight")[0]


def _fill(
    model: PretrainedModel, tensors: TensorFile, may_be_new: tuple[str, ...], new: bool
) -> None:
    """Gives every weight of the model its tensor, or says which do not match.

    Args:
        model: the model to fill.
        tensors: the file.
        may_be_new: prefixes of the weights that the file may lack.
        new: leave the model's head new, whatever the file holds of it.
    """
    path = tensors.path
    weights = {canonical_name(weight.name): weight for weight in named_weights(model)}
    found = find_tensors(tensors)
    if new:
        found = {name: theirs for name, theirs in found.items() if not is_head(name)}

    # What does not fit is told all at once.
    missing = {name for name in weights if name not in found}
    started = {name for name in missing if name.startswith(may_be_new)}
    problems = [f"{weights[name].name} is missing" for name in sorted(missing - started)]
    for name, theirs in sorted(found.items()):
        if name in weights:
            shape, expected = tensors.shape(theirs), weights[name].shape
            if shape != expected:
                problems.append(f"{theirs} is {list(shape)}, not {list(expected)}")
        elif not is_head(name):
            problems.append(f"{theirs} is unexpected")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(
            f"{path} does not fit {path.with_name(CONFIG)} as a {type(model).__name__}: "
            f"{'; '.join(problems[:5])}{more}. Load it as the model that it was saved from."
        )

    for name, weight in weights.items():
        if name not in started:
            weight.assign(tensors.read(found[name]))
    if any(name.startswith("cls.predictions.") for name in weights):
        check_tied(tensors, found)
    if started:
        _log.warning("%s lacks %s: started at random.", path, ", ".join(sorted(started)))

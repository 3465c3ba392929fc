"""The model directory: config.json, model.safetensors, vocab.txt, tokenizer_config.json.

It is Hugging Face's format: its BERT models load here, and models saved here load there.
"""

import functools
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.checkpoints.formats import check_is_model_directory
from bert_tf.checkpoints.hugging_face import read_weights, write_hugging_face
from bert_tf.checkpoints.stored_model import StoredModel, check_shapes, check_vocabulary
from bert_tf.checkpoints.weight_names import (
    HEADS,
    HEADS_PREFIXES,
    PARTS,
    Head,
    canonical_name,
    head_of,
    named_weights,
    tensor_shapes,
)
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.chosen_layers import MIX
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.encoders import encoder_class
from bert_tf.models.pretrained_model import PretrainedModel
from bert_tf.models.task_models import TaskModel

if TYPE_CHECKING:
    from bert_tf.tokenization.tokenizer import BertTokenizer

Model = TypeVar("Model", bound=PretrainedModel)
_log = logging.getLogger(__name__)


def save_model(
    model: PretrainedModel,
    directory: str | os.PathLike,
    tokenizer: "BertTokenizer | None" = None,
) -> None:
    """Writes a model as a Hugging Face model directory; see `write_hugging_face`.

    Args:
        model: a `BertEncoder`, or an encoder with a head.
        directory: made if it does not exist.
        tokenizer: the model's tokenizer; its vocab.txt and tokenizer_config.json are written too.

    Raises:
        InputError: the model was trained with labels that are independent of each other, which a
            model directory does not record.
    """
    stored = StoredModel.from_model(model)
    stored.tokenizer = tokenizer
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # One file, however large: an older one must not stay beside several new ones.
    write_hugging_face(stored, directory, shard_bytes=2**63)


def load_model(
    directory: str | os.PathLike,
    model_class: type[Model] | None = None,
    *,
    allow_new_head: bool = False,
    num_classes: int | None = None,
    labels: Sequence[str] | None = None,
    seed: int | None = None,
    dtype: Any = None,
    **config: Any,
) -> Model:
    """Loads a model from a Hugging Face model directory.

    The weights may be in one file or in several with an index, in float32, float16 or bfloat16,
    with or without the "bert." prefix. Heads that the model does not have are ignored. A
    `BertEncoder` may lack its pooler, which is then initialized at random, with a warning.

    Args:
        directory: holds config.json and model.safetensors; `bert-tf convert` makes one from other
            formats.
        model_class: class of the model, such as `BertEncoder`; None for the model that was saved.
        allow_new_head: randomly initialize any missing pooler or head, and replace the head of
            another task or a classifier whose classes differ.
        num_classes: number of classes of a classifier; None for the directory's.
        labels: names of a classifier's classes; None for the directory's.
        seed: random seed for dropout and for weights that are initialized at random.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
        config: values that replace config.json's, such as `hidden_dropout_prob=0.0`, and other
            arguments of the model, such as an encoder's `attention_probabilities=True`.

    Returns:
        The model, its variables in float32 unless `dtype` says otherwise.

    Raises:
        InputError: a file is missing or damaged, the directory is of another format, its
            vocabulary has more pieces than config.json says, it holds another kind of model, or a
            tensor is missing, unexpected or of another shape, or the model takes no argument of
            such a name; the message names file, tensors or argument.
    """
    directory = Path(directory)
    check_is_model_directory(directory)
    stored = read_weights(directory)
    for note in stored.notes:
        _log.warning("%s: %s", stored.source, note)
    vocabulary = directory / "vocab.txt"
    if vocabulary.exists():
        pieces = len(vocabulary.read_bytes().rstrip().split(b"\n"))
        check_vocabulary(pieces, stored.config, vocabulary)
    if model_class is None:
        of_kind: list[Any] = [each for each, head in HEADS.items() if head.kind == stored.kind]
        if not of_kind:
            raise InputError(
                f"{directory} holds a {stored.kind}, which cannot be used as "
                "it is: train it for another task (bert-tf finetune), or open its encoder "
                "(bert_tf.BertEncoder.from_directory)."
            )
        model_class = of_kind[0]
    if model_class is BertEncoder:
        model_class = encoder_class(stored.config)
    # Arguments of the model: all that are no values of the config.
    own = {name: config.pop(name) for name in config.keys() - BertConfig.names()}
    of_labels = {"num_classes": num_classes, "labels": labels}
    given = [name for name, value in of_labels.items() if value is not None]
    model_class.refuse_unknown([*own, *given], {"allow_new_head"} | BertConfig.names())
    head = head_of(model_class)
    is_other = "classifier." in head.parts and stored.classes and stored.kind != head.kind
    _check_direction(stored, head, directory)
    if not allow_new_head:
        _check_head(stored, head, is_other, directory)
    if "cls.predictions." in head.parts:
        stored.tie_decoder()
    if "labels" in model_class.arguments:
        on_disk, classes = (None, None) if is_other else (stored.labels, stored.classes)
        if labels is None and num_classes in (None, classes):
            labels, num_classes = on_disk, classes
        elif allow_new_head:  # as many classes with other names are other classes
            is_other = is_other or labels is None or list(labels) != on_disk
        elif (number := num_classes if labels is None else len(labels)) != classes:
            raise InputError(
                f"{directory} holds a head of {classes} classes, not {number}: give as many, or "
                "allow_new_head=True for a random head."
            )
        own |= {"labels": labels, "num_classes": num_classes}
    own |= {"seed": seed, "dtype": dtype}
    new: dict[str, Any] = {"id2label": None}
    if not issubclass(model_class, TaskModel):
        new |= {"feature_layers": None, "feature_lstm_layers": 0}
    full = replace(stored.config, **{**new, **config})
    features = [(c.feature_layers, c.feature_lstm_layers) for c in (full, stored.config)]
    is_other = is_other or (bool(head.parts) and features[0] != features[1])
    # The encoder's shapes are checked before a model of a wrong size is made.
    check_shapes(_encoder(stored.tensors), _encoder(tensor_shapes(full)), stored.source)
    model = model_class(full, **own)
    if is_other and stored.classes:
        _log.warning("%s: its head is for other classes or another task: replaced.", stored.source)
    if full.has_feature_encoder:
        kept = () if is_other else ("lstm.", "mix.", *head.parts)
    else:
        pooler = ("pooler.",) if head.reads_pooler else ()
        kept = pooler if is_other else (*pooler, *head.parts)
    _fill(model, stored, kept)
    return model


def _check_direction(stored: StoredModel, head: Head, directory: Path) -> None:
    """Refuses masked words for models that see one side, and next words for others."""
    direction = stored.config.attention_direction
    of_next_words = head.architecture == "BertLMHeadModel"
    if "cls.predictions." in head.parts and of_next_words == (direction == "both"):
        sees = "both sides" if direction == "both" else f"one side ({direction})"
        raise InputError(
            f"{directory} sees {sees} of the text and cannot predict "
            f"{'next' if of_next_words else 'masked'} words: give a model that was pre-trained "
            f"with --objective {'ltr or rtl' if of_next_words else 'mlm+nsp or mlm'}."
        )


def _check_head(stored: StoredModel, head: Head, is_other: Any, directory: Path) -> None:
    """Refuses a directory that lacks a part of the head, or holds another head."""
    needed = tuple(head.parts)
    if head.parts and stored.config.has_feature_encoder:
        needed += ("lstm.",) * (stored.config.feature_lstm_layers > 0)
        needed += ("mix.",) * (stored.config.feature_layers == MIX)
    elif head.parts and head.reads_pooler and stored.config.attention_direction != "recurrent":
        needed += ("pooler.",)
    absent = [PARTS[part] for part in needed if not stored.has(part)]
    if is_other or absent:
        lack = f"not a {head.kind}" if is_other else f"which has no {' and no '.join(absent)}"
        raise InputError(
            f"{directory} holds a {stored.kind}, {lack}: train it first "
            f"(bert-tf {head.made_by} --model {directory}), or start with a random head "
            "(allow_new_head=True in Python)."
        )


def _encoder(named: dict[str, Any]) -> dict[str, Any]:
    """The entries of the encoder alone, without pooler and heads."""
    outside = (*HEADS_PREFIXES, "pooler.")
    return {name: value for name, value in named.items() if not name.startswith(outside)}


@functools.cache  # a search loads the same model for each of its runs
def _warn_of_new(path: Path, names: str) -> None:
    _log.warning("%s: %s initialized at random.", path, names)


def _fill(model: PretrainedModel, stored: StoredModel, kept: tuple[str, ...]) -> None:
    """Assigns the tensors of the encoder and of the parts in `kept` to the model."""
    weights = {canonical_name(weight.name): weight for weight in named_weights(model)}
    parts = {name: tensor for name, tensor in stored.tensors.items() if name.startswith(kept)}
    tensors = _encoder(stored.tensors) | parts
    check_shapes(tensors, {name: weight.shape for name, weight in weights.items()}, stored.source)
    new = sorted(name for name in weights if name not in tensors)
    if new:
        titles = [next((t for p, t in PARTS.items() if name.startswith(p)), name) for name in new]
        _warn_of_new(stored.source, " and ".join(dict.fromkeys(titles)))
    for name in weights.keys() & tensors.keys():
        weights[name].assign(tensors[name])

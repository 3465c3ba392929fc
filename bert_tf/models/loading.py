"""Models from model directories; `bert_tf.checkpoints` reads the files."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bert_tf.checkpoints import weight_names
from bert_tf.checkpoints.model_directory import read_weights
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.checkpoints.stored_model import StoredModel, check_shapes, check_vocabulary
from bert_tf.checkpoints.weight_names import Head
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.extensions import added
from bert_tf.files.atomic import StrPath
from bert_tf.files.model_files import read_small_file
from bert_tf.models.encoder import BertEncoder, encoder_for
from bert_tf.models.language_model import BertMaskedLanguageModel, BertPreTrainer
from bert_tf.models.pretrained_model import Encoder, PretrainedModel
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertSentenceEncoder,
    BertSpanClassifier,
    BertTagger,
    TaskModel,
)

Model = TypeVar("Model", bound=PretrainedModel)
_log = logging.getLogger(__name__)
_NEW = "%s: %s initialized at random: train before you use the answers."

# The first class of an architecture and problem type is made from a directory.
STORED: tuple[type[PretrainedModel], ...] = (
    BertEncoder,
    BertPreTrainer,
    BertMaskedLanguageModel,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertChooser,
    BertTagger,
    BertSpanClassifier,
    BertSentenceEncoder,
)


class NoHeadError(InputError):
    """A directory lacks the head of a model; the `reason` does not offer a random one."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}, or start with a random head (allow_new_head=True in Python).")
        self.reason = reason


def class_of_kind(kind: Any) -> Any:
    """The class of the models that a kind trains: one of `STORED` by its name, or a user's own."""
    named = kind.model_class
    return {cls.__name__: cls for cls in STORED}.get(named, named)


def load_model(
    directory: StrPath,
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

    Weights may be in one file or several, in float32, float16 or bfloat16. Heads that the model
    class lacks are ignored. A `BertEncoder`'s missing pooler is initialized at random.

    Args:
        directory: model directory; `bert-tf convert` makes one from other formats.
        model_class: class of the model, such as `BertEncoder`; None for the model that was saved.
        allow_new_head: randomly initialize any missing pooler or head, and replace the head of
            another task or a classifier whose classes differ.
        num_classes: number of classes of a classifier; None for the directory's.
        labels: names of a classifier's classes; None for the directory's.
        seed: random seed for dropout and for weights that are initialized at random.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
        config: values that replace config.json's, such as `hidden_dropout_prob=0.0`, and other
            arguments of the model, such as an encoder's `attention_probabilities=True`.

    Raises:
        InputError: a file is missing, damaged or of another format; the vocabulary has more pieces
            than config.json says; the kind of model or its tensors, or an argument, do not fit.
    """
    directory = Path(directory)
    stored = read_weights(directory)
    stored.check_finite()
    for note in stored.notes:
        _log.warning("%s: %s", stored.source, note)
    vocabulary = directory / "vocab.txt"
    if vocabulary.exists():
        try:
            pieces = len(read_small_file(vocabulary).rstrip().split(b"\n"))
        except OSError as error:
            raise InputError(f"{vocabulary} cannot be read: {error.strerror}.") from None
        check_vocabulary(pieces, stored.config, vocabulary)
    model_class = _class_of(stored, model_class, directory)
    # Arguments of the model: all that are no values of the config.
    arguments = {name: config.pop(name) for name in config.keys() - BertConfig.names()}
    if issubclass(model_class, BertSentenceEncoder):
        recorded = read_sentence_files(directory)
        for name in {"pooling", "normalize"} & recorded.keys():
            arguments.setdefault(name, recorded[name])
    classes_given = {"num_classes": num_classes, "labels": labels}
    keywords = [name for name, value in classes_given.items() if value is not None]
    model_class.refuse_unknown([*arguments, *keywords], {"allow_new_head"} | BertConfig.names())
    head = weight_names.head_of(model_class)
    is_other = "classifier." in head.parts and stored.classes and stored.kind != head.kind
    _check_direction(stored, head, directory)
    needed_parts = list(head.parts)
    if needed_parts and head.reads_pooler and weight_names.has_pooler(stored.config):
        needed_parts.append("pooler.")
    if not allow_new_head:
        _check_head(stored, head, needed_parts, is_other, directory)
    if "cls.predictions." in head.parts:
        stored.tie_decoder()
    if "labels" in model_class.arguments:
        if labels is not None and not is_other:
            stored.order_labels([str(label) for label in labels])
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
        arguments |= {"labels": labels, "num_classes": num_classes}
    arguments |= {"seed": seed, "dtype": dtype}
    unset: dict[str, Any] = {"id2label": None}
    if not issubclass(model_class, TaskModel):
        unset |= {"feature_layers": None, "feature_lstm_layers": 0}
    full = replace(stored.config, **{**unset, **config})
    features = [(c.feature_layers, c.feature_lstm_layers) for c in (full, stored.config)]
    is_other = is_other or (bool(head.parts) and features[0] != features[1])
    # The encoder's shapes are checked before a model of a wrong size is made.
    expected = _encoder(weight_names.tensor_shapes(full))
    check_shapes(_encoder(stored.tensors), expected, stored.source)
    if issubclass(model_class, Encoder):
        model = model_class(full, zeros=True, **arguments)
    else:
        of_task = issubclass(model_class, TaskModel)
        encoder, arguments["dtype"] = encoder_for(full, seed, dtype, zeros=True, of_task=of_task)
        model = model_class(encoder, **arguments)
    if is_other and stored.classes:
        _log.warning("%s: its head is for other classes or another task: replaced.", stored.source)
    named = weight_names.named_weights(model)
    weights = {weight_names.canonical_name(weight.name): weight for weight in named}
    known = weight_names.all_parts()
    parts = [part for part in known if any(name.startswith(part) for name in weights)]
    if head.parts and not allow_new_head and not is_other:
        _check_head(stored, head, parts, is_other, directory)
    kept = tuple(part for part in parts if part == "pooler." or not is_other)
    tensors = _encoder(stored.tensors)
    tensors |= {name: value for name, value in stored.tensors.items() if name.startswith(kept)}
    check_shapes(tensors, {name: weight.shape for name, weight in weights.items()}, stored.source)
    missing = sorted(weights.keys() - tensors.keys())
    if missing and not isinstance(model, BertSentenceEncoder):  # which reads no pooler
        titles = [
            next(title for part, title in known.items() if name.startswith(part))
            for name in missing
        ]
        _log.warning(_NEW, stored.source, " and ".join(dict.fromkeys(titles)))
    for name in weights.keys() & tensors.keys():
        weights[name].assign(tensors[name])
    return model


def _class_of(stored: StoredModel, model_class: Any, directory: Path) -> Any:
    """The class to make: that of the directory, or `model_class` if it can hold its encoder."""
    if model_class is None:
        classes = (*STORED, *added("models"))
        kinds = {weight_names.head_of(cls).kind: cls for cls in reversed(classes)}
        if stored.kind not in kinds:
            raise InputError(
                f"{directory} holds a {stored.kind}, which cannot be used as it is: train it for "
                "another task (bert-tf finetune), or open its encoder "
                "(bert_tf.BertEncoder.from_directory)."
            )
        model_class = kinds[stored.kind]
    if issubclass(model_class, Encoder):
        stored_class = stored.config.architecture.encoder_class() or BertEncoder
        model_class = stored_class if model_class is BertEncoder else model_class
        if not issubclass(model_class, stored_class):
            raise InputError(
                f"{directory} holds an encoder of the class {stored_class.__name__}, not "
                f"{model_class.__name__}: open it with bert_tf.BertEncoder, which "
                "reads every encoder."
            )
    return model_class


@contextlib.contextmanager
def of_trained_model(role: str = "") -> Iterator[None]:
    """Refuses, for a model whose head must be trained, a directory without it.

    The `role` begins the message, such as "the teacher ".
    """
    try:
        yield
    except NoHeadError as error:
        raise InputError(f"{role}{error.reason}") from None


@contextlib.contextmanager
def about_to_train() -> Iterator[None]:
    """Silences the warnings that a model has parts to train first."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.msg != _NEW

    _log.addFilter(is_other)
    try:
        yield
    finally:
        _log.removeFilter(is_other)


def _check_direction(stored: StoredModel, head: Head, directory: Path) -> None:
    """Refuses masked words for models that see one side, and next words for others."""
    direction = stored.config.attention_direction
    predicts_next = head.architecture == "BertLMHeadModel"
    if "cls.predictions." in head.parts and predicts_next == (direction == "both"):
        sees = "both sides" if direction == "both" else f"one side ({direction})"
        raise InputError(
            f"{directory} sees {sees} of the text and cannot predict "
            f"{'next' if predicts_next else 'masked'} words: give a model that was pre-trained "
            f"with --objective {'ltr or rtl' if predicts_next else 'mlm+nsp or mlm'}."
        )


def _check_head(
    stored: StoredModel, head: Head, needed: Sequence[str], is_other: Any, directory: Path
) -> None:
    """Refuses a directory that lacks some of the `needed` parts, or holds another head."""
    absent = [weight_names.all_parts()[part] for part in needed if not stored.has(part)]
    if is_other or absent:
        lack = f"not a {head.kind}" if is_other else f"which has no {' and no '.join(absent)}"
        command = "pretrain" if "cls.predictions." in head.parts else "finetune"
        raise NoHeadError(
            f"{directory} holds a {stored.kind}, {lack}: train it first "
            f"(bert-tf {command} --model {directory})"
        )


def _encoder(named: dict[str, Any]) -> dict[str, Any]:
    """The entries of the encoder alone, without pooler and heads."""
    outside = tuple(weight_names.all_parts())
    return {name: value for name, value in named.items() if not name.startswith(outside)}

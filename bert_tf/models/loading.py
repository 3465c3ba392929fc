"""Models from model directories; `bert_tf.checkpoints` reads the files."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bert_tf.checkpoints import weight_names
from bert_tf.checkpoints.model_directory import read_weights
from bert_tf.checkpoints.sentence_files import read_dense
from bert_tf.checkpoints.stored_model import StoredModel, check_shapes, check_vocabulary
from bert_tf.checkpoints.weight_names import Head, NamedWeight
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.extensions import added
from bert_tf.files.atomic import StrPath
from bert_tf.files.model_files import read_small_file

if TYPE_CHECKING:
    from bert_tf.models.pretrained_model import PretrainedModel

Model = TypeVar("Model", bound="PretrainedModel")
_log = logging.getLogger(__name__)
_NEW = "New %s: train the model before you use its answers (%s has none)."


class NoHeadError(InputError):
    """A directory lacks the head of a model; the `reason` does not offer a random one."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}, or start with a random head (allow_new_head=True in Python).")
        self.reason = reason


def class_of_kind(kind: Any) -> Any:
    """The class of the models that a kind trains: a stored one by its name, or a user's own."""
    named = kind.model_class
    return {cls.__name__: cls for cls in added("models")}.get(named, named)


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
    stored = _read(directory)
    model_class = _class_in(stored, model_class, directory)
    # Arguments of the model: all that are no values of the config.
    arguments = {name: config.pop(name) for name in config.keys() - BertConfig.names()}
    arguments = model_class.arguments_in(directory) | arguments
    classes_given = {"num_classes": num_classes, "labels": labels}
    keywords = [name for name, value in classes_given.items() if value is not None]
    model_class.refuse_unknown([*arguments, *keywords], {"allow_new_head"} | BertConfig.names())

    head = weight_names.head_of(model_class)
    _check_direction(stored, head, directory)
    is_replaced = bool("classifier." in head.parts and stored.classes and stored.kind != head.kind)
    if not allow_new_head:
        needs_pooler = head.parts and head.reads_pooler and weight_names.has_pooler(stored.config)
        needed = [*head.parts, *(["pooler."] if needs_pooler else [])]
        _check_head(stored, head, needed, directory, is_replaced)
    if "cls.predictions." in head.parts:
        stored.tie_decoder()
    if "labels" in model_class.arguments:
        arguments |= classes_given
        if not is_replaced:
            is_replaced = _settle_classes(stored, arguments, allow_new_head, directory)
    full = replace(stored.config, **{**model_class.unset_config, **config})
    is_replaced = is_replaced or bool(head.parts and _features(full) != _features(stored.config))

    # The encoder's shapes are checked before a model of a wrong size is made.
    expected = _encoder(weight_names.tensor_shapes(full))
    check_shapes(_encoder(stored.tensors), expected, stored.source)
    model = model_class.new_of_zeros(full, seed=seed, dtype=dtype, **arguments)
    if is_replaced and stored.classes:
        _log.warning("%s: its head is for other classes or another task: replaced.", stored.source)
    named = weight_names.named_weights(model)
    weights = {weight_names.canonical_name(weight.name): weight for weight in named}
    parts = [x for x in weight_names.all_parts() if any(name.startswith(x) for name in weights)]
    if head.parts and not allow_new_head and not is_replaced:
        _check_head(stored, head, parts, directory)
    kept = [part for part in parts if part == "pooler." or not is_replaced]
    _assign(weights, stored, kept, model.unused_parts)
    if arguments.get("dense"):
        _assign_dense(arguments["dense"], stored, directory)
    return model


def _read(directory: Path) -> StoredModel:
    """Reads and checks config, weights and the vocabulary's size."""
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
    return stored


def _class_in(stored: StoredModel, model_class: Any, directory: Path) -> Any:
    """The class to make: the directory's, or `model_class` if it can hold the encoder."""
    if model_class is None:
        kinds = {weight_names.head_of(cls).kind: cls for cls in reversed(added("models"))}
        if stored.kind not in kinds:
            raise InputError(
                f"{directory} holds a {stored.kind}, which cannot be used as it is: train it for "
                "another task (bert-tf finetune), or open its encoder "
                "(bert_tf.BertEncoder.from_directory)."
            )
        model_class = kinds[stored.kind]
    return model_class.class_in(stored.config, directory)


def _settle_classes(
    stored: StoredModel, arguments: dict[str, Any], allow_new_head: bool, directory: Path
) -> bool:
    """Takes the stored classes if none are given; returns whether a new head has other ones.

    The stored classes get the order of `labels` of the same names.
    """
    labels = arguments["labels"]
    number = arguments["num_classes"]
    if labels is not None:
        stored.order_labels([str(label) for label in labels])
        number = len(labels)
    elif number in (None, stored.classes):
        arguments.update(labels=stored.labels, num_classes=stored.classes)
        return False
    if allow_new_head:  # as many classes with other names are other classes
        return labels is None or list(labels) != stored.labels
    if number != stored.classes:
        raise InputError(
            f"{directory} holds a head of {stored.classes} classes, not {number}: give as many, or "
            "allow_new_head=True for a random head."
        )
    return False


def _features(config: BertConfig) -> tuple[Any, int]:
    """The settings of the layers between an encoder and a head on its features."""
    return config.feature_layers, config.feature_lstm_layers


def _assign(
    weights: Mapping[str, NamedWeight], stored: StoredModel, kept: Iterable[str], unused: Any
) -> None:
    """Assigns the encoder and the `kept` parts; reports others but `unused` ones as new."""
    tensors = _encoder(stored.tensors)
    tensors |= {name: x for name, x in stored.tensors.items() if name.startswith(tuple(kept))}
    check_shapes(tensors, {name: weight.shape for name, weight in weights.items()}, stored.source)
    missing = sorted(x for x in weights.keys() - tensors.keys() if not x.startswith(unused))
    if missing:
        titles = [
            next(title for part, title in weight_names.all_parts().items() if x.startswith(part))
            for x in missing
        ]
        _log.warning(_NEW, " and ".join(dict.fromkeys(titles)), stored.source)
    for name in weights.keys() & tensors.keys():
        weights[name].assign(tensors[name])


def _assign_dense(dense: Any, stored: StoredModel, directory: Path) -> None:
    """Assigns the dense layer of a sentence encoder, which has a file of its own."""
    found = read_dense(directory)
    if found is None:
        _log.warning(_NEW, "dense layer", stored.source)
        return
    path, tensors = found
    StoredModel(stored.config, tensors, path).check_finite()
    weights = list(weight_names.layer_weights("linear", dense))
    check_shapes(tensors, {weight.name: weight.shape for weight in weights}, path)
    for weight in weights:
        weight.assign(tensors[weight.name])


@contextlib.contextmanager
def requiring_trained_head(role: str = "") -> Iterator[None]:
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
    stored: StoredModel,
    head: Head,
    needed: Sequence[str],
    directory: Path,
    is_other: bool = False,
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

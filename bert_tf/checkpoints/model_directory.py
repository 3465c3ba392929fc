"""The model directory, in Hugging Face's format: config.json, model.safetensors, vocab.txt."""

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bert_tf.checkpoints import weight_names, weights_files
from bert_tf.checkpoints.formats import CONFIG, Location, read_config
from bert_tf.checkpoints.sentence_files import read_sentence_files, write_sentence_files
from bert_tf.checkpoints.stored_model import StoredModel, check_shapes, check_vocabulary, left_out
from bert_tf.checkpoints.weight_names import Head
from bert_tf.config import BertConfig, read_small_file
from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath, claim
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.encoders import encoder_class, encoder_for
from bert_tf.models.feature_encoder import MIX, task_encoder
from bert_tf.models.pretrained_model import Encoder, PretrainedModel
from bert_tf.models.task_models import BertSentenceEncoder, TaskModel

if TYPE_CHECKING:
    from bert_tf.tokenization.tokenizer import BertTokenizer

Model = TypeVar("Model", bound=PretrainedModel)
_log = logging.getLogger(__name__)
SHARD_BYTES = 5 * 1000**3
# Keys of config.json that are written anew, or say what no longer holds.
_NOT_KEPT = (
    "architectures",
    "dtype",
    "num_labels",
    "problem_type",
    "tie_word_embeddings",
    "torch_dtype",
)
# The beginnings of the canonical names of all tensors that a model can use.
_OF_BERT = ("embeddings.", "encoder.", "pooler.", *weight_names.HEADS_PREFIXES)


def save_model(
    model: PretrainedModel,
    directory: StrPath,
    tokenizer: "BertTokenizer | None" = None,
    max_length: int | None = None,
) -> None:
    """Writes a model as a Hugging Face model directory.

    Args:
        model: a `BertEncoder`, or an encoder with a head.
        directory: made if it does not exist; its other files stay.
        tokenizer: the model's tokenizer; its vocab.txt and tokenizer_config.json are written too.
        max_length: most tokens of a text, recorded for vectors of texts; None for all positions.

    Raises:
        InputError: the model was compiled for independent labels, which the format cannot record.
    """
    stored = StoredModel.from_model(model)
    stored.tokenizer = tokenizer
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # One file, however large: an older one must not stay beside several new ones.
    write_hugging_face(stored, directory, "float32", shard_bytes=2**63)
    if isinstance(model, BertSentenceEncoder):
        write_sentence_files(
            directory,
            pooling=model.pooling,
            normalize=model.normalize,
            width=model.config.width,
            max_length=max_length or model.config.max_position_embeddings,
        )


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
    if model_class is None:
        kinds: Any = {head.kind: each for each, head in reversed(weight_names.HEADS.items())}
        if stored.kind not in kinds:
            raise InputError(
                f"{directory} holds a {stored.kind}, which cannot be used as it is: train it for "
                "another task (bert-tf finetune), or open its encoder "
                "(bert_tf.BertEncoder.from_directory)."
            )
        model_class = kinds[stored.kind]
    if issubclass(model_class, Encoder):
        held = encoder_class(stored.config)
        model_class = held if model_class is BertEncoder else model_class
        if not issubclass(model_class, held):
            raise InputError(
                f"{directory} holds an encoder of the class {held.__name__}, not "
                f"{model_class.__name__}: open it with bert_tf.BertEncoder, which "
                "reads every encoder."
            )
    # Arguments of the model: all that are no values of the config.
    own = {name: config.pop(name) for name in config.keys() - BertConfig.names()}
    if issubclass(model_class, BertSentenceEncoder):
        recorded = read_sentence_files(directory)
        own = {name: recorded[name] for name in ("pooling", "normalize") if name in recorded} | own
    of_labels = {"num_classes": num_classes, "labels": labels}
    given = [name for name, value in of_labels.items() if value is not None]
    model_class.refuse_unknown([*own, *given], {"allow_new_head"} | BertConfig.names())
    head = weight_names.head_of(model_class)
    is_other = "classifier." in head.parts and stored.classes and stored.kind != head.kind
    _check_direction(stored, head, directory)
    if not allow_new_head:
        _check_head(stored, head, is_other, directory)
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
        own |= {"labels": labels, "num_classes": num_classes}
    own |= {"seed": seed, "dtype": dtype}
    new: dict[str, Any] = {"id2label": None}
    if not issubclass(model_class, TaskModel):
        new |= {"feature_layers": None, "feature_lstm_layers": 0}
    full = replace(stored.config, **{**new, **config})
    features = [(c.feature_layers, c.feature_lstm_layers) for c in (full, stored.config)]
    is_other = is_other or (bool(head.parts) and features[0] != features[1])
    # The encoder's shapes are checked before a model of a wrong size is made.
    expected = _encoder(weight_names.tensor_shapes(full))
    check_shapes(_encoder(stored.tensors), expected, stored.source)
    if issubclass(model_class, Encoder):
        model = model_class(full, zeros=True, **own)
    else:
        make: Any = task_encoder if issubclass(model_class, TaskModel) else encoder_for
        encoder, own["dtype"] = make(full, seed, dtype, zeros=True)
        model = model_class(encoder, **own)
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
    absent = [weight_names.PARTS[part] for part in needed if not stored.has(part)]
    if is_other or absent:
        lack = f"not a {head.kind}" if is_other else f"which has no {' and no '.join(absent)}"
        command = "pretrain" if "cls.predictions." in head.parts else "finetune"
        raise InputError(
            f"{directory} holds a {stored.kind}, {lack}: train it first "
            f"(bert-tf {command} --model {directory}), or start with a random head "
            "(allow_new_head=True in Python)."
        )


def _encoder(named: dict[str, Any]) -> dict[str, Any]:
    """The entries of the encoder alone, without pooler and heads."""
    outside = (*weight_names.HEADS_PREFIXES, "pooler.")
    return {name: value for name, value in named.items() if not name.startswith(outside)}


_NEW = "%s: %s initialized at random: train before you use the answers."


@contextlib.contextmanager
def about_to_train() -> Iterator[None]:
    """Within it, no warning says that a model has parts to train first."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.msg != _NEW

    _log.addFilter(is_other)
    try:
        yield
    finally:
        _log.removeFilter(is_other)


def _fill(model: PretrainedModel, stored: StoredModel, kept: tuple[str, ...]) -> None:
    """Assigns the tensors of the encoder and of the parts in `kept` to the model."""
    named = weight_names.named_weights(model)
    weights = {weight_names.canonical_name(each.name): each for each in named}
    tensors = _encoder(stored.tensors)
    tensors |= {name: value for name, value in stored.tensors.items() if name.startswith(kept)}
    check_shapes(tensors, {name: weight.shape for name, weight in weights.items()}, stored.source)
    new = sorted(weights.keys() - tensors.keys())
    if new and not isinstance(model, BertSentenceEncoder):  # which reads no pooler
        parts = weight_names.PARTS.items()
        titles = [next((title for p, title in parts if name.startswith(p)), name) for name in new]
        _log.warning(_NEW, stored.source, " and ".join(dict.fromkeys(titles)))
    for name in weights.keys() & tensors.keys():
        weights[name].assign(tensors[name])


def read_weights(folder: Path) -> StoredModel:
    """Reads config.json and the weights, including a decoder's copies of other weights."""
    config = read_config(folder)
    path = weights_files.weights_path(folder)
    return read_named(config, path, weights_files.read_tensors(path))


def read_named(
    config: BertConfig, path: Path, tensors_of_file: Iterable[tuple[str, np.ndarray]]
) -> StoredModel:
    """The model of tensors with the names of Hugging Face's classes, in either framework."""
    found: dict[str, dict[str, np.ndarray]] = {}  # canonical name -> prefix -> tensor
    names: dict[str, str] = {}  # canonical name -> name in the file
    others = []
    for stored_name, tensor in tensors_of_file:
        name = stored_name
        if name.endswith(weights_files.TENSORFLOW_SUFFIX):
            name, tensor = weights_files.pytorch_form(name, tensor, config)
        if config.is_distilbert:
            name = weight_names.from_distilbert(name)
        canonical = weight_names.canonical_name(name)
        if not canonical.startswith(_OF_BERT) and not name.startswith("bert."):
            others.append(name)
            continue
        for prefix in weight_names.stored_prefixes(canonical, config):
            if not name.startswith(prefix):
                continue  # of the other encoder, or of Hugging Face's computation, not ours
            parts = found.setdefault(canonical, {})
            if prefix in parts:
                raise InputError(
                    f"{path} holds a weight twice, as {names[canonical]} and {stored_name}: to "
                    "take one of two models, delete the other's tensors (in HDF5, its group) in a "
                    "copy of the file."
                )
            parts[prefix], names[canonical] = tensor, stored_name
    tensors = {}
    for canonical, parts in found.items():
        prefixes = weight_names.stored_prefixes(canonical, config)
        if parts.keys() != set(prefixes) or len({part.shape for part in parts.values()}) > 1:
            raise InputError(
                f"{path} lacks {canonical} of one encoder, or in one shape: restore the file."
            )
        values = [parts[prefix] for prefix in prefixes]
        tensors[canonical] = values[0] if len(values) == 1 else np.stack(values)
    return StoredModel(config, tensors, path, notes=left_out(others))


def read_hugging_face(location: Location) -> StoredModel:
    """Reads a model without its tokenizer; refuses one that Hugging Face has no class for."""
    model = read_weights(location.folder)
    if model.config.has_feature_encoder:
        by = "bilstm" if model.config.feature_layers is None else "features_only"
        raise InputError(
            f"{location.folder} was trained with --{by}, and neither Hugging Face nor the others "
            "have a class for such a model: convert the model that it was trained from."
        )
    model.tie_decoder()
    return model


def write_hugging_face(model: StoredModel, folder: Path, dtype: str, shard_bytes: int) -> None:
    """Writes a model directory, config.json last: without it there is no model yet."""
    has_head = any(model.has(part) for part in weight_names.HEADS_PREFIXES)
    of_head = weight_names.FEATURE_BASED if model.config.has_feature_encoder else ""
    tensors = {}
    for name, tensor in model.tensors.items():
        # The encoder alone has no prefix; in a model with heads it is called "bert".
        stored = f"{of_head if name.startswith(weight_names.HEADS_PREFIXES) else 'bert.'}{name}"
        prefixes = weight_names.stored_prefixes(name, model.config)
        values = _cast(name, tensor, dtype)
        for prefix, value in zip(prefixes, values if len(prefixes) > 1 else [values], strict=True):
            on_disk = prefix + (stored if has_head else name)
            if model.config.is_distilbert:
                on_disk = weight_names.to_distilbert(on_disk)
            tensors[on_disk] = value
    config = _config_on_disk(model, dtype)
    path = folder / CONFIG
    if path.exists() and path.read_bytes() != config.to_json_text().encode():
        claim(path)
        path.unlink()  # it describes other weights than those to come
    weights_files.write_sharded_weights(folder, tensors, shard_bytes)
    if model.tokenizer is not None:
        tokenizer_class = f"{'Distil' * config.is_distilbert}BertTokenizer"
        model.tokenizer.save(folder, config.max_position_embeddings, tokenizer_class)
    config.to_json(path)


def _config_on_disk(model: StoredModel, dtype: str) -> BertConfig:
    """The config with the keys that Hugging Face reads a model's head from."""
    extra = {key: value for key, value in model.config.extra.items() if key not in _NOT_KEPT}
    own = "FeatureBased" if model.config.has_feature_encoder else ""
    name = model.architecture
    if model.config.is_distilbert:
        name = re.sub("^Bert", "DistilBert", name)
    extra |= {"architectures": [f"{own}{name}"], "dtype": dtype}
    if model.problem_type is not None:
        extra["problem_type"] = model.problem_type
    if model.classes is None:
        return replace(model.config, extra=extra)
    # Hugging Face reads the number of classes from here: without names, number them.
    names = model.labels or [f"LABEL_{i}" for i in range(model.classes)]
    return replace(model.config, id2label=dict(enumerate(names)), extra=extra)


def _cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # reported below
        cast = np.ascontiguousarray(tensor.astype(weights_files.FLOATS[dtype], copy=False))
    if dtype != "float32" and not np.array_equal(np.isfinite(cast), np.isfinite(tensor)):
        raise InputError(
            f"{name} has values too large for {dtype} ({np.abs(tensor).max():.3g}): "
            "write bfloat16 or float32."
        )
    return cast

"""The hyper-parameters of a BERT, as Hugging Face's config.json holds them."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bert_tf.errors import InputError
from bert_tf.extensions import Architecture, added
from bert_tf.files.atomic import StrPath, write_text
from bert_tf.files.model_files import read_json

# Layers, hidden size, attention heads: base and large from the paper, section 3; the others from
# Turc et al. 2019, "Well-Read Students Learn Better".
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

# Hugging Face's names; `bert_tf.networks.activations` computes them.
ACTIVATIONS = (
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "relu",
    "silu",
    "swish",
    "tanh",
)

# Hugging Face's classes, in each framework, and ours.
_CLASSES = {
    "bert": r"(TF|Flax|FeatureBased)?Bert(?!Generation)",
    "distilbert": r"(TF|Flax|FeatureBased)?(Distil)?Bert(?!Generation)",
}

# Above these a config.json is damaged or hostile: nothing is made for it.
_MOST = 2**31 - 1
_MOST_LAYERS = {"num_hidden_layers": 10_000, "feature_lstm_layers": 100}

# Keys of config.json that change the computation, with the only value this encoder supports.
_FIXED: dict[str, Any] = {
    "model_type": "bert",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

# Keys that Model Garden or old versions of Hugging Face write, and their only supported value.
_UNCHANGED: dict[str, Any] = {"norm_first": False, "pruned_heads": {}}

# A DistilBERT's keys of config.json -> ours; what it has no key for, with the only value that it
# computes; and its defaults where they are not BERT's.
_DISTILBERT_KEYS = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "seq_classif_dropout": "classifier_dropout",
}
_DISTILBERT_FIXED = {"type_vocab_size": 0, "layer_norm_eps": 1e-12, "attention_direction": "both"}
_DISTILBERT_DEFAULTS = {"num_hidden_layers": 6, "classifier_dropout": 0.2}


@dataclass(frozen=True)
class BertConfig:
    """The hyper-parameters of a BERT, with Hugging Face's names and the original's defaults.

    Args:
        vocab_size: V, number of vocabulary entries.
        hidden_size: H, width of every hidden state.
        num_hidden_layers: L, number of Transformer blocks.
        num_attention_heads: N, a divisor of H.
        intermediate_size: width of the feed-forward networks.
        hidden_act: activation of the feed-forward networks and of the MLM head.
        hidden_dropout_prob: dropout rate of the embeddings and of every sublayer's output.
        attention_probs_dropout_prob: dropout rate of the attention probabilities.
        max_position_embeddings: number of positions, the length of the longest input.
        type_vocab_size: number of segments, 2 for pairs of texts; 0 in a DistilBERT.
        initializer_range: standard deviation of the truncated normal initializer.
        layer_norm_eps: number added to the variance in LayerNorm.
        pad_token_id: id of [PAD].
        classifier_dropout: dropout rate of a task's head; None for `hidden_dropout_prob`.
        id2label: labels of a classifier by class id; None for a model without labels.
        feature_layers: layers of a frozen encoder, or None; `bert_tf.paper` has such encoders.
        feature_lstm_layers: bidirectional LSTM layers between encoder and head.
        attention_direction: tokens that a token attends to: "both" sides, or what an `Architecture`
            of `bert_tf.extensions` is named; `bert_tf.paper` has "left_to_right" and others.
        extra: other keys of a config.json, kept for writing it again. `model_type` "distilbert" is
            a DistilBERT: without segments and next sentences, and with a pooler, of ReLU, under
            classifiers of texts and choices alone. `from_dict` reads its own keys.

    Raises:
        InputError: a value is out of range or asks for something this encoder does not compute.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    classifier_dropout: float | None = None
    id2label: dict[int, str] | None = None
    feature_layers: list[str] | None = None
    feature_lstm_layers: int = 0
    attention_direction: str = "both"
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # First: another model's values may not fit BERT's fields.
        for key, only in (_FIXED | _UNCHANGED).items():
            if self.extra.get(key, only) not in (only, None, key == "model_type" and "distilbert"):
                raise InputError(
                    f"{key} is {self.extra[key]!r:.80}, but only {only!r} is supported: "
                    "use the weights of a BERT or DistilBERT encoder."
                )
        values = [(entry.name, entry.type, getattr(self, entry.name)) for entry in fields(self)]
        fixed = _DISTILBERT_FIXED if self.is_distilbert else {}
        for name, kind, value in [*values, ("qa_dropout", float, self.qa_dropout)]:
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            number = value if is_whole or isinstance(value, float) else math.nan
            if name in fixed:
                is_fit = value == fixed[name]
                expected = f"{fixed[name]}, as of any DistilBERT"
            elif kind is int and name != "pad_token_id":
                least = 0 if name == "feature_lstm_layers" else 1
                most = _MOST_LAYERS.get(name, _MOST)
                is_fit = is_whole and least <= number <= most
                expected = f"a whole number from {least} to {most}"
            elif "dropout" in name and (value is not None or kind is float):
                is_fit = 0 <= number < 1
                expected = "a share of at least 0 and below 1"
            elif kind is float:
                is_fit = 0 < number <= _MOST
                expected = f"a number above 0, at most {_MOST}"
            else:
                continue
            if not is_fit:
                raise InputError(f"{name} is {value!r:.40}: give {expected}.")
        if self.feature_layers is not None and not _is_names(self.feature_layers):
            raise InputError(
                f"feature_layers is {self.feature_layers!r:.40}: give a list of names."
            )
        if not isinstance(self.pad_token_id, int) or not 0 <= self.pad_token_id < self.vocab_size:
            raise InputError(
                f"pad_token_id is {self.pad_token_id!r:.40}: give an id of the vocabulary, 0 to "
                f"{self.vocab_size - 1}."
            )
        if self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}: change one of them."
            )
        if self.hidden_act not in ACTIVATIONS:
            raise InputError(
                f"hidden_act {self.hidden_act!r:.40} is unknown: give one of "
                f"{', '.join(ACTIVATIONS)}."
            )
        # In a list: a file's value may not be hashable.
        known = [architecture.direction for architecture in _architectures()]
        if self.attention_direction not in known:
            raise InputError(
                f"attention_direction is {self.attention_direction!r:.40}: give one of "
                f"{', '.join(known)}."
            )
        if self.has_feature_encoder and not added("feature architectures"):
            raise InputError(
                "feature_layers and feature_lstm_layers are for the encoders of bert_tf.paper, "
                "which is not installed: install it, or give a model without them."
            )
        refuse_other_classes(self.extra)

    def check_fits(self, *, length: int, pairs: bool = False) -> None:
        """Refuses examples of `length` tokens, or pairs, that the model has no embeddings for."""
        if length > self.max_position_embeddings:
            raise InputError(
                f"A length of {length} tokens is more than the {self.max_position_embeddings} "
                "positions of the model (max_position_embeddings): give a shorter length."
            )
        if pairs and self.type_vocab_size == 1:
            raise InputError(
                "The model has one segment (type_vocab_size 1) and cannot tell the texts of a pair "
                "apart: give a model with type_vocab_size 2, or single texts."
            )

    @property
    def is_distilbert(self) -> bool:
        return self.extra.get("model_type") == "distilbert"

    @property
    def qa_dropout(self) -> float:
        """Dropout rate under a question answering head: 0 in a BERT."""
        return self.extra.get("qa_dropout", 0.1) if self.is_distilbert else 0.0

    @property
    def architecture(self) -> Architecture:
        """What its encoder does otherwise than BERT's."""
        named = {architecture.direction: architecture for architecture in _architectures()}
        architecture = named[self.attention_direction](self)
        if self.has_feature_encoder:
            (on_features,) = added("feature architectures")
            return on_features(self, architecture)
        return architecture

    @property
    def width(self) -> int:
        """W, width of the encoder's outputs: H, or 2 H of two encoders."""
        return self.architecture.width * self.hidden_size

    @property
    def head_dropout(self) -> float:
        rate = self.classifier_dropout
        return self.hidden_dropout_prob if rate is None else rate

    @property
    def has_feature_encoder(self) -> bool:
        """Whether other layers stand between the encoder and the head of a task."""
        return self.feature_layers is not None or self.feature_lstm_layers > 0

    @property
    def labels(self) -> list[str] | None:
        """The labels of a classifier in the order of their ids, or None."""
        return None if self.id2label is None else list(self.id2label.values())

    @classmethod
    def names(cls) -> set[str]:
        """The fields that are keys of a config.json."""
        return {entry.name for entry in fields(cls)} - {"extra"}

    @classmethod
    def named(cls, size: str, **values: Any) -> "BertConfig":
        """A config of a size, of `SIZES` or LAYERSxWIDTHxHEADS; `values` replace its fields."""
        shape = re.fullmatch(r"(\d{1,4})x(\d{1,6})x(\d{1,4})", size)
        if size not in SIZES and not shape:
            raise InputError(
                f"There is no model size {size!r}: give one of {', '.join(SIZES)}, or layers, "
                "width and attention heads such as 3x768x12."
            )
        sizes = map(int, shape.groups()) if shape else SIZES[size]
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
        values = {**dict(zip(names, sizes, strict=True)), **values}
        return cls(**{"intermediate_size": 4 * values["hidden_size"], **values})

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BertConfig":
        """Reads the keys of a config.json; keys that are no field here go to `extra`."""
        if is_distilbert := values.get("model_type") == "distilbert":
            named = {name: values[key] for key, name in _DISTILBERT_KEYS.items() if key in values}
            values = {**_DISTILBERT_DEFAULTS, **values, **named, **_DISTILBERT_FIXED}
            values = {key: x for key, x in values.items() if key not in _DISTILBERT_KEYS}
        extra = dict(values)
        arguments = {name: extra.pop(name) for name in cls.names() & extra.keys()}
        if arguments.get("pad_token_id", 0) is None:
            del arguments["pad_token_id"]
        extra.pop("label2id", None)  # the inverse of id2label; written again from there
        for architecture in added("architectures"):
            if architecture.marks.items() <= extra.items():
                arguments["attention_direction"] = architecture.direction
                extra = {k: value for k, value in extra.items() if k not in architecture.marks}
        if (id2label := arguments.get("id2label")) is not None:
            try:  # JSON has no integer keys
                pairs = sorted((int(key), str(label)) for key, label in id2label.items())
                "".join(label for _, label in pairs).encode()  # half a surrogate pair has no bytes
            except (AttributeError, ValueError):
                raise InputError(
                    f"id2label is {id2label!r:.80}: give an object of class id to label."
                ) from None
            if [number for number, _ in pairs] != list(range(len(pairs))):
                raise InputError(f"id2label must number its labels 0 to {len(pairs) - 1}.")
            arguments["id2label"] = dict(pairs)
        try:
            return cls(**arguments, extra=extra)
        except InputError as error:
            message = str(error)
            for key, name in _DISTILBERT_KEYS.items() if is_distilbert else ():
                message = message.replace(name, key)
            raise InputError(message) from None

    def to_dict(self) -> dict[str, Any]:
        """The keys of a config.json; the inverse of `from_dict`."""
        absent = ["extra", "id2label", "attention_direction"]
        absent += ["feature_layers", "feature_lstm_layers"] * (not self.has_feature_encoder)
        values = {name: value for name, value in vars(self).items() if name not in absent}
        if self.id2label is not None:
            values["id2label"] = {str(key): label for key, label in self.id2label.items()}
            values["label2id"] = {label: key for key, label in self.id2label.items()}
        if self.is_distilbert:
            names = {name: key for key, name in _DISTILBERT_KEYS.items()}
            values["classifier_dropout"] = self.head_dropout
            named = {names.get(k, k): x for k, x in values.items() if k not in _DISTILBERT_FIXED}
            return {**self.extra, **named}
        return {**_FIXED, **self.extra, **values, **self.architecture.marks}

    @classmethod
    def from_json(cls, path: StrPath) -> "BertConfig":
        """Reads a config.json; the message of an error names the file."""
        values = read_json(path)
        try:
            return cls.from_dict(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def to_json(self, path: StrPath) -> None:
        """Writes a config.json, atomically, with sorted keys."""
        write_text(path, self.to_json_text())

    def to_json_text(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _architectures() -> tuple[type[Architecture], ...]:
    return (Architecture, *added("architectures"))


def refuse_other_classes(values: Mapping[str, Any]) -> None:
    """Refuses a config.json whose `architectures` are no classes of BERT, or of the user's own."""
    names = values.get("architectures")
    own_class = values.get("own_head")
    known = _CLASSES.get(str(values.get("model_type")), _CLASSES["bert"])
    if names is not None and not (
        _is_names(names) and all(re.match(known, name) or name == own_class for name in names)
    ):
        raise InputError(
            f"architectures is {names!r:.80}, but only BERT's classes are supported, and those of "
            'DistilBERT with "model_type": "distilbert": use the weights of one. If its encoder is '
            'one, write "architectures": ["BertModel"] there.'
        )


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)

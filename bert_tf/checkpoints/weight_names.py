"""Hugging Face's name of every weight, and the table of heads."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.layers import MaskedLanguageModelHead
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.feature_encoder import FeatureEncoder
from bert_tf.models.language_model import BertLanguageModel
from bert_tf.models.lstm_encoder import LstmEncoder
from bert_tf.models.masked_language_model import BertMaskedLanguageModel
from bert_tf.models.pretrained_model import PretrainedModel
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertRegressor,
    BertSpanClassifier,
    BertTagger,
    TaskModel,
)
from bert_tf.models.two_encoders import TwoEncoders

TABLE = "embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"  # a copy of the table in some files
DECODER_BIAS = "cls.predictions.decoder.bias"  # a copy of cls.predictions.bias

# What stands on top of the encoder, by the beginning of its canonical names. Its tensors are all
# there or none.
PARTS = {
    "pooler.": "pooler",
    "cls.predictions.": "masked language model head",
    "cls.seq_relationship.": "next sentence head",
    "classifier.": "classifier",
    "qa_outputs.": "question answering head",
    "lstm.": "LSTM",
    "mix.": "mix of layers",
}
HEADS_PREFIXES = ("cls.", "classifier.", "qa_outputs.", "lstm.", "mix.")
# Before the names of what stands on LSTMs or chosen layers: Hugging Face has no class for it.
FEATURE_BASED = "feature_based."
# What a left-to-right model computes from its last token, where Hugging Face's classes read [CLS].
_OF_LAST_TOKEN = ("pooler.", "qa_outputs.")


@dataclass(frozen=True)
class Head:
    """What a kind of model has on top of the encoder, as Hugging Face knows it.

    Attributes:
        architecture: Hugging Face's class.
        parts: key of `PARTS` -> attribute of the model that holds the weights.
        problem_type: value of `problem_type` in config.json, of models for classification.
        reads_pooler: whether the head needs the pooler; without, the pooler is not on disk.
        made_by: the command that trains such a model.
    """

    architecture: str
    parts: Mapping[str, str] = field(default_factory=dict)
    problem_type: str | None = None
    reads_pooler: bool = True
    made_by: str = "finetune"

    @property
    def kind(self) -> str:
        """Architecture and problem type, which distinguish models on disk."""
        return " for ".join(filter(None, (self.architecture, self.problem_type)))


_CLASSIFIER = {"classifier.": "head.dense"}
# A new head is a line here.
HEADS: dict[type[PretrainedModel], Head] = {
    BertEncoder: Head("BertModel"),
    TwoEncoders: Head("BertModel"),
    LstmEncoder: Head("BertModel"),
    BertPreTrainer: Head(
        "BertForPreTraining",
        {
            "cls.predictions.": "masked_language_model",
            "cls.seq_relationship.": "next_sentence.dense",
        },
        made_by="pretrain",
    ),
    BertMaskedLanguageModel: Head(
        "BertForMaskedLM",
        {"cls.predictions.": "masked_language_model"},
        reads_pooler=False,
        made_by="pretrain",
    ),
    BertLanguageModel: Head(
        "BertLMHeadModel",
        {"cls.predictions.": "heads"},
        reads_pooler=False,
        made_by="pretrain",
    ),
    BertClassifier: Head(
        "BertForSequenceClassification", _CLASSIFIER, problem_type="single_label_classification"
    ),
    BertRegressor: Head("BertForSequenceClassification", _CLASSIFIER, problem_type="regression"),
    BertChooser: Head("BertForMultipleChoice", _CLASSIFIER),
    BertTagger: Head("BertForTokenClassification", _CLASSIFIER, reads_pooler=False),
    BertSpanClassifier: Head(
        "BertForQuestionAnswering", {"qa_outputs.": "head.dense"}, reads_pooler=False
    ),
}


def encoder_layers(config: BertConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every layer of an encoder: Hugging Face's name, attribute of `BertEncoder`, weight's shape.

    A dense layer's weight is [out, in] there. Of an LSTM it is the shape of both kernels, in Keras'
    order.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    if config.attention_direction == "recurrent":
        yield (
            "embeddings.word_embeddings", "embeddings.word_embeddings", (config.vocab_size, hidden)
        )  # fmt: skip
        yield "embeddings.LayerNorm", "embeddings.layer_norm", (hidden,)
        for i, half in itertools.product(range(config.num_hidden_layers), ("forward", "backward")):
            yield f"encoder.layer.{i}.{half}_lstm", f"blocks.{i}.{half}", (hidden, 4 * hidden)
        return
    for name, attribute, rows in (
        ("word_embeddings", "word_embeddings", config.vocab_size),
        ("position_embeddings", "position_embeddings", config.max_position_embeddings),
        ("token_type_embeddings", "segment_embeddings", config.type_vocab_size),
    ):
        yield f"embeddings.{name}", f"embeddings.{attribute}", (rows, hidden)
    yield "embeddings.LayerNorm", "embeddings.layer_norm", (hidden,)
    for i in range(config.num_hidden_layers):
        for name, attribute, shape in (
            ("attention.self.query", "attention.query", (hidden, hidden)),
            ("attention.self.key", "attention.key", (hidden, hidden)),
            ("attention.self.value", "attention.value", (hidden, hidden)),
            ("attention.output.dense", "attention.output_dense", (hidden, hidden)),
            ("attention.output.LayerNorm", "attention_layer_norm", (hidden,)),
            ("intermediate.dense", "feed_forward.intermediate", (inner, hidden)),
            ("output.dense", "feed_forward.output_dense", (hidden, inner)),
            ("output.LayerNorm", "feed_forward_layer_norm", (hidden,)),
        ):
            yield f"encoder.layer.{i}.{name}", f"blocks.{i}.{attribute}", shape
    yield "pooler.dense", "pooler.dense", (hidden, hidden)


def tensor_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a pre-training model: canonical name -> shape in Hugging Face's format.

    They are the tensors of `named_weights`, without the model. Those of two encoders are stacked,
    [2, ...].
    """
    hidden = config.hidden_size
    layers: dict[str, tuple[int, ...]] = {name: shape for name, _, shape in encoder_layers(config)}
    layers["cls.predictions.transform.dense"] = (hidden, hidden)
    layers["cls.predictions.transform.LayerNorm"] = (hidden,)
    layers["cls.seq_relationship"] = (2, hidden)
    shapes: dict[str, tuple[int, ...]] = {"cls.predictions.bias": (config.vocab_size,)}
    for name, shape in layers.items():
        if name.endswith("_lstm"):
            shapes |= {f"{name}.kernel": shape, f"{name}.recurrent_kernel": shape}
            shapes[f"{name}.bias"] = shape[1:]
            continue
        shapes[f"{name}.weight"] = shape
        if not name.endswith("_embeddings"):
            shapes[f"{name}.bias"] = shape[:1]
    towers = len(config.directions)
    return shapes if towers == 1 else {name: (towers, *shape) for name, shape in shapes.items()}


@dataclass(frozen=True)
class NamedWeight:
    """A variable and the tensor that stands for it in a Hugging Face checkpoint.

    Args:
        name: name of the tensor, such as "bert.encoder.layer.0.output.dense.weight".
        variable: the Keras variable.
        transposed: whether the tensor is its transpose, as for PyTorch's linear layers.
    """

    name: str
    variable: keras.Variable
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, not the variable's."""
        shape = tuple(self.variable.shape)
        return shape[::-1] if self.transposed else shape

    def to_tensor(self) -> np.ndarray:
        """The variable's value as the checkpoint keeps it, in float32."""
        value = keras.ops.convert_to_numpy(self.variable).astype(np.float32)
        return np.ascontiguousarray(value.T if self.transposed else value)

    def assign(self, tensor: np.ndarray) -> None:
        """Sets the variable to the checkpoint's value."""
        self.variable.assign(tensor.T if self.transposed else tensor)


@dataclass(frozen=True)
class StackedWeight:
    """The same weight of two encoders, and the tensor [2, ...] that stands for both."""

    parts: tuple[NamedWeight, ...]

    @property
    def name(self) -> str:
        """The name of the tensor."""
        return self.parts[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return (len(self.parts), *self.parts[0].shape)

    def to_tensor(self) -> np.ndarray:
        """The variables' values, in float32."""
        return np.stack([part.to_tensor() for part in self.parts])

    def assign(self, tensor: np.ndarray) -> None:
        """Sets the variables to the checkpoint's values."""
        for part, own in zip(self.parts, tensor, strict=True):
            part.assign(own)


def named_weights(model: PretrainedModel) -> list[Any]:
    """Every weight of a model with its Hugging Face name, in the order of the computation.

    A tied decoder has no entry of its own: it is the word embedding table.

    Raises:
        TypeError: the model's class is not in `HEADS`.
    """
    head = head_of(type(model))
    encoder: Any = getattr(model, "encoder", model)
    weights: list[Any] = []
    reads_pooler = head.reads_pooler
    if isinstance(encoder, FeatureEncoder):
        if encoder.mix is not None:
            for weight in ("scores", "gamma"):
                weights.append(NamedWeight(f"mix.{weight}", getattr(encoder.mix, weight)))
        for number, lstm in enumerate(encoder.lstms):
            for half in ("forward", "backward"):
                weights += layer_weights(f"lstm.{number}.{half}", getattr(lstm, f"{half}_layer"))
        encoder, reads_pooler = encoder.encoder, False
    for name, attribute, _ in encoder_layers(model.config):
        if reads_pooler or not name.startswith("pooler."):
            prefix = "bert." if head.parts else ""  # a bare encoder's names have none
            layers = [_attribute(tower, attribute) for tower in encoder.towers()]
            weights += _stacked(f"{prefix}{name}", layers)
    for name, attribute in head.parts.items():
        layer = _attribute(model, attribute)
        layers = list(layer) if isinstance(layer, list) else [layer]
        weights += _stacked(name.removesuffix("."), layers)
    return weights


def _stacked(name: str, layers: list[keras.layers.Layer]) -> list[Any]:
    """The weights of a layer, or of the same layer of two encoders."""
    of_layers = [list(layer_weights(name, layer)) for layer in layers]
    if len(layers) == 1:
        return of_layers[0]
    return [StackedWeight(parts) for parts in zip(*of_layers, strict=True)]


def head_of(model_class: type) -> Head:
    """The row of `HEADS` for a class or the class it is derived from.

    A user's own task model has one of its own, under its class's name.
    """
    for base in model_class.__mro__:
        if base in HEADS:
            return HEADS[base]
    if issubclass(model_class, TaskModel):
        reads_pooler = model_class.reads == "pooled_output"
        return Head(model_class.__name__, _CLASSIFIER, reads_pooler=reads_pooler)
    raise TypeError(f"{model_class.__name__} has no Hugging Face weight names.")


def _attribute(of: Any, path: str) -> Any:
    """What stands at the end of a path of attributes and places in lists, "blocks.0.attention"."""
    for step in path.split("."):
        of = of[int(step)] if step.isdigit() else getattr(of, step)
    return of


def layer_weights(name: str, layer: keras.layers.Layer) -> Iterator[NamedWeight]:
    """The weights of a layer whose own name in Hugging Face's format is `name`."""
    if isinstance(layer, keras.layers.Embedding):
        yield NamedWeight(f"{name}.weight", layer.embeddings)
    elif isinstance(layer, keras.layers.LayerNormalization):
        yield NamedWeight(f"{name}.weight", layer.gamma)
        yield NamedWeight(f"{name}.bias", layer.beta)
    elif isinstance(layer, MaskedLanguageModelHead):
        yield NamedWeight(f"{name}.bias", layer.bias)
        yield from layer_weights(f"{name}.transform.dense", layer.dense)
        yield from layer_weights(f"{name}.transform.LayerNorm", layer.layer_norm)
    elif isinstance(layer, keras.layers.LSTM):
        for weight in ("kernel", "recurrent_kernel", "bias"):
            yield NamedWeight(f"{name}.{weight}", getattr(layer.cell, weight))
    else:
        yield NamedWeight(f"{name}.weight", layer.kernel, transposed=True)
        yield NamedWeight(f"{name}.bias", layer.bias)


def canonical_name(name: str) -> str:
    """A tensor's name without the differences between versions of Hugging Face's format.

    The prefixes of `direction_prefix`, "bert." and "feature_based." go; LayerNorm's old "gamma" and
    "beta" (from TensorFlow) become "weight" and "bias".
    """
    name = re.sub(r"^(recurrent|(left_to_right|right_to_left)(\+right_to_left)?)\.", "", name)
    name = name.removeprefix("bert.").removeprefix(FEATURE_BASED)
    name = re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias", name)


def is_stacked(name: str, config: BertConfig) -> bool:
    """Whether the tensor of a canonical name is [2, ...], of two encoders."""
    return len(config.directions) > 1 and name.startswith(("embeddings.", "encoder.", "pooler.",
                                                           "cls."))  # fmt: skip


def direction_prefix(name: str, config: BertConfig) -> str:
    """What stands on disk before a canonical name that Hugging Face's classes must not take.

    They would compute something else with it than a model of this `attention_direction`.
    """
    direction = config.attention_direction
    same = direction == "both" or (
        direction == "left_to_right" and not name.startswith(_OF_LAST_TOKEN)
    )
    return "" if same else f"{direction}."


def is_kernel(name: str) -> bool:
    """Whether a canonical name is a dense layer's kernel: [out, in] in Hugging Face's format."""
    return name.endswith(".weight") and "LayerNorm" not in name and "embeddings." not in name

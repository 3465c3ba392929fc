"""The layers of a BERT: their names in every format, their shapes, and the table of heads."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.extensions import added
from bert_tf.networks import MaskedLanguageModelHead

# What stands on top of the encoder, by the beginning of its canonical names; whole or not at all.
PARTS = {
    "pooler.": "pooler",
    "cls.predictions.": "masked language model head",
    "cls.seq_relationship.": "next sentence head",
    "classifier.": "classifier",
    "qa_outputs.": "question answering head",
}
# Before the names of heads on layers that Hugging Face has no class for.
FEATURE_BASED = "feature_based."
SEQUENCES = "BertForSequenceClassification"
MULTI_LABEL = "multi_label_classification"


def all_parts() -> dict[str, str]:
    """`PARTS`, with the parts that extensions add."""
    return PARTS | {name: title for parts in added("parts") for name, title in parts.items()}


def head_prefixes() -> tuple[str, ...]:
    """The beginnings of all canonical names that are not the encoder's."""
    return tuple(part for part in all_parts() if part != "pooler.")


@dataclass(frozen=True)
class Head:
    """What a class of models has on top of the encoder, as Hugging Face knows it."""

    architecture: str  # Hugging Face's class, or the user's own
    parts: Mapping[str, str] = field(default_factory=dict)  # key of `PARTS` -> attribute
    problem_type: str | None = None  # in config.json, of models for classification
    reads_pooler: bool = True  # whether the pooler is needed, and on disk
    is_own: bool = False  # whether Hugging Face has no such class

    @property
    def kind(self) -> str:
        """What distinguishes models on disk: architecture and problem type."""
        return " for ".join(filter(None, (self.architecture, self.problem_type)))


class Layer(NamedTuple):
    """A layer of the encoder."""

    shape: tuple[str, ...]  # fields of the config; [out, in] of a dense layer
    attribute: str  # of `BertEncoder`, or of a block


_H = "hidden_size"
_INNER = "intermediate_size"
# The layers by Hugging Face's names, in a block without "encoder.layer.N.".
EMBEDDINGS = {
    "embeddings.word_embeddings": Layer(("vocab_size", _H), "embeddings.word_embeddings"),
    "embeddings.position_embeddings": Layer(
        ("max_position_embeddings", _H), "embeddings.position_embeddings"
    ),
    "embeddings.token_type_embeddings": Layer(
        ("type_vocab_size", _H), "embeddings.segment_embeddings"
    ),
    "embeddings.LayerNorm": Layer((_H,), "embeddings.layer_norm"),
}
BLOCK = {
    "attention.self.query": Layer((_H, _H), "attention.query"),
    "attention.self.key": Layer((_H, _H), "attention.key"),
    "attention.self.value": Layer((_H, _H), "attention.value"),
    "attention.output.dense": Layer((_H, _H), "attention.output_dense"),
    "attention.output.LayerNorm": Layer((_H,), "attention_layer_norm"),
    "intermediate.dense": Layer((_INNER, _H), "feed_forward.intermediate"),
    "output.dense": Layer((_H, _INNER), "feed_forward.output_dense"),
    "output.LayerNorm": Layer((_H,), "feed_forward_layer_norm"),
}
POOLER = {"pooler.dense": Layer((_H, _H), "pooler.dense")}


# The same layers elsewhere: attributes of KerasHub's backbone or of its blocks, and scopes of Model
# Garden's variables, in a block without "transformer/layer_N/".
_ELSEWHERE = {
    "embeddings.word_embeddings": ("token_embedding", "word_embeddings"),
    "embeddings.position_embeddings": ("position_embedding", "position_embedding"),
    "embeddings.token_type_embeddings": ("segment_embedding", "type_embeddings"),
    "embeddings.LayerNorm": ("embeddings_layer_norm", "embeddings/layer_norm"),
    "attention.self.query": ("_self_attention_layer.query_dense", "self_attention/query"),
    "attention.self.key": ("_self_attention_layer.key_dense", "self_attention/key"),
    "attention.self.value": ("_self_attention_layer.value_dense", "self_attention/value"),
    "attention.output.dense": (
        "_self_attention_layer.output_dense",
        "self_attention/attention_output",
    ),
    "attention.output.LayerNorm": ("_self_attention_layer_norm", "self_attention_layer_norm"),
    "intermediate.dense": ("_feedforward_intermediate_dense", "intermediate"),
    "output.dense": ("_feedforward_output_dense", "output"),
    "output.LayerNorm": ("_feedforward_layer_norm", "output_layer_norm"),
    "pooler.dense": ("pooled_dense", "pooler_transform"),
}
KERAS_HUB = {layer: attribute for layer, (attribute, _) in _ELSEWHERE.items()}
MODEL_GARDEN = {layer: scope for layer, (_, scope) in _ELSEWHERE.items()}
# BERT's names -> DistilBERT's, each replaced in the order of the table.
_DISTILBERT_NAMES = {
    "bert.pooler.dense.": "pre_classifier.",
    "pooler.dense.": "pre_classifier.",
    "bert.": "distilbert.",
    "encoder.layer.": "transformer.layer.",
    "attention.self.query.": "attention.q_lin.",
    "attention.self.key.": "attention.k_lin.",
    "attention.self.value.": "attention.v_lin.",
    "attention.output.dense.": "attention.out_lin.",
    "attention.output.LayerNorm.": "sa_layer_norm.",
    "intermediate.dense.": "ffn.lin1.",
    "output.dense.": "ffn.lin2.",
    "output.LayerNorm.": "output_layer_norm.",
    "cls.predictions.transform.dense.": "vocab_transform.",
    "cls.predictions.transform.LayerNorm.": "vocab_layer_norm.",
    "cls.predictions.bias": "vocab_projector.bias",
    "cls.predictions.decoder.": "vocab_projector.",
}
# The weights of a layer: Hugging Face's suffix -> attribute; the first class that fits counts.
_NORM = {"weight": "gamma", "bias": "beta"}
_DENSE = {"weight": "kernel", "bias": "bias"}
_WEIGHTS: tuple[tuple[type[keras.layers.Layer], dict[str, str]], ...] = (
    (keras.layers.Embedding, {"weight": "embeddings"}),
    (keras.layers.LayerNormalization, _NORM),
    (
        MaskedLanguageModelHead,
        {
            "bias": "bias",
            **{f"transform.dense.{suffix}": f"dense.{name}" for suffix, name in _DENSE.items()},
            **{f"transform.LayerNorm.{x}": f"layer_norm.{name}" for x, name in _NORM.items()},
        },
    ),
    (keras.layers.Layer, _DENSE),
)


@dataclass(frozen=True)
class EncoderNames:
    """The layers of one sort of encoder."""

    embeddings: Mapping[str, Layer] = field(default_factory=lambda: EMBEDDINGS)
    block: Mapping[str, Layer] = field(default_factory=lambda: BLOCK)
    pooler: Mapping[str, Layer] = field(default_factory=lambda: POOLER)


def _names(config: BertConfig) -> EncoderNames:
    return config.architecture.layer_names() or EncoderNames()


def has_pooler(config: BertConfig) -> bool:
    """Whether heads of tasks read a pooler."""
    return bool(_names(config).pooler) and not config.has_feature_encoder


def encoder_layers(config: BertConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every layer of an encoder: Hugging Face's name, `BertEncoder`'s attribute, weight's shape."""
    encoder = _names(config)
    sizes = vars(config)
    embeddings = encoder.embeddings.items()
    layers = [("", "", *x) for x in embeddings if getattr(config, x[1].shape[0])]
    for i, x in itertools.product(range(config.num_hidden_layers), encoder.block.items()):
        layers.append((f"encoder.layer.{i}.", f"blocks.{i}.", *x))
    layers += [("", "", *x) for x in encoder.pooler.items()]
    for prefix, path, name, layer in layers:
        shape = tuple(sizes[size] if size in sizes else int(size) for size in layer.shape)
        yield prefix + name, path + layer.attribute, shape


def tensor_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """A pre-training model's canonical names and shapes; tensors of two encoders are [2, ...]."""
    hidden = config.hidden_size
    layers: dict[str, tuple[int, ...]] = {name: shape for name, _, shape in encoder_layers(config)}
    layers["cls.predictions.transform.dense"] = (hidden, hidden)
    layers["cls.predictions.transform.LayerNorm"] = (hidden,)
    layers["cls.seq_relationship"] = (2, hidden)
    shapes: dict[str, tuple[int, ...]] = {"cls.predictions.bias": (config.vocab_size,)}
    for name, shape in layers.items():
        if other_shapes := config.architecture.weight_shapes(name, shape):
            shapes |= other_shapes
            continue
        shapes[f"{name}.weight"] = shape
        if not name.endswith("_embeddings"):
            shapes[f"{name}.bias"] = shape[:1]
    towers = len(config.architecture.towers)
    return shapes if towers == 1 else {name: (towers, *shape) for name, shape in shapes.items()}


@dataclass(frozen=True)
class NamedWeight:
    """A variable and the tensor that stands for it in a Hugging Face checkpoint."""

    name: str  # such as "bert.encoder.layer.0.output.dense.weight"
    variables: tuple[keras.Variable, ...]  # one; of two encoders both, stacked to [2, ...]
    transposed: bool  # whether the tensor is the transpose, as for PyTorch's linear layers

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, not the variable's."""
        shape = tuple(self.variables[0].shape)
        shape = shape[::-1] if self.transposed else shape
        return shape if len(self.variables) == 1 else (len(self.variables), *shape)

    def to_tensor(self) -> np.ndarray:
        """The value in float32."""
        values = [keras.ops.convert_to_numpy(value).astype(np.float32) for value in self.variables]
        values = [value.T if self.transposed else value for value in values]
        return np.ascontiguousarray(values[0] if len(values) == 1 else np.stack(values))

    def assign(self, tensor: np.ndarray) -> None:
        tensors = [tensor] if len(self.variables) == 1 else tensor
        for variable, part in zip(self.variables, tensors, strict=True):
            variable.assign(part.T if self.transposed else part)


def named_weights(model: Any) -> list[NamedWeight]:
    """Every weight of a model with its Hugging Face name, in the order of the computation.

    A tied decoder has no entry of its own: it is the word embedding table.
    """
    head = head_of(type(model))
    encoder = getattr(model, "encoder", model)
    weights: list[NamedWeight] = []
    prefix = "bert." if head.parts else ""  # a bare encoder's names have none
    for name, layers in encoder.named_layers():
        if head.reads_pooler or not name.startswith("pooler."):
            is_head = name.startswith(head_prefixes())
            weights += layer_weights(name if is_head else prefix + name, *layers)
    for name, attribute in head.parts.items():
        layer = layer_at(model, attribute)
        layers = layer if isinstance(layer, list) else [layer]
        weights += layer_weights(name.removesuffix("."), *layers)
    return weights


def layer_weights(name: str, *layers: keras.layers.Layer) -> Iterator[NamedWeight]:
    """The weights of a layer, or of two encoders' layers, whose name in Hugging Face is `name`.

    Raises InputError for a layer that Keras quantized: its variables are not what it computes with.
    """
    if mode := next(filter(None, (layer.quantization_mode for layer in layers)), None):
        raise InputError(
            f"The model's layers are quantized ({name}: {mode}), and this format holds weights "
            "before quantization: write the model before quantize, or keep the quantized one with "
            "model.save('model.keras')."
        )
    rows = (*(row for rows in added("layer weights") for row in rows), *_WEIGHTS)
    attributes = next(names for layer_class, names in rows if isinstance(layers[0], layer_class))
    for suffix, attribute in attributes.items():
        variables = tuple(_weight(layer, attribute) for layer in layers)
        if variables[0] is None:  # a dense layer without bias
            continue
        is_transposed = attribute.endswith("kernel") and suffix.endswith("weight")
        yield NamedWeight(f"{name}.{suffix}", variables, is_transposed)


def _weight(layer: keras.layers.Layer, attribute: str) -> Any:
    """A variable of a layer; or of a layer with an adapter (LoRA) the kernel with it, float32.

    Keras gives that in the compute dtype, which a model directory does not have.
    """
    if attribute != "kernel" or not getattr(layer, "lora_enabled", False):
        return layer_at(layer, attribute)
    added = keras.ops.matmul(layer.lora_kernel_a, layer.lora_kernel_b)
    return layer._kernel + layer.lora_alpha / layer.lora_rank * added


def layer_at(root: Any, path: str) -> Any:
    """The object at the end of a path of attributes and list indices, "blocks.0.attention"."""
    for step in path.split("."):
        root = root[int(step)] if step.isdigit() else getattr(root, step)
    return root


def head_of(model_class: Any) -> Head:
    """The head of a class of models; InputError for models that no model directory can hold."""
    if model_class.stored_head is None:
        raise InputError(
            f"{model_class.__name__} alone cannot be saved as a model directory: save a model with "
            "a head, such as bert_tf.BertClassifier, or write a Keras file."
        )
    return model_class.stored_head


def canonical_name(name: str) -> str:
    """A tensor's name without prefixes, and without LayerNorm's old "gamma" and "beta"."""
    first, _, rest = name.partition(".")
    if any(first in (cls.direction, *cls.towers) for cls in added("architectures")):
        name = rest
    name = name.removeprefix("bert.").removeprefix(FEATURE_BASED)
    name = re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias", name)


def distilbert_name(name: str, *, inverse: bool = False) -> str:
    """DistilBERT's name of a BERT's tensor; the inverse gives BERT's name."""
    for ours, theirs in _DISTILBERT_NAMES.items():
        name = name.replace(theirs, ours) if inverse else name.replace(ours, theirs)
    return name


def is_kernel(name: str) -> bool:
    """Whether a canonical name is a dense layer's kernel: [out, in] in Hugging Face's format."""
    return name.endswith(".weight") and "LayerNorm" not in name and "embeddings." not in name

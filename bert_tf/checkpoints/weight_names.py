"""Hugging Face's name of every weight."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from bert_tf.checkpoints.safetensors_file import SafetensorsFile, ShardedSafetensors
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.classifier import BertClassifier
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.pretrained_model import PretrainedModel
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.models.regressor import BertRegressor

TensorFile = SafetensorsFile | ShardedSafetensors

TABLE = "embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"  # a copy of the table in some files
DECODER_BIAS = "cls.predictions.bias"

# What stands on top of the encoder, by the beginning of its canonical names.
PARTS = {
    "pooler.": "pooler",
    "cls.predictions.": "masked language model head",
    "cls.seq_relationship.": "next sentence head",
    "classifier.": "classifier",
    "qa_outputs.": "question answering head",
}
# Position numbers, which PyTorch models once saved with their weights.
_NO_WEIGHTS = ("embeddings.position_ids", "embeddings.token_type_ids")


@dataclass(frozen=True)
class NamedWeight:
    """A variable and the tensor that stands for it in a Hugging Face checkpoint.

    Args:
        name: the tensor's name, such as "bert.encoder.layer.0.output.dense.weight".
        variable: the Keras variable.
        transposed: whether the tensor is the variable turned round. PyTorch's linear layers keep
            [out, in], Keras' dense layers [in, out].
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
        """Gives the variable the checkpoint's value."""
        self.variable.assign(tensor.T if self.transposed else tensor)


def _dense(name: str, layer: keras.layers.Dense) -> Iterator[NamedWeight]:
    yield NamedWeight(f"{name}.weight", layer.kernel, transposed=True)
    yield NamedWeight(f"{name}.bias", layer.bias)


def _layer_norm(name: str, layer: keras.layers.LayerNormalization) -> Iterator[NamedWeight]:
    yield NamedWeight(f"{name}.LayerNorm.weight", layer.gamma)
    yield NamedWeight(f"{name}.LayerNorm.bias", layer.beta)


def _encoder(encoder: BertEncoder, prefix: str) -> Iterator[NamedWeight]:
    tables = encoder.embeddings
    start = f"{prefix}embeddings"
    yield NamedWeight(f"{start}.word_embeddings.weight", tables.word_embeddings.embeddings)
    yield NamedWeight(f"{start}.position_embeddings.weight", tables.position_embeddings.embeddings)
    yield NamedWeight(f"{start}.token_type_embeddings.weight", tables.segment_embeddings.embeddings)
    yield from _layer_norm(start, tables.layer_norm)
    for i, block in enumerate(encoder.blocks):
        start = f"{prefix}encoder.layer.{i}"
        yield from _dense(f"{start}.attention.self.query", block.attention.query)
        yield from _dense(f"{start}.attention.self.key", block.attention.key)
        yield from _dense(f"{start}.attention.self.value", block.attention.value)
        yield from _dense(f"{start}.attention.output.dense", block.attention.output_dense)
        yield from _layer_norm(f"{start}.attention.output", block.attention_layer_norm)
        yield from _dense(f"{start}.intermediate.dense", block.feed_forward.intermediate)
        yield from _dense(f"{start}.output.dense", block.feed_forward.output_dense)
        yield from _layer_norm(f"{start}.output", block.feed_forward_layer_norm)
    yield from _dense(f"{prefix}pooler.dense", encoder.pooler.dense)


def _pretrainer(model: BertPreTrainer) -> Iterator[NamedWeight]:
    yield from _encoder(model.encoder, "bert.")
    head = model.masked_language_model
    yield NamedWeight("cls.predictions.bias", head.bias)
    yield from _dense("cls.predictions.transform.dense", head.dense)
    yield from _layer_norm("cls.predictions.transform", head.layer_norm)
    yield from _dense("cls.seq_relationship", model.next_sentence.dense)


def _classifier(model: BertClassifier) -> Iterator[NamedWeight]:
    yield from _encoder(model.encoder, "bert.")
    yield from _dense("classifier", model.classifier.dense)


# Which of Hugging Face's classes a model is, and where its weights stand.
ARCHITECTURES = {
    BertEncoder: "BertModel",
    BertPreTrainer: "BertForPreTraining",
    BertClassifier: "BertForSequenceClassification",
    BertRegressor: "BertForSequenceClassification",
}


def named_weights(model: PretrainedModel) -> list[NamedWeight]:
    """Every weight of a model with its Hugging Face name, in the order of the computation.

    A tied decoder has no entry of its own: it is the word embedding table.

    Raises:
        TypeError: if the model is of a class that Hugging Face has no counterpart for here.
    """
    if isinstance(model, BertEncoder):
        return list(_encoder(model, ""))
    if isinstance(model, BertPreTrainer):
        return list(_pretrainer(model))
    if isinstance(model, BertClassifier):
        return list(_classifier(model))
    if isinstance(model, BertRegressor):
        return [*_encoder(model.encoder, "bert."), *_dense("classifier", model.regressor.dense)]
    raise TypeError(f"{type(model).__name__} has no Hugging Face weight names.")


def canonical_name(name: str) -> str:
    """A tensor's name without what differs between savings of the same weights.

    The encoder's "bert." prefix goes, LayerNorm's old "gamma" and "beta" (from TensorFlow)
    become "weight" and "bias", and the decoder's bias gets the name under which it is tied.
    """
    name = name.removeprefix("bert.")
    name = re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias", name)
    return "cls.predictions.bias" if name == "cls.predictions.decoder.bias" else name


def is_head(name: str) -> bool:
    """Whether a tensor belongs to a head, not to the encoder."""
    return name.startswith(("cls.", "classifier.", "qa_outputs."))


def find_tensors(file: TensorFile) -> dict[str, str]:
    """The weights of a file in Hugging Face's format: canonical name -> the file's name.

    Raises:
        InputError: if the file holds a weight twice.
    """
    found: dict[str, str] = {}
    for name in file.names():
        canonical = canonical_name(name)
        if canonical in _NO_WEIGHTS:
            continue
        if canonical in found and canonical != DECODER_BIAS:  # tied, may be there twice
            raise InputError(
                f"{file.path} holds a weight twice, as {found[canonical]} and {name}: "
                "save it again."
            )
        found[canonical] = name
    return found


def check_tied(file: TensorFile, found: Mapping[str, str]) -> None:
    """Refuses a decoder that is not the word embedding table.

    Args:
        file: the file.
        found: of `find_tensors`.

    Raises:
        InputError: if the file holds a decoder, or its bias, of its own.
    """
    pairs = [(found[DECODER], found[TABLE])] if DECODER in found else []
    twice = [name for name in file.names() if canonical_name(name) == DECODER_BIAS]
    for one, other in [*pairs, *zip(twice[1:], twice[:1], strict=False)]:
        if not np.array_equal(file.read(one), file.read(other)):
            raise InputError(
                f"{file.path}: {one} differs from {other}, but only a decoder tied to the word "
                "embeddings is supported: of this model load the encoder alone, as a BertEncoder."
            )


def is_kernel(name: str) -> bool:
    """Whether a canonical name is a dense layer's kernel: [out, in] in Hugging Face's format."""
    return name.endswith(".weight") and "LayerNorm" not in name and "embeddings." not in name


def tensor_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a pre-training model: canonical name -> shape in Hugging Face's format.

    They are the tensors of `named_weights`, without the model.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {}

    def table(name: str, rows: int) -> None:
        shapes[f"embeddings.{name}.weight"] = (rows, hidden)

    def dense(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def layer_norm(name: str) -> None:
        shapes[f"{name}.LayerNorm.weight"] = shapes[f"{name}.LayerNorm.bias"] = (hidden,)

    table("word_embeddings", config.vocab_size)
    table("position_embeddings", config.max_position_embeddings)
    table("token_type_embeddings", config.type_vocab_size)
    layer_norm("embeddings")
    for i in range(config.num_hidden_layers):
        block = f"encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense(f"{block}.attention.{name}", hidden, hidden)
        layer_norm(f"{block}.attention.output")
        dense(f"{block}.intermediate.dense", hidden, inner)
        dense(f"{block}.output.dense", inner, hidden)
        layer_norm(f"{block}.output")
    dense("pooler.dense", hidden, hidden)
    shapes[DECODER_BIAS] = (config.vocab_size,)
    dense("cls.predictions.transform.dense", hidden, hidden)
    layer_norm("cls.predictions.transform")
    dense("cls.seq_relationship", hidden, 2)
    return shapes

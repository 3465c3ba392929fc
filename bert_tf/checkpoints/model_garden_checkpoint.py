"""Checkpoints of TensorFlow's Model Garden (official.nlp): variables in a graph of objects.

`BertEncoderV2`, the functional `BertEncoder` and `BertPretrainerV2` around either. A variable is
found by walking the graph, whatever object it was saved from: `tf.train.Checkpoint(encoder=...)`,
`(model=...)` or with all of a pre-trainer's `checkpoint_items`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from bert_tf.checkpoints.formats import Location
from bert_tf.checkpoints.stored_model import StoredModel, check_tensors
from bert_tf.checkpoints.tensorflow_checkpoint import (
    OBJECT_GRAPH,
    PREFIX,
    config_path,
    open_checkpoint,
    read_tensor,
    write_config,
)
from bert_tf.checkpoints.tokenizer_files import read_tokenizer
from bert_tf.checkpoints.weight_names import is_kernel
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

# Edges from the encoder, by canonical name without ".weight" and ".bias".
_EMBEDDINGS = {
    "embeddings.word_embeddings": "_embedding_layer",
    "embeddings.position_embeddings": "_position_embedding_layer",
    "embeddings.token_type_embeddings": "_type_embedding_layer",
    "embeddings.LayerNorm": "_embedding_norm_layer",
}
_BLOCK = {
    "attention.self.query": ("_attention_layer", "_query_dense"),
    "attention.self.key": ("_attention_layer", "_key_dense"),
    "attention.self.value": ("_attention_layer", "_value_dense"),
    "attention.output.dense": ("_attention_layer", "_output_dense"),
    "attention.output.LayerNorm": ("_attention_layer_norm",),
    "intermediate.dense": ("_intermediate_dense",),
    "output.dense": ("_output_dense",),
    "output.LayerNorm": ("_output_layer_norm",),
}
# Item of the checkpoint: the pooler that BertPretrainerV2's next sentence head has of its own.
_HEADS_POOLER = "next_sentence.pooler_dense"


class _Graph:
    """The objects of a checkpoint; an object is known by its number."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self._reader = open_checkpoint(prefix)
        graph = TrackableObjectGraph()
        graph.ParseFromString(read_tensor(self._reader, prefix, OBJECT_GRAPH))
        self.children = [
            {child.local_name: child.node_id for child in node.children} for node in graph.nodes
        ]
        self._keys = [
            next((a.checkpoint_key for a in node.attributes if a.name == "VARIABLE_VALUE"), None)
            for node in graph.nodes
        ]

    def find(self, start: int, *edges: str) -> int | None:
        """The object at the end of a path."""
        for edge in edges:
            if edge not in self.children[start]:
                return None
            start = self.children[start][edge]
        return start

    def find_first(self, *edges: str) -> int | None:
        """The first object that has all these edges, the root's neighbours before others."""
        queue, seen = [0], {0}
        while queue:
            node = queue.pop(0)
            if all(edge in self.children[node] for edge in edges):
                return node
            near = [child for child in self.children[node].values() if child not in seen]
            seen.update(near)
            queue += near
        return None

    def read(self, start: int, *edges: str) -> np.ndarray | None:
        """The variable at the end of a path, in float32, or None."""
        node = self.find(start, *edges)
        key = None if node is None else self._keys[node]
        if key is None:
            return None
        return read_tensor(self._reader, self.prefix, key).astype(np.float32, copy=False)


class _Reading:
    """Tensors found so far, and the graph they are read from."""

    def __init__(self, graph: _Graph):
        self.graph = graph
        self.tensors: dict[str, np.ndarray] = {}
        self.heads: set[int] = set()

    def dense(self, name: str, node: int | None) -> None:
        """Reads kernel and bias; the heads' axes of attention kernels become one again."""
        if node is None:
            return
        kernel = self.graph.read(node, "kernel")  # [in, out], [H, N, D] or [N, D, H]
        bias = self.graph.read(node, "bias")  # [out] or [N, D]
        if kernel is None or bias is None:
            return
        if bias.ndim == 2:
            self.heads.add(bias.shape[0])
        self.tensors[f"{name}.weight"] = kernel.reshape(-1, bias.size).T
        self.tensors[f"{name}.bias"] = bias.reshape(-1)

    def layer_norm(self, name: str, node: int | None) -> None:
        """Reads scale and shift."""
        for ours, theirs in (("weight", "gamma"), ("bias", "beta")):
            value = None if node is None else self.graph.read(node, theirs)
            if value is not None:
                self.tensors[f"{name}.{ours}"] = value

    def table(self, name: str, node: int | None) -> None:
        """Reads an embedding table."""
        value = None if node is None else self.graph.read(node, "embeddings")
        if value is not None:
            self.tensors[f"{name}.weight"] = value


def read_model_garden(location: Location, do_lower_case: bool | None = None) -> StoredModel:
    """Reads a checkpoint of a `BertEncoder` or a `BertPretrainerV2`.

    Model Garden computes GELU by its tanh approximation, so that is the model's `hidden_act`.
    A pre-trainer's next sentence head has a pooler of its own, which pre-training trains in place
    of the encoder's: it becomes the model's pooler.

    Args:
        location: where the checkpoint is.
        do_lower_case: whether the model is uncased; None to infer it from its name.

    Raises:
        InputError: there is no BERT in the checkpoint, or it does not fit its config.
    """
    prefix = location.prefix
    assert prefix is not None
    graph = _Graph(prefix)
    reading = _Reading(graph)
    notes: list[str] = []
    blocks, pooler = _read_encoder(reading)
    pooler = _read_heads(reading, pooler, notes)
    reading.dense("pooler.dense", pooler)
    config = _config(location.folder, reading, blocks, prefix, notes)
    model = StoredModel(config, reading.tensors, notes=notes)
    check_tensors(model, prefix)
    model.tokenizer = read_tokenizer(location.folder, prefix, do_lower_case, notes)
    return model


def _read_encoder(reading: _Reading) -> tuple[int, int | None]:
    """Reads all but the pooler; returns the number of blocks, and the pooler's object."""
    graph = reading.graph
    encoder = graph.find_first(*_EMBEDDINGS.values())
    if encoder is not None:
        parts = {name: graph.find(encoder, edge) for name, edge in _EMBEDDINGS.items()}
        listed = graph.find(encoder, "_transformer_layers")
        blocks = [] if listed is None else _numbered(graph, listed, "")
        pooler = graph.find(encoder, "_pooler_layer")
    else:  # older functional encoders name their layers by numbers alone
        encoder = graph.find_first(*(f"layer_with_weights-{i}" for i in range(5)))
        if encoder is None:
            raise InputError(
                f"{graph.prefix} holds no BERT encoder of Model Garden: give a checkpoint of "
                "official.nlp's BertEncoder or BertPretrainerV2."
            )
        layers = _numbered(graph, encoder, "layer_with_weights-")
        parts = dict(zip(_EMBEDDINGS, layers, strict=False))
        blocks = [node for node in layers if graph.find(node, "_attention_layer") is not None]
        after = layers[len(_EMBEDDINGS) + len(blocks) :]
        pooler = after[0] if after else None
    for name, part in parts.items():
        read = reading.layer_norm if name.endswith("LayerNorm") else reading.table
        read(name, part)
    for i, block in enumerate(blocks):
        for name, path in _BLOCK.items():
            read = reading.layer_norm if name.endswith("LayerNorm") else reading.dense
            read(f"encoder.layer.{i}.{name}", graph.find(block, *path))
    return len(blocks), pooler


def _read_heads(reading: _Reading, pooler: int | None, notes: list[str]) -> int | None:
    """Reads the heads; returns the object of the pooler that was trained."""
    graph = reading.graph
    masked_lm = graph.find_first("embedding_table", "dense", "layer_norm")
    if masked_lm is not None:
        transform = "cls.predictions.transform"
        reading.dense(f"{transform}.dense", graph.find(masked_lm, "dense"))
        reading.layer_norm(f"{transform}.LayerNorm", graph.find(masked_lm, "layer_norm"))
        bias = graph.read(masked_lm, "output_bias/bias")
        if bias is not None:
            reading.tensors["cls.predictions.bias"] = bias
    heads_pooler = graph.find(0, _HEADS_POOLER)
    if heads_pooler is None:
        return pooler
    for head, edges in enumerate(graph.children):
        if edges.get("dense") == heads_pooler:
            reading.dense("cls.seq_relationship", graph.find(head, "out_proj"))
    theirs = graph.read(heads_pooler, "kernel")
    own = None if pooler is None else graph.read(pooler, "kernel")
    if theirs is None or own is None or not np.array_equal(theirs, own):
        notes.append("The pooler is the next sentence head's, which pre-training trains.")
    return heads_pooler


def _numbered(graph: _Graph, node: int, prefix: str) -> list[int]:
    """The objects at the edges "<prefix>0", "<prefix>1" and so on."""
    found: list[int] = []
    while (child := graph.find(node, f"{prefix}{len(found)}")) is not None:
        found.append(child)
    return found


def _config(
    folder: Path, reading: _Reading, blocks: int, prefix: Path, notes: list[str]
) -> BertConfig:
    """The config on disk, or one by the shapes of the tensors."""
    path = config_path(folder)
    if path is not None:
        config = BertConfig.from_json(path)
        if reading.heads != {config.num_attention_heads}:
            raise InputError(
                f"{path} has num_attention_heads {config.num_attention_heads}, {prefix} "
                f"{sorted(reading.heads)}: put the model's own config there."
            )
        values = config.to_dict()
    else:
        shapes = {name: tensor.shape for name, tensor in reading.tensors.items()}
        try:
            vocabulary, hidden = shapes["embeddings.word_embeddings.weight"]
            values = {
                "vocab_size": vocabulary,
                "hidden_size": hidden,
                "num_hidden_layers": blocks,
                "num_attention_heads": max(reading.heads),
                "intermediate_size": shapes["encoder.layer.0.intermediate.dense.bias"][0],
                "max_position_embeddings": shapes["embeddings.position_embeddings.weight"][0],
                "type_vocab_size": shapes["embeddings.token_type_embeddings.weight"][0],
            }
        except (KeyError, ValueError):
            raise InputError(
                f"{prefix} holds only parts of a BERT encoder: give a whole checkpoint."
            ) from None
        notes.append(
            "There is no bert_config.json: the config is inferred from the tensors' shapes, with "
            "dropout 0.1."
        )
    if values.get("hidden_act", "gelu") == "gelu":
        values["hidden_act"] = "gelu_new"
        notes.append("Model Garden's GELU is the tanh approximation: hidden_act is gelu_new.")
    return BertConfig.from_dict(values)


def write_model_garden(model: StoredModel, folder: Path) -> None:
    """Writes bert_model.ckpt.*, bert_config.json and vocab.txt, for official.nlp.

    `tf.train.Checkpoint(encoder=encoder).read(...)` restores from it for either class of encoder,
    and so does a checkpoint of all `checkpoint_items` of a `BertPretrainerV2`.

    Args:
        model: model to write.
        folder: must exist.

    Raises:
        InputError: if Model Garden cannot compute the model.
    """
    write_config(model, folder, "Model Garden")
    # The next sentence head needs a pooler.
    sentences = ("cls.seq_relationship.",) if model.has("pooler.") else ()
    tensors = model.keep(("pooler.", "cls.predictions.", *sentences), "this layout")
    heads = model.config.num_attention_heads
    width = model.config.hidden_size // heads

    def variable(name: str, *shape: int) -> tf.Variable:
        value = tensors[name].T if is_kernel(name) else tensors[name]
        return tf.Variable(value.reshape(shape) if shape else value)

    def node(**edges: Any) -> tf.train.Checkpoint:
        return tf.train.Checkpoint(**edges)

    def dense(name: str, kernel: tuple[int, ...] = (), bias: tuple[int, ...] = ()) -> Any:
        return node(
            kernel=variable(f"{name}.weight", *kernel), bias=variable(f"{name}.bias", *bias)
        )

    def layer_norm(name: str) -> Any:
        return node(gamma=variable(f"{name}.weight"), beta=variable(f"{name}.bias"))

    layers: dict[str, Any] = {}
    for name, edge in _EMBEDDINGS.items():
        if name.endswith("LayerNorm"):
            layers[edge] = layer_norm(name)
        else:
            layers[edge] = node(embeddings=variable(f"{name}.weight"))
    # The position table has a second edge there.
    positions = layers["_position_embedding_layer"]
    positions._position_embeddings = positions.embeddings
    blocks = []
    for i in range(model.config.num_hidden_layers):
        attention, rest = {}, {}
        for name, edges in _BLOCK.items():
            full = f"encoder.layer.{i}.{name}"
            if name.endswith("LayerNorm"):
                rest[edges[0]] = layer_norm(full)
            elif name.startswith("attention.self."):
                attention[edges[1]] = dense(full, (-1, heads, width), (heads, width))
            elif name == "attention.output.dense":
                attention[edges[1]] = dense(full, (heads, width, -1))
            else:
                rest[edges[0]] = dense(full)
        blocks.append(node(_attention_layer=node(**attention), **rest))
    numbered = [*layers.values(), *blocks]
    layers["_transformer_layers"] = blocks
    if model.has("pooler."):
        layers["_pooler_layer"] = dense("pooler.dense")
        numbered.append(layers["_pooler_layer"])
    layers |= {f"layer_with_weights-{i}": layer for i, layer in enumerate(numbered)}
    encoder = node(**layers)

    items: dict[str, Any] = {"encoder": encoder}
    whole: dict[str, Any] = {"encoder_network": encoder}
    if model.has("cls.predictions."):
        bias = variable("cls.predictions.bias")
        items["masked_lm"] = whole["masked_lm"] = node(
            embedding_table=layers["_embedding_layer"].embeddings,
            dense=dense("cls.predictions.transform.dense"),
            layer_norm=layer_norm("cls.predictions.transform.LayerNorm"),
            **{"output_bias/bias": bias, "bias": bias},
        )
    if "cls.seq_relationship.bias" in tensors:
        items[_HEADS_POOLER] = dense("pooler.dense")
        head = node(dense=items[_HEADS_POOLER], out_proj=dense("cls.seq_relationship"))
        whole["classification_heads"] = [head]
    tf.train.Checkpoint(**items, model=node(**whole)).write(str(folder / PREFIX))

"""What TensorFlow's Model Garden (official.nlp) writes: variables in a graph of objects.

Checkpoints of `BertEncoderV2`, the functional `BertEncoder` and `BertPretrainerV2` around either,
saved from any object; and the SavedModels of TF Hub's BERT encoders, such as
"bert_en_uncased_L-12_H-768_A-12", whose variables are found by their names. Their graph is not
loaded, so nothing in it runs.
"""

import re
from pathlib import Path

import numpy as np
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from bert_tf.checkpoints.formats import CONFIG, Location
from bert_tf.checkpoints.model_directory import read_named
from bert_tf.checkpoints.other_formats import tensorflow_checkpoint
from bert_tf.checkpoints.stored_model import StoredModel, left_out
from bert_tf.checkpoints.weight_names import BLOCK, EMBEDDINGS, POOLER
from bert_tf.checkpoints.weights_files import TENSORFLOW_SUFFIX
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.tokenization.tokenizer import VOCABULARY_FILE, BertTokenizer
from bert_tf.tokenization.vocabulary import read_vocabulary

_HEADS_POOLER = "next_sentence.pooler_dense"  # of BertPretrainerV2's next sentence head
_POST_LAYER_NORM = (
    "Nothing in a checkpoint tells pre-LayerNorm blocks (norm_first) from BERT's, for which these "
    "are taken."
)
_TRAINING_STATE = re.compile(r"(^|[/.])_?(OPTIMIZER_SLOT|optimizer|save_counter|global_step)\b")
# Of the variables in TF Hub's SavedModels, beside `LayerNames.tf_hub`.
_HUB_BLOCKS = "transformer/layer_"
_HUB_MASKED_WORDS = "cls/predictions/"
# Variables of versions 1 and 2 -> since version 3.
_OLDER_HUB_NAMES = {
    r"\bembedding_postprocessor/layer_norm/": "embeddings/layer_norm/",
    r"\bembedding_postprocessor/type_embeddings$": "type_embeddings/embeddings",
    r"\bembedding_postprocessor/position_embeddings$": "position_embedding/embeddings",
    r"\bencoder/layer_(\d+)/": rf"{_HUB_BLOCKS}\1/",
    r"/self_attention_output/": "/self_attention/attention_output/",
}


class Graph:
    """A checkpoint's objects, by number, and the tensors taken from them."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self.tensors: dict[str, np.ndarray] = {}
        self.heads: set[int] = set()
        self._checkpoint = tensorflow_checkpoint.Checkpoint(prefix)
        graph = TrackableObjectGraph()
        graph.ParseFromString(self._checkpoint.read(tensorflow_checkpoint.OBJECT_GRAPH))
        self.children: list[dict[str, int]] = []
        self._keys: list[str | None] = []
        self._names: list[str] = []
        self._unread: set[int] = set()
        for node in graph.nodes:
            self.children.append({child.local_name: child.node_id for child in node.children})
            variable = next((a for a in node.attributes if a.name == "VARIABLE_VALUE"), None)
            self._keys.append(variable and variable.checkpoint_key)
            self._names.append("" if variable is None else variable.full_name)
        self._unread = {
            node for node, key in enumerate(self._keys) if key and not _TRAINING_STATE.search(key)
        }

    def find(self, start: int | None, *edges: str) -> int | None:
        """The object at the end of a path."""
        for edge in edges:
            if start is not None:
                start = self.children[start].get(edge)
        return start

    def find_first(self, *edges: str) -> int | None:
        """The object nearest to the root that has all these edges."""
        queue, seen = [0], {0}
        for node in queue:  # it grows meanwhile
            if all(edge in self.children[node] for edge in edges):
                return node
            near = [child for child in self.children[node].values() if child not in seen]
            seen.update(near)
            queue += near
        return None

    def numbered(self, node: int | None, prefix: str) -> list[int]:
        """The objects at the edges "<prefix>0", "<prefix>1" and so on."""
        found: list[int] = []
        while (child := self.find(node, f"{prefix}{len(found)}")) is not None:
            found.append(child)
        return found

    def layers_by_name(self) -> dict[str, int]:
        """Adds an object for each scope of the variables' names, such as "block/output"."""
        layers: dict[str, int] = {}
        for node, name in enumerate(self._names):
            scope, _, edge = current_name(name).rpartition("/")
            if scope:
                if scope not in layers:
                    layers[scope] = len(self.children)
                    self.children.append({})
                    self._keys.append(None)
                self.children[layers[scope]][edge] = node
        return layers

    def read(self, start: int | None, *edges: str) -> np.ndarray | None:
        node = self.find(start, *edges)
        key = None if node is None else self._keys[node]
        if node is None or key is None:
            return None
        self._unread.discard(node)
        return self._checkpoint.read(key)

    def scope(self, layer: int) -> str:
        """The names of a layer's variables, up to the last part."""
        kernel = self.find(layer, "kernel")
        return "" if kernel is None else self._names[kernel].rpartition("/")[0]

    def is_of_transformers(self) -> bool:
        """Whether the variables have the names of Hugging Face's TFBert* classes."""
        return any("/layer_._" in name for name in self._names)

    def read_by_name(self, folder: Path) -> StoredModel:
        """Reads a TFBert* class by its variables' names, and the config.json in the folder."""
        config = tensorflow_checkpoint.config_path(folder)
        if config is None:
            raise InputError(
                f"{folder} lacks {CONFIG}, which says the number of heads: put that of the model "
                "there, as its save_pretrained writes."
            )
        nodes = [node for node in sorted(self._unread) if self._names[node]]
        named = ((f"{self._names[node]}{TENSORFLOW_SUFFIX}", self.read(node)) for node in nodes)
        tensors = ((name, tensor) for name, tensor in named if tensor is not None)
        model = read_named(BertConfig.from_json(config), self.prefix, tensors)
        model.tie_decoder()
        model.check_tensors()
        return model

    def left_out(self) -> list[str]:
        """A note on variables that nobody read, if any."""
        return left_out(sorted(self._names[node] or str(self._keys[node]) for node in self._unread))

    def take(self, name: str, layer: int | None) -> None:
        """Reads a layer's tensors; the heads' axes of attention kernels become one."""
        for edges in (("kernel", "bias"), ("gamma", "beta"), ("embeddings",)):
            values = [v for v in (self.read(layer, edge) for edge in edges) if v is not None]
            if len(values) < len(edges):
                continue
            if edges[0] == "kernel":  # [in, out], [H, N, D] or [N, D, H]; bias [out] or [N, D]
                kernel, bias = values
                self.heads |= {bias.shape[0]} if bias.ndim == 2 else set()
                values = [kernel.reshape(-1, bias.size).T, bias.reshape(-1)]
            self.tensors |= dict(zip((f"{name}.weight", f"{name}.bias"), values, strict=False))


def read_model_garden(location: Location) -> StoredModel:
    """Reads an encoder or a pre-trainer."""
    graph = Graph(location.path)
    if graph.is_of_transformers():
        return graph.read_by_name(location.folder)
    notes: list[str] = []
    blocks, pooler = _read_encoder(graph)
    graph.take("pooler.dense", _read_heads(graph, pooler, notes))
    config = _config(location.folder, graph, blocks, notes)
    notes += [_POST_LAYER_NORM, *graph.left_out()]
    return StoredModel(config, graph.tensors, location.path, notes=notes)


def _read_encoder(graph: Graph) -> tuple[int, int | None]:
    """Reads all but the pooler; returns the number of blocks, and the pooler's object."""
    encoder = graph.find_first(*(each.model_garden for each in EMBEDDINGS))
    if encoder is not None:
        parts = [graph.find(encoder, each.model_garden) for each in EMBEDDINGS]
        blocks = graph.numbered(graph.find(encoder, "_transformer_layers"), "")
        pooler = graph.find(encoder, POOLER.model_garden)
    else:  # older functional encoders name their layers by numbers alone
        encoder = graph.find_first(*(f"layer_with_weights-{i}" for i in range(5)))
        if encoder is None:
            raise InputError(
                f"{graph.prefix} holds no BERT encoder of Model Garden or of TFBert*: give a "
                "checkpoint of official.nlp's BertEncoder or BertPretrainerV2, or a directory that "
                "save_pretrained wrote."
            )
        layers = graph.numbered(encoder, "layer_with_weights-")
        parts = [*layers[: len(EMBEDDINGS)]]
        blocks = [node for node in layers if graph.find(node, "_attention_layer") is not None]
        pooler = next(iter(layers[len(EMBEDDINGS) + len(blocks) :]), None)
    for each, part in zip(EMBEDDINGS, parts, strict=False):
        graph.take(each.name, part)
    for i, block in enumerate(blocks):
        for each in BLOCK:
            path = each.model_garden.split(".")
            graph.take(f"encoder.layer.{i}.{each.name}", graph.find(block, *path))
    return len(blocks), pooler


def _read_heads(graph: Graph, pooler: int | None, notes: list[str]) -> int | None:
    """Reads the heads; returns the trained pooler's object, the next sentence head's if any."""
    masked_lm = graph.find_first("embedding_table", "dense", "layer_norm")
    if masked_lm is not None:
        transform = "cls.predictions.transform"
        graph.take(f"{transform}.dense", graph.find(masked_lm, "dense"))
        graph.take(f"{transform}.LayerNorm", graph.find(masked_lm, "layer_norm"))
        if (bias := graph.read(masked_lm, "output_bias/bias")) is not None:
            graph.tensors["cls.predictions.bias"] = bias
    heads_pooler = graph.find(0, _HEADS_POOLER)
    for edges in graph.children:
        if {"dense", "out_proj"} <= edges.keys() and (
            edges["dense"] == heads_pooler or "next_sentence/" in graph.scope(edges["out_proj"])
        ):
            heads_pooler = edges["dense"]
            graph.take("cls.seq_relationship", edges["out_proj"])
    if heads_pooler is None:
        return pooler
    theirs, own = graph.read(heads_pooler, "kernel"), graph.read(pooler, "kernel")
    graph.read(pooler, "bias")
    if theirs is None or own is None or not np.array_equal(theirs, own):
        notes.append("The pooler is the next sentence head's, which pre-training trains.")
    return heads_pooler


def _config(folder: Path, graph: Graph, blocks: int, notes: list[str]) -> BertConfig:
    """The config on disk, or one by the shapes of the tensors."""
    path = tensorflow_checkpoint.config_path(folder)
    experiment = folder / "params.yaml"  # what Model Garden's trainer was given
    if experiment.is_file() and re.search(r"\bnorm_first:\s*true", experiment.read_text("utf-8")):
        raise InputError(f"{experiment} says norm_first, which is not BERT's: give another model.")
    if path is not None:
        config = BertConfig.from_json(path)
        if graph.heads != {config.num_attention_heads}:
            raise InputError(
                f"{path} has num_attention_heads {config.num_attention_heads}, {graph.prefix} "
                f"{sorted(graph.heads)}: put the model's own config there."
            )
        values = config.to_dict()
    else:
        try:
            values = {"num_hidden_layers": blocks, "num_attention_heads": max(graph.heads)}
            for prefix, layers in (("", EMBEDDINGS), ("encoder.layer.0.", BLOCK)):
                for each in layers:
                    shape = graph.tensors[f"{prefix}{each.name}.weight"].shape
                    values |= zip(each.shape, shape, strict=True)
        except (KeyError, ValueError):
            raise InputError(
                f"{graph.prefix} holds only parts of a BERT encoder: give a whole checkpoint."
            ) from None
        notes.append(
            "There is no bert_config.json: the config is inferred from the tensors' shapes, with "
            "dropout 0.1."
        )
    if values.get("hidden_act", "gelu") == "gelu":
        values["hidden_act"] = "gelu_new"
        notes.append("Model Garden's GELU is the tanh approximation: hidden_act is gelu_new.")
    return BertConfig.from_dict(values)


def current_name(name: str) -> str:
    """A variable's name since version 3, without the model's scope."""
    for older, newer in _OLDER_HUB_NAMES.items():
        name = re.sub(older, newer, name)
    starts = (each.tf_hub for each in (*EMBEDDINGS, POOLER))
    return re.sub(rf"^.*?\b(?=({'|'.join([*starts, _HUB_BLOCKS, _HUB_MASKED_WORDS])}))", "", name)


def read_tf_hub(location: Location, do_lower_case: bool | None = None) -> StoredModel:
    """Reads an encoder, its masked language model head if it has one, and its vocabulary."""
    folder = location.folder
    vocabulary = folder / "assets" / VOCABULARY_FILE
    if not tensorflow_checkpoint.Checkpoint(location.path).is_object_based:
        raise InputError(
            f"{folder} is a module of TensorFlow 1's Hub: put the model's bert_config.json and "
            f"vocab.txt into {location.path.parent}, and convert {location.path}."
        )
    graph = Graph(location.path)
    if graph.is_of_transformers():
        return graph.read_by_name(folder)
    layers = graph.layers_by_name()
    if EMBEDDINGS[0].tf_hub not in layers:
        what = "only a preprocessor" if vocabulary.is_file() else "no BERT encoder"
        raise InputError(
            f"{folder} holds {what} of TF Hub: give the SavedModel of an encoder such as "
            "bert_en_uncased_L-12_H-768_A-12, which holds weights and vocabulary. (For an export "
            "of bert-tf give the model directory that it was made from.)"
        )
    for each in (*EMBEDDINGS, POOLER):
        graph.take(each.name, layers.get(each.tf_hub))
    blocks = 0
    while f"{_HUB_BLOCKS}{blocks}/{BLOCK[0].tf_hub}" in layers:
        for each in BLOCK:
            scope = f"{_HUB_BLOCKS}{blocks}/{each.tf_hub}"
            graph.take(f"encoder.layer.{blocks}.{each.name}", layers.get(scope))
        blocks += 1
    for name in ("dense", "LayerNorm"):
        transform = f"{_HUB_MASKED_WORDS}transform/{name}"
        graph.take(transform.replace("/", "."), layers.get(transform))
    if (bias := graph.read(layers.get(f"{_HUB_MASKED_WORDS}output_bias"), "bias")) is not None:
        graph.tensors["cls.predictions.bias"] = bias
    notes: list[str] = []
    config = _config(folder, graph, blocks, notes)
    model = StoredModel(config, graph.tensors, location.path, notes=notes)
    said = graph.read(0, "do_lower_case")
    notes += graph.left_out()
    model.check_tensors()
    if do_lower_case is None and said is not None:
        do_lower_case = bool(said)
    if vocabulary.is_file():
        if do_lower_case is None:
            raise InputError(
                f"{folder} does not say whether it is uncased: give --do_lower_case true if its "
                "training text was lower-cased, else --do_lower_case false."
            )
        pieces = read_vocabulary(vocabulary).pieces
        model.tokenizer = BertTokenizer(pieces, do_lower_case=do_lower_case)
    return model

"""What TensorFlow's Model Garden (official.nlp) writes: variables in a graph of objects.

Checkpoints of `BertEncoderV2`, the functional `BertEncoder` and `BertPretrainerV2` around either,
saved from any object; and the SavedModels of TF Hub's BERT encoders, such as
"bert_en_uncased_L-12_H-768_A-12". All name their variables alike. Graphs are not loaded, so nothing
in them runs.
"""

import re
from pathlib import Path

import numpy as np
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from bert_tf.checkpoints.formats import Location
from bert_tf.checkpoints.model_directory import read_named
from bert_tf.checkpoints.other_formats import tensorflow_checkpoint
from bert_tf.checkpoints.stored_model import StoredModel, left_out
from bert_tf.checkpoints.weight_names import BLOCK, EMBEDDINGS, MODEL_GARDEN, POOLER
from bert_tf.checkpoints.weights_files import TENSORFLOW_SUFFIX
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.model_files import CONFIG, VOCABULARY

_POST_LAYER_NORM = (
    "Nothing in a checkpoint tells pre-LayerNorm blocks (norm_first) from BERT's, for which these "
    "are taken."
)
_TRAINING_STATE = re.compile(r"(^|[/.])_?(OPTIMIZER_SLOT|optimizer|save_counter|global_step)\b")
ASSETS = "assets"  # folder of a SavedModel, which holds the vocabulary
_TABLE = "word_embeddings/embeddings"
_BLOCKS = "transformer/layer_"
_MASKED_WORDS = "cls/predictions/"
_NEXT_SENTENCE = "next_sentence/"
# Variables of versions 1 and 2 of TF Hub's models -> since version 3.
_OLDER_NAMES = {
    r"\bembedding_postprocessor/layer_norm/": "embeddings/layer_norm/",
    r"\bembedding_postprocessor/type_embeddings$": "type_embeddings/embeddings",
    r"\bembedding_postprocessor/position_embeddings$": "position_embedding/embeddings",
    r"\bencoder/layer_(\d+)/": rf"{_BLOCKS}\1/",
    r"/self_attention_output/": "/self_attention/attention_output/",
}


def current_name(name: str) -> str:
    """A variable's name since version 3, without the model's scope."""
    for older, newer in _OLDER_NAMES.items():
        name = re.sub(older, newer, name)
    starts = [MODEL_GARDEN[layer] for layer in (*EMBEDDINGS, *POOLER)]
    starts += [_BLOCKS, _MASKED_WORDS, _NEXT_SENTENCE]
    return re.sub(rf"^.*?\b(?=({'|'.join(starts)}))", "", name)


class _Variables:
    """The variables of a checkpoint by name, and the tensors taken from them."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        self.tensors: dict[str, np.ndarray] = {}
        self.heads: set[int] = set()
        self._checkpoint = tensorflow_checkpoint.Checkpoint(prefix)
        graph = TrackableObjectGraph()
        graph.ParseFromString(self._checkpoint.read(tensorflow_checkpoint.OBJECT_GRAPH))
        values = (x for node in graph.nodes for x in node.attributes if x.name == "VARIABLE_VALUE")
        self._full_names = {  # by the key of the tensor
            value.checkpoint_key: value.full_name
            for value in values
            if not _TRAINING_STATE.search(value.checkpoint_key)
        }
        self._keys: dict[str, list[str]] = {}  # by `current_name`
        for key, full_name in self._full_names.items():
            self._keys.setdefault(current_name(full_name), []).append(key)
        self._unread = set(self._full_names)

    def has(self, name: str) -> bool:
        return name in self._keys

    def is_of_transformers(self) -> bool:
        """Whether the variables have the names of Hugging Face's TFBert* classes."""
        return any("/layer_._" in name for name in self._full_names.values())

    def read_of_transformers(self, folder: Path) -> StoredModel:
        """Reads a TFBert* class by its variables' names, and the config.json in the folder."""
        config = tensorflow_checkpoint.config_path(folder)
        if config is None:
            raise InputError(
                f"{folder} lacks {CONFIG}, which has the number of attention heads: copy the file "
                "that the model's save_pretrained wrote."
            )
        tensors = (
            (f"{name}{TENSORFLOW_SUFFIX}", self._checkpoint.read(key))
            for key, name in self._full_names.items()
            if name
        )
        model = read_named(BertConfig.from_json(config), self.prefix, tensors)
        model.tie_decoder()
        return model

    def read(self, name: str) -> np.ndarray | None:
        """The value of a variable, None if there is no such variable."""
        keys = self._keys.get(name, [])
        if len(keys) > 1:
            raise InputError(
                f"{self.prefix} holds {name} twice, as {keys[0]} and {keys[1]}: give a checkpoint "
                "of one encoder."
            )
        self._unread -= {*keys}
        return self._checkpoint.read(keys[0]) if keys else None

    def read_attribute(self, name: str) -> np.ndarray | None:
        """The value of a variable that is an attribute of the saved object itself."""
        key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
        self._unread.discard(key)
        return self._checkpoint.read(key) if key in self._full_names else None

    def take(self, name: str, scope: str) -> bool:
        """Reads a layer's tensors, if it is there; the heads' axes of kernels become one."""
        for parts in (("kernel", "bias"), ("gamma", "beta"), ("embeddings",)):
            values = [v for v in (self.read(f"{scope}/{part}") for part in parts) if v is not None]
            if len(values) < len(parts):
                continue
            if parts[0] == "kernel":  # [in, out], [H, N, D] or [N, D, H]; bias [out] or [N, D]
                kernel, bias = values
                self.heads |= {bias.shape[0]} if bias.ndim == 2 else set()
                values = [kernel.reshape(-1, bias.size).T, bias.reshape(-1)]
            self.tensors |= dict(zip((f"{name}.weight", f"{name}.bias"), values, strict=False))
            return True
        return False

    def left_out(self) -> list[str]:
        """A note on variables that nobody read, if any."""
        return left_out(sorted(self._full_names[key] or key for key in self._unread))


def read_model_garden(location: Location) -> StoredModel:
    """Reads an encoder or a pre-trainer."""
    return _read(
        location,
        f"{location.path} holds no BERT encoder of Model Garden or of TFBert*: give a checkpoint "
        "of official.nlp's BertEncoder or BertPretrainerV2, or a directory that save_pretrained "
        "wrote.",
    )


def _read(location: Location, without_encoder: str) -> StoredModel:
    """Reads the encoder and the heads of pre-training; InputError `without_encoder`."""
    variables = _Variables(location.path)
    if variables.is_of_transformers():
        return variables.read_of_transformers(location.folder)
    if not variables.has(_TABLE):
        raise InputError(without_encoder)
    notes: list[str] = []
    for layer in (*EMBEDDINGS, *POOLER):
        variables.take(layer, MODEL_GARDEN[layer])
    blocks = 0
    while variables.has(f"{_BLOCKS}{blocks}/output/kernel"):
        for layer in BLOCK:
            scope = f"{_BLOCKS}{blocks}/{MODEL_GARDEN[layer]}"
            variables.take(f"encoder.layer.{blocks}.{layer}", scope)
        blocks += 1
    for name in ("dense", "LayerNorm"):
        variables.take(f"cls.predictions.transform.{name}", f"{_MASKED_WORDS}transform/{name}")
    if (bias := variables.read(f"{_MASKED_WORDS}output_bias/bias")) is not None:
        variables.tensors["cls.predictions.bias"] = bias
    variables.take("cls.seq_relationship", f"{_NEXT_SENTENCE}logits")
    pooler = variables.tensors.get("pooler.dense.weight")
    if variables.take("pooler.dense", f"{_NEXT_SENTENCE}pooler_dense") and (
        pooler is None or not np.array_equal(pooler, variables.tensors["pooler.dense.weight"])
    ):
        notes.append("The pooler is the next sentence head's, which pre-training trains.")
    config = _config(location.folder, variables, blocks, notes)
    is_lower = variables.read_attribute("do_lower_case")
    notes += [_POST_LAYER_NORM] * (location.format == "model_garden") + variables.left_out()
    model = StoredModel(config, variables.tensors, location.path, notes=notes)
    model.do_lower_case = None if is_lower is None else bool(is_lower)
    return model


def _config(folder: Path, variables: _Variables, blocks: int, notes: list[str]) -> BertConfig:
    """The config on disk, or one by the shapes of the tensors."""
    path = tensorflow_checkpoint.config_path(folder)
    experiment = folder / "params.yaml"  # the settings of Model Garden's trainer
    if experiment.is_file() and re.search(r"\bnorm_first:\s*true", experiment.read_text("utf-8")):
        raise InputError(
            f"{experiment} sets norm_first, which BERT does not have: give another model."
        )
    if path is not None:
        config = BertConfig.from_json(path)
        if variables.heads != {config.num_attention_heads}:
            raise InputError(
                f"{path} has num_attention_heads {config.num_attention_heads}, {variables.prefix} "
                f"{sorted(variables.heads)}: put the model's own config there."
            )
        values = config.to_dict()
    else:
        try:
            values = {"num_hidden_layers": blocks, "num_attention_heads": max(variables.heads)}
            for prefix, layers in (("", EMBEDDINGS), ("encoder.layer.0.", BLOCK)):
                for name, layer in layers.items():
                    shape = variables.tensors[f"{prefix}{name}.weight"].shape
                    values |= zip(layer.shape, shape, strict=True)
        except (KeyError, ValueError):
            raise InputError(
                f"{variables.prefix} holds only parts of a BERT encoder: give a whole checkpoint."
            ) from None
        notes.append(
            "There is no bert_config.json: the config is inferred from the tensors' shapes, with "
            "dropout 0.1."
        )
    if values.get("hidden_act", "gelu") == "gelu":
        values["hidden_act"] = "gelu_new"
        notes.append("Model Garden's GELU is the tanh approximation: hidden_act is gelu_new.")
    return BertConfig.from_dict(values)


def read_tf_hub(location: Location) -> StoredModel:
    """Reads an encoder, and its masked language model head if it has one."""
    folder = location.folder
    if not tensorflow_checkpoint.Checkpoint(location.path).is_object_based:
        raise InputError(
            f"{folder} is a module of TensorFlow 1's Hub: put the model's bert_config.json and "
            f"vocab.txt into {location.path.parent}, and convert {location.path}."
        )
    has_vocabulary = (folder / ASSETS / VOCABULARY).is_file()
    content = "only a preprocessor" if has_vocabulary else "no BERT encoder"
    return _read(
        location,
        f"{folder} holds {content} of TF Hub: give the SavedModel of an encoder such as "
        "bert_en_uncased_L-12_H-768_A-12, which holds weights and vocabulary. (For an export of "
        "bert-tf give the model directory that it was made from.)",
    )

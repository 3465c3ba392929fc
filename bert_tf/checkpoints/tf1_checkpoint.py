"""Checkpoints of the original code (TensorFlow 1): variables by name, bert_config.json, vocab.txt.

The published models come in this format: base and large, multilingual, Chinese, whole word
masking, and the 24 small ones.
"""

import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.formats import Location
from bert_tf.checkpoints.stored_model import StoredModel, left_out
from bert_tf.checkpoints.tensorflow_checkpoint import (
    CHECKPOINT_CONFIGS,
    PREFIX,
    Checkpoint,
    config_path,
    write_config,
)
from bert_tf.checkpoints.weight_names import is_kernel, tensor_shapes
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

# The heads' names in run_pretraining.py, run_classifier.py and run_squad.py. Their weights are
# [out, in] there, too.
_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
_PARTS = ("pooler.", "cls.predictions.", "cls.seq_relationship.", "classifier.", "qa_outputs.")
# What optimizers leave in a checkpoint.
_TRAINING_STATE = re.compile(
    r"(^|/)(adam_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum|beta[12]_power)$|^global_step$|^loss_scale"
    r"|^good_steps$|^ExponentialMovingAverage"
)


def tf1_name(name: str) -> str:
    """The variable of the original's modeling.py for a canonical name."""
    if name in _HEADS:
        return _HEADS[name]
    name = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name)
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    name = name.replace("LayerNorm.bias", "LayerNorm.beta")
    name = re.sub(r"(_embeddings)\.weight$", r"\1", name)
    name = re.sub(r"\.weight$", ".kernel", name)
    prefix = "" if name.startswith("cls.") else "bert/"
    return prefix + name.replace(".", "/")


def _is_transposed(name: str) -> bool:
    """Whether the original keeps the transpose of a tensor, [in, out]."""
    return is_kernel(name) and name not in _HEADS


def read_tf1(location: Location) -> StoredModel:
    """Reads a checkpoint of the original's scripts; ignores optimizer state in it.

    `hidden_act` is taken from bert_config.json as it stands, as Hugging Face does: "gelu" is then
    computed exactly. The original's code did so when the models were published, and computes the
    tanh approximation ("gelu_new") since.
    """
    path = config_path(location.folder)
    if path is None:
        raise InputError(
            f"{location.folder} lacks {CHECKPOINT_CONFIGS[0]}, which says the number of heads: "
            "put the model's own there."
        )
    config = BertConfig.from_json(path)
    checkpoint = Checkpoint(location.path)
    names = {tf1_name(name): name for name in (*tensor_shapes(config), *_HEADS)}
    tensors: dict[str, np.ndarray] = {}
    others = []
    for theirs in sorted(checkpoint.names):
        if theirs in names:
            tensor = checkpoint.read(theirs)
            tensors[names[theirs]] = tensor.T if _is_transposed(names[theirs]) else tensor
        elif _TRAINING_STATE.search(theirs):
            continue
        elif theirs.startswith("bert/"):
            tensors[theirs] = np.empty(0, np.float32)  # a part of an encoder that is not BERT's
        else:
            others.append(theirs)
    notes = [left_out(others)] if others else []
    return StoredModel(config, tensors, location.path, notes=notes)


def write_tf1(model: StoredModel, folder: Path) -> None:
    """Writes bert_model.ckpt.*, bert_config.json and vocab.txt, for the original's scripts."""
    others = {}
    if model.labels is not None and model.problem_type != "regression":
        others["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
        model.notes.append(
            f"The original keeps no labels; in order: {', '.join(model.labels)}. bert_config.json "
            "keeps them as id2label, which only bert-tf reads."
        )
    write_config(model, folder, "The original", **others)
    tensors = model.keep(_PARTS, "the original")
    names = sorted(tensors, key=tf1_name)
    tf.raw_ops.SaveV2(
        prefix=str(folder / PREFIX),
        tensor_names=[tf1_name(name) for name in names],
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name].T if _is_transposed(name) else tensors[name] for name in names],
    )

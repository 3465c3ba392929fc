"""The checkpoint files of TensorFlow, by which the original and Model Garden keep models."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.formats import CHECKPOINT_CONFIGS
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import InputError

PREFIX = "bert_model.ckpt"
# Names that activations have in both; each computes "gelu" by its tanh approximation.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}
# What its reader raises, by the kind of damage.
_READ_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, LookupError)


def open_checkpoint(prefix: Path) -> Any:
    """A `tf.train.CheckpointReader`.

    Raises:
        InputError: if the files are damaged or not all there.
    """
    try:
        return tf.train.load_checkpoint(str(prefix))
    except _READ_ERRORS as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{prefix} is no complete TensorFlow checkpoint ({reason}): copy its .index and its "
            ".data files again."
        ) from None


def read_tensor(reader: Any, prefix: Path, name: str) -> Any:
    """A tensor of a checkpoint.

    Raises:
        InputError: if its data cannot be read.
    """
    try:
        return reader.get_tensor(name)
    except _READ_ERRORS as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{prefix}: {name} cannot be read ({reason}): copy the checkpoint's .data file again."
        ) from None


def config_path(folder: Path) -> Path | None:
    """The folder's bert_config.json, or config.json, or None."""
    found = [folder / name for name in CHECKPOINT_CONFIGS if (folder / name).is_file()]
    return found[0] if found else None


def write_config(model: StoredModel, folder: Path, target: str) -> None:
    """Writes bert_config.json and the tokenizer; notes what will not be computed as here.

    The keys are those of `BertConfig` in the original's modeling.py.

    Args:
        model: what to write.
        folder: exists.
        target: the code that reads them, for messages.

    Raises:
        InputError: if the activation is unknown to it.
    """
    config = model.config
    if config.hidden_act not in _ACTIVATIONS:
        raise InputError(
            f"{target} knows no activation {config.hidden_act!r}: only models with "
            f"{', '.join(sorted(_ACTIVATIONS))} can be written for it."
        )
    if config.hidden_act == "gelu":
        model.notes.append(
            f"{target} computes GELU by its tanh approximation, this model exactly: outputs "
            "differ in the third or fourth decimal."
        )
    if config.layer_norm_eps != 1e-12:
        model.notes.append(
            f"{target} adds 1e-12 to variances, this model {config.layer_norm_eps}: outputs differ."
        )
    values = {
        name: getattr(config, name)
        for name in (
            "attention_probs_dropout_prob", "hidden_dropout_prob", "hidden_size",
            "initializer_range", "intermediate_size", "max_position_embeddings",
            "num_attention_heads", "num_hidden_layers", "type_vocab_size", "vocab_size",
        )
    }  # fmt: skip
    values["hidden_act"] = _ACTIVATIONS[config.hidden_act]
    path = folder / CHECKPOINT_CONFIGS[0]
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if model.tokenizer is not None:
        # With tokenizer_config.json, which is ours to read: the others need to be told the casing.
        model.tokenizer.save(folder, model_max_length=config.max_position_embeddings)

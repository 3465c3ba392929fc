"""TensorFlow's checkpoint files, the format of the original and of Model Garden."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import InputError

PREFIX = "bert_model.ckpt"
CHECKPOINT_CONFIGS = ("bert_config.json", "config.json")  # the original's name first
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a key that object-based checkpoints have
# Activations by Hugging Face's and the original's names; the original's and Model Garden's "gelu"
# is the tanh approximation.
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
    """A `tf.train.CheckpointReader`; refuses files that are damaged or not all there."""
    try:
        return tf.train.load_checkpoint(str(prefix))
    except _READ_ERRORS as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{prefix} is no complete TensorFlow checkpoint ({reason}): copy its .index and its "
            ".data files again."
        ) from None


def read_tensor(reader: Any, prefix: Path, name: str) -> Any:
    """A tensor of a checkpoint; refuses data that cannot be read."""
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


def write_config(model: StoredModel, folder: Path, target: str, **others: Any) -> None:
    """Writes bert_config.json and the tokenizer; notes what its reader computes differently.

    The keys are those of `BertConfig` in the original's modeling.py, which ignores others;
    `bert-tf convert` reads them back.

    Args:
        model: model to write.
        folder: must exist.
        target: name of the code that reads the files, for messages.
        others: more keys.

    Raises:
        InputError: if the activation is unknown to it.
    """
    config = model.config
    if config.hidden_act not in _ACTIVATIONS:
        raise InputError(
            f"{target} knows no activation {config.hidden_act!r}: only models with "
            f"{', '.join(sorted(_ACTIVATIONS))} can be written for it."
        )
    model.note_differences(target)
    values = {
        name: getattr(config, name)
        for name in (
            "attention_probs_dropout_prob", "hidden_dropout_prob", "hidden_size",
            "initializer_range", "intermediate_size", "max_position_embeddings",
            "num_attention_heads", "num_hidden_layers", "type_vocab_size", "vocab_size",
        )
    }  # fmt: skip
    values["hidden_act"] = _ACTIVATIONS[config.hidden_act]
    if config.pad_token_id != 0:
        values["pad_token_id"] = config.pad_token_id
        model.notes.append(
            f"{target} pads with id 0, this model with {config.pad_token_id}: bert_config.json "
            "keeps pad_token_id, which only bert-tf reads."
        )
    path = folder / CHECKPOINT_CONFIGS[0]
    path.write_text(
        json.dumps({**values, **others}, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    if model.tokenizer is not None:
        # Only bert-tf reads its tokenizer_config.json; the others take the casing as an option.
        model.tokenizer.save(folder, model_max_length=config.max_position_embeddings)
        switches = model.tokenizer.settings
        strips = switches["strip_accents"]
        if strips is not None and strips != switches["do_lower_case"]:
            model.notes.append(
                f"{target} strips accents exactly when it lower-cases, and ignores strip_accents "
                f"{str(strips).lower()}: texts with accents become other pieces."
            )
        if not switches["tokenize_chinese_chars"]:
            model.notes.append(
                f"{target} always splits Chinese characters, and ignores tokenize_chinese_chars "
                "false."
            )

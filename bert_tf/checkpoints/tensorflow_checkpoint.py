"""TensorFlow's checkpoint files, the format of the original and of Model Garden."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.errors import InputError

PREFIX = "bert_model.ckpt"
CHECKPOINT_CONFIGS = ("bert_config.json", "config.json")  # the original's name first
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a key that object-based checkpoints have
# Hugging Face's names of the tanh approximation, which is the others' "gelu".
TANH_GELU = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
_ACTIVATIONS = {"relu": "relu", "tanh": "tanh", **dict.fromkeys(("gelu", *TANH_GELU), "gelu")}


class Checkpoint:
    """The tensors of a checkpoint, `names`, in the files at `prefix`; refuses damaged ones."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        with _readable(f"{prefix} is no complete TensorFlow checkpoint", "its .index and .data"):
            self._reader = tf.train.load_checkpoint(str(prefix))
            self.names = set(self._reader.get_variable_to_shape_map())

    def read(self, name: str) -> Any:
        """A tensor, numbers in float32; refuses data that cannot be read."""
        with _readable(f"{self.prefix}: {name} cannot be read", "its .data"):
            value = self._reader.get_tensor(name)
        return value if isinstance(value, bytes) else value.astype(np.float32, copy=False)


@contextmanager
def _readable(problem: str, files: str) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, ValueError, RuntimeError, LookupError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{problem} ({reason}): copy {files} files again.") from None


def config_path(folder: Path) -> Path | None:
    """The folder's bert_config.json, or config.json, or None."""
    paths = (folder / name for name in CHECKPOINT_CONFIGS)
    return next((path for path in paths if path.is_file()), None)


def write_config(model: StoredModel, folder: Path, target: str, **others: Any) -> None:
    """Writes bert_config.json and the tokenizer; notes what `target`, their reader, lacks.

    The keys are those of `BertConfig` in the original's modeling.py, which ignores others;
    `bert-tf convert` reads them back. Refuses an activation that the target does not know.
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
    text = json.dumps({**values, **others}, indent=2, sort_keys=True) + "\n"
    (folder / CHECKPOINT_CONFIGS[0]).write_text(text, encoding="utf-8")
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

"""TensorFlow's checkpoint files, and what the original code (TensorFlow 1) keeps in them."""

import glob
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.stored_model import StoredModel, left_out
from bert_tf.checkpoints.weight_names import MULTI_LABEL, PARTS, is_kernel, tensor_shapes
from bert_tf.checkpoints.weights_files import check_regular
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

CHECKPOINT_CONFIGS = ("bert_config.json", "config.json")  # the original's name first
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # a key that object-based checkpoints have
_CONFIG = (  # keys of bert_config.json beside hidden_act
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
TANH_GELU = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")  # Hugging Face's; the others' "gelu"
_ACTIVATIONS = {"relu": "relu", "tanh": "tanh", **dict.fromkeys(("gelu", *TANH_GELU), "gelu")}
# The heads' names in run_pretraining.py, run_classifier.py and run_squad.py.
_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
_TRAINING_STATE = re.compile(  # what optimizers leave in a checkpoint
    r"(^|/)(adam_[mv]|Adam(_\d+)?|LAMB(_\d+)?|Momentum|beta[12]_power)$|^global_step$|^loss_scale"
    r"|^good_steps$|^ExponentialMovingAverage"
)


class Checkpoint:
    """A checkpoint's tensors and their `names`; refuses damaged files."""

    def __init__(self, prefix: Path):
        self.prefix = prefix
        for path in prefix.parent.glob(f"{glob.escape(prefix.name)}.*"):
            check_regular(path)
        with _readable(f"{prefix} is no complete TensorFlow checkpoint", "its .index and .data"):
            self._reader = tf.train.load_checkpoint(str(prefix))
            self.names = set(self._reader.get_variable_to_shape_map())
        self.is_object_based = OBJECT_GRAPH in self.names

    def read(self, name: str) -> Any:
        """A tensor, numbers in float32."""
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


def _transposed(name: str, tensor: np.ndarray) -> np.ndarray:
    """A tensor in the other format: the original's kernels, but not the heads', are [in, out]."""
    return tensor.T if is_kernel(name) and name not in _HEADS else tensor


def read_tf1(prefix: Path) -> StoredModel:
    """Reads a checkpoint of the original's scripts, without optimizer state.

    "gelu" is computed exactly, as by Hugging Face, and by the original when the models were
    published; its present code computes the tanh approximation ("gelu_new").
    """
    path = config_path(prefix.parent)
    if path is None:
        raise InputError(
            f"{prefix.parent} lacks {CHECKPOINT_CONFIGS[0]}, which has the number of attention "
            "heads: copy the model's own file there."
        )
    config = BertConfig.from_json(path)
    checkpoint = Checkpoint(prefix)
    names = {tf1_name(name): name for name in (*tensor_shapes(config), *_HEADS)}
    tensors: dict[str, np.ndarray] = {}
    others = []
    for theirs in sorted(checkpoint.names):
        if theirs in names:
            tensors[names[theirs]] = _transposed(names[theirs], checkpoint.read(theirs))
        elif _TRAINING_STATE.search(theirs):
            continue
        elif theirs.startswith("bert/"):
            tensors[theirs] = np.empty(0, np.float32)  # a part of an encoder that is not BERT's
        else:
            others.append(theirs)
    return StoredModel(config, tensors, prefix, notes=left_out(others))


def write_tf1(model: StoredModel, folder: Path) -> None:
    """Writes bert_model.ckpt.*, bert_config.json and the tokenizer for the original's scripts."""
    config = model.config
    if config.hidden_act not in _ACTIVATIONS:
        raise InputError(
            f"The original BERT does not support the activation {config.hidden_act!r}: give a "
            f"model with one of {', '.join(sorted(_ACTIVATIONS))}."
        )
    model.note_differences("The original")
    values = {name: getattr(config, name) for name in _CONFIG}
    values["hidden_act"] = _ACTIVATIONS[config.hidden_act]
    if config.pad_token_id != 0:
        values["pad_token_id"] = config.pad_token_id
        model.notes.append(
            f"The original pads with id 0, this model with {config.pad_token_id}: bert_config.json "
            "keeps pad_token_id, which only bert-tf reads."
        )
    if model.problem_type is not None:
        values["problem_type"] = model.problem_type
    if model.problem_type == MULTI_LABEL:
        model.notes.append(
            "The original has one label a text: that this model gives several stands in "
            "bert_config.json as problem_type, which only bert-tf reads."
        )
    if model.labels is not None and model.problem_type != "regression":
        values["id2label"] = {str(number): label for number, label in enumerate(model.labels)}
        model.notes.append(
            f"The original keeps no labels; in order: {', '.join(model.labels)}. bert_config.json "
            "keeps them as id2label, which only bert-tf reads."
        )
    text = json.dumps(values, indent=2, sort_keys=True) + "\n"
    (folder / CHECKPOINT_CONFIGS[0]).write_text(text, encoding="utf-8")
    if model.tokenizer is not None:
        # Only bert-tf reads its tokenizer_config.json; the original takes the casing as an option.
        model.tokenizer.save(folder, model_max_length=config.max_position_embeddings)
        switches = model.tokenizer.settings
        strips = switches["strip_accents"]
        if strips is not None and strips != switches["do_lower_case"]:
            model.notes.append(
                "The original strips accents exactly when it lower-cases, and ignores "
                f"strip_accents {str(strips).lower()}: texts with accents become other pieces."
            )
        if not switches["tokenize_chinese_chars"]:
            model.notes.append(
                "The original always splits Chinese characters, and ignores "
                "tokenize_chinese_chars false."
            )
    tensors = model.keep(tuple(PARTS), "the original")
    names = sorted(tensors, key=tf1_name)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=[tf1_name(name) for name in names],
        shape_and_slices=[""] * len(names),
        tensors=[_transposed(name, tensors[name]) for name in names],
    )

"""Hugging Face's model directory, as files."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bert_tf.checkpoints.formats import CONFIG, Location
from bert_tf.checkpoints.safetensors_file import (
    FLOATS,
    read_tensors,
    weights_path,
    write_sharded_weights,
)
from bert_tf.checkpoints.stored_model import StoredModel, left_out
from bert_tf.checkpoints.weight_names import (
    FEATURE_BASED,
    HEADS_PREFIXES,
    canonical_name,
    stored_prefixes,
)
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

SHARD_BYTES = 5 * 1000**3
# Keys of config.json that are written anew, or say what no longer holds.
_NOT_KEPT = ("architectures", "dtype", "num_labels", "problem_type", "tie_word_embeddings",
             "torch_dtype")  # fmt: skip
# The beginnings of the canonical names of all tensors that a model can use.
_OF_BERT = ("embeddings.", "encoder.", "pooler.", *HEADS_PREFIXES)


def read_weights(folder: Path) -> StoredModel:
    """Reads config.json and the weights, including a decoder's copies of other weights.

    Tensors that belong to no part of a BERT are left out, with a note. The tokenizer is not read.
    """
    config = BertConfig.from_json(folder / CONFIG)
    path = weights_path(folder)
    found: dict[str, dict[str, np.ndarray]] = {}  # canonical name -> prefix -> tensor
    others = []
    for name, tensor in read_tensors(path):
        canonical = canonical_name(name)
        if not canonical.startswith(_OF_BERT) and not name.startswith("bert."):
            others.append(name)
            continue
        for prefix in stored_prefixes(canonical, config):
            if not name.startswith(prefix):
                continue  # of the other encoder, or of Hugging Face's computation, not ours
            parts = found.setdefault(canonical, {})
            if prefix in parts:
                raise InputError(
                    f"{path} holds a weight twice, the second time as {name}: save it again."
                )
            parts[prefix] = tensor
    tensors = {}
    for canonical, parts in found.items():
        prefixes = stored_prefixes(canonical, config)
        if parts.keys() != set(prefixes) or len({part.shape for part in parts.values()}) > 1:
            raise InputError(
                f"{path} lacks {canonical} of one encoder, or in one shape: restore the file."
            )
        values = [parts[prefix] for prefix in prefixes]
        tensors[canonical] = values[0] if len(values) == 1 else np.stack(values)
    return StoredModel(config, tensors, path, notes=[left_out(others)] if others else [])


def read_hugging_face(location: Location) -> StoredModel:
    """Reads config.json and the weights; refuses a model that other formats cannot hold."""
    model = read_weights(location.folder)
    if model.config.attention_direction != "both":
        raise InputError(
            f"{location.folder} sees one side of the text (attention_direction "
            f"{model.config.attention_direction}), and the other formats hold models that see "
            "both: convert one of these."
        )
    if model.config.has_feature_encoder:
        by = "bilstm" if model.config.feature_layers is None else "features_only"
        raise InputError(
            f"{location.folder} was trained with --{by}, and neither Hugging Face nor the others "
            "have a class for such a model: convert the model that it was trained from."
        )
    model.tie_decoder()
    return model


def write_hugging_face(
    model: StoredModel, folder: Path, dtype: str = "float32", shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes a model directory.

    Each file appears whole or not at all, config.json last: a directory without it is no model
    yet. Other files of the directory (checkpoints, logs) stay. `dtype` is a key of `FLOATS`;
    weights above `shard_bytes` are written to several files.
    """
    has_head = any(model.has(part) for part in HEADS_PREFIXES)
    of_head = FEATURE_BASED if model.config.has_feature_encoder else ""
    tensors = {}
    for name, tensor in model.tensors.items():
        # The encoder alone has no prefix; in a model with heads it is called "bert".
        stored = f"{of_head if name.startswith(HEADS_PREFIXES) else 'bert.'}{name}"
        prefixes = stored_prefixes(name, model.config)
        values = _cast(name, tensor, dtype)
        for prefix, value in zip(prefixes, values if len(prefixes) > 1 else [values], strict=True):
            tensors[prefix + (stored if has_head else name)] = value
    config = _config_on_disk(model, dtype)
    path = folder / CONFIG
    if path.exists() and path.read_bytes() != config.to_json_text().encode():
        path.unlink()  # it describes other weights than those to come
    write_sharded_weights(folder, tensors, shard_bytes)
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model_max_length=config.max_position_embeddings)
    config.to_json(path)


def _config_on_disk(model: StoredModel, dtype: str) -> BertConfig:
    """The config with the keys that Hugging Face reads a model's head from."""
    extra = {key: value for key, value in model.config.extra.items() if key not in _NOT_KEPT}
    own = "FeatureBased" if model.config.has_feature_encoder else ""
    extra |= {"architectures": [f"{own}{model.architecture}"], "dtype": dtype}
    if model.problem_type is not None:
        extra["problem_type"] = model.problem_type
    if model.classes is None:
        return replace(model.config, extra=extra)
    # Hugging Face reads the number of classes from here: without names, number them.
    names = model.labels or [f"LABEL_{i}" for i in range(model.classes)]
    return replace(model.config, id2label=dict(enumerate(names)), extra=extra)


def _cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # reported below
        cast = np.ascontiguousarray(tensor.astype(FLOATS[dtype], copy=False))
    if dtype != "float32" and not np.array_equal(np.isfinite(cast), np.isfinite(tensor)):
        raise InputError(
            f"{name} has values too large for {dtype} ({np.abs(tensor).max():.3g}): "
            "write bfloat16 or float32."
        )
    return cast

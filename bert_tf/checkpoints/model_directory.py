"""The model directory, in Hugging Face's format: config.json, model.safetensors, vocab.txt."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from bert_tf.checkpoints import weight_names, weights_files
from bert_tf.checkpoints.formats import Location, read_config
from bert_tf.checkpoints.stored_model import StoredModel, left_out
from bert_tf.checkpoints.weight_names import FEATURE_BASED, head_prefixes
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.atomic import claim
from bert_tf.files.model_files import CONFIG

SHARD_BYTES = 5 * 1000**3
# Keys of config.json that are written anew, or say what no longer holds.
_NOT_KEPT = (
    "architectures",
    "dtype",
    "num_labels",
    "problem_type",
    "tie_word_embeddings",
    "torch_dtype",
)


def read_weights(folder: Path) -> StoredModel:
    """Reads config.json and the weights, including a decoder's copies of other weights."""
    config = read_config(folder)
    path = weights_files.weights_path(folder)
    return read_named(config, path, weights_files.read_tensors(path))


def read_named(
    config: BertConfig, path: Path, tensors_of_file: Iterable[tuple[str, np.ndarray]]
) -> StoredModel:
    """Reads a model from tensors named as in Hugging Face's classes, of either framework."""
    parts_of: dict[str, dict[str, np.ndarray]] = {}  # canonical name -> prefix -> tensor
    names: dict[str, str] = {}  # canonical name -> name in the file
    others = []
    known = ("embeddings.", "encoder.", "pooler.", *head_prefixes())
    for stored_name, tensor in tensors_of_file:
        name = stored_name
        if name.endswith(weights_files.TENSORFLOW_SUFFIX):
            name, tensor = weights_files.pytorch_form(name, tensor, config)
        if config.is_distilbert:
            name = weight_names.distilbert_name(name, inverse=True)
        canonical = weight_names.canonical_name(name)
        if not canonical.startswith(known) and not name.startswith("bert."):
            others.append(name)
            continue
        for prefix in config.architecture.stored_prefixes(canonical):
            if not name.startswith(prefix):
                continue  # of the other encoder, or of Hugging Face's computation, not ours
            parts = parts_of.setdefault(canonical, {})
            if prefix in parts:
                raise InputError(
                    f"{path} contains a weight twice, as {names[canonical]} and {stored_name}: if "
                    "these are two models, delete one of them (in HDF5, its group) in a copy of "
                    "the file."
                )
            parts[prefix] = tensor
            names[canonical] = stored_name
    tensors = {}
    for canonical, parts in parts_of.items():
        prefixes = config.architecture.stored_prefixes(canonical)
        if parts.keys() != set(prefixes) or len({part.shape for part in parts.values()}) > 1:
            raise InputError(
                f"{path}: {canonical} is missing or has another shape in one encoder: restore it."
            )
        values = [parts[prefix] for prefix in prefixes]
        tensors[canonical] = values[0] if len(values) == 1 else np.stack(values)
    return StoredModel(config, tensors, path, notes=left_out(others))


def read_hugging_face(location: Location) -> StoredModel:
    """Reads a model without its tokenizer; refuses one that Hugging Face has no class for."""
    model = read_weights(location.folder)
    if model.config.has_feature_encoder:
        by = "bilstm" if model.config.feature_layers is None else "features_only"
        raise InputError(
            f"{location.folder} was trained with --{by}, and no other library has a class for such "
            "a model: convert the model that it was trained from."
        )
    model.tie_decoder()
    return model


def write_hugging_face(model: StoredModel, folder: Path, dtype: str, shard_bytes: int) -> None:
    """Writes a model directory, config.json last: without it there is no model yet."""
    has_head = any(model.has(part) for part in head_prefixes())
    head_prefix = FEATURE_BASED if model.config.has_feature_encoder else ""
    tensors = {}
    for name, tensor in model.tensors.items():
        # The encoder alone has no prefix; in a model with heads it is called "bert".
        stored = f"{head_prefix if name.startswith(head_prefixes()) else 'bert.'}{name}"
        prefixes = model.config.architecture.stored_prefixes(name)
        values = _cast(name, tensor, dtype)
        for prefix, value in zip(prefixes, values if len(prefixes) > 1 else [values], strict=True):
            on_disk = prefix + (stored if has_head else name)
            if model.config.is_distilbert:
                on_disk = weight_names.distilbert_name(on_disk)
            tensors[on_disk] = value
    config = _config_on_disk(model, dtype)
    path = folder / CONFIG
    if path.exists() and path.read_bytes() != config.to_json_text().encode():
        claim(path)
        path.unlink()  # it describes other weights than those to come
    weights_files.write_sharded_weights(folder, tensors, shard_bytes)
    if model.tokenizer is not None:
        tokenizer_class = f"{'Distil' * config.is_distilbert}BertTokenizer"
        model.tokenizer.save(folder, config.max_position_embeddings, tokenizer_class)
    config.to_json(path)


def _config_on_disk(model: StoredModel, dtype: str) -> BertConfig:
    """The config with the keys that Hugging Face reads a model's head from."""
    extra = {key: value for key, value in model.config.extra.items() if key not in _NOT_KEPT}
    class_prefix = "FeatureBased" if model.config.has_feature_encoder else ""
    name = model.architecture
    if model.config.is_distilbert:
        name = re.sub("^Bert", "DistilBert", name)
    extra |= {"architectures": [f"{class_prefix}{name}"], "dtype": dtype}
    if model.problem_type is not None:
        extra["problem_type"] = model.problem_type
    if model.classes is None:
        return replace(model.config, extra=extra)
    # Hugging Face reads the number of classes from here: without names, number them.
    names = model.labels or [f"LABEL_{i}" for i in range(model.classes)]
    return replace(model.config, id2label=dict(enumerate(names)), extra=extra)


def _cast(name: str, tensor: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # reported below
        cast = np.ascontiguousarray(tensor.astype(weights_files.FLOATS[dtype], copy=False))
    if dtype != "float32" and not np.array_equal(np.isfinite(cast), np.isfinite(tensor)):
        raise InputError(
            f"{name} has values too large for {dtype} ({np.abs(tensor).max():.3g}): "
            "write bfloat16 or float32."
        )
    return cast

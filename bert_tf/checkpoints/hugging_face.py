"""Hugging Face's model directory, as files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from bert_tf.checkpoints.formats import CONFIG, Location
from bert_tf.checkpoints.safetensors_file import FLOATS, open_weights, write_sharded_weights
from bert_tf.checkpoints.stored_model import StoredModel, check_tensors, read_tokenizer
from bert_tf.checkpoints.weight_names import DECODER, check_tied, find_tensors
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

SHARD_BYTES = 5 * 1000**3


def read_hugging_face(location: Location, do_lower_case: bool | None = None) -> StoredModel:
    """Reads config.json, the safetensors file or files, and the tokenizer.

    Args:
        location: of the directory.
        do_lower_case: of a vocabulary without tokenizer_config.json.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others; the message names it.
    """
    folder = location.folder
    config = BertConfig.from_json(folder / CONFIG)
    notes: list[str] = []
    with open_weights(folder) as file:
        found = find_tensors(file)
        check_tied(file, found)
        tensors = {name: file.read(theirs) for name, theirs in found.items() if name != DECODER}
        path = file.path
    check_tensors(tensors, config, path)
    return StoredModel(config, tensors, read_tokenizer(folder, folder, do_lower_case, notes), notes)


def write_hugging_face(
    model: StoredModel, folder: Path, dtype: str = "float32", shard_bytes: int = SHARD_BYTES
) -> list[str]:
    """Writes a model directory.

    Args:
        model: what to write.
        folder: exists, and is empty.
        dtype: of the tensors, a key of `FLOATS`.
        shard_bytes: a weights file larger than this is written as several.

    Returns:
        The names of the files that hold the weights.

    Raises:
        InputError: a value is too large for `dtype`.
    """
    tensors = _cast(model.tensors, dtype)
    # The encoder alone has no prefix; in a model with heads it is called "bert".
    if any(model.has(part) for part in ("cls.", "classifier.", "qa_outputs.")):
        outside = ("cls.", "classifier.", "qa_outputs.")
        tensors = {
            name if name.startswith(outside) else f"bert.{name}": tensor
            for name, tensor in tensors.items()
        }
    files = write_sharded_weights(folder, tensors, shard_bytes)
    extra = {key: value for key, value in model.config.extra.items() if key != "torch_dtype"}
    extra |= {"architectures": [_architecture(model)], "dtype": dtype}
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model_max_length=model.config.max_position_embeddings)
    replace(model.config, id2label=_labels(model), extra=extra).to_json(folder / CONFIG)
    return files


def _cast(tensors: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    cast = {}
    for name, tensor in tensors.items():
        with np.errstate(over="ignore"):  # told below
            cast[name] = np.ascontiguousarray(tensor.astype(FLOATS[dtype], copy=False))
        if not np.array_equal(np.isfinite(cast[name]), np.isfinite(tensor)):
            raise InputError(
                f"{name} has values too large for {dtype} ({np.abs(tensor).max():.3g}): "
                "write bfloat16 or float32."
            )
    return cast


def _architecture(model: StoredModel) -> str:
    """Hugging Face's class for the parts that the model has."""
    said = (model.config.extra.get("architectures") or [""])[0]
    if model.has("classifier."):
        # Tokens and multiple choice are classified by a layer of the same name.
        same = ("BertForTokenClassification", "BertForMultipleChoice")
        return said if said in same else "BertForSequenceClassification"
    if model.has("qa_outputs."):
        return "BertForQuestionAnswering"
    return {
        (True, True): "BertForPreTraining",
        (True, False): "BertForMaskedLM",
        (False, True): "BertForNextSentencePrediction",
        (False, False): "BertModel",
    }[model.has("cls.predictions."), model.has("cls.seq_relationship.")]


def _labels(model: StoredModel) -> dict[int, str] | None:
    """The config's labels, or numbered ones where a classifier has none.

    Hugging Face reads the number of classes from them.
    """
    if not model.has("classifier."):
        return model.config.id2label
    classes = len(model.tensors["classifier.bias"])
    labels = model.config.id2label
    if labels is not None and len(labels) == classes:
        return labels
    return {i: f"LABEL_{i}" for i in range(classes)}

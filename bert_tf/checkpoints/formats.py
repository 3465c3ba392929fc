"""The format of a model on disk."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_tf.checkpoints.weights_files import H5, WEIGHTS, WEIGHTS_FILES
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.model_files import CONFIG, read_json
from bert_tf.files.storage import sha256

Format = Literal["hugging_face", "tf1", "keras_hub", "model_garden", "tf_hub"]
TITLES: dict[Format, str] = {
    "hugging_face": "a Hugging Face model directory",
    "tf1": "a checkpoint of the original code (TensorFlow 1)",
    "keras_hub": "a KerasHub preset",
    "model_garden": "a checkpoint of TensorFlow 2 (Model Garden or TFBert*)",
    "tf_hub": "a SavedModel (TF Hub or TFBert*)",
}


@dataclass(frozen=True)
class Location:
    format: Format
    folder: Path
    path: Path  # the folder; of a TensorFlow checkpoint its files' path without ".index"


def locate(source: StrPath) -> Location:
    """Finds the one model at a path, and its format.

    The path is a model's folder, one around it, or a prefix such as "models/bert_model.ckpt".
    """
    source = Path(source)
    if not source.is_dir():
        prefix = source.with_suffix("") if source.suffix == ".index" else source
        if prefix.with_name(f"{prefix.name}.index").is_file():
            return _checkpoint(prefix)
        if source.suffix == ".keras" and source.is_file():
            raise InputError(
                f"{source} is a Keras file: open it with keras.models.load_model, and write a "
                "model directory with its save_to_preset or with bert_tf.save_model."
            )
        if source.is_file():
            raise InputError(
                f"{source} is a file: give the folder that holds it with the model's {CONFIG} "
                "(unpack an archive), or the prefix of a TensorFlow checkpoint."
            )
        raise InputError(f"{source} does not exist: give the folder of a model.")
    if here := _find_in(source):
        return here
    children = (child for child in sorted(source.iterdir()) if child.is_dir())
    inside = [location for child in children if (location := _find_in(child))]
    if not inside:
        raise InputError(
            f"{source} contains no model: give a folder with {CONFIG} and {WEIGHTS} or {H5}, with "
            "a TensorFlow checkpoint (*.ckpt.index, bert_config.json), a KerasHub preset, or a "
            "SavedModel of TF Hub."
        )
    if len(inside) > 1:
        names = ", ".join(str(location.folder) for location in inside)
        raise InputError(f"{source} holds several models: give one of {names}.")
    return inside[0]


def read_config(directory: Path) -> BertConfig:
    """Reads config.json; refuses other formats, and names the command that converts them."""
    location = _find_in(directory) if directory.is_dir() else None
    if location is not None and location.format != "hugging_face":
        raise InputError(
            f"{directory} holds {TITLES[location.format]}: make a model directory of it with "
            f"bert-tf convert {directory} NEW_DIRECTORY, and give that one."
        )
    return BertConfig.from_json(directory / CONFIG)


def content_hash(directory: StrPath) -> str:
    """SHA-256 of the config and the weights of a model directory, whatever its path."""
    folder = Path(directory)
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.h5"))
    digest = hashlib.sha256()
    for path in filter(Path.is_file, [folder / CONFIG, *weights]):
        digest.update(bytes.fromhex(sha256(path)))
    return digest.hexdigest()


def _find_in(folder: Path) -> Location | None:
    indexes = sorted(folder.glob("*.index"))
    config = folder / CONFIG
    # A pickle, which is never read, does not hide a checkpoint beside it.
    weights = any((folder / name).exists() for name in WEIGHTS_FILES)
    is_tensorflow = bool(indexes) or (folder / "saved_model.pb").is_file()
    if not config.is_file() or (is_tensorflow and not weights):
        return _find_checkpoint(folder, indexes)
    with suppress(InputError):  # the reader of the format reports it
        if "registered_name" in read_json(config):
            return Location("keras_hub", folder, folder)
    return Location("hugging_face", folder, folder)


def _find_checkpoint(folder: Path, indexes: Sequence[Path]) -> Location | None:
    if not indexes and (folder / "saved_model.pb").is_file():
        return Location("tf_hub", folder, folder / "variables" / "variables")
    if len(indexes) < 2:
        return _checkpoint(indexes[0].with_suffix("")) if indexes else None
    import tensorflow as tf

    latest = tf.train.latest_checkpoint(str(folder))  # named in the file "checkpoint"
    if latest is None:
        names = ", ".join(str(index.with_suffix("")) for index in indexes)
        raise InputError(f"{folder} holds several checkpoints: give one of {names}.")
    return _checkpoint(folder / Path(latest).name)


def _checkpoint(prefix: Path) -> Location:
    from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import Checkpoint

    format: Format = "model_garden" if Checkpoint(prefix).is_object_based else "tf1"
    return Location(format, prefix.parent, prefix)

"""From any format to any other, in one step."""

import os
from dataclasses import dataclass
from pathlib import Path

from bert_tf.atomic import replace_directory
from bert_tf.checkpoints.formats import Format, Location, locate
from bert_tf.checkpoints.hugging_face import SHARD_BYTES, read_hugging_face, write_hugging_face
from bert_tf.checkpoints.keras_hub_preset import read_keras_hub, write_keras_hub
from bert_tf.checkpoints.model_garden_checkpoint import read_model_garden, write_model_garden
from bert_tf.checkpoints.stored_model import StoredModel, check_vocabulary
from bert_tf.checkpoints.tf1_checkpoint import read_tf1, write_tf1
from bert_tf.errors import InputError

_READ = {
    "hugging_face": read_hugging_face,
    "tf1": read_tf1,
    "keras_hub": read_keras_hub,
    "model_garden": read_model_garden,
}
_WRITE = {"tf1": write_tf1, "keras_hub": write_keras_hub, "model_garden": write_model_garden}


@dataclass(frozen=True)
class Conversion:
    """What `convert` did.

    Attributes:
        source: what was found.
        model: what was read, with notes on what was assumed or left out.
        files: the files written, by their path in the output.
    """

    source: Location
    model: StoredModel
    files: list[str]


def read_model(
    source: str | os.PathLike, do_lower_case: bool | None = None
) -> tuple[Location, StoredModel]:
    """Reads a model of any format.

    Args:
        source: as of `locate`.
        do_lower_case: whether the model is uncased, where its files do not say.

    Raises:
        InputError: there is no model, or it is damaged or incomplete; the message names the file.
    """
    location = locate(source)
    model = _READ[location.format](location, do_lower_case)
    check_vocabulary(model, location.folder)
    return location, model


def convert(
    source: str | os.PathLike,
    output: str | os.PathLike,
    to: Format = "hugging_face",
    *,
    dtype: str = "float32",
    do_lower_case: bool | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Conversion:
    """Writes a model in another format. The folder appears whole or not at all.

    Weights keep their bits, but for a `dtype` that cannot hold them.

    Args:
        source: as of `locate`.
        output: folder to make.
        to: format to write.
        dtype: of the tensors of a Hugging Face directory, a key of `FLOATS`.
        do_lower_case: whether the model is uncased, where its files do not say.
        shard_bytes: size from which a Hugging Face directory has several weights files.
        overwrite: replace the folder if there is one.

    Raises:
        InputError: the source or the options cannot be used; the message says why.
    """
    output = Path(output)
    if output.exists() and not (overwrite and output.is_dir()):
        raise InputError(f"{output} is there already: name another folder, or give --overwrite.")
    if to != "hugging_face" and dtype != "float32":
        raise InputError(f"{dtype} is for Hugging Face directories; {to} is written in float32.")
    location, model = read_model(source, do_lower_case)
    if _holds(output, location.folder):
        raise InputError(f"{output} holds the model to convert: name another folder.")
    with replace_directory(output) as folder:
        if to == "hugging_face":
            write_hugging_face(model, folder, dtype, shard_bytes)
        else:
            _WRITE[to](model, folder)
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return Conversion(location, model, files)


def _holds(output: Path, folder: Path) -> bool:
    """Whether replacing `output` would remove `folder`."""
    return folder.resolve().is_relative_to(output.resolve())

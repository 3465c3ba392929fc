"""Conversion from any format to any other, in one step."""

import os
import shutil
from dataclasses import dataclass

from bert_tf.atomic import replace_directory
from bert_tf.checkpoints.formats import TITLES, Format, Location, locate
from bert_tf.checkpoints.hugging_face import SHARD_BYTES, read_hugging_face, write_hugging_face
from bert_tf.checkpoints.keras_hub_preset import read_keras_hub, write_keras_hub
from bert_tf.checkpoints.model_garden_checkpoint import read_model_garden, write_model_garden
from bert_tf.checkpoints.stored_model import StoredModel, check_vocabulary
from bert_tf.checkpoints.tf1_checkpoint import read_tf1, write_tf1
from bert_tf.errors import InputError
from bert_tf.outputs import check_output_folder

# Readers and writers. A reader takes the location and whether the model is uncased (None: not
# given) and returns a checked `StoredModel`; a writer takes a model and an empty folder. Both
# raise InputError for unusable files, and note every assumption and loss in the model's `notes`.
_READ = {
    "hugging_face": read_hugging_face,
    "tf1": read_tf1,
    "keras_hub": read_keras_hub,
    "model_garden": read_model_garden,
}
_WRITE = {"tf1": write_tf1, "keras_hub": write_keras_hub, "model_garden": write_model_garden}
# What fine-tuning keeps beside a model in Hugging Face's format: columns, length, task.
TASK_FILE = "task.json"
# Every file that a conversion writes.
_OURS = (
    "config.json", "model*.safetensors", "model.safetensors.index.json", "vocab.txt",
    "tokenizer_config.json", TASK_FILE, "bert_config.json", "bert_model.ckpt.*", "metadata.json",
    "model.weights.h5", "task.weights.h5", "tokenizer.json", "preprocessor.json",
    "assets/tokenizer/*",
)  # fmt: skip


@dataclass(frozen=True)
class Conversion:
    """Result of `convert`.

    Attributes:
        source: the model that was found.
        model: the model that was read, with notes on assumptions and losses.
        files: the files written, by their path in the output.
    """

    source: Location
    model: StoredModel
    files: list[str]


def read_model(
    source: str | os.PathLike, do_lower_case: bool | None = None
) -> tuple[Location, StoredModel]:
    """Reads a model of any format; the arguments are those of `convert`."""
    location = locate(source)
    model = _READ[location.format](location, do_lower_case)
    if model.tokenizer is None:
        model.notes.append("There is no vocabulary: put the model's vocab.txt beside it.")
        return location, model
    pieces, rows = model.tokenizer.vocabulary_size, model.config.vocab_size
    check_vocabulary(pieces, model.config, location.folder)
    if pieces < rows:
        model.notes.append(
            f"The model has {rows} embeddings for {pieces} pieces: the last {rows - pieces} are "
            "padding, and are kept."
        )
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

    Weights keep their bits, except in a `dtype` that cannot hold them.

    Args:
        source: path as of `locate`.
        output: folder to make.
        to: format to write.
        dtype: float type of the tensors in a Hugging Face directory, a key of `FLOATS`.
        do_lower_case: whether the model is uncased, if its files do not say.
        shard_bytes: size above which a Hugging Face directory has several weights files.
        overwrite: replace an earlier output of a conversion.

    Raises:
        InputError: the source, the output or the options cannot be used; the message says why.
    """
    if to != "hugging_face" and dtype != "float32":
        raise InputError(f"{dtype} is for Hugging Face directories; {to} is written in float32.")
    found = locate(source)
    target = check_output_folder(output, [found.folder], ours=_OURS, overwrite=overwrite)
    location, model = read_model(source, do_lower_case)
    task = location.folder / TASK_FILE
    has_task = location.format == "hugging_face" and task.is_file()
    with replace_directory(target) as folder:
        if to == "hugging_face":
            write_hugging_face(model, folder, dtype, shard_bytes)
        else:
            _WRITE[to](model, folder)
        if has_task and to == "hugging_face":
            shutil.copyfile(task, folder / TASK_FILE)
        elif has_task:
            model.notes.append(
                f"{TASK_FILE} (task, columns, length) is left out: {TITLES[to]} has no place "
                "for it."
            )
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    return Conversion(location, model, files)

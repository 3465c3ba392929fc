"""Conversion from any format to any other, in one step."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_tf.checkpoints import sentence_files
from bert_tf.checkpoints.formats import TITLES, Format, Location, locate
from bert_tf.checkpoints.model_directory import SHARD_BYTES, read_hugging_face, write_hugging_face
from bert_tf.checkpoints.other_formats import model_garden_checkpoint as model_garden
from bert_tf.checkpoints.other_formats.keras_hub_preset import read_keras_hub, write_keras_hub
from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import read_tf1, write_tf1
from bert_tf.checkpoints.sentence_files import copy_sentence_files, read_sentence_files
from bert_tf.checkpoints.stored_model import StoredModel, check_vocabulary
from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath, replace_directory
from bert_tf.files.model_files import (
    CONFIG,
    TASK_FILE,
    TOKENIZER_CONFIG,
    TOKENIZER_JSON,
    VOCABULARY,
    read_json,
)
from bert_tf.files.outputs import check_output_folder
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.tokenizer_files import read_tokenizer_files

# Writers take a model and an empty folder. Assumptions and losses are noted in the model.
_READ = {
    "hugging_face": read_hugging_face,
    "tf1": lambda location: read_tf1(location.path),
    "model_garden": model_garden.read_model_garden,
    "tf_hub": model_garden.read_tf_hub,
}
_WRITE = {"tf1": write_tf1, "keras_hub": write_keras_hub}
FILES = (  # every file that a conversion writes
    *(CONFIG, "model*.safetensors", "model.safetensors.index.json"),
    *(VOCABULARY, TOKENIZER_CONFIG, TASK_FILE),
    *("bert_config.json", "bert_model.ckpt.*"),
    *("metadata.json", "model.weights.h5", "task.weights.h5", TOKENIZER_JSON, "preprocessor.json"),
    "assets/tokenizer/*",
    *sentence_files.FILES,
)


@dataclass(frozen=True)
class Conversion:
    source: Location
    model: StoredModel  # with notes on assumptions and losses
    files: list[str]  # the files written, by their path in the output


def read_model(source: StrPath, do_lower_case: bool | None = None) -> tuple[Location, StoredModel]:
    """Reads a model of any format."""
    location = locate(source)
    if location.format == "keras_hub":  # whose tokenizer has files of its own
        model = read_keras_hub(location, do_lower_case)
        model.check_tensors()
    else:
        model = _READ[location.format](location)
        model.check_tensors()
        do_lower_case = model.do_lower_case if do_lower_case is None else do_lower_case
        model.tokenizer = _read_tokenizer(location, do_lower_case, model.notes)
    model.check_finite()
    if model.tokenizer is None:
        model.notes.append("There is no vocabulary: put the model's vocab.txt beside it.")
        return location, model
    pieces = model.tokenizer.vocabulary_size
    rows = model.config.vocab_size
    check_vocabulary(pieces, model.config, location.folder)
    if pieces < rows:
        model.notes.append(
            f"The model has {rows} embeddings for {pieces} pieces: the last {rows - pieces} are "
            "padding, and are kept."
        )
    return location, model


def convert(
    source: StrPath,
    output: StrPath,
    to: Format = "hugging_face",
    *,
    dtype: str = "float32",
    do_lower_case: bool | None = None,
    shard_bytes: int = SHARD_BYTES,
    layers: int | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Writes a model in another format. The folder appears whole or not at all.

    Weights keep their bits, except in a `dtype` that cannot hold them.

    Args:
        source: folder or prefix that `locate` takes.
        output: folder to make.
        to: format to write.
        dtype: float type of the tensors in a Hugging Face directory, a key of `FLOATS`.
        do_lower_case: whether the model is uncased, if its files do not say.
        shard_bytes: size above which a Hugging Face directory has several weights files.
        layers: number of encoder layers to keep (`StoredModel.keep_layers`); None for all.
        overwrite: replace an earlier output of a conversion.
    """
    is_directory = to == "hugging_face"
    if to not in ("hugging_face", *_WRITE):
        raise InputError(
            f"{to} can be read, not written: give one of hugging_face, {', '.join(_WRITE)}."
        )
    if not is_directory and dtype != "float32":
        raise InputError(f"{dtype} is for Hugging Face directories; {to} is written in float32.")
    target = check_output_folder(output, [locate(source).folder], ours=FILES, overwrite=overwrite)
    location, model = read_model(source, do_lower_case)
    if layers is not None:
        model.keep_layers(layers)
    if not is_directory and (direction := model.config.attention_direction) != "both":
        raise InputError(
            f"{location.folder} is a one-sided model (attention_direction {direction}), which {to} "
            "cannot represent: remove --to, or convert a BERT."
        )
    if not is_directory and model.config.is_distilbert:
        raise InputError(
            f"{location.folder} is a DistilBERT, which {to} cannot represent: remove --to"
        )
    with replace_directory(target) as folder:
        if is_directory:
            write_directory(location, model, folder, dtype, shard_bytes)
        else:
            _WRITE[to](model, folder)
            _note_what_is_lost(location, model, to)
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        # Files may have come meanwhile.
        check_output_folder(target, ours=FILES, overwrite=overwrite)
    return Conversion(location, model, files)


def write_directory(
    location: Location,
    model: StoredModel,
    folder: Path,
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a model read from `location` as a model directory, with the task's settings there."""
    write_hugging_face(model, folder, dtype, shard_bytes)
    if _task_settings(location):
        shutil.copyfile(location.folder / TASK_FILE, folder / TASK_FILE)
    copy_sentence_files(location.folder, folder, model.config)


def _task_settings(location: Location) -> dict[str, Any]:
    path = location.folder / TASK_FILE  # a preset has another file of this name
    return read_json(path) if location.format == "hugging_face" and path.is_file() else {}


def _note_what_is_lost(location: Location, model: StoredModel, to: Format) -> None:
    """Notes what other libraries' formats have no place for."""
    title = TITLES[to]
    settings = _task_settings(location)
    vectors = read_sentence_files(location.folder)
    if model.tokenizer is not None and model.tokenizer.added_tokens:
        names = ", ".join(token.content for token in model.tokenizer.added_tokens)
        model.notes.append(f"{title} does not match added tokens in texts: {names}.")
    if settings:
        names = ", ".join(name for name, value in settings.items() if value is not None)
        model.notes.append(f"{TASK_FILE} ({names}) is left out: {title} has no place.")
    if vectors:
        values = ", ".join(f"{name} {value!r}" for name, value in vectors.items())
        model.notes.append(
            f"How vectors of texts are made ({values}) is left out: {title} has no place."
        )


def _read_tokenizer(
    location: Location, do_lower_case: bool | None, notes: list[str]
) -> BertTokenizer | None:
    """Reads the tokenizer; `do_lower_case`, if not None, overrides its files."""
    folder = location.folder
    if location.format == "tf_hub" and (folder / model_garden.ASSETS / VOCABULARY).is_file():
        folder /= model_garden.ASSETS
    has_vocabulary = (folder / VOCABULARY).is_file()
    if not has_vocabulary and not (folder / TOKENIZER_JSON).is_file():
        return None
    files = read_tokenizer_files(folder)
    if not has_vocabulary:
        notes.append(f"{VOCABULARY} is made from {TOKENIZER_JSON}.")
    if do_lower_case is None and files.casing == "":
        raise InputError(
            f"{folder / VOCABULARY}: no file says whether the model is uncased: give convert "
            "--do_lower_case true if its training text was lower-cased, else --do_lower_case false."
        )
    if do_lower_case is None and files.casing:
        notes.append(files.casing)
    elif do_lower_case is not None:
        files.switches["do_lower_case"] = do_lower_case
    return BertTokenizer.from_files(files)

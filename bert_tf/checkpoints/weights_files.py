"""Weights files, one or several to a model; each appears whole or not at all.

Safetensors; and, to read, what transformers 4 saves of its TensorFlow classes (`TFBert*`):
tf_model.h5, several such files with an index, or safetensors. Tensors have the variables' names,
such as "bert/encoder/layer_._0/output/dense/kernel:0", in safetensors without the first part, which
leaves a classifier's kernel as "kernel:0".
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.atomic import replace_file, temporary_folder, write_text
from bert_tf.files.model_files import read_json

Tensors = Mapping[str, np.ndarray]
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
H5 = "tf_model.h5"
H5_INDEX = f"{H5}.index.json"
WEIGHTS_FILES = (WEIGHTS, INDEX, H5, H5_INDEX)  # the preferred first
PICKLE = "pytorch_model.bin"
_LFS = b"version https://git-lfs"  # begins what a clone without Git LFS has in place of a file

# Float types by their names in config.json and in the options of `bert-tf convert`.
FLOATS: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_FLOATS_IN_FILES = ("F64", "F32", "F16", "BF16")
_NO_WEIGHTS = ("embeddings.position_ids", "embeddings.token_type_ids")  # in older PyTorch models
TENSORFLOW_SUFFIX = ":0"  # ends every name of TensorFlow's classes, and none of PyTorch's
# The part of such a name after which it says the same as PyTorch's.
_PARTS = (
    "embeddings",
    "encoder",
    "pooler",
    "predictions",
    "seq_relationship",
    "classifier",
    "qa_outputs",
    *("transformer", "pre_classifier"),  # DistilBERT's
    *("vocab_transform", "vocab_layer_norm", "vocab_projector"),
)
_LAST = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}
# Hugging Face's class -> its head's name, where safetensors do not keep it.
_HEADS = {"QuestionAnswering": "qa_outputs"} | dict.fromkeys(
    ("SequenceClassification", "TokenClassification", "MultipleChoice"), "classifier"
)


def weights_path(directory: Path) -> Path:
    """The weights file of a model directory, or the index of several; refuses a pickle."""
    if (adapter := directory / "adapter_config.json").exists():
        raise InputError(
            f"{adapter}: PEFT adapters are not supported: merge them with "
            "model.merge_and_unload().save_pretrained(FOLDER), or delete the file to load the "
            "model without them."
        )
    for name in WEIGHTS_FILES:
        if (directory / name).exists():
            return check_regular(directory / name)
    others = sorted(directory.glob("*.h5"))  # as save_weights was told
    if len(others) == 1:
        return check_regular(others[0])
    if (directory / PICKLE).exists() or (directory / f"{PICKLE}.index.json").exists():
        script = (
            "import glob, torch, safetensors.torch as s; "
            "s.save_file({k: v.clone(memory_format=torch.contiguous_format) "
            f'for f in glob.glob("{directory}/pytorch_model*.bin") '
            'for k, v in torch.load(f, map_location="cpu", weights_only=True).items()}, '
            f'"{directory / WEIGHTS}", {{"format": "pt"}})'
        )
        raise InputError(
            f"{directory} holds {PICKLE}, a pickle, which can run code and is never read: write "
            f"its tensors, heads included, to {WEIGHTS} with PyTorch, which then loads no code: "
            f"python -c '{script}'"
        )
    cure = f"rename the one to read to {H5}" if others else "give a complete model directory"
    raise InputError(f"{directory / WEIGHTS} does not exist: {cure}.")


def check_regular(path: Path) -> Path:
    """The path; refuses a pipe, a device, a folder or a pointer of Git LFS in place of a file."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a regular file: give a complete model directory.")
    if path.exists():
        with path.open("rb") as file:
            is_pointer = file.read(len(_LFS)) == _LFS
        if is_pointer:
            raise InputError(f"{path} is a pointer of Git LFS: fetch the file with git lfs pull.")
    return path


def read_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Reads tensors, in float32, from a weights file or from all files that an index lists."""
    read = _read_h5 if ".h5" in path.name else _read_safetensors
    if path.name not in (INDEX, H5_INDEX):
        yield from read(path)
        return
    try:
        listed = read_json(path)["weight_map"]
        names = sorted(set(listed.values()))
        if any(Path(name).name != name for name in names):
            raise ValueError("weight_map names files of other folders")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is not an index of weights files ({error!r}): copy it again."
        ) from None
    for file in map(path.with_name, names):
        check_regular(file)
        missing = {_stored_name(tensor) for tensor, home in listed.items() if home == file.name}
        for name, tensor in read(file):
            if name in missing:
                missing.remove(name)
                yield name, tensor
        if missing:
            raise InputError(
                f"{file} lacks {min(missing)}, which {path.name} lists: copy both again."
            )


def _read_safetensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with safe_open(str(path), framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118
                kind = file.get_slice(name).get_dtype()
                if name.endswith(_NO_WEIGHTS):
                    continue
                if kind not in _FLOATS_IN_FILES:
                    raise InputError(
                        f"{path}: tensor {name} is of type {kind}, not a float: quantized weights "
                        "cannot be loaded; use the original ones."
                    )
                yield name, file.get_tensor(name).astype(np.float32, copy=False)
    except SafetensorError as error:
        raise InputError(f"{path} is damaged or cut short ({error}): copy it again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.") from None


def _read_h5(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Reads names and tensors, in float32, of an HDF5 file of Keras 2, without external links."""
    seen: dict[str, np.ndarray] = {}
    try:
        with h5py.File(path, "r") as file:
            names: list[str] = []
            file.visit(names.append)
            arrays = {
                name: file[name]
                for name in names
                if isinstance(file[name], h5py.Dataset)
                and not name.startswith("optimizer_weights/")
            }
            if not any(name.endswith(TENSORFLOW_SUFFIX) for name in arrays):
                raise InputError(
                    f"{path} does not name its variables (files of Keras 3 do not): open it in the "
                    "program that wrote it, and save the model as a preset or with save_pretrained."
                )
            for name, data in arrays.items():
                if data.dtype.kind != "f":
                    raise InputError(
                        f"{path}: {name} is of type {data.dtype}, not a float: save it in float32."
                    )
                is_stored = not data.external and not data.is_virtual
                if not is_stored or data.id.get_storage_size() != data.nbytes:
                    raise InputError(f"{path}: {name} is stored outside the file: save it inside.")
                tensor = data[()].astype(np.float32, copy=False)
                # Keras writes a layer's weights for each layer that holds it.
                shared = name.partition("/")[2]
                if shared not in seen or not np.array_equal(seen[shared], tensor):
                    seen[shared] = tensor
                    yield name, tensor
    except (OSError, RuntimeError, KeyError) as error:
        raise InputError(f"{path} is damaged or cut short ({error}): copy it again.") from None


def _stored_name(listed: str) -> str:
    """The name in the file of a tensor that an index lists: without the variable's first part."""
    rest = listed.partition("/")[2]
    return rest if rest and listed.endswith(TENSORFLOW_SUFFIX) else listed


def pytorch_form(name: str, tensor: np.ndarray, config: BertConfig) -> tuple[str, np.ndarray]:
    """The name and the tensor that PyTorch's class has for a variable, whose name ends with ":0".

    Dense kernels are transposed, to [out, in]. A variable of no part of a BERT keeps its name; one
    of a head that neither its name nor the config tells is refused.
    """
    *parts, last = name.removesuffix(TENSORFLOW_SUFFIX).split("/")
    if indexes := [index for index, part in enumerate(parts) if part in _PARTS]:
        parts = parts[indexes[-1] :]
    elif not parts and last in ("kernel", "bias"):
        architectures = str(config.extra.get("architectures"))
        parts = [head for architecture, head in _HEADS.items() if architecture in architectures][:1]
        if not parts:
            raise InputError(
                f"{name} may belong to any head: write the class that saved it into config.json, "
                'such as "architectures": ["BertForSequenceClassification"], not '
                f"{architectures}, or save it as {H5}."
            )
    else:
        return name, tensor
    prefix = ["cls"] if parts[0] in ("predictions", "seq_relationship") else []
    renamed = ".".join([*prefix, *parts, _LAST.get(last, last)]).replace("layer_._", "layer.")
    return renamed, tensor.T if last == "kernel" else tensor


def write_sharded_weights(directory: Path, tensors: Tensors, shard_bytes: int) -> None:
    """Writes one file, or several of `shard_bytes` (or one larger tensor) and their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        # Hugging Face refuses a file that does not name the framework it came from.
        write_tensors(directory / file, {name: tensors[name] for name in names}, {"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_text(directory / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")


def write_tensors(path: Path, tensors: Tensors, metadata: dict[str, str]) -> None:
    """Writes one file. If that fails (`OSError`, a full disk), an older file stays as it was."""
    # safetensors writes a temporary file of its own first. After a kill, it is removed with the
    # folder that holds it, whose name shows that it is ours.
    with replace_file(path) as temporary, temporary_folder(path) as folder:
        temporary.touch()
        mode = temporary.stat().st_mode
        file = folder / path.name
        try:
            save_file(dict(tensors), file, metadata=metadata)
        except SafetensorError as error:
            number = re.search(r"\(os error (\d+)\)", str(error))  # it has no attribute for it
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        file.chmod(mode)  # safetensors gives access to the owner alone
        file.replace(temporary)

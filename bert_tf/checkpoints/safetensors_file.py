"""Reading and writing safetensors files, one or several to a model."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.atomic import write_text
from bert_tf.errors import InputError
from bert_tf.tensor_files import write_tensors

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
PICKLE = "pytorch_model.bin"

# Float types by their names in config.json and in the options of `bert-tf convert`.
FLOATS: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_FLOATS_IN_FILES = ("F64", "F32", "F16", "BF16")
# Position numbers, which PyTorch models once saved with their weights.
_NO_WEIGHTS = ("embeddings.position_ids", "embeddings.token_type_ids")


def weights_path(directory: Path) -> Path:
    """The weights file of a model directory, or the index of several; refuses a pickle."""
    for name in (WEIGHTS, INDEX):
        if (directory / name).exists():
            return directory / name
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
    raise InputError(f"{directory / WEIGHTS} does not exist: give a complete model directory.")


def read_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and tensors, in float32, of a safetensors file or of all files that an index lists."""
    if path.name != INDEX:
        yield from _read_file(path)
        return
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(listed.values()))
        if any(Path(name).name != name for name in names):
            raise ValueError("weight_map names files of other folders")
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no index of safetensors files ({error!r}): copy it again."
        ) from None
    for file in names:
        missing = {tensor for tensor, home in listed.items() if home == file}
        for name, tensor in _read_file(path.with_name(file)):
            if name in missing:
                missing.remove(name)
                yield name, tensor
        if missing:
            raise InputError(
                f"{path.with_name(file)} lacks {min(missing)}, which {path.name} says it holds: "
                "copy the files again."
            )


def _read_file(path: Path) -> Iterator[tuple[str, np.ndarray]]:
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
        raise InputError(
            f"{path} is damaged or cut short ({error}): copy or save it again."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}.") from None


def write_sharded_weights(
    directory: Path, tensors: Mapping[str, np.ndarray], shard_bytes: int
) -> list[str]:
    """Writes model.safetensors; several files and their index if all exceed `shard_bytes`.

    Hugging Face's names. A tensor larger than `shard_bytes` has a file of its own. Returns the
    names of the files.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    files = {WEIGHTS: shards[0]}
    if len(shards) > 1:
        names = (f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards)))
        files = dict(zip(names, shards, strict=True))
    for name, shard in files.items():
        # Hugging Face refuses a file that does not name the framework it came from.
        write_tensors(directory / name, shard, {"format": "pt"})
    if len(files) == 1:
        return [WEIGHTS]
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {tensor: name for name, shard in files.items() for tensor in shard},
    }
    write_text(directory / INDEX, json.dumps(index, indent=2, sort_keys=True) + "\n")
    return [*files, INDEX]

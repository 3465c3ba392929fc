"""Reading and writing safetensors files, one or several to a model."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError
from bert_tf.tensor_files import write_tensors

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
PICKLE = "pytorch_model.bin"

# As a model directory and `bert-tf convert` name them.
FLOATS: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_FLOATS_IN_FILES = ("F64", "F32", "F16", "BF16")


class SafetensorsFile:
    """The tensors of one file, each read from disk when asked for.

    Use it as a context manager.

    Args:
        path: the file.

    Raises:
        InputError: if the file cannot be read or is damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        try:
            self._file = safe_open(str(self.path), framework="numpy")
        except SafetensorError as error:
            raise InputError(
                f"{self.path} is damaged or cut short ({error}): copy or save it again."
            ) from None
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error}.") from None

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, traceback)

    def names(self) -> list[str]:
        """The tensors' names."""
        return list(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """A tensor, in float32 whichever float type the file keeps.

        Raises:
            InputError: if the tensor is not of a float type.
        """
        kind = self._file.get_slice(name).get_dtype()
        if kind not in _FLOATS_IN_FILES:
            raise InputError(
                f"{self.path}: tensor {name} is of type {kind}, not a float: "
                "quantized weights cannot be loaded; use the original ones."
            )
        return self._file.get_tensor(name).astype(np.float32, copy=False)


class ShardedSafetensors:
    """The tensors of the several files that a model.safetensors.index.json lists.

    It is used as a `SafetensorsFile`.

    Args:
        path: the index.

    Raises:
        InputError: if the index or a file cannot be read, or a file lacks a tensor.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        try:
            listed = json.loads(self.path.read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(listed.values()))
            if any(Path(name).name != name for name in names):
                raise ValueError("weight_map names files of other folders")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self.path} is no index of safetensors files ({error!r}): copy it again."
            ) from None
        with ExitStack() as opened:
            files = {
                name: opened.enter_context(SafetensorsFile(self.path.with_name(name)))
                for name in names
            }
            held = {name: set(file.names()) for name, file in files.items()}
            for tensor, name in listed.items():
                if tensor not in held[name]:
                    raise InputError(
                        f"{self.path.with_name(name)} lacks {tensor}, which {self.path.name} "
                        "says it holds: copy the files again."
                    )
            self._opened = opened.pop_all()
        self._home = {tensor: files[name] for tensor, name in listed.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._opened.__exit__(kind, error, traceback)

    def names(self) -> list[str]:
        """The tensors' names."""
        return list(self._home)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        return self._home[name].shape(name)

    def read(self, name: str) -> np.ndarray:
        """A tensor, in float32 whichever float type the file keeps."""
        return self._home[name].read(name)


def open_weights(directory: Path) -> SafetensorsFile | ShardedSafetensors:
    """Opens the weights of a model directory.

    Raises:
        InputError: if there are none, they are damaged, or there is only a pickle.
    """
    if (directory / WEIGHTS).exists():
        return SafetensorsFile(directory / WEIGHTS)
    if (directory / INDEX).exists():
        return ShardedSafetensors(directory / INDEX)
    if (directory / PICKLE).exists() or (directory / f"{PICKLE}.index.json").exists():
        raise InputError(
            f"{directory} holds {PICKLE}, a pickle, which can run code and is never read: where "
            "you trust it, save it anew with Hugging Face: python -c 'from transformers import "
            f'BertForPreTraining as B; B.from_pretrained("{directory}").save_pretrained('
            f'"{directory}")\''
        )
    raise InputError(f"{directory / WEIGHTS} does not exist: give a complete model directory.")


def write_weights(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes one weights file, whole or not at all."""
    # Hugging Face refuses a file that does not name the framework it came from.
    write_tensors(path, tensors, {"format": "pt"})


def write_sharded_weights(
    directory: Path, tensors: Mapping[str, np.ndarray], shard_bytes: int
) -> list[str]:
    """Writes tensors into as many files as it takes, as Hugging Face names them.

    Args:
        directory: exists, and holds no weights yet.
        tensors: by name.
        shard_bytes: a file is begun where the one before would grow beyond this; a tensor larger
            than that has a file of its own.

    Returns:
        The names of the files: model.safetensors if one is enough, else several and their index.
    """
    shards: list[dict[str, np.ndarray]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    if len(shards) == 1:
        write_weights(directory / WEIGHTS, tensors)
        return [WEIGHTS]
    stem = WEIGHTS.removesuffix(".safetensors")
    names = [f"{stem}-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        write_weights(directory / name, shard)
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {
            tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard
        },
    }
    with replace_file(directory / INDEX) as temporary:
        temporary.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return [*names, INDEX]

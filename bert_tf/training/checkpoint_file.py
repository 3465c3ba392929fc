"""One checkpoint, one safetensors file, with a checksum of all that is in it."""

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.tensor_files import write_tensors

_CHECKSUM = "sha256"


class DamagedCheckpointError(Exception):
    """A file that is no checkpoint, or not the one that was written."""


def write_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Writes a checkpoint that appears whole or not at all.

    Args:
        path: the file.
        tensors: by name; any shapes, any dtypes that safetensors has.
        metadata: kept beside the tensors, and under the same checksum.

    Raises:
        OSError: the file cannot be written (a full disk: `errno.ENOSPC`); an older one at `path`
            is left as it was.
    """
    write_tensors(path, tensors, {**metadata, _CHECKSUM: _checksum(tensors, metadata)})


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a checkpoint, compared with its checksum.

    Raises:
        DamagedCheckpointError: it is cut short or altered, or cannot be read.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(str(error)) from error
    checksum = metadata.pop(_CHECKSUM, None)
    if checksum is None:
        raise DamagedCheckpointError("it holds no checksum")
    if checksum != _checksum(tensors, metadata):
        raise DamagedCheckpointError("its checksum is another")
    return tensors, metadata


def _checksum(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """SHA-256 of the metadata and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.name, tensor.shape]).encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

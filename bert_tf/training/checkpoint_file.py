"""A checkpoint: one safetensors file with a checksum of its content."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.tensor_files import write_tensors

_CHECKSUM = "sha256"


class DamagedCheckpointError(Exception):
    """A file that is not a checkpoint, or not as it was written."""


def write_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Writes tensors and texts by name, under one checksum; see `write_tensors`."""
    write_tensors(path, tensors, {**metadata, _CHECKSUM: _checksum(tensors, metadata)})


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a checkpoint, checked against its checksum.

    Raises:
        DamagedCheckpointError: the file is truncated or altered, or cannot be read.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    checksum = metadata.pop(_CHECKSUM, None)
    if checksum is None:
        raise DamagedCheckpointError("no checksum")
    if checksum != _checksum(tensors, metadata):
        raise DamagedCheckpointError("checksum mismatch")
    return tensors, metadata


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of a checkpoint, unchecked; raises as `read_checkpoint`."""
    with _opened(path) as file:
        return file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(str(error)) from error


def _checksum(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """SHA-256 of the metadata and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.name, tensor.shape]).encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

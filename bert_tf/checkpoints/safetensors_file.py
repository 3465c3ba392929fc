"""Reading a safetensors file."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import ml_dtypes  # noqa: F401  (names bfloat16 to numpy)
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.errors import InputError

_FLOATS = ("F64", "F32", "F16", "BF16")


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
        if kind not in _FLOATS:
            raise InputError(
                f"{self.path}: tensor {name} is of type {kind}, not a float: "
                "quantized weights cannot be loaded; use the original ones."
            )
        return self._file.get_tensor(name).astype(np.float32, copy=False)

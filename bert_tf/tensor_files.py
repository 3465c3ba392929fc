"""Safetensors files that appear whole or not at all."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from bert_tf.atomic import replace_file


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Writes a safetensors file of tensors by name, with strings by name as metadata.

    Raises:
        OSError: the file cannot be written (a full disk: `errno.ENOSPC`); an older file at
            `path` is not touched.
    """
    with replace_file(path) as temporary:
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            save_file(dict(tensors), temporary, metadata=metadata)
        except SafetensorError as error:  # the number is in its text alone
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            code = int(number.group(1))
            raise OSError(code, os.strerror(code), str(path)) from error
        temporary.chmod(mode)  # safetensors gives access to the owner alone

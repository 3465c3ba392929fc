"""Versions of a model that are the same in other types, and the work by which they are compared.

The ranges of int8 are measured in `bert_tf.networks.tensorflow.int8`.
"""

import contextlib
import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.processor import best_seconds

TYPES_FILE = "assets.extra/types.json"
_SECONDS = 0.9  # of measuring all works
_LONG = 100  # words of a long text
_BATCH = 16  # texts of a batch


def versions(folder: str | Path) -> dict[int, Path]:
    """Number -> folder of each version in a model's folder, the newest last.

    As in TensorFlow Serving, whose protocols carry int64, a larger number is no version.
    """
    folder = Path(folder)
    children = [*folder.iterdir()] if folder.is_dir() else []
    numbered = [path for path in children if path.name.isascii() and path.name.isdecimal()]
    versions = sorted((int(path.name), path) for path in numbered if path.is_dir())
    return {number: path for number, path in versions if number < 2**63}


def type_of(directory: Path) -> str:
    """The type that a version computes in."""
    return str(_read(directory).get("type", "float32"))


def same_in_other_types(directory: Path) -> dict[str, Path]:
    """Type -> version of the same model, this one among them, those that are there."""
    numbers = _read(directory).get("versions", {})
    paths = {dtype: directory.parent / str(number) for dtype, number in numbers.items()}
    return {dtype: path for dtype, path in paths.items() if (path / "saved_model.pb").is_file()}


def _read(directory: Path) -> dict[str, Any]:
    content = None
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((directory / TYPES_FILE).read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def types_text(dtype: str, versions: Mapping[str, int]) -> str:
    """The content of `TYPES_FILE`."""
    return json.dumps({"type": dtype, "versions": dict(versions)}, indent=1)


def load_error(directory: Path, reason: str) -> str | None:
    """What to do where a version's operations are missing; None for other reasons."""
    if re.search("Op type not registered 'Fast(Bert|Wordpiece)", reason):
        return (
            "its tokenizer needs TF Text: pip install tensorflow-text, or export the model with "
            "--tokenizer_ops core"
        )
    is_missing = "_QuantizedMatMul" in reason and ("OpKernel" in reason or "Op type" in reason)
    if not (is_missing and type_of(directory) == "int8"):
        return None
    twin = same_in_other_types(directory).get("float32")
    cure = f"use {twin}, the same model in float32" if twin else "export the model in float32"
    return f"int8 needs an x86-64 processor and TensorFlow 2.17 or later with oneDNN: {cure}"


def milliseconds(
    run: Callable[[dict[str, np.ndarray]], Any], texts: dict[str, Any]
) -> dict[str, float]:
    """The best time of a short text, of a long one and of a batch; `texts` are of a request."""
    runs = {name: functools.partial(run, inputs) for name, inputs in works_of(texts).items()}
    return {name: 1e3 * best for name, best in best_seconds(runs, _SECONDS).items()}


def works_of(texts: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """A short text, a long one and a batch, as inputs by name; `texts` are of a request."""
    from bert_tf.serving.warmup_requests import batch_of, lengthened

    batch = [lengthened(texts, words) for words in np.linspace(9, _LONG, _BATCH).astype(int)]
    works = {"short": [texts], "long": [lengthened(texts, _LONG)], "batch": batch}
    return {name: batch_of(rows) for name, rows in works.items()}

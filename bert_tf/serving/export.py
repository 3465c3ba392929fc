"""SavedModels for TensorFlow Serving: `saved_models/<name>/<version>/`."""

import re
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import replace_directory
from bert_tf.errors import InputError
from bert_tf.serving.checks import refuse_unservable_ops
from bert_tf.serving.signatures import TextClassifier


def versions(directory: str | Path) -> list[int]:
    """The versions under `saved_models/<name>`, the newest last."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    found = (int(p.name) for p in directory.iterdir() if p.is_dir() and p.name.isdecimal())
    return sorted(found)


def export(
    module: TextClassifier, name: str, *, root: str | Path = "saved_models", version: int = 0
) -> Path:
    """Writes `module` as `<root>/<name>/<version>/`, whole or not at all.

    Args:
        module: what is served.
        name: of the model, as TensorFlow Serving's clients ask for it.
        root: folder of all exports.
        version: a positive number that is still free; 0 takes the one after the newest.

    Returns:
        The folder of the version.

    Raises:
        InputError: the name or version cannot be used, or the graph holds an op that no released
            TensorFlow Serving links.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"{name!r} cannot name a served model: use letters, digits, . _ and -")
    directory = Path(root) / name
    existing = versions(directory)
    if version < 0 or version in existing:
        raise InputError(
            f"{directory / str(version)} cannot be written: give --version a free positive "
            f"number, or leave it out for {max(existing, default=0) + 1}"
        )
    version = version or max(existing, default=0) + 1
    with replace_directory(directory / str(version)) as temporary:
        tf.saved_model.save(module, str(temporary), signatures=module.signature())
        refuse_unservable_ops(temporary)
    return directory / str(version)

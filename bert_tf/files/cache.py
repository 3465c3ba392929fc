"""The cache of this user: copies of remote files, and what was measured on this machine."""

import contextlib
import os
from pathlib import Path

from bert_tf.errors import InputError

CACHE_FOLDER = "BERT_TF_CACHE"  # environment variables: the folder, and its bound in gigabytes
CACHE_GIGABYTES = "BERT_TF_CACHE_GB"


def cache_folder(kind: str = "") -> Path:
    """The folder of one kind of cached files; RuntimeError for a user without a home."""
    if given := os.environ.get(CACHE_FOLDER):
        return Path(given).expanduser() / kind
    of_user = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (of_user if of_user.is_absolute() else Path.home() / ".cache") / "bert-tf" / kind


def cache_bytes() -> int:
    """The bound of each kind of cached files; InputError if it is no number."""
    given = os.environ.get(CACHE_GIGABYTES) or "20"
    with contextlib.suppress(ValueError, OverflowError):
        if (found := int(float(given) * 1e9)) >= 0:
            return found
    raise InputError(f"{CACHE_GIGABYTES} is {given!r}: give a number of gigabytes, such as 20")

"""The cache of this user: copies of remote files, and what was measured on this machine."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from bert_tf.errors import InputError
from bert_tf.files.storage import Folder, find_objects

CACHE_FOLDER = "BERT_TF_CACHE"  # environment variables: the folder, and its bound in gigabytes
CACHE_GIGABYTES = "BERT_TF_CACHE_GB"
_KEY_LENGTH = 16  # of the names of copies


def cache_folder(kind: str = "") -> Path:
    """The folder of one kind of cached files; RuntimeError for a user without a home."""
    if folder := os.environ.get(CACHE_FOLDER):
        return Path(folder).expanduser() / kind
    caches = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "bert-tf" / kind


def cache_bytes() -> int:
    """The bound of each kind of cached files; InputError if it is no number."""
    gigabytes = os.environ.get(CACHE_GIGABYTES) or "20"
    with contextlib.suppress(ValueError, OverflowError):
        if (bound := int(float(gigabytes) * 1e9)) >= 0:
            return bound
    raise InputError(f"{CACHE_GIGABYTES} is {gigabytes!r}: give a number of gigabytes, such as 20")


def make_room(
    cache: Path, names: str, bound: float, *, needed: Path | None = None, left: float = 1.0
) -> int:
    """Removes the entries used longest ago if together they exceed a bound; returns the bytes left.

    Entries are the files and folders that match the pattern `names`. What stays takes at most the
    share `left` of the bound, unless `needed` alone is larger.
    """
    entries = []
    for entry in cache.glob(names):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            files = entry.rglob("*") if entry.is_dir() else [entry]
            size = sum(path.stat().st_size for path in files if path.is_file())
            entries.append((entry.stat().st_mtime_ns, size, entry))
    total = sum(size for _, size, _ in entries)
    if total > bound:
        for _, size, entry in sorted(entries):
            if total > left * bound and entry != needed:
                total -= size
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
    return total


def fetched(url: str) -> Path:
    """A local copy of the files of a URL, cached while they stay the same."""
    url = url.rstrip("/")
    states = find_objects(url)
    names = [object_url.removeprefix(f"{url}/") for object_url in states]
    if not names:
        raise InputError(f"{url}: no object there: check the name")
    if "config.json" not in names and "best/config.json" in names:
        raise InputError(f"{url} is a run directory, not a model: did you mean {url}/best?")
    key = hashlib.sha256(repr([url, *states.items()]).encode()).hexdigest()[:_KEY_LENGTH]
    cache = cache_folder("models")
    # The last part keeps its name, which may be that of a served model or the number of a version.
    folder = cache / key / url.rpartition("/")[2]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            copy = Path(temporary, key, folder.name)
            Folder(url).download(names, copy)
            if find_objects(url) != states:
                raise InputError(f"{url}: has changed while it was downloaded: try again")
            if not folder.is_dir():  # another process may have been first
                shutil.rmtree(folder.parent, ignore_errors=True)
                copy.parent.rename(folder.parent)
    os.utime(folder.parent)  # used now
    make_room(cache, "[0-9a-f]" * _KEY_LENGTH, cache_bytes(), needed=folder.parent)
    return folder

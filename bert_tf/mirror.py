"""Local copies of folders in object stores, for what is read and written as files: runs, models.

Content is uploaded first and what marks it as whole last: a `config.json` after the other files of
a model, a `saved_model.pb` after its variables, checkpoints after all else. Objects appear whole or
not at all, so a command that is killed during an upload leaves a folder that it can resume from.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from bert_tf.atomic import StrPath
from bert_tf.errors import InputError
from bert_tf.storage import RemoteFolder, State, find_objects, is_remote, state_of

CACHE_FOLDER = "BERT_TF_CACHE"  # environment variables: the folder, and its bound in gigabytes
CACHE_GIGABYTES = "BERT_TF_CACHE_GB"
_MARKS = ("config.json", "models.config", "saved_model.pb")
_PROBE = ".writable"
_mirrors: list["Mirror"] = []  # of this process


def cache_folder(kind: str) -> Path:
    return Path(os.environ.get(CACHE_FOLDER) or Path("~/.cache/bert-tf").expanduser()) / kind


def cache_bytes() -> int:
    """The bound of each kind of cached files."""
    return int(float(os.environ.get(CACHE_GIGABYTES, 20)) * 1e9)


class Mirror:
    """A local folder whose files belong to a URL."""

    def __init__(self, url: str, path: Path):
        self.url, self.path = url, path
        self._remote = RemoteFolder(url)
        self._uploaded: dict[str, State] = {}

    def pull(self, *, top_alone: bool) -> None:
        """Downloads the folder; with `top_alone`, makes empty folders of those within it."""
        self._remote.write(_PROBE, b"")  # refuses a place now, not at the first checkpoint
        self._remote.remove([_PROBE])
        names = self._remote.all_names()
        if top_alone:
            for name in names:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            names = [name for name in names if "/" not in name]
        self._remote.download(names, self.path)
        self._uploaded = self._states()

    def push(self) -> None:
        """Uploads what has changed, and removes what is gone."""
        found = self._states()
        changed = [name for name, state in found.items() if self._uploaded.get(name) != state]
        for name in sorted(changed, key=_order):
            self._remote.upload(self.path / name, name)
            self._uploaded[name] = found[name]  # also if a later one fails
        self._remote.remove(self._uploaded.keys() - found.keys())
        self._uploaded = found

    def _states(self) -> dict[str, State]:
        """The files by name, without temporary and other hidden ones."""
        found = {}
        for path in self.path.rglob("*"):
            name = path.relative_to(self.path)
            if path.is_file() and not any(part.startswith(".") for part in name.parts):
                found[name.as_posix()] = state_of(path.stat())
        return found


def _order(name: str) -> tuple[bool, bool, str]:
    parts = PurePosixPath(name).parts
    return "checkpoints" in parts, parts[-1] in _MARKS, name


@contextmanager
def mirrored(
    output: StrPath, inputs: Iterable[str | None] = (), *, top_alone: bool = False
) -> Iterator[None]:
    """Lets a command write to `output`, if it is a URL, through a local copy in TMPDIR.

    The copy begins as the folder there. `check_output_folder` finds it by the URL, and `push`
    uploads it; so does the end of the block, unless it raises.
    """
    if not is_remote(output) or local_path(os.fspath(output)) is not None:
        yield
        return
    url = os.fspath(output).rstrip("/")
    for given in inputs:
        if given is not None and f"{given}/".startswith(f"{url}/"):
            raise InputError(f"--output {url} holds the input {given}: name a separate output")
    with tempfile.TemporaryDirectory(prefix="bert-tf-") as temporary:
        mirror = Mirror(url, Path(temporary).resolve())
        mirror.pull(top_alone=top_alone)
        _mirrors.append(mirror)
        try:
            yield
            mirror.push()
        finally:
            _mirrors.remove(mirror)


def local_path(url: str) -> Path | None:
    """The local copy of a URL that this process writes, if any."""
    for mirror in _mirrors:
        if f"{url.rstrip('/')}/".startswith(f"{mirror.url}/"):
            return mirror.path / url[len(mirror.url) :].strip("/")
    return None


def push(folder: Path) -> None:
    """Uploads the local copy that holds a folder, if any."""
    for mirror in _mirrors:
        if folder.resolve().is_relative_to(mirror.path):
            mirror.push()


def is_mirrored(folder: Path) -> bool:
    return any(folder.resolve().is_relative_to(each.path) for each in _mirrors)


def joined(output: StrPath, *names: str) -> Path | str:
    """A path below an output folder, or its URL."""
    if is_remote(output):
        return "/".join([os.fspath(output).rstrip("/"), *names])
    return Path(output, *names)


def fetched(url: str) -> Path:
    """A local copy of the files of a URL, cached while they stay the same."""
    url = url.rstrip("/")
    states = find_objects(url)
    names = [each.removeprefix(f"{url}/") for each in states]
    if not names:
        raise InputError(f"{url}: no object there has content: check the name")
    if "config.json" not in names and "best/config.json" in names:
        raise InputError(f"{url} is a run directory, not a model: did you mean {url}/best?")
    key = hashlib.sha256(repr([url, *states.items()]).encode()).hexdigest()[:16]
    cache = cache_folder("models")
    # The last part keeps its name, which may be that of a served model or the number of a version.
    folder = cache / key / url.rpartition("/")[2]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            copy = Path(temporary, key, folder.name)
            RemoteFolder(url).download(names, copy)
            if find_objects(url) != states:
                raise InputError(f"{url}: has changed while it was downloaded: try again")
            if not folder.is_dir():
                shutil.rmtree(folder.parent, ignore_errors=True)
                copy.parent.rename(folder.parent)
    os.utime(folder.parent)  # used now
    _make_room(cache, folder.parent)
    return folder


def _make_room(cache: Path, needed: Path) -> None:
    """Removes the copies that were used longest ago, beyond the bound of the cache."""
    left = cache_bytes()
    for copy in sorted(cache.iterdir(), key=lambda each: each.stat().st_mtime_ns, reverse=True):
        left -= sum(path.stat().st_size for path in copy.rglob("*") if path.is_file())
        if left < 0 and copy != needed:
            shutil.rmtree(copy, ignore_errors=True)

"""Local copies of folders in object stores, for what is read and written as files: runs, models.

Content is uploaded first and what marks it as whole last: a `config.json` after the other files of
a model, a `saved_model.pb` after its variables, checkpoints after all else. Objects appear whole or
not at all, so a command that is killed during an upload leaves a folder that it can resume from.
"""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_tf.errors import InputError
from bert_tf.files.atomic import MARK, StrPath
from bert_tf.files.cluster import is_chief_of_cluster
from bert_tf.files.lease import Lease, LostLeaseError
from bert_tf.files.lock import locked
from bert_tf.files.storage import (
    Folder,
    State,
    check_apart,
    check_output_url,
    is_remote,
    state_of,
)

_COPIES = "bert-tf-"  # begins the names of folders in TMPDIR, each of one process
_UPLOADED = ".bert-tf-copy"  # file beside a copy that may be removed: its URL has all of it
_MARKS = ("config.json", "models.config", "saved_model.pb")
_log = logging.getLogger(__name__)
_mirrors: list["Mirror"] = []  # of this process


class Mirror:
    """A local folder whose files belong to a URL."""

    def __init__(self, url: str, path: Path):
        self.url, self.path = url, path
        self.remote = Folder(url)
        self.lease: Lease | None = None
        self._mark = path.with_name(_UPLOADED)
        self._uploaded: dict[str, State] = {}
        self._may_remove = True

    @property
    def lacks_files(self) -> bool:
        """Whether the last upload failed."""
        return not self._mark.exists()

    def pull(self, *, top_alone: bool) -> None:
        """Downloads the folder; with `top_alone`, makes empty folders of those within it."""
        names = [name for name in self.remote.all_names() if _belongs(name)]
        self.remote.check_names(names)
        if top_alone:
            for name in names:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            names = [name for name in names if "/" not in name]
        self.remote.download(names, self.path)
        self._uploaded = self._states()

    def push(self) -> None:
        """Uploads changed files, and removes the objects of deleted ones."""
        self._mark.unlink(missing_ok=True)
        if self.lease is not None:
            self.lease.check()
        states = self._states()
        for name in sorted(states, key=_order):
            if self._uploaded.get(name) != states[name]:
                self.remote.upload(self.path / name, name)
                self._uploaded[name] = states[name]  # also if a later one fails
        try:
            if self._may_remove:
                self.remote.remove(self._uploaded.keys() - states.keys())
        except InputError as error:  # the bucket's policy does not allow it
            self._may_remove = False
            _log.warning("what is no longer needed stays there: %s", error)
        self._uploaded = states
        self._mark.touch()

    def _states(self) -> dict[str, State]:
        """The files by name, without temporary and other hidden ones."""
        states = {}
        for path in self.path.rglob("*"):
            name = path.relative_to(self.path).as_posix()
            with contextlib.suppress(FileNotFoundError):  # removed since
                if _belongs(name) and path.is_file():
                    states[name] = state_of(path.stat())
        return states


def _belongs(name: str) -> bool:
    return all(part == MARK or not part.startswith(".") for part in name.split("/"))


def _order(name: str) -> tuple[bool, bool, str]:
    parts = name.split("/")
    return "checkpoints" in parts, parts[-1] in _MARKS, name


@contextmanager
def mirrored(
    output: StrPath, inputs: Iterable[str | None] = (), *, top_alone: bool = False
) -> Iterator[None]:
    """Gives a command a local copy in TMPDIR to write to, if `output` is a URL.

    The copy begins as the folder there. `check_output_folder` finds it by the URL, and `push`
    uploads it, as does the end of the block, unless it raises. The copy is deleted once all of it
    is uploaded; the next process deletes the copy of a killed one. Raises InputError if another
    process writes to the URL.
    """
    if not is_remote(output) or local_path(os.fspath(output)) is not None:
        yield
        return
    url = os.fspath(output).rstrip("/")
    check_output_url(url)
    check_apart(url, inputs)
    with _copy(url) as path:
        mirror = Mirror(url, path)
        with _writing(mirror):
            mirror.pull(top_alone=top_alone)
            try:
                yield
            except BaseException:
                if mirror.lacks_files:
                    _log.warning("%s: not everything was uploaded: see %s", url, mirror.path)
                raise
            try:
                mirror.push()
            except (InputError, OSError) as error:
                raise InputError(
                    f"{url}: not everything could be uploaded ({error}): all files are in "
                    f"{mirror.path}: copy them to the URL, or give --output {mirror.path}"
                ) from error


@contextmanager
def _copy(url: str) -> Iterator[Path]:
    """An empty folder for the copy of a URL; removes the folders of processes that were killed."""
    for mark in Path(tempfile.gettempdir()).glob(f"{_COPIES}*/{_UPLOADED}"):
        with contextlib.suppress(PermissionError), locked(mark.parent) as is_mine:
            if is_mine and mark.exists():
                shutil.rmtree(mark.parent, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_COPIES)).resolve()
    with locked(folder):
        (folder / _UPLOADED).touch()
        path = folder / url.rpartition("/")[2]
        path.mkdir()
        try:
            yield path
        finally:
            if (folder / _UPLOADED).exists():
                shutil.rmtree(folder)


@contextmanager
def _writing(mirror: Mirror) -> Iterator[None]:
    """Holds the URL against other processes, unless this is a worker of a run whose chief does."""
    if not _is_other_worker():
        mirror.lease = Lease(mirror.remote)
    with mirror.lease or contextlib.nullcontext():
        _mirrors.append(mirror)
        try:
            yield
        finally:
            _mirrors.remove(mirror)


def _is_other_worker() -> bool:
    """Whether TF_CONFIG names another process the chief, which alone writes."""
    with contextlib.suppress(InputError):
        return not is_chief_of_cluster()
    return False


def local_path(url: str) -> Path | None:
    """The local copy of a URL that this process writes, if any."""
    for mirror in _mirrors:
        if f"{url.rstrip('/')}/".startswith(f"{mirror.url}/"):
            return mirror.path / url[len(mirror.url) :].strip("/")
    return None


def _mirror_of(folder: Path) -> Mirror | None:
    folder = folder.resolve()
    return next((mirror for mirror in _mirrors if folder.is_relative_to(mirror.path)), None)


def is_mirrored(folder: Path) -> bool:
    return _mirror_of(folder) is not None


def push(folder: Path) -> None:
    """Uploads the local copy that holds a folder, if any; a failure is left to the next time."""
    if (mirror := _mirror_of(folder)) is None:
        return
    try:
        mirror.push()
    except LostLeaseError:
        raise
    except (InputError, OSError) as error:
        _log.warning(
            "%s: the upload failed (%s): it is tried again at the next checkpoint; all files are "
            "in %s",
            mirror.url,
            error,
            mirror.path,
        )


def joined(output: StrPath, *names: str) -> Path | str:
    """A path below an output folder, or its URL."""
    if is_remote(output):
        return "/".join([os.fspath(output).rstrip("/"), *names])
    return Path(output, *names)

"""Folders of files by name, on a file system or in an object store (s3://, gs://, az://, hdfs://).

A file appears whole or not at all: on disks it is renamed at the end, and an object store shows an
object when its upload is complete.
"""

import contextlib
import errno
import functools
import hashlib
import io
import logging
import os
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bert_tf.errors import InputError, pip_install
from bert_tf.files.atomic import (
    StrPath,
    files_below,
    remove_empty_folders,
    replace_file,
    sync,
)

# Size of a file, and what tells its content from an earlier one: a time or a hash.
State = tuple[int, int]
_EXTRAS = {"s3": "s3", "gs": "gs", "gcs": "gs"}
_READ_AHEAD = 8 << 20
_REMOVALS = 32  # objects removed at the same time


def is_remote(path: StrPath) -> bool:
    return "://" in os.fspath(path)


def sha256(path: StrPath) -> str:
    """The checksum of a file or an object, hexadecimal."""
    path = os.fspath(path)
    of_store = remote_errors(path) if is_remote(path) else contextlib.nullcontext()
    with of_store, open_for_reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


@functools.cache
def _file_system(protocol: str) -> Any:
    try:
        import fsspec

        # It logs a trace for what it also raises.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        return fsspec.filesystem(protocol, use_listings_cache=False)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        cure = pip_install(extra) if extra else f"install it ({error})"
        raise InputError(f"{protocol}://: needs a package of fsspec: {cure}") from error
    except ValueError as error:
        raise InputError(f"{protocol}://: no such protocol: give s3, gs, az or hdfs") from error


@contextmanager
def _store(url: str) -> Iterator[tuple[Any, str]]:
    """The file system of a URL, and the path there; see `remote_errors`."""
    protocol, _, path = url.partition("://")
    with remote_errors(url):
        yield _file_system(protocol), path.rstrip("/")


@contextmanager
def remote_errors(url: str) -> Iterator[None]:
    """Raises InputError for what the user can correct, OSError for failures of the store."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{url}: no such bucket or key: check the name") from error
    except Exception as error:  # each store has errors of its own
        name, line = type(error).__name__, textwrap.shorten(str(error), 300, placeholder=" ...")
        is_refused = getattr(error, "code", None) in (401, 403)  # Google's HttpError
        if is_refused or isinstance(error, PermissionError):
            raise InputError(
                f"{url}: no permission ({line}): check the credentials and the bucket's policy"
            ) from error
        if "Credential" in name:
            raise InputError(
                f"{url}: no credentials ({line}): set them, such as AWS_ACCESS_KEY_ID or "
                "GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
        raise OSError(errno.EIO, f"the store failed ({name}: {line})", url) from error


def open_for_reading(path: str, read_ahead: int = _READ_AHEAD) -> IO[bytes]:
    if not is_remote(path):
        return Path(path).open("rb")
    with _store(path) as (files, key):
        opened = files.open(key, "rb", block_size=read_ahead, cache_type="readahead")
        return io.BufferedReader(opened, 1 << 16)  # whose lines may be read in part


def file_state(path: str) -> State:
    if not is_remote(path):
        return state_of(Path(path).stat())
    with _store(path) as (files, key):
        return _state_of_object(files.info(key))


def state_of(status: os.stat_result) -> State:
    return status.st_size, status.st_mtime_ns


def _state_of_object(info: dict[str, Any]) -> State:
    names = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime")
    version = next((str(info[name]) for name in names if info.get(name)), "")
    digest = hashlib.blake2b(version.encode(), digest_size=7).digest()
    return int(info["size"]), int.from_bytes(digest, "big")


def find_objects(url: str) -> dict[str, State]:
    """The objects of a URL: one, those below it, or those that match it; by URL, sorted.

    Objects that are hidden below it, and the empty ones that stand for folders, are left out.
    """
    with _store(url) as (files, key):
        found, above = files.find(key, detail=True), key
        if not found:  # a key may hold the characters of a pattern
            found = files.glob(key, detail=True)
            above = re.split(r"[*?[]", key)[0].rpartition("/")[0]
        return {
            files.unstrip_protocol(name): _state_of_object(info)
            for name, info in sorted(found.items())
            if info["type"] == "file" and name[-1] != "/" and "/." not in name[len(above) :]
        }


def check_output_url(url: str) -> None:
    """Raises InputError for a whole bucket, and for a key that a store would read as another."""
    _, *parts = url.partition("://")[2].rstrip("/").split("/")
    if not parts:
        raise InputError(f"{url}: is a whole bucket: name a folder in it, such as {url}/output")
    if any(part in ("", ".", "..") for part in parts):
        raise InputError(f"{url}: has an empty part, . or ..: name the folder without")


def check_apart(url: str, inputs: Iterable[str | None]) -> None:
    """Raises InputError for an output that holds an input or lies in one."""
    for read in inputs:
        if read is not None and f"{read}/".startswith(f"{url}/"):
            raise InputError(f"--output {url} holds the input {read}: name a separate output")
        if read is not None and f"{url}/".startswith(f"{read.rstrip('/')}/"):
            raise InputError(f"--output {url} lies in the input {read}: name a separate output")


def fetch_ranges(urls: list[str], starts: list[int], ends: list[int]) -> list[bytes]:
    """Ranges of bytes of objects in one store, read at the same time."""
    if not urls:
        return []
    keys = [url.partition("://")[2] for url in urls]
    with _store(urls[0]) as (files, _):
        return files.cat_ranges(keys, starts, ends, on_error="raise")


@dataclass(frozen=True)
class LocalFolder:
    """A folder of a file system, which need not exist."""

    path: Path

    def __truediv__(self, name: str) -> "LocalFolder":
        return LocalFolder(self.path / name)

    def __str__(self) -> str:
        return str(self.path)

    def sizes(self) -> dict[str, int]:
        """The files directly in the folder, and their sizes; none if it does not exist."""
        found: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                # Another process may have renamed or removed it since.
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return found

    def size(self, name: str) -> int | None:
        """The size of a file, None if it does not exist; a list of the folder may lag behind."""
        path = self.path / name
        return path.stat().st_size if path.is_file() else None

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if it does not exist."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, which is there whole or not at all."""
        with replace_file(self.path / name) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """Yields a local path to write; the file is there after the block, unless it raises.

        Several processes may write the same name: each has a path of its own, the last one stays.
        """
        with replace_file(self.path / name) as temporary:
            yield temporary

    def sync(self) -> None:
        """Makes the names in the folder durable."""
        if self.path.is_dir():
            sync(self.path)

    def all_names(self) -> list[str]:
        """The files in the folder and below, by their names relative to it."""
        return [path.relative_to(self.path).as_posix() for path in files_below(self.path)]

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes the files that are there now, by their names, and the folders left empty."""
        self.remove(self.all_names())
        remove_empty_folders(self.path)


@dataclass(frozen=True)
class RemoteFolder:
    """The same of an object store: a prefix of keys."""

    url: str  # without a slash at its end

    def __truediv__(self, name: str) -> "RemoteFolder":
        return RemoteFolder(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    def sizes(self) -> dict[str, int]:
        with _store(self.url) as (files, key), _in_bucket(files, key):
            found = [each for each in files.ls(key, detail=True) if each["type"] == "file"]
            sizes = {each["name"].removeprefix(f"{key}/"): each["size"] for each in found}
            return {name: size for name, size in sizes.items() if name and "/" not in name}
        return {}

    def size(self, name: str) -> int | None:
        with _store(f"{self.url}/{name}") as (files, key), contextlib.suppress(FileNotFoundError):
            return files.info(key)["size"]
        return None

    def read(self, name: str) -> bytes | None:
        with _store(f"{self.url}/{name}") as (files, key), contextlib.suppress(FileNotFoundError):
            return files.cat_file(key)
        return None

    @contextmanager
    def _written(self, name: str) -> Iterator[tuple[Any, str]]:
        check_output_url(self.url)
        with _store(f"{self.url}/{name}") as found:
            yield found

    def write(self, name: str, content: bytes) -> None:
        with self._written(name) as (files, key):
            files.pipe_file(key, content)

    def create(self, name: str, content: bytes) -> None:
        """Writes an object unless there is one; of two processes, as far as the store tells."""
        with self._written(name) as (files, key), contextlib.suppress(FileExistsError):
            try:
                files.pipe_file(key, content, mode="create")
            except (FileExistsError, FileNotFoundError, PermissionError):
                raise
            except (OSError, NotImplementedError, TypeError, ValueError):
                # Some stores have no such condition, or report in another way that it fails.
                if not files.exists(key):
                    files.pipe_file(key, content)

    @contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / name
            yield path
            self.upload(path, name)

    def upload(self, path: Path, name: str) -> None:
        with self._written(name) as (files, key):
            files.put_file(str(path), key)

    def download(self, names: Sequence[str], folder: Path) -> None:
        """Copies files of the folder into a local one; see `check_names`."""
        self.check_names(names)
        for parent in {(folder / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)

        def copy(name: str) -> None:
            with _store(f"{self.url}/{name}") as (files, key):
                files.get_file(key, str(folder / name))

        with ThreadPoolExecutor() as threads:
            list(threads.map(copy, names))

    def sync(self) -> None:
        """Does nothing: objects are durable."""

    def all_names(self) -> list[str]:
        """As of a `LocalFolder`; without the empty objects that stand for folders."""
        with _store(self.url) as (files, key), _in_bucket(files, key):
            below = (name.removeprefix(f"{key}/") for name in files.find(key) if name != key)
            return [name for name in below if name and name[-1] != "/"]
        return []

    def check_names(self, names: Iterable[str]) -> None:
        """Raises InputError for names that would be files outside a local copy of the folder."""
        for name in names:
            path = PurePosixPath(name)
            if str(path) != name or path.is_absolute() or ".." in path.parts:
                raise InputError(
                    f"{self.url}: holds the key {name!r}, which names no file in that folder: "
                    "rename or remove it"
                )

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects by their exact keys, in which nothing is a pattern."""

        def remove_object(name: str) -> None:
            with self._written(name) as (files, key), contextlib.suppress(FileNotFoundError):
                files.rm_file(key)

        with ThreadPoolExecutor(_REMOVALS) as threads:
            list(threads.map(remove_object, names))

    def clear(self) -> None:
        self.remove(self.all_names())


@contextmanager
def _in_bucket(files: Any, key: str) -> Iterator[None]:
    """Lets a folder lack, but not its bucket."""
    try:
        yield
    except FileNotFoundError:
        if not files.exists(key.partition("/")[0]):
            raise


Folder = LocalFolder | RemoteFolder


def open_folder(path: StrPath) -> Folder:
    return RemoteFolder(os.fspath(path).rstrip("/")) if is_remote(path) else LocalFolder(Path(path))

"""Folders of files by name, on a disk or in an object store (s3://, gs://, az://, hdfs://).

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
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any

from bert_tf.errors import InputError, pip_install
from bert_tf.files.atomic import StrPath, remove_empty_folders, replace_file, sync

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
    with remote_errors(path), open_for_reading(path) as file:
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
def _store(path: str) -> Iterator[tuple[Any, str]]:
    """The file system of a path or URL, and the name there; see `remote_errors`."""
    protocol = path.partition("://")[0] if is_remote(path) else "file"
    with remote_errors(path):
        files = _file_system(protocol)
        # An absolute path, as fsspec would take "~" for the user's home.
        yield files, files._strip_protocol(path if is_remote(path) else str(Path(path).absolute()))


@contextmanager
def remote_errors(path: str) -> Iterator[None]:
    """Raises InputError for what the user can correct at a URL, OSError for the store's failures.

    Errors of local files are raised as they are.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each store has errors of its own
        if not is_remote(path):
            raise
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{path}: no such bucket or key: check the name") from error
        name = type(error).__name__
        line = textwrap.shorten(str(error), 300, placeholder=" ...")
        is_refused = getattr(error, "code", None) in (401, 403)  # Google's HttpError
        if is_refused or isinstance(error, PermissionError):
            raise InputError(
                f"{path}: no permission ({line}): check the credentials and the bucket's policy"
            ) from error
        if "Credential" in name:
            raise InputError(
                f"{path}: no credentials ({line}): set them, such as AWS_ACCESS_KEY_ID or "
                "GOOGLE_APPLICATION_CREDENTIALS"
            ) from error
        raise OSError(errno.EIO, f"the store failed ({name}: {line})", path) from error


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
        objects = files.find(key, detail=True)
        above = key
        if not objects:  # a key may hold the characters of a pattern
            objects = files.glob(key, detail=True)
            above = re.split(r"[*?[]", key)[0].rpartition("/")[0]
        root = url.rstrip("/").removesuffix(key.lstrip("/"))
        return {
            root + name.lstrip("/"): _state_of_object(info)
            for name, info in sorted(objects.items())
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
    """Raises InputError for an output URL that is, holds or lies in an input."""
    for source in inputs:
        if source is not None:
            refuse_overlap(url, PurePosixPath(url), source, PurePosixPath(source))


def refuse_overlap(output: StrPath, path: PurePath, source: StrPath, read: PurePath) -> None:
    """Raises InputError if the output's path is, holds or lies in an input's path."""
    if path.is_relative_to(read) or read.is_relative_to(path):
        relation = "is" if path == read else "holds" if read.is_relative_to(path) else "lies in"
        raise InputError(f"--output {output} {relation} the input {source}: name a separate output")


def fetch_ranges(urls: list[str], starts: list[int], ends: list[int]) -> list[bytes]:
    """Ranges of bytes of objects in one store, read at the same time."""
    if not urls:
        return []
    with _store(urls[0]) as (files, _):
        keys = [files._strip_protocol(url) for url in urls]
        return files.cat_ranges(keys, starts, ends, on_error="raise")


@dataclass(frozen=True)
class Folder:
    """A folder of a disk, or the objects of a store whose keys begin alike; it need not exist."""

    location: str  # a path, or a URL without a slash at its end

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.location}/{name}")

    def __str__(self) -> str:
        return self.location

    @property
    def local(self) -> Path | None:
        """The folder's path on a disk, None in an object store."""
        return None if is_remote(self.location) else Path(self.location)

    def sizes(self) -> dict[str, int]:
        """The files directly in the folder, and their sizes; none if it does not exist."""
        with self._listed() as (files, key):
            entries = {x["name"].removeprefix(f"{key}/"): x for x in files.ls(key, detail=True)}
            return {
                name: entry["size"]
                for name, entry in entries.items()
                if (entry["type"] == "file" or entry.get("islink")) and name and "/" not in name
            }
        return {}

    def all_names(self) -> list[str]:
        """The files in the folder and below, by their names relative to it, sorted.

        Links count as files; the empty objects that stand for folders do not.
        """
        with self._listed() as (files, key):
            names = (name.removeprefix(f"{key}/") for name in files.find(key) if name != key)
            return [name for name in names if name and name[-1] != "/"]
        return []

    @contextmanager
    def _listed(self) -> Iterator[tuple[Any, str]]:
        """The file system and the name there; ends early for a missing folder, not for a bucket."""
        with _store(self.location) as (files, key):
            try:
                yield files, key
            except FileNotFoundError:
                # Names that begin with a slash have no bucket.
                if not key.startswith("/") and not files.exists(key.partition("/")[0]):
                    raise

    def size(self, name: str) -> int | None:
        """The size of a file, None if it does not exist; a list of the folder may lag behind."""
        with self._file(name) as (files, key), contextlib.suppress(FileNotFoundError):
            return None if (entry := files.info(key))["type"] == "directory" else entry["size"]
        return None

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if it does not exist."""
        with self._file(name) as (files, key), contextlib.suppress(FileNotFoundError):
            return files.cat_file(key)
        return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file, which is there whole or not at all."""
        if self.local is not None:
            with replace_file(self.local / name) as temporary:
                temporary.write_bytes(content)
        else:
            with self._file(name, writes=True) as (files, key):
                files.pipe_file(key, content)

    @contextmanager
    def new_file(self, name: str) -> Iterator[Path]:
        """Yields a local path to write; the file is there after the block, unless it raises.

        Several processes may write the same name: each has a path of its own, the last one stays.
        """
        if self.local is not None:
            with replace_file(self.local / name) as temporary:
                yield temporary
        else:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, name)
                yield path
                self.upload(path, name)

    def create(self, name: str, content: bytes) -> None:
        """Writes an object unless there is one; of two processes, as far as the store tells."""
        with self._file(name, writes=True) as (files, key), contextlib.suppress(FileExistsError):
            try:
                files.pipe_file(key, content, mode="create")
            except (FileExistsError, FileNotFoundError, PermissionError):
                raise
            except (OSError, NotImplementedError, TypeError, ValueError):
                # Some stores have no such condition, or report in another way that it fails.
                if not files.exists(key):
                    files.pipe_file(key, content)

    def upload(self, path: Path, name: str) -> None:
        with self._file(name, writes=True) as (files, key):
            files.put_file(str(path), key)

    def download(self, names: Sequence[str], target: Path) -> None:
        """Copies files into a local folder; see `check_names`."""
        self.check_names(names)
        for parent in {(target / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)

        def copy(name: str) -> None:
            with self._file(name) as (files, key):
                files.get_file(key, str(target / name))

        with ThreadPoolExecutor() as threads:
            list(threads.map(copy, names))

    def check_names(self, names: Iterable[str]) -> None:
        """Raises InputError for names that would be files outside a local copy of the folder."""
        for name in names:
            path = PurePosixPath(name)
            if str(path) != name or path.is_absolute() or ".." in path.parts:
                raise InputError(
                    f"{self}: holds the key {name!r}, which names no file in that folder: "
                    "rename or remove it"
                )

    def remove(self, names: Iterable[str]) -> None:
        """Removes files by their exact names, in which nothing is a pattern."""

        def remove_file(name: str) -> None:
            with (
                self._file(name, writes=True) as (files, key),
                contextlib.suppress(FileNotFoundError),
            ):
                files.rm_file(key)

        with ThreadPoolExecutor(_REMOVALS) as threads:
            list(threads.map(remove_file, names))

    def clear(self, names: Iterable[str] | None = None) -> None:
        """Removes files, by default those that are there now, and the folders left empty."""
        self.remove(self.all_names() if names is None else names)
        if self.local is not None:
            remove_empty_folders(self.local)

    def sync(self) -> None:
        """Makes the names in the folder durable, as objects always are."""
        if self.local is not None and self.local.is_dir():
            sync(self.local)

    @contextmanager
    def _file(self, name: str, *, writes: bool = False) -> Iterator[tuple[Any, str]]:
        """The file system of a file, and its name there."""
        if writes and self.local is None:
            check_output_url(self.location)
        with _store(f"{self}/{name}") as store:
            yield store


def open_folder(path: StrPath) -> Folder:
    return Folder(os.fspath(path).rstrip("/") if is_remote(path) else str(Path(path)))

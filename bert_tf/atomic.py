"""Files and folders that appear whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _temporary_name(path: Path) -> Path:
    # In the same folder, hence on the same file system: os.replace is then atomic.
    # The leading dot keeps it out of globs such as "*.tfrecord".
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def remove_temporary_files(folder: Path) -> None:
    """Removes what processes that were killed had begun to write, in a folder and below it.

    Args:
        folder: in which no other process writes; it need not exist.
    """
    for path in folder.rglob(".*.tmp"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replace_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yields a temporary path; what is written there appears at `path` when the block ends.

    Parent folders are made. If the block raises, the temporary file is removed and `path` is
    left as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Yields an empty temporary folder that becomes `path` when the block ends.

    An older folder at `path` is replaced. If the block raises, the temporary folder is removed
    and `path` is left as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        move_directory(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_directory(folder: Path, path: Path) -> None:
    """Renames a folder on the same file system; an older folder at `path` is replaced."""
    if path.exists():
        # A folder cannot be renamed over a full one: step aside first.
        replaced = _temporary_name(path)
        path.rename(replaced)
        try:
            folder.rename(path)
        except OSError:
            replaced.rename(path)
            raise
        shutil.rmtree(replaced)
    else:
        folder.rename(path)
    sync_folder(path.parent)

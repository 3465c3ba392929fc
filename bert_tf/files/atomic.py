"""Files and folders that appear whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

StrPath = str | os.PathLike
TEMPORARY_NAMES = ".*.bert-tf-*.tmp"  # matches those of every output
_REPLACED = ".old"  # ends the name of a folder that steps aside for a new one
MARK = ".bert-tf.json"  # file of an output folder that lists what bert-tf wrote there


# Output folders that this process holds, each with the `bert_tf.files.owners.Mark` that refuses to
# replace what bert-tf did not write there, or None.
_held: list[tuple[Path, Any]] = []


def temporary_name(path: Path) -> Path:
    """A new temporary name beside `path`, marked with the innermost held folder around it."""
    folder, _ = _holder(path)
    holder = _hash(folder) if folder else ""
    # In the same folder, hence on the same file system: os.replace is then atomic.
    # The leading dot keeps it out of globs such as "*.tfrecord".
    return path.with_name(f".{path.name}.bert-tf-{holder}-{uuid.uuid4().hex[:8]}.tmp")


def _holder(path: Path) -> tuple[Path | None, Any]:
    """The innermost held folder around a path, and its mark."""
    path = path.resolve()
    holders = [holder for holder in _held if path.is_relative_to(holder[0])]
    return max(holders, key=lambda holder: len(holder[0].parts)) if holders else (None, None)


def claim(path: StrPath) -> None:
    """Enters a file that is about to be written or removed; InputError if it is another's."""
    path = Path(path)
    _, mark = _holder(path.parent)
    if mark is not None and path.name != MARK:
        mark.claim(path.parent.resolve() / path.name)


def _hash(folder: Path) -> str:
    return hashlib.blake2b(os.fsencode(folder), digest_size=4).hexdigest()


@contextmanager
def hold_output(folder: StrPath, mark: Any = None) -> Iterator[None]:
    """Names the temporary files below an output folder after it, and cleans up on entry.

    Every file and folder that is written there below is entered in its `mark`, if it has one.
    No other process may hold the folder. What a killed holder left half-written is removed, and a
    folder that it was replacing restored. Files of other outputs stay, even below the folder.
    """
    folder = Path(folder).resolve()
    names = f".*.bert-tf-{_hash(folder)}-*"
    for replaced in folder.rglob(names + _REPLACED):
        path = replaced.with_name(replaced.name[1:].rpartition(".bert-tf-")[0])
        remove(replaced) if path.exists() else replaced.rename(path)
    remove(*folder.rglob(names + ".tmp"))
    _held.append((folder, mark))
    try:
        yield
    finally:
        _held.remove((folder, mark))


def remove(*paths: Path) -> None:
    """Removes files and whole folders, if they exist."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def files_below(folder: Path) -> list[Path]:
    """The files in a folder and below, sorted, including links; empty for a missing folder."""
    return [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]


def remove_empty_folders(folder: Path) -> None:
    """Removes a folder and those below it, as far as they are empty."""
    below = [path for path in folder.rglob("*") if path.is_dir()]
    for path in [*sorted(below, reverse=True), folder]:
        with contextlib.suppress(OSError):  # not empty, not there, or another process writes there
            path.rmdir()


def sync(path: Path) -> None:
    """Makes the names in a folder, or the content of a file, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Adds `path` to an error that names no file, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        # An error without a number would lose its text to a name.
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replace_file(path: StrPath) -> Iterator[Path]:
    """Yields a temporary path, which becomes `path` after the block; removed if it raises."""
    path = Path(path)
    claim(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with _named(path):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: StrPath, text: str) -> None:
    """Writes UTF-8 text; see `replace_file`."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: StrPath, value: Any, *, indent: int = 2) -> None:
    """Writes a value as JSON for people to read; see `replace_file`."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_tsv(path: StrPath, rows: Iterable[Iterable[object]]) -> None:
    """Writes a table without quotes; tabs and line ends within a cell become spaces."""
    spaces = str.maketrans("\t\n\r", "   ")
    lines = ("\t".join(str(cell).translate(spaces) for cell in row) + "\n" for row in rows)
    write_text(path, "".join(lines))


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path`, removed after the block."""
    folder = temporary_name(path)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replace_directory(path: StrPath) -> Iterator[Path]:
    """Yields an empty temporary folder, which replaces `path` as in `replace_file`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(path) as temporary, _named(path):
        yield temporary
        for file in files_below(temporary):
            sync(file)
        move_directory(temporary, path)


def move_directory(folder: Path, path: Path) -> None:
    """Renames a folder on the same file system; an older folder at `path` is replaced."""
    _, mark = _holder(path)
    if mark is not None:
        names = [file.relative_to(folder) for file in files_below(folder)]
        mark.claim_folder(path.resolve(), names)
    if path.exists():
        # A folder cannot be renamed over a full one: step aside first.
        replaced = temporary_name(path).with_suffix(_REPLACED)
        path.rename(replaced)
        try:
            folder.rename(path)
        except OSError:
            replaced.rename(path)
            raise
        shutil.rmtree(replaced)
    else:
        folder.rename(path)
    sync(path.parent)

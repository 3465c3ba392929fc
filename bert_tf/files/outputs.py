"""Checks of where a command writes, made before any work starts."""

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath
from bert_tf.files.mirror import local_path
from bert_tf.files.storage import Folder, is_remote, open_folder, refuse_overlap

GIVEN_DATA = "data"  # subfolder of a run for the examples that a Python call was given
# Files and folders that a command reads; None and "-", standard input, stand for no file.
Inputs = Iterable[StrPath | None]


def check_output_folder(
    output: StrPath,
    inputs: Inputs = (),
    *,
    ours: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Refuses an output folder that would destroy something or cannot be written.

    A `mirrored` URL stands for its local copy.

    Args:
        output: folder to write; need not exist.
        inputs: what the command reads. The output may not be, hold or lie in one of them, but for
            files in its folder `GIVEN_DATA`, where no command writes.
        ours: glob patterns of the files that the command writes, relative to `output`, for a
            command that replaces the whole folder. None for one that adds files to it.
        overwrite: whether to replace a folder that holds nothing but files of `ours`.

    Returns:
        The folder, with symbolic links resolved.
    """
    if is_remote(output):
        if (copy := local_path(os.fspath(output))) is not None:
            return copy
        raise InputError(f"{output}: this command writes to file systems only: name a local folder")
    folder = _resolved(output, "output")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{output}: is a file, not a folder: name another output folder")
    _check_path(folder, output, inputs)
    if ours is not None and folder.is_dir():
        if Path.cwd().is_relative_to(folder) or folder.is_mount():
            kind = "a mount point" if folder.is_mount() else "the working directory or above it"
            raise InputError(f"{output}: is {kind} and cannot be replaced: name a folder in it")
        check_content(open_folder(output), ours, overwrite=overwrite)
    return folder


def check_content(folder: Folder, ours: Sequence[str], *, overwrite: bool) -> None:
    """Refuses a folder that holds files other than `ours`, or any unless they are overwritten."""
    names = sorted(folder.all_names())
    for name in names:
        if not is_one_of(PurePath(name), ours):
            raise InputError(
                f"{folder}: holds {name}, which this command did not make: name another output "
                "folder"
            )
    if names and not overwrite:
        raise InputError(
            f"{folder}: is not empty: name another output, or replace it with --overwrite"
        )


def is_one_of(name: PurePath, patterns: Sequence[str]) -> bool:
    """Whether a relative name matches a glob pattern, part for part."""
    return any(name.match(p) and len(name.parts) == len(PurePath(p).parts) for p in patterns)


def check_output_file(output: StrPath, inputs: Inputs = ()) -> Path:
    """Like `check_output_folder`, for a file to write or replace."""
    file = _resolved(output, "output")
    if file.is_dir():
        raise InputError(f"{output}: is a folder: name a file in it")
    if file.exists() and not file.is_file():
        raise InputError(f"{output}: is not a regular file: name another output file")
    _check_path(file, output, inputs)
    return file


def _resolved(path: StrPath, role: str) -> Path:
    if not os.fspath(path):
        raise InputError(f"the name of an {role} is empty: name a file or folder")
    # realpath leaves a loop of links to stat; Path.resolve raises RuntimeError before Python 3.13.
    resolved = Path(os.path.realpath(path))
    try:
        if role == "output":
            str(resolved).encode()
        resolved.stat()
    except UnicodeEncodeError as error:  # TensorFlow writes to no such name
        raise InputError(f"{path}: the name is not UTF-8: name another {role}") from error
    except (FileNotFoundError, NotADirectoryError):
        pass  # to be made, or refused with its parents
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(
                f"{path}: its symbolic links form a loop: remove it or name another {role}"
            ) from error
        raise InputError(f"{path}: {error.strerror}: name another {role}") from error
    return resolved


def _check_path(path: Path, output: StrPath, inputs: Inputs) -> None:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if existing != path and not existing.is_dir():
        raise InputError(f"{output}: {existing} is a file: name an output in a folder")
    folder = existing if existing.is_dir() else existing.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(
            f"{output}: no permission to write in {folder}: choose a writable folder, or fix its "
            "permissions"
        )
    for source in inputs:
        if source not in (None, "-") and not is_remote(source):
            read = _resolved(source, "input")
            if not (path.is_dir() and read.parent == path / GIVEN_DATA):
                refuse_overlap(output, path, source, read)

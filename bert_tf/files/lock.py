"""One process at a time in a file or folder of a file system; `lease` does so in buckets."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of some network file systems; NFS locks files, but no folders (EBADF).
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)


@contextmanager
def locked(path: Path, *, waits: bool = False, is_shared: bool = False) -> Iterator[bool | None]:
    """Locks a file or folder for the block; the lock ends with the process at the latest.

    Yields False if another process has it, and None if there is no such path, or a file system
    without locks. With `waits` the block begins once the others have ended.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except FileNotFoundError:
        yield None
        return
    try:
        yield _take(descriptor, waits, is_shared)
    finally:
        os.close(descriptor)


def _take(descriptor: int, waits: bool, is_shared: bool) -> bool | None:
    how = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, how if waits else how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True

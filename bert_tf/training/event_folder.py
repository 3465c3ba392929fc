"""TensorBoard's event files, opened when there is something to write."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

# TensorFlow's names of what the system said.
_ERRNO = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.PermissionDeniedError: errno.EACCES,
}


@contextmanager
def as_system_errors(path: str | Path) -> Iterator[None]:
    """Raises the `OSError` that stands behind an error of TensorFlow's writers.

    Args:
        path: what is written; the error names it.
    """
    try:
        yield
    except tf.errors.OpError as error:
        code = _ERRNO.get(type(error), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error


class EventFolder:
    """A folder of events, what TensorBoard calls a run; it is made with the first of them.

    Args:
        folder: of a writer alone: events in one file have to come in their order.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer: tf.summary.SummaryWriter | None = None

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Has `tf.summary` write here; all is with the operating system when the block ends.

        Args:
            step: of the events.

        Raises:
            OSError: they cannot be written, as on a full disk.
        """
        with as_system_errors(self._folder):
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            with self._writer.as_default(step=step):
                yield
            self._writer.flush()

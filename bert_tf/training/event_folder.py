"""TensorBoard event files, opened with their first event."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

# The system errors behind TensorFlow's.
_ERRNO = {
    tf.errors.ResourceExhaustedError: errno.ENOSPC,
    tf.errors.PermissionDeniedError: errno.EACCES,
}


@contextmanager
def as_system_errors(path: str | Path) -> Iterator[None]:
    """Turns errors of TensorFlow's writers into the `OSError` behind them, which names `path`."""
    try:
        yield
    except tf.errors.OpError as error:
        code = _ERRNO.get(type(error), errno.EIO)
        raise OSError(code, os.strerror(code), str(path)) from error


class EventFolder:
    """A folder of events (a "run" in TensorBoard), made with the first event.

    It is the folder of this writer alone: the events of a file must be in order.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer: tf.summary.SummaryWriter | None = None

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Makes `tf.summary` write events of `step` here, flushed at the end of the block.

        Raises:
            OSError: the events cannot be written.
        """
        with as_system_errors(self._folder):
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            with self._writer.as_default(step=step):
                yield
            self._writer.flush()

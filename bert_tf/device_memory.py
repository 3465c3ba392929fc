"""Memory of devices that is too small."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from bert_tf.errors import InputError


@contextmanager
def memory_errors(cure: str) -> Iterator[None]:
    """Reports in one line that a tensor does not fit in a device's memory.

    Args:
        cure: what the user can do.

    Raises:
        InputError: instead of TensorFlow's error.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = str(error.message).partition("\n")[0]
        if "memory" not in reason.lower() and "OOM" not in reason:  # a full disk, for one
            raise
        raise InputError(f"the device has too little memory ({reason[:200]}): {cure}") from error

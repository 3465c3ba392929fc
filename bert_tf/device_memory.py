"""Errors of devices with too little memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from bert_tf.errors import InputError


@contextmanager
def memory_errors(cure: str) -> Iterator[None]:
    """Raises an InputError, with what to do about it, for TensorFlow's error."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = str(error.message).partition("\n")[0]
        if "memory" not in reason.lower() and "OOM" not in reason:  # a full disk, for one
            raise
        raise InputError(f"the device has too little memory ({reason[:200]}): {cure}") from error

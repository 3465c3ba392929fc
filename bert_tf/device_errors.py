"""TensorFlow's errors of too little memory, and of a full disk, in words for the user."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath


@contextmanager
def memory_errors(cure: str) -> Iterator[None]:
    """Raises TensorFlow's error of too little memory as an InputError that names `cure`."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        reason = str(error.message).partition("\n")[0]
        if "memory" not in reason.lower() and "OOM" not in reason:  # a full disk, for one
            raise
        raise InputError(f"the device has too little memory ({reason[:200]}): {cure}") from error


@contextmanager
def full_disk_errors(path: StrPath) -> Iterator[None]:
    """Raises TensorFlow's errors of a full disk or file as an OSError of `path`."""
    try:
        yield
    except tf.errors.OpError as error:
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if os.strerror(code) in error.message:
                raise OSError(code, os.strerror(code), os.fspath(path)) from error
        raise

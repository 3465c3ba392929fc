"""Strings in graphs: their operations on the host, and batches of them as one run of bytes."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import tensorflow as tf

# Strings live in host memory; tables and integers on an accelerator would be copied per batch.
_HOST = "CPU:0"
# For this many texts, an eager call traces a graph: one call then, instead of one per op.
MANY = 64

# ids int32 [pieces] of all texts; row_splits int64 [batch + 1], the first piece of each text;
# starts and ends int64 [pieces], in bytes of the text
Pieces = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def on_host(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Places the ops of a function on the host; AutoGraph has nothing to convert in it."""
    function = tf.autograph.experimental.do_not_convert(function)

    @functools.wraps(function)
    def placed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with tf.device(_HOST):
            return function(*args, **kwargs)

    return placed


def host_constant(values: Any) -> tf.Tensor:
    """A constant on the host, outside of the graph that is being traced."""
    with tf.init_scope(), tf.device(_HOST):
        return tf.constant(values)


def starts_of(sizes: tf.Tensor) -> tf.Tensor:
    """int64 [n + 1], where each of n parts starts, and where the last one ends."""
    return tf.pad(tf.cumsum(tf.cast(sizes, tf.int64)), [[1, 0]])


def bytes_of(texts: tf.Tensor) -> tf.Tensor:
    """The bytes of all texts, one text after the other: uint8 [bytes]."""
    return tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)


def characters_before(texts: tf.Tensor) -> tf.Tensor:
    """Number of UTF-8 characters before each byte of `bytes_of`, and in all: int64 [bytes + 1]."""
    return starts_of(bytes_of(texts) & 0xC0 != 0x80)  # bytes 0b10xxxxxx continue a character

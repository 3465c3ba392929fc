"""Dropout of 16 random bits per element."""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.networks.tensorflow.graph_gradients import custom_gradient
from bert_tf.networks.tensorflow.passes import in_few_passes, pays

_BITS = 16


class Dropout(NamedTuple):
    """Which elements to drop: those whose number is below the threshold."""

    numbers: tf.Tensor  # a uniform uint16 for each element
    threshold: int


def draw_dropout(seed: tf.Tensor, shape: Any, rate: float) -> Dropout | None:
    """Draws what to drop; None at rate 0.

    Equal seeds give equal numbers. The rate is a multiple of 2^-16, 0.10001 for 0.1. Two numbers
    are a hash of their position under keys from TensorFlow's generator, which is 7 times as slow.
    """
    threshold = round(rate * 2**_BITS)
    if not threshold:
        return None
    size = math.prod(shape) if all(isinstance(n, int) for n in shape) else tf.reduce_prod(shape)
    keys = tf.random.stateless_uniform([2], tf.cast(seed, tf.int64), None, None, tf.uint32)
    hashed = _hashed_in_one_pass if pays(size) else _hashed
    numbers = tf.reshape(tf.bitcast(hashed(keys, (size + 1) // 2), tf.uint16), [-1])[:size]
    return Dropout(tf.reshape(numbers, shape), threshold)


def _hashed(keys: tf.Tensor, number: Any) -> tf.Tensor:
    """Hashes uint32 [number] of the positions under two keys uint32 [2].

    lowbias32 (C. Wellons, Prospecting for Hash Functions, 2018) with the second key in its middle.
    """

    def mixed(x: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32)))

    x = tf.bitwise.bitwise_xor(tf.cast(tf.range(number), tf.uint32), keys[0])
    x = mixed(x, 16) * tf.constant(0x7FEB352D, tf.uint32) + keys[1]
    return mixed(mixed(x, 15) * tf.constant(0x846CA68B, tf.uint32), 16)


_hashed_in_one_pass = tf.function(_hashed, jit_compile=True, autograph=False)


def keeps(dropout: Dropout | None, dtype: Any) -> Any:
    """1 for elements to keep, 0 for others; without dropout just 1."""
    return 1 if dropout is None else tf.cast(dropout.numbers >= dropout.threshold, dtype)


def scale_of(dropout: Dropout | None) -> float:
    """The factor that makes up for the dropped share."""
    return 1.0 if dropout is None else 2**_BITS / (2**_BITS - dropout.threshold)


def drop(x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    if dropout is None:
        return x

    @custom_gradient
    def dropped(x: tf.Tensor) -> Any:
        return _dropped(x, dropout), lambda upstream: _dropped(upstream, dropout)

    return dropped(x)


@in_few_passes
def _dropped(x: tf.Tensor, dropout: Dropout) -> tf.Tensor:
    return x * (keeps(dropout, x.dtype) * tf.constant(scale_of(dropout), x.dtype))

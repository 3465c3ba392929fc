"""Long texts in overlapping windows, in graph."""

from typing import NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """R windows over B texts; each text has at least one.

    Attributes:
        text: number of each window's text, int64 [R].
        starts: place of each window's first token in its text, int64 [R].
        ends: place behind its last token, int64 [R].
        first: number of each text's first window, int64 [B].
        counts: number of each text's windows, int64 [B].
    """

    text: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    first: tf.Tensor
    counts: tf.Tensor


def windows(lengths: tf.Tensor, size: int, stride: int) -> Windows:
    """Covers texts with windows.

    Args:
        lengths: tokens in each text, int64 [B].
        size: most tokens in a window.
        stride: tokens between the starts of two windows, at most `size`.
    """
    counts = 1 + tf.maximum(lengths - size + stride - 1, 0) // stride
    text = tf.repeat(tf.range(tf.size(lengths, tf.int64)), counts)
    starts = tf.ragged.range(counts).flat_values * stride
    ends = tf.minimum(starts + size, tf.gather(lengths, text))
    return Windows(text, starts, ends, tf.cumsum(counts, exclusive=True), counts)


def best_window(
    found: Windows, text: tf.Tensor, places: tf.Tensor, size: int, stride: int
) -> tf.Tensor:
    """Finds the window in which a token has the most context on its poorer side.

    Args:
        found: windows of `size` and `stride`.
        text: text of each token, int64 [N].
        places: place of each token in its text, int64 [N].
        size: as of `windows`.
        stride: as of `windows`.

    Returns:
        Numbers of windows, int64 [N].
    """
    # Inside a text, a window is best for the `stride` tokens in its middle.
    number = (places - (size - stride) // 2) // stride
    last = tf.gather(found.counts, text) - 1
    return tf.gather(found.first, text) + tf.clip_by_value(number, 0, last)

"""Texts of any length as rows of a model, and where each piece of their words stands."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.words import Words

_MOST_TOKENS = 8192  # that a model reads together: with 512 in a row, 200 MB of attention scores


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
    """Covers texts of `lengths` tokens, int64 [B], with windows of at most `size` tokens.

    `stride` tokens, at most `size`, lie between the starts of two windows.
    """
    counts = 1 + tf.maximum(lengths - size + stride - 1, 0) // stride
    text = tf.repeat(tf.range(tf.size(lengths, tf.int64)), counts)
    starts = tf.ragged.range(counts).flat_values * stride
    ends = tf.minimum(starts + size, tf.gather(lengths, text))
    return Windows(text, starts, ends, tf.cumsum(counts, exclusive=True), counts)


def best_window(
    found: Windows, text: tf.Tensor, places: tf.Tensor, size: int, stride: int
) -> tf.Tensor:
    """The number of the window in which a token has the most context on its poorer side, int64 [N].

    Args:
        found: windows of `size` and `stride`.
        text: text of each token, int64 [N].
        places: place of each token in its text, int64 [N].
        size: as of `windows`.
        stride: as of `windows`.
    """
    # Inside a text, a window is best for the `stride` tokens in its middle.
    number = (places - (size - stride) // 2) // stride
    last = tf.gather(found.counts, text) - 1
    return tf.gather(found.first, text) + tf.clip_by_value(number, 0, last)


class WordRows(NamedTuple):
    """R windows over texts, which overlap by half.

    Attributes:
        inputs: model inputs, int32 [R, T] each.
        pieces: row and place of each piece of the words, int64 [P, 2], in the row that shows most
            of the piece's context.
        first_pieces: the same for the first piece of each word, int64 [W, 2].
    """

    inputs: dict[str, tf.Tensor]
    pieces: tf.Tensor
    first_pieces: tf.Tensor


def word_rows(
    words: Words, texts: tf.Tensor, tokenizer: BertTokenizer, max_length: int
) -> WordRows:
    """Packs words into windows; runs in graph.

    Args:
        words: W words of P pieces.
        texts: number of texts, int32 [].
        tokenizer: provides the special tokens.
        max_length: maximum tokens of a row, [CLS] and [SEP] included.
    """
    size = max_length - 2
    stride = max(1, size // 2)
    text = tf.repeat(words.text, words.pieces.row_lengths())  # (P,)
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(text), text, texts)  # (B,)
    first = tf.cumsum(lengths, exclusive=True)  # first piece of each text
    places = tf.range(tf.size(text, tf.int64)) - tf.gather(first, text)
    found = windows(lengths, size, stride)
    row = best_window(found, text, places, size, stride)
    column = 1 + places - tf.gather(found.starts, row)
    begins = tf.gather(first, found.text)
    indices = tf.ragged.range(begins + found.starts, begins + found.ends)  # (R, None)
    ids = indices.with_flat_values(tf.gather(words.pieces.flat_values, indices.flat_values))
    pieces = tf.stack([row, column], axis=1)
    first_pieces = tf.gather(pieces, words.pieces.row_starts())
    return WordRows(Packer(tokenizer, max_length)(ids), pieces, first_pieces)


def map_rows(
    function: Callable[[dict[str, tf.Tensor]], Any],
    tensors: dict[str, tf.Tensor],
    length: tf.Tensor | None = None,
) -> Any:
    """Computes some rows at a time: texts of any number and length fit in memory.

    Args:
        function: a part of the tensors, [r, ...] each, r at least 1 -> one tensor or several,
            [r, ...] each, whose other axes are the same for all parts.
        tensors: [R, ...] each, such as model inputs.
        length: tokens of a row, int32 []; None for those of the first of `tensors`.

    Returns:
        As `function`, [R, ...].
    """
    shape = tf.shape(next(iter(tensors.values())))
    rows, length = shape[0], tf.reduce_prod(shape[1:]) if length is None else length
    size = tf.maximum(_MOST_TOKENS // tf.maximum(length, 1), 1)
    one = tf.maximum(1 - rows, 0)  # function gets a row even if there is none
    padded = {n: tf.pad(x, [[0, one], *[[0, 0]] * (x.shape.rank - 1)]) for n, x in tensors.items()}
    traced = tf.function(function, autograph=False).get_concrete_function(
        {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in tensors.items()}
    )

    parts = (rows + one + size - 1) // size

    def compute(number: tf.Tensor, found: Any) -> Any:
        start = number * size
        computed = traced({name: x[start : start + size] for name, x in padded.items()})
        write = tf.nest.map_structure(lambda array, x: array.write(number, x), found, computed)
        return number + 1, write

    def array(output: tf.Tensor) -> tf.TensorArray:
        any_rows = [None, *output.shape[1:]]
        return tf.TensorArray(output.dtype, parts, infer_shape=False, element_shape=any_rows)

    arrays = tf.nest.map_structure(array, traced.structured_outputs)
    _, arrays = tf.while_loop(
        lambda number, found: number < parts, compute, [0, arrays], parallel_iterations=1
    )
    return tf.nest.map_structure(lambda array: array.concat()[:rows], arrays)

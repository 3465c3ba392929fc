"""Texts of any length as rows of a model, and where each piece of their words stands."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.words import Words

_MOST_TOKENS = 8192  # that a model reads together: with 512 in a row, 200 MB of attention scores


class Windows(NamedTuple):
    """R windows over the tokens of B texts, which are numbered through all texts."""

    text: tf.Tensor  # int64 [R], the number of each window's text
    number: tf.Tensor  # int64 [R], the window's number in its text, from 0
    starts: tf.Tensor  # int64 [R], each window's first token
    ends: tf.Tensor  # int64 [R], the token behind its last one
    counts: tf.Tensor  # int64 [B], the number of each text's windows


def windows(lengths: tf.Tensor, size: Any, stride: Any, number: tf.Tensor | None = None) -> Windows:
    """Covers texts with overlapping windows; each text has at least one.

    Args:
        lengths: tokens of each text, int64 [B].
        size: maximum tokens of a window, int or int64 [B].
        stride: tokens between the starts of two windows, at most `size`, int or int64 [B].
        number: int64 [B], the one window to make of each text; None for all.
    """
    text, counts = tf.range(tf.size(lengths, tf.int64)), tf.ones_like(lengths)
    if number is None:
        counts += tf.maximum(lengths - size + stride - 1, 0) // stride
        text, number = tf.repeat(text, counts), tf.ragged.range(counts).flat_values
    size, stride = (tf.gather(tf.zeros_like(lengths) + each, text) for each in (size, stride))
    start = number * stride
    end = tf.minimum(start + size, tf.gather(lengths, text))
    first = tf.gather(tf.cumsum(lengths, exclusive=True), text)
    return Windows(text, number, first + start, first + end, counts)


class WordRows(NamedTuple):
    """R windows over texts, which overlap by half."""

    inputs: dict[str, tf.Tensor]  # int32 [R, T] each
    pieces: tf.Tensor  # int64 [P, 2], row and place of each piece; the row shows most context
    first_pieces: tf.Tensor  # int64 [W, 2], the same for the first piece of each word


def word_rows(
    words: Words, texts: tf.Tensor, tokenizer: BertTokenizer, max_length: int
) -> WordRows:
    """Packs W words of P pieces into windows of at most `max_length` tokens; runs in graph.

    `texts` is the number of texts, int32 []; the special tokens count.
    """
    size = max_length - 2
    stride = max(1, size // 2)
    text = tf.repeat(words.text, words.pieces.row_lengths())  # (P,)
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(text), text, texts)  # (B,)
    found = windows(lengths, size, stride)
    tokens = tf.ragged.range(found.starts, found.ends)  # (R, None)
    ids = tokens.with_flat_values(tf.gather(words.pieces.flat_values, tokens.flat_values))

    # Inside a text, a window has the most context around the `stride` tokens in its middle.
    piece = tf.range(tf.size(text, tf.int64))
    place = piece - tf.gather(tf.cumsum(lengths, exclusive=True), text)
    number = (place - (size - stride) // 2) // stride
    number = tf.clip_by_value(number, 0, tf.gather(found.counts, text) - 1)
    row = tf.gather(tf.cumsum(found.counts, exclusive=True), text) + number
    pieces = tf.stack([row, 1 + piece - tf.gather(found.starts, row)], axis=1)  # 1 for [CLS]
    first_pieces = tf.gather(pieces, words.pieces.row_starts())
    return WordRows(Packer(tokenizer, max_length)(ids), pieces, first_pieces)


def map_rows(
    function: Callable[[dict[str, tf.Tensor]], Any],
    tensors: dict[str, tf.Tensor],
    length: tf.Tensor | None = None,
) -> Any:
    """Computes `function` of a few rows at a time: any number of texts fits in memory.

    Args:
        function: a part of the tensors, [r, ...] each, r at least 1 -> one tensor or several,
            [r, ...] each, whose other axes are the same for all parts.
        tensors: [R, ...] each, such as model inputs.
        length: tokens of a row, int32 []; None for those of the first of `tensors`.
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

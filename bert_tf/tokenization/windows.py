"""Texts of any length as rows of a model: overlapping windows, in graph."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.strings import on_host
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.words import Words

_MOST_TOKENS = 8192  # that a model reads together: with 512 in a row, 200 MB of attention scores


class Windows(NamedTuple):
    """R windows over the tokens of B texts, which are numbered through all texts; int64."""

    text_index: tf.Tensor  # [R], the index of each window's text
    number: tf.Tensor  # [R], the window's number in its text, from 0
    starts: tf.Tensor  # [R], each window's first token
    ends: tf.Tensor  # [R], the token behind its last one
    counts: tf.Tensor  # [B], the number of each text's windows


def windows(lengths: tf.Tensor, size: Any, stride: Any, number: tf.Tensor | None = None) -> Windows:
    """Covers texts of `lengths` tokens, int64 [B], with overlapping windows, at least one each.

    A window has at most `size` tokens and starts `stride` after the one before it: ints or int64
    [B]. `number`, int64 [B], asks for one window of each text.
    """
    text_index = tf.range(tf.size(lengths, tf.int64))
    counts = tf.ones_like(lengths)
    if number is None:
        counts += tf.maximum(lengths - size + stride - 1, 0) // stride
        text_index = tf.repeat(text_index, counts)
        number = tf.ragged.range(counts).flat_values
    size, stride = (
        tf.gather(tf.zeros_like(lengths) + values, text_index) for values in (size, stride)
    )
    start = number * stride
    end = tf.minimum(start + size, tf.gather(lengths, text_index))
    first = tf.gather(tf.cumsum(lengths, exclusive=True), text_index)
    return Windows(text_index, number, first + start, first + end, counts)


class WordRows(NamedTuple):
    """R windows over texts, which overlap by half."""

    inputs: dict[str, tf.Tensor]  # int32 [R, T] each
    pieces: tf.Tensor  # int64 [P, 2], row and position of each piece; the row shows most context
    first_pieces: tf.Tensor  # int64 [W, 2], the same for the first piece of each word


def word_rows(words: Words, texts: tf.Tensor, tokenizer: BertTokenizer, length: int) -> WordRows:
    """Packs the words of `texts` texts, int32 [], into rows of at most `length` tokens."""
    size = length - 2  # without [CLS] and [SEP]
    stride = max(1, size // 2)
    text_index = tf.repeat(words.text_index, words.pieces.row_lengths())  # (P,)
    lengths = tf.math.unsorted_segment_sum(tf.ones_like(text_index), text_index, texts)  # (B,)
    cover = windows(lengths, size, stride)
    tokens = tf.ragged.range(cover.starts, cover.ends)  # (R, None)
    ids = tokens.with_flat_values(tf.gather(words.pieces.flat_values, tokens.flat_values))

    # Inside a text, a window has the most context around the `stride` tokens in its middle.
    piece = tf.range(tf.size(text_index, tf.int64))
    position = piece - tf.gather(tf.cumsum(lengths, exclusive=True), text_index)
    number = (position - (size - stride) // 2) // stride
    number = tf.clip_by_value(number, 0, tf.gather(cover.counts, text_index) - 1)
    row = tf.gather(tf.cumsum(cover.counts, exclusive=True), text_index) + number
    pieces = tf.stack([row, 1 + piece - tf.gather(cover.starts, row)], axis=1)  # 1 for [CLS]
    first_pieces = tf.gather(pieces, words.pieces.row_starts())
    return WordRows(Packer(tokenizer, length)(ids), pieces, first_pieces)


@on_host
def packed_words(
    words: Words, texts: tf.Tensor, tokenizer: BertTokenizer, length: int
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Packs the words of `texts` texts, int32 [], into one row each, which is truncated.

    Returns the model inputs, int32 [B, T], and the position of the first piece of each word in its
    row, int32 [B, W]: 0, which is [CLS], for words that are truncated and beyond a text's last one.
    """
    number = tf.cast(texts, tf.int64)
    of_text = tf.RaggedTensor.from_value_rowids(words.pieces, words.text_index, number)
    ids = of_text.merge_dims(1, 2)  # (B, None)
    before = tf.gather(ids.row_starts(), words.text_index)
    first = 1 + words.pieces.row_starts() - before  # (W,), behind [CLS]
    first = tf.cast(tf.where(first < length - 1, first, 0), tf.int32)
    return Packer(tokenizer, length)(ids), of_text.with_values(first).to_tensor()


class QuestionWindows(NamedTuple):
    """W windows of T tokens; the windows of a question follow each other."""

    inputs: dict[str, tf.Tensor]  # int32 [W, T] each
    question: tf.Tensor  # int64 [W], the question's number in the batch
    number: tf.Tensor  # int64 [W], the window's number within its question, from 0
    piece: tf.Tensor  # int64 [W, T], number among the pieces of all contexts; outside, their count
    starts: tf.Tensor  # int64 [W, T], where a token begins, in bytes of the context, or -1
    ends: tf.Tensor  # int64 [W, T], where it ends
    has_most_context: tf.Tensor  # bool [W, T], whether no other window shows more text around it
    truncated: tf.Tensor  # int32 [B], the pieces that each question lost


class QuestionPacker:
    """Packs `[CLS] question [SEP] window of the context [SEP]`, as the original's run_squad.py.

    A row has at most `max_length` tokens, special ones included. A question is cut at its end, to
    `max_question` pieces and half of the row. Every context has a window, if only an empty one.
    """

    def __init__(
        self, tokenizer: BertTokenizer, max_length: int, stride: int = 128, max_question: int = 64
    ):
        if max_length < 5:
            raise InputError(f"max_length is {max_length}; windows need at least 5 tokens")
        self.tokenizer = tokenizer
        self.stride = stride
        self.room = max_length - 3  # for question and context
        self.max_question = min(max_question, self.room // 2)
        self.pack = Packer(tokenizer, max_length)

    @on_host
    def __call__(
        self, questions: tf.Tensor, contexts: tf.Tensor, number: tf.Tensor | None = None
    ) -> QuestionWindows:
        """Packs questions and contexts, string [B]; `number` as in `windows`."""
        whole = self.tokenizer.tokenize(questions)
        question_ids = whole[:, : self.max_question]
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(contexts)
        room = self.room - tf.cast(question_ids.row_lengths(), tf.int64)  # (B,)
        if number is not None:
            number = tf.cast(number, tf.int64)
        stride = tf.minimum(room, self.stride)
        question, number, begin, end, _ = windows(ids.row_lengths(), room, stride, number)
        question_ids = tf.gather(question_ids, question)
        inputs = self.pack(question_ids, tf.gather(ids.flat_values, tf.ragged.range(begin, end)))

        begin = begin[:, tf.newaxis]
        end = end[:, tf.newaxis]
        before = 2 + tf.cast(question_ids.row_lengths(), tf.int64)[:, tf.newaxis]
        token = tf.range(tf.shape(inputs["token_ids"], tf.int64)[1])
        piece = begin + token - before  # (W, T)
        none = tf.size(ids.flat_values, tf.int64)  # stands for tokens outside the context
        piece = tf.where((piece >= begin) & (piece < end), piece, none)

        # The smaller of left and right context, plus 0.01 times the length of the window; the
        # first window wins a tie. In whole numbers.
        around = tf.minimum(piece - begin, end - 1 - piece)
        context = (100 * around + end - begin) * 2**20 - number[:, tf.newaxis]
        most = tf.math.unsorted_segment_max(context, piece, none + 1)
        has_most_context = (piece < none) & (context == tf.gather(most, piece))
        padded = (tf.concat([values.flat_values, [-1]], 0) for values in (starts, ends))
        starts, ends = (tf.gather(values, piece) for values in padded)
        truncated = tf.cast(tf.maximum(whole.row_lengths() - self.max_question, 0), tf.int32)
        return QuestionWindows(
            inputs, question, number, piece, starts, ends, has_most_context, truncated
        )


def token_targets(windows: QuestionWindows, answers: tf.Tensor) -> tf.Tensor:
    """The tokens at which answers start and end: int32 [W, 2], zeros ([CLS]) unless both are there.

    `answers`, int64 [B, 2], are starts and ends in bytes of the contexts, equal for no answer.
    """
    begin, end = tf.split(tf.gather(answers, windows.question), 2, axis=-1)  # (W, 1) both
    inside = (windows.starts < end) & (windows.ends > begin) & (end > begin)
    questions = tf.shape(answers)[0]
    none = tf.reduce_max(windows.piece) + 1
    first = tf.reduce_min(tf.where(inside, windows.piece, none), -1)  # (W,)
    last = tf.reduce_max(tf.where(inside, windows.piece, -1), -1)
    first = tf.math.unsorted_segment_min(first, windows.question, questions)  # of all windows
    last = tf.math.unsorted_segment_max(last, windows.question, questions)
    edges = tf.gather(tf.stack([first, last], -1), windows.question)[:, :, tf.newaxis]  # (W, 2, 1)
    is_edge = (windows.piece[:, tf.newaxis] == edges) & inside[:, tf.newaxis]  # (W, 2, T)
    is_whole = tf.reduce_all(tf.reduce_any(is_edge, -1), -1, keepdims=True)
    return tf.where(is_whole, tf.argmax(is_edge, -1, output_type=tf.int32), 0)


def map_rows(
    function: Callable[[dict[str, tf.Tensor]], Any],
    tensors: dict[str, tf.Tensor],
    length: tf.Tensor | None = None,
) -> Any:
    """Computes `function` of a few rows at a time: any number of texts fits in memory.

    `function` maps parts of `tensors`, [r, ...] with r at least 1, to one or several tensors
    [r, ...]. `length`, int32 [], is a row's number of tokens; by default the first tensor's.
    """
    shape = tf.shape(next(iter(tensors.values())))
    rows = shape[0]
    length = tf.reduce_prod(shape[1:]) if length is None else length
    size = tf.maximum(_MOST_TOKENS // tf.maximum(length, 1), 1)
    pad = tf.maximum(1 - rows, 0)  # function gets a row even if there is none
    padded = {n: tf.pad(x, [[0, pad], *[[0, 0]] * (x.shape.rank - 1)]) for n, x in tensors.items()}
    traced = tf.function(function, autograph=False).get_concrete_function(
        {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype) for name, x in tensors.items()}
    )
    parts = (rows + pad + size - 1) // size

    def compute(number: tf.Tensor, written: Any) -> Any:
        start = number * size
        computed = traced({name: x[start : start + size] for name, x in padded.items()})
        write = tf.nest.map_structure(lambda array, x: array.write(number, x), written, computed)
        return number + 1, write

    def array(output: tf.Tensor) -> tf.TensorArray:
        any_rows = [None, *output.shape[1:]]
        return tf.TensorArray(output.dtype, parts, infer_shape=False, element_shape=any_rows)

    arrays = tf.nest.map_structure(array, traced.structured_outputs)
    _, arrays = tf.while_loop(
        lambda number, written: number < parts, compute, [0, arrays], parallel_iterations=1
    )
    return tf.nest.map_structure(lambda array: array.concat()[:rows], arrays)

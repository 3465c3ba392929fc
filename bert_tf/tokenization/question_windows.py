"""Questions with contexts of any length to model inputs: overlapping windows, in graph."""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.strings import on_host
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.word_windows import windows


class QuestionWindows(NamedTuple):
    """W windows of T tokens, those of a question one after the other."""

    inputs: dict[str, tf.Tensor]  # int32 [W, T] each
    question: tf.Tensor  # int64 [W], the question's place in the batch
    number: tf.Tensor  # int64 [W], the window's number within its question, from 0
    # int64 [W, T], the token's number among the pieces of all contexts; for tokens outside the
    # context (question, special tokens, padding) the number of these pieces
    piece: tf.Tensor
    starts: tf.Tensor  # int64 [W, T], where a token begins, in bytes of the context, or -1
    ends: tf.Tensor  # int64 [W, T], where it ends
    has_most_context: tf.Tensor  # bool [W, T], whether no other window shows more text around it
    truncated: tf.Tensor  # int32 [B], the pieces that each question lost


class QuestionPacker:
    """Packs `[CLS] question [SEP] window of the context [SEP]`, as the original's run_squad.py.

    Every context has at least one window, if only an empty one.

    Args:
        tokenizer: the model's tokenizer.
        max_length: maximum tokens per window, special tokens included.
        stride: pieces between the beginnings of two windows.
        max_question: maximum pieces of a question, cut at its end; at most half of the window.

    Raises:
        InputError: `max_length` is below 5.
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
        """Makes the windows of questions and contexts, string [B] each.

        `number`, int [B], asks for one window of each context; None for all.
        """
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

        begin, end = begin[:, tf.newaxis], end[:, tf.newaxis]
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
        return QuestionWindows(
            inputs,
            question,
            number,
            piece,
            starts=tf.gather(tf.concat([starts.flat_values, [-1]], 0), piece),
            ends=tf.gather(tf.concat([ends.flat_values, [-1]], 0), piece),
            has_most_context=(piece < none) & (context == tf.gather(most, piece)),
            truncated=tf.cast(tf.maximum(whole.row_lengths() - self.max_question, 0), tf.int32),
        )


def token_targets(windows: QuestionWindows, places: tf.Tensor) -> tf.Tensor:
    """The tokens at which answers start and end.

    Args:
        windows: windows of B questions.
        places: int64 [B, 2], where each answer starts and ends in bytes of its context; twice the
            same place for no answer.

    Returns:
        int32 [W, 2]; twice 0, [CLS], for windows that lack a part of the answer.
    """
    begin, end = tf.split(tf.gather(places, windows.question), 2, axis=-1)  # (W, 1) both
    inside = (windows.starts < end) & (windows.ends > begin) & (end > begin)
    questions = tf.shape(places)[0]
    none = tf.reduce_max(windows.piece) + 1
    first = tf.reduce_min(tf.where(inside, windows.piece, none), -1)  # (W,)
    last = tf.reduce_max(tf.where(inside, windows.piece, -1), -1)
    first = tf.math.unsorted_segment_min(first, windows.question, questions)  # of all windows
    last = tf.math.unsorted_segment_max(last, windows.question, questions)
    edges = tf.gather(tf.stack([first, last], -1), windows.question)[:, :, tf.newaxis]  # (W, 2, 1)
    is_edge = (windows.piece[:, tf.newaxis] == edges) & inside[:, tf.newaxis]  # (W, 2, T)
    is_whole = tf.reduce_all(tf.reduce_any(is_edge, -1), -1, keepdims=True)
    return tf.where(is_whole, tf.argmax(is_edge, -1, output_type=tf.int32), 0)

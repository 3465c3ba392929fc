"""Words to pieces: greedy longest match against the vocabulary, inside the graph."""

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow_text.python.ops import fast_wordpiece_tokenizer as op

from bert_tf.errors import InputError
from bert_tf.tokenization.strings import characters_before, host_constant, on_host, starts_of

LONGEST_WORD = 200  # characters; the original calls a longer word unknown

# ids int32 [pieces] of all texts; row_splits int64 [batch + 1], the first piece of each text;
# starts and ends int64 [pieces], in bytes of the text
Pieces = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


class WordPiece(tf.Module):
    """Splits normalized text into the longest pieces of the vocabulary.

    The rules of `WordpieceTokenizer` in the original `tokenization.py`, by the linear-time
    algorithm of "Fast WordPiece Tokenization" (Song et al., 2021). A word with a part that is not
    in the vocabulary, or of over 200 characters, is one unknown piece. With `splits_words` words
    end at whitespace, punctuation and Chinese characters, else at spaces only, which is slower.
    """

    def __init__(self, vocabulary: Sequence[str], unknown_token: str, splits_words: bool = True):
        super().__init__()
        self._unknown_id = vocabulary.index(unknown_token)
        self._splits_words = splits_words
        # A piece that is blank or holds whitespace never matches. It keeps its id under a name that
        # the op splits at the bracket, because the builder must not see it.
        matchable = tuple(
            piece if piece.split() == [piece] else f"[unmatchable {index}]"
            for index, piece in enumerate(vocabulary)
        )
        # The op measures words in bytes, the original in characters, of 4 bytes at most.
        self._model, self._patient_model = (
            host_constant(model_buffer(matchable, unknown_token, longest_word, splits_words))
            for longest_word in (LONGEST_WORD, 4 * LONGEST_WORD)
        )
        self._continues = host_constant([piece.startswith("##") for piece in matchable])

    def __call__(self, texts: tf.Tensor) -> Pieces:
        """Splits normalized texts, string [batch]."""
        pieces = self._match(texts, self._model)
        ids, _, starts, ends = pieces
        # A word of up to 200 bytes has at most 200 characters, and one of over 800 has more: only
        # words between need a second look.
        length = ends - starts
        doubtful = (length > LONGEST_WORD) & (length <= 4 * LONGEST_WORD)
        doubtful &= ids == self._unknown_id

        def count_characters() -> Pieces:
            patient, unknown = self._match(texts, self._patient_model), self._unknown_id
            return _without_long_words(texts, patient, self._continues, tf.constant(unknown))

        return tf.cond(tf.reduce_any(doubtful), count_characters, lambda: pieces)

    def _match(self, texts: tf.Tensor, model: tf.Tensor) -> Pieces:
        if self._splits_words:
            return match(texts, model)
        words = tf.strings.split(texts, " ")  # (batch, (words)), empty ones between two spaces
        ids, word_splits, starts, ends = match(words.flat_values, model)
        # A word begins one space after the end of the word before it.
        edges = starts_of(tf.strings.length(words.flat_values) + 1)
        text_start = tf.repeat(tf.gather(edges, words.row_splits[:-1]), words.row_lengths())
        shift = tf.repeat(edges[:-1] - text_start, word_splits[1:] - word_splits[:-1])
        return ids, tf.gather(word_splits, words.row_splits), starts + shift, ends + shift


_INTEGERS = tf.TensorSpec([None], tf.int64)
_PIECES = (tf.TensorSpec([None], tf.int32), _INTEGERS, _INTEGERS, _INTEGERS)
_TEXTS, _CONTINUES = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.bool)
_SIGNATURE = [_TEXTS, _PIECES, _CONTINUES, tf.TensorSpec([], tf.int32)]


# Traced once per process: it is most of the tokenizer's graph, and rarely runs.
@tf.function(input_signature=_SIGNATURE, autograph=False)
@on_host
def _without_long_words(
    texts: tf.Tensor, pieces: Pieces, continues: tf.Tensor, unknown_id: tf.Tensor
) -> Pieces:
    """Makes each word of over 200 characters one unknown piece; `continues`: bool [vocabulary]."""
    ids, row_splits, starts, ends = pieces
    is_first = ~tf.gather(continues, ids)
    word = tf.cumsum(tf.cast(is_first, tf.int64)) - 1  # (pieces,)
    start = tf.gather(tf.math.segment_min(starts, word), word)  # of each piece's word
    end = tf.gather(tf.math.segment_max(ends, word), word)
    base = tf.repeat(starts_of(tf.strings.length(texts))[:-1], row_splits[1:] - row_splits[:-1])
    before = characters_before(texts)
    is_long = tf.gather(before, base + end) - tf.gather(before, base + start) > LONGEST_WORD
    keep = ~is_long | is_first
    return (
        tf.boolean_mask(tf.where(is_long, unknown_id, ids), keep),
        tf.gather(starts_of(keep), row_splits),
        tf.boolean_mask(starts, keep),
        tf.boolean_mask(tf.where(is_long, end, ends), keep),
    )


def match(texts: tf.Tensor, model: tf.Tensor) -> Pieces:
    """Splits texts by the op alone, which measures words in bytes; `model` is a `model_buffer`."""
    _, ids, *offsets = op.gen_fast_wordpiece_tokenizer.fast_wordpiece_tokenize_with_offsets(
        input_values=texts, wp_model=model
    )
    return tf.cast(ids, tf.int32), *offsets


@functools.lru_cache(maxsize=8)  # a tenth of a second each, and more for large vocabularies
def model_buffer(
    pieces: tuple[str, ...], unknown_token: str, longest_word: int, splits_words: bool
) -> np.ndarray:
    """The flatbuffer that the op reads: uint8 [bytes]."""
    try:
        model = op.pywrap_fast_wordpiece_tokenizer_model_builder.build_fast_wordpiece_model(
            pieces, longest_word, "##", unknown_token, not splits_words, False
        )
    except RuntimeError as error:
        raise InputError(
            f"the vocabulary cannot be used: {error} Give it pieces beside the special tokens"
        ) from None
    return np.frombuffer(model, np.uint8)

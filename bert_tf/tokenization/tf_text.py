"""Text to pieces by TF Text's operations; `core_ops` has the same without TF Text.

`FastBertNormalize` takes all its rules from a table, a double-array trie from UTF-8 bytes to
replacements. The op's own table has other rules than BERT's (NFKC case folding).
"""

import functools
import unicodedata
from collections.abc import Sequence

import flatbuffers
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.startup import text_operations, wordpiece_builder
from bert_tf.tokenization.normalizer import (
    LONGEST_WORD,
    double_array,
    isolating_replacements,
    lower_final_sigmas,
    normalized_pieces,
    planes,
    punctuation,
)
from bert_tf.tokenization.strings import (
    Pieces,
    characters_before,
    host_constant,
    on_host,
    starts_of,
)

# Removing what stands between two halves of a character would make one of them: a byte that
# continues none becomes one that no character has.
_STRAYS = {chr(0xDC00 + byte): "\udcff" for byte in range(0x80, 0xC0)}
_NORMALIZER, _WORDPIECE = text_operations()


class Splitter(tf.Module):
    """Normalizes texts as the original BERT does, and splits them into pieces."""

    def __init__(
        self,
        vocabulary: Sequence[str],
        unknown_token: str,
        *,
        do_lower_case: bool,
        strip_accents: bool,
        tokenize_chinese_chars: bool,
    ):
        super().__init__()
        marks = "unsplit" if tokenize_chinese_chars else "all"
        self._normalizer = Normalizer(do_lower_case, strip_accents, False, marks)
        self._wordpiece = WordPiece(vocabulary, unknown_token, splits_words=tokenize_chinese_chars)

    def __call__(self, texts: tf.Tensor, get_offsets: bool) -> Pieces:
        """Splits strings [batch]; without `get_offsets` their offsets mean nothing."""
        return normalized_pieces(texts, self._normalizer, self._wordpiece, get_offsets)


class Normalizer(tf.Module):
    """Normalizes text as the original BERT does before it looks words up.

    Stripping accents means to decompose (NFD) and to drop nonspacing marks. The `isolate` options
    put spaces around Chinese characters, around "all" punctuation, what `WordPiece` leaves
    "unsplit", or "no" punctuation.
    """

    def __init__(
        self,
        do_lower_case: bool,
        strip_accents: bool,
        isolate_chinese: bool,
        isolate_punctuation: str,
    ):
        super().__init__()
        self._lower_case = do_lower_case
        table = _table(do_lower_case, strip_accents, isolate_chinese, isolate_punctuation)
        self._table = host_constant(table)

    def __call__(self, texts: tf.Tensor, get_offsets: bool = False) -> tuple[tf.Tensor, ...]:
        """Normalizes strings [batch] and returns the origins of their bytes, int64, and row splits.

        Each text has an origin per normalized byte, and the end of the last one.
        """
        if self._lower_case:
            texts = lower_final_sigmas(texts)
        return _NORMALIZER.fast_bert_normalize(
            input_values=texts, fast_bert_normalizer_model=self._table, get_offsets=get_offsets
        )


class WordPiece(tf.Module):
    """Splits normalized text into the longest pieces of the vocabulary.

    The rules of `WordpieceTokenizer` in the original `tokenization.py`, by the linear-time
    algorithm of "Fast WordPiece Tokenization" (Song et al., 2021). A word with a part that is not
    in the vocabulary, or of over 200 characters, is one unknown piece. With `splits_words` words
    end at whitespace, punctuation and Chinese characters, else at spaces only, which is slower.
    """

    def __init__(self, vocabulary: Sequence[str], unknown_token: str, splits_words: bool):
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
            patient = self._match(texts, self._patient_model)
            unknown = self._unknown_id
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
    _, ids, *offsets = _WORDPIECE.fast_wordpiece_tokenize_with_offsets(
        input_values=texts, wp_model=model
    )
    return tf.cast(ids, tf.int32), *offsets


@functools.lru_cache(maxsize=8)  # a tenth of a second each, and more for large vocabularies
def model_buffer(
    pieces: tuple[str, ...], unknown_token: str, longest_word: int, splits_words: bool
) -> np.ndarray:
    """The flatbuffer that the op reads: uint8 [bytes]."""
    try:
        model = wordpiece_builder().build_fast_wordpiece_model(
            pieces, longest_word, "##", unknown_token, not splits_words, False
        )
    except RuntimeError as error:
        raise InputError(
            f"the vocabulary cannot be used: {error} Give it pieces beside the special tokens"
        ) from None
    return np.frombuffer(model, np.uint8)


@functools.lru_cache(maxsize=16)
def _table(
    do_lower_case: bool, strip_accents: bool, isolate_chinese: bool, isolate_punctuation: str
) -> np.ndarray:
    """The flatbuffer that `FastBertNormalize` reads: uint8 [bytes]."""
    isolated: frozenset[str] = frozenset()
    if isolate_punctuation != "no":
        isolated = punctuation() if isolate_punctuation == "all" else _unsplit_punctuation()
    table = isolating_replacements(do_lower_case, strip_accents, isolate_chinese, isolated)
    return _flatbuffer(table | _STRAYS)


@functools.cache
def _unsplit_punctuation() -> frozenset[str]:
    """Punctuation of this Python's Unicode at which `WordPiece` does not split."""
    marks = list(punctuation())
    return frozenset(c for c, n in zip(marks, _pieces_around(marks), strict=True) if n != 3)


def unassigned_marks() -> list[str]:
    """Characters that this Python's Unicode does not know and at which words end."""
    unknown = [c for c in planes() if unicodedata.category(c) == "Cn"]
    return [c for c, n in zip(unknown, _pieces_around(unknown), strict=True) if n == 3]


def _pieces_around(characters: Sequence[str]) -> np.ndarray:
    """The pieces of a word with the character inside, [characters]: 3 where `WordPiece` splits."""
    model = host_constant(model_buffer(("[UNK]", "a"), "[UNK]", LONGEST_WORD, True))
    with tf.init_scope():
        return np.diff(match(tf.constant([f"a{c}a" for c in characters]), model)[1])


def _flatbuffer(replacements: dict[str, str]) -> np.ndarray:
    """Packs a map from characters, or bytes as escaped by "surrogateescape", in the op's format."""
    pool = bytearray()
    values: dict[str, int] = {}
    for replacement in dict.fromkeys(replacements.values()):
        encoded = replacement.encode(errors="surrogateescape")
        if len(encoded) > 63:
            raise ValueError(f"{replacement!r} is longer than the format's 63 bytes")
        # Bit 30: the character changes; then the offset in the pool; 6 bits of length.
        values[replacement] = 1 << 30 | len(pool) << 6 | len(encoded)
        pool += encoded
    zero = values[replacements.pop("\0")]  # U+0000 cannot be a key of the trie
    trie = double_array({character: values[text] for character, text in replacements.items()})

    builder = flatbuffers.Builder(1 << 20)
    trie_offset = builder.CreateNumpyVector(trie)
    pool_offset = builder.CreateNumpyVector(np.frombuffer(bytes(pool), np.uint8))
    builder.StartObject(4)
    builder.PrependBoolSlot(0, True, False)  # replacements apply; False would skip the table
    builder.PrependUOffsetTRelativeSlot(1, trie_offset, 0)
    builder.PrependInt32Slot(2, zero, 0)
    builder.PrependUOffsetTRelativeSlot(3, pool_offset, 0)
    builder.Finish(builder.EndObject())
    return np.frombuffer(bytes(builder.Output()), np.uint8)

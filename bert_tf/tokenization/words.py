"""Words of texts, with their pieces and spans, in graph."""

from typing import NamedTuple

import tensorflow as tf

from bert_tf.tokenization.normalizer import is_chinese, is_punctuation
from bert_tf.tokenization.strings import bytes_of, characters_before, on_host, starts_of
from bert_tf.tokenization.tokenizer import BertTokenizer

# Between letters or digits these do not end a word: "e-mail", "U.S", "AT&T", "and/or".
_INNER_MARKS = "-.&/_@"
_HASH_BASE = 6364136223846793005  # Knuth's multiplier


class Words(NamedTuple):
    """W words of a batch of texts."""

    text_index: tf.Tensor  # int64 [W], the index of each word's text in the batch, ascending
    pieces: tf.RaggedTensor  # int32 [W, (P)], at least one each
    starts: tf.Tensor  # int64 [W], the byte of the text where each word starts
    ends: tf.Tensor  # int64 [W], the byte behind each word


@on_host
def words_between_spaces(texts: tf.Tensor, tokenizer: BertTokenizer) -> Words:
    """Splits texts, strings [B], at ASCII white space alone; a word without pieces is [UNK]."""
    data = bytes_of(tf.strings.join([texts, "\n"]))
    is_space = (data == ord(" ")) | ((data >= ord("\t")) & (data <= ord("\r")))
    after_space = tf.concat([[True], is_space], 0)[:-1]
    starts = tf.where(~is_space & after_space)[:, 0]
    ends = tf.where(is_space & ~after_space)[:, 0]
    text_starts = starts_of(tf.strings.length(texts) + 1)
    text_index = tf.searchsorted(text_starts, starts, side="right", out_type=tf.int64) - 1
    first = tf.gather(text_starts, text_index)
    starts -= first
    ends -= first
    pieces = tokenizer.tokenize(spans(texts, text_index, starts, ends))
    unknown = tf.fill([tf.size(text_index), 1], tokenizer.unk_token_id)
    nothing = tf.cast(pieces.row_lengths() == 0, tf.int64)
    pieces = tf.concat([pieces, tf.RaggedTensor.from_tensor(unknown, nothing)], axis=1)
    return Words(text_index, pieces, starts, ends)


@on_host
def words_of_raw_text(texts: tf.Tensor, tokenizer: BertTokenizer) -> Words:
    """Splits raw texts, strings [B], at white space, Chinese characters and punctuation.

    Marks such as a hyphen between two letters or digits do not; any other is a word of its own.
    """
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    text_index = ids.value_rowids()
    ids = ids.flat_values
    starts = starts.flat_values
    ends = ends.flat_values
    bare = [piece.removeprefix("##") for piece in tokenizer.vocabulary]
    alone = [len(c) == 1 and (is_punctuation(c) or is_chinese(c)) for c in bare]
    inner = [len(c) == 1 and c in _INNER_MARKS for c in bare]

    def before(values: tf.Tensor, fill: object) -> tf.Tensor:
        """For each piece the value of the one before it."""
        return tf.concat([[fill], values], 0)[:-1]

    def after(values: tf.Tensor) -> tf.Tensor:
        return tf.concat([values, [False]], 0)[1:]

    is_letters = ~tf.gather(alone, ids)
    is_same_text = before(text_index, -1) == text_index
    touches = is_same_text & (before(ends, 0) >= starts)  # the piece before
    inside = tf.gather(inner, ids) & touches & after(touches)
    inside &= before(is_letters, False) & after(is_letters)
    continues = tf.gather(tokenizer.is_continuation, ids) | inside | before(inside, False)
    first = tf.where(~continues)[:, 0]  # of each word
    limits = tf.concat([first, [tf.size(ids, tf.int64)]], 0)[1:]
    pieces = tf.RaggedTensor.from_row_limits(ids, limits)
    ends = tf.gather(ends, limits - 1)
    return Words(tf.gather(text_index, first), pieces, tf.gather(starts, first), ends)


@on_host
def spans(texts: tf.Tensor, text_index: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Cuts bytes `starts` to `ends` out of the texts at `text_index`, int64 [N]: strings [N]."""
    # Not substr: a copy of its whole text for each part would fill the memory.
    data = tf.strings.bytes_split(tf.strings.reduce_join(texts))
    first = _first_byte(texts, text_index)
    positions = tf.ragged.range(first + starts, first + ends)
    parts = positions.with_flat_values(tf.gather(data, positions.flat_values))
    return tf.strings.reduce_join(parts, axis=-1)


def valid_utf_8(texts: tf.Tensor) -> tf.Tensor:
    """Replaces invalid UTF-8, which JSON cannot hold, by U+FFFD."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


@on_host
def hashes(
    texts: tf.Tensor, text_index: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
) -> tf.Tensor:
    """Hashes what `spans` cuts out, without copies: a polynomial of the bytes, int64 [N]."""
    data = bytes_of(texts)
    size = tf.size(data, tf.int64)
    powers = tf.math.cumprod(tf.fill([size + 1], tf.constant(_HASH_BASE, tf.int64)), exclusive=True)
    before = starts_of((tf.cast(data, tf.int64) + 1) * powers[:-1])
    first = _first_byte(texts, text_index)
    difference = tf.gather(before, first + ends) - tf.gather(before, first + starts)
    return difference * tf.gather(powers, size - first - starts)  # as if all began at one byte


@on_host
def code_points(texts: tf.Tensor, text_index: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Converts `offsets`, int64 [N], from bytes to code points of the texts at `text_index`."""
    before = characters_before(texts)
    first = _first_byte(texts, text_index)
    return tf.gather(before, first + offsets) - tf.gather(before, first)


def _first_byte(texts: tf.Tensor, text_index: tf.Tensor) -> tf.Tensor:
    """The position in `bytes_of` of the first byte of each text in `text_index`, int64 [N]."""
    return tf.gather(starts_of(tf.strings.length(texts)), text_index)

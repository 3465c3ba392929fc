"""Tokens that are matched in the text itself, before it is split into words, in graph.

It follows the rules of `AddedVocabulary` in Hugging Face's `tokenizers`. White space between two
tokens that both claim it is in one of them here, and there in the offsets of both.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from bert_tf.tokenization.strings import Pieces, host_constant, starts_of

# Rust's \s, and \w where Python's Unicode has no category for it: joiners and circled letters.
_SPACE = r"\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_WORD = (
    r"\pL\pM\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}"
    r"\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}"
)


@dataclass(frozen=True)
class AddedToken:
    """A token that is one piece wherever it stands in a text, recorded as Hugging Face does.

    Args:
        content: the text of the token.
        single_word: whether letters and digits beside it make it part of a word, and no token.
        lstrip: whether it takes the white space before it.
        rstrip: whether it takes the white space after it.
        normalized: whether it is matched in normalized text, for example lower-cased.
        special: whether it marks structure rather than text; only recorded.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class AddedTokens(tf.Module):
    """Finds tokens in texts, the longest first, and leaves what is between them to others."""

    def __init__(self, tokens: Mapping[str, AddedToken], ids: Sequence[int], absent: str):
        """Keys of `tokens` are the texts to find; `absent` has two characters of no vocabulary."""
        super().__init__()
        self._mark, self._impostor = tuple(absent)
        self._pattern = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        with tf.init_scope():
            hashes = [int(_hash(tf.constant(key))) for key in tokens]
        by_hash = sorted(zip(hashes, tokens.values(), ids, strict=True), key=lambda entry: entry[0])
        self._hashes = host_constant([entry[0] for entry in by_hash])
        self._ids = host_constant([entry[2] for entry in by_hash])
        names = ("single_word", "lstrip", "rstrip")
        # One more entry, for text between tokens.
        flags = {name: [getattr(entry[1], name) for entry in by_hash] + [False] for name in names}
        self._flags = {name: host_constant(values) for name, values in flags.items() if any(values)}

    def __call__(self, texts: tf.Tensor, split: Callable[[tf.Tensor], Pieces]) -> Pieces:
        """Splits strings [batch]; `split` does it for the text between tokens."""
        # A mark in the text is no mark, but a character without a piece.
        texts = tf.strings.regex_replace(texts, self._mark, self._impostor)
        marked = tf.strings.regex_replace(texts, self._pattern, rf"{self._mark}\0{self._mark}")
        # Text, token, text, ... token, text: the odd parts are tokens, the others may be empty.
        parts = tf.strings.split(marked, self._mark)
        strings = parts.flat_values
        text = parts.value_rowids()
        first = parts.row_splits
        is_token = (tf.range(tf.size(text, tf.int64)) - tf.gather(first, text)) % 2 == 1
        index = tf.searchsorted(self._hashes, _hash(strings))
        number = tf.where(is_token, index, tf.size(self._hashes))  # of the token
        if "single_word" in self._flags:
            in_word = self._flag("single_word", number) & self._is_in_word(strings, text)
            is_token &= ~in_word
            follows = tf.roll(is_token, 1, 0)  # a text's last part is no token
            begins = is_token | follows | (text != tf.roll(text, 1, 0))
            begins |= tf.range(tf.size(text)) == 0
            group = tf.cumsum(tf.cast(begins, tf.int32)) - 1
            strings = tf.strings.unsorted_segment_join(
                strings, group, tf.reduce_sum(tf.cast(begins, tf.int32))
            )
            first = tf.gather(starts_of(begins), first)
            text, number, is_token = (
                tf.boolean_mask(values, begins) for values in (text, number, is_token)
            )
        sizes = tf.strings.length(strings, unit="BYTE")
        edges = starts_of(sizes)
        starts = edges[:-1] - tf.gather(edges, tf.gather(first, text))
        ends = starts + tf.cast(sizes, tf.int64)
        if "rstrip" in self._flags:  # it comes first: tokens are found from left to right
            takes = tf.roll(self._flag("rstrip", number), 1, 0)
            strings, taken = _strip(strings, takes, rf"^[{_SPACE}]+")
            starts, ends = starts + taken, ends + tf.roll(taken, -1, 0)
        if "lstrip" in self._flags:
            takes = tf.roll(self._flag("lstrip", number), -1, 0)
            strings, taken = _strip(strings, takes, rf"[{_SPACE}]+\z")
            starts -= tf.roll(taken, 1, 0)
        token = tf.where(is_token)[:, 0]
        between = tf.where(~is_token)[:, 0]
        pieces, splits, *offset_columns = split(tf.gather(strings, between))

        part = tf.repeat(between, splits[1:] - splits[:-1])  # of each piece
        shift = tf.gather(starts, part)
        # Each text has one part between tokens more than tokens, and a token is one piece.
        before = tf.range(tf.size(token, tf.int64))  # tokens before each token
        at_token = tf.gather(splits, before + tf.gather(text, token) + 1) + before
        at_piece = tf.range(tf.size(pieces, tf.int64)) + (part - tf.gather(text, part)) // 2
        at = [tf.cast(values, tf.int32) for values in (at_piece, at_token)]
        token_columns = [tf.gather(self._ids, tf.gather(number, token))]
        token_columns += [tf.gather(values, token) for values in (starts, ends)]
        piece_columns = (pieces, *(offsets + shift for offsets in offset_columns))
        ids, starts, ends = (
            tf.dynamic_stitch(at, both) for both in zip(piece_columns, token_columns, strict=True)
        )
        texts_before = tf.range(tf.size(first, tf.int64))
        tokens_before = (first - texts_before) // 2
        row_splits = tf.gather(splits, tokens_before + texts_before) + tokens_before
        return ids, row_splits, starts, ends

    def _flag(self, name: str, number: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._flags[name], number)

    def _is_in_word(self, strings: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        """Whether a word's character stands before or after each part: bool [parts]."""
        is_empty = strings == ""
        result = tf.zeros_like(is_empty)
        for step, edge in ((1, rf"(?s).*[{_WORD}]"), (-1, rf"(?s)[{_WORD}].*")):
            has_edge = tf.strings.regex_full_match(strings, edge)
            # Two tokens side by side have an empty part between them.
            beyond = tf.roll(has_edge, 2 * step, 0) & (tf.roll(text, 2 * step, 0) == text)
            result |= tf.roll(has_edge, step, 0) | (tf.roll(is_empty, step, 0) & beyond)
        return result


def _hash(strings: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(strings, sys.maxsize)


def _strip(strings: tf.Tensor, takes: tf.Tensor, space: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Strings without white space that a token takes, and its bytes, int64."""
    stripped = tf.where(takes, tf.strings.regex_replace(strings, space, ""), strings)
    taken = tf.strings.length(strings) - tf.strings.length(stripped)
    return stripped, tf.cast(taken, tf.int64)

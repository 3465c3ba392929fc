"""The original BERT's text normalization in the graph, as one table lookup per code point.

The rules are those of `BasicTokenizer` in the original `tokenization.py`. All but two look at a
single code point, so they fit in the table of TF Text's `FastBertNormalize` op: a double-array trie
from a code point's UTF-8 bytes to its replacement. The op's own table has other rules (NFKC case
folding); this module provides ours.
"""

import functools
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow_text.python.ops.fast_bert_normalizer import gen_fast_bert_normalizer
from tensorflow_text.python.ops.fast_wordpiece_tokenizer import (
    gen_fast_wordpiece_tokenizer,
    pywrap_fast_wordpiece_tokenizer_model_builder,
)

# Strings live in host memory; tables and integers on an accelerator would be copied per batch.
HOST = "CPU:0"

# Texts of an eager call that repay the tracing of a graph: one call then, not one for each op.
MANY = 64

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

# First and last code point of the blocks in the original's `_is_chinese_char`.
CHINESE_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


def on_host(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Places the ops of a function on the host."""

    @functools.wraps(function)
    def placed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with tf.device(HOST):
            return function(*args, **kwargs)

    return placed


def is_chinese(code_point: int) -> bool:
    """Whether the original tokenizer makes this code point a word of its own."""
    return any(first <= code_point <= last for first, last in CHINESE_BLOCKS)


def is_punctuation(character: str) -> bool:
    """Whether the original tokenizer splits here: P* categories and every ASCII symbol."""
    code_point = ord(character)
    if code_point < 0x80:
        return 0x21 <= code_point <= 0x7E and not character.isalnum()
    return unicodedata.category(character).startswith("P")


def is_removed(character: str) -> bool:
    """Whether the original tokenizer drops the character: controls, formats, U+0000, U+FFFD."""
    if character in "\t\n\r":
        return False
    return character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf")


class Normalizer(tf.Module):
    """Normalizes text as the original BERT does before it looks words up.

    Args:
        do_lower_case: whether to lower-case the text.
        strip_accents: whether to decompose it (NFD) and drop nonspacing marks.
        isolate_chinese: whether to put spaces around Chinese characters, if no later op splits
            there.
        isolate_punctuation: "all" puts spaces around all punctuation; "unsplit" only where
            `FastWordpieceTokenizeWithOffsets` does not split.
        isolated: further characters to put spaces around.

    One rule of the original needs two characters and is missing: NFD swaps *spacing* combining
    marks (25 code points: musical stems, Brahmic viramas, Hangul tone marks) in non-canonical
    order.
    """

    def __init__(
        self,
        do_lower_case: bool,
        strip_accents: bool,
        isolate_chinese: bool = False,
        isolate_punctuation: str = "unsplit",
        isolated: str = "",
    ):
        super().__init__()
        self._lower_case = do_lower_case
        buffer = table_buffer(
            do_lower_case, strip_accents, isolate_chinese, isolate_punctuation, isolated
        )
        with tf.init_scope(), tf.device(HOST):
            self._table = tf.constant(buffer)  # uint8 [bytes]

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalizes strings: [batch] to [batch]."""
        return self._normalize(texts, get_offsets=False)[0]

    def with_offsets(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Normalizes strings and returns the origin of each byte.

        Args:
            texts: string [batch].

        Returns:
            normalized: string [batch].
            offsets: int64 [sum of (normalized bytes + 1)], the origin of each normalized byte in
                its text, and the end of the last one.
            row_splits: int64 [batch + 1], the rows of `offsets`.
        """
        return self._normalize(texts, get_offsets=True)

    def _normalize(self, texts: tf.Tensor, get_offsets: bool):
        if self._lower_case:
            texts = _lower_final_sigmas(texts)
        return gen_fast_bert_normalizer.fast_bert_normalize(
            input_values=texts, fast_bert_normalizer_model=self._table, get_offsets=get_offsets
        )


def _lower_final_sigmas(texts: tf.Tensor) -> tf.Tensor:
    """Lower-cases each capital sigma at the end of a word to ς; the table makes the others σ.

    Both letters have two bytes, so all offsets stay right.
    """
    # Few batches have that letter: a search through all texts costs a sixth of the matching.
    joined = tf.strings.reduce_join(texts)
    return tf.cond(
        tf.strings.regex_replace(joined, "Σ", "") != joined,
        lambda: tf.strings.regex_replace(texts, final_sigma_pattern(), "\\1ς\\2"),
        lambda: tf.identity(texts),
    )


@functools.cache
def final_sigma_pattern() -> str:
    """The regular expression for a capital sigma that ends a word, by `str.lower`'s rule.

    Cased letter, any case-ignorable characters, sigma, any case-ignorable characters, and then no
    cased letter (Unicode 3.13, table 3-17); removed characters count as case-ignorable. Python has
    no names for these classes, so each character is lower-cased beside a sigma.
    """
    through, cased = [], []
    for code_point in _assigned():
        character = chr(code_point)
        if is_removed(character) or f"A{character}Σ".lower() == f"a{character.lower()}ς":
            if f"{character}Σ".lower().endswith("ς"):
                cased.append(code_point)
            else:
                through.append(code_point)
    # The op has no lookahead: what follows the sigma is matched and put back. It cannot begin
    # another match, which begins with a cased letter.
    neither = _character_class(through + cased, negated=True)
    seen = _character_class(through)
    return f"({_character_class(cased)}{seen}*)Σ({seen}*(?:{neither}|$))"


def _character_class(code_points: list[int], negated: bool = False) -> str:
    """A regular expression class in RE2's syntax, with as few ranges as possible."""
    points = np.sort(np.asarray(code_points))
    breaks = np.flatnonzero(np.diff(points) > 1)
    firsts = points[np.concatenate([[0], breaks + 1])]
    lasts = points[np.concatenate([breaks, [len(points) - 1]])]
    ranges = "".join(f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in zip(firsts, lasts, strict=True))
    return f"[{'^' if negated else ''}{ranges}]"


@functools.cache
def _assigned() -> list[int]:
    """Assigned code points, without private use and surrogates."""
    category = unicodedata.category
    return [
        code_point
        for code_point in range(sys.maxunicode + 1)
        if category(chr(code_point)) not in ("Cn", "Co", "Cs")
    ]


@functools.lru_cache(maxsize=16)
def table_buffer(
    do_lower_case: bool,
    strip_accents: bool,
    isolate_chinese: bool,
    isolate_punctuation: str,
    isolated: str,
) -> np.ndarray:
    """The flatbuffer that `FastBertNormalize` reads: uint8 [bytes]."""
    lone = _unsplit_punctuation() if isolate_punctuation == "unsplit" else None
    replacements: dict[int, str] = {ord(character): f" {character} " for character in isolated}
    for code_point in _assigned():
        if code_point in replacements:
            continue
        character = chr(code_point)
        replacement = _replacement(character, do_lower_case, strip_accents)
        if isolate_chinese and is_chinese(code_point):
            replacement = f" {replacement} "
        elif not replacement.isalnum():
            replacement = "".join(
                f" {c} " if (c in lone if lone is not None else is_punctuation(c)) else c
                for c in replacement
            )
        if replacement != character:
            replacements[code_point] = replacement
    return _flatbuffer(replacements)


def _replacement(character: str, do_lower_case: bool, strip_accents: bool) -> str:
    """The replacement of a character: `_clean_text`, `str.lower` and `_run_strip_accents`."""
    if is_removed(character):
        return ""
    if character.isspace() or unicodedata.category(character) == "Zs":
        return " "
    if do_lower_case:
        character = character.lower()
    if strip_accents and not character.isascii():
        decomposed = unicodedata.normalize("NFD", character)
        character = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return character


def lost_letters(texts: Iterable[str]) -> tuple[float, list[str]]:
    """What `strip_accents` removes from texts: accents, vowel signs, whole syllables (Hangul).

    Returns:
        The share of letters that change, and the most frequent words with such letters, as
        "für -> fur".
    """
    text = " ".join(texts).lower()
    letters = {c: n for c, n in Counter(text).items() if unicodedata.category(c)[0] in "LM"}
    kept = {c: _replacement(c, True, True) for c in letters}
    lost = {c for c in letters if kept[c] != c}
    # Letters of Hangul are shown apart, or they would look like the syllable.
    shown = {c: f" {' '.join(after)} " if len(after) > 1 else after for c, after in kept.items()}
    words = [word for word, _ in Counter(text.split()).most_common() if not lost.isdisjoint(word)]
    afters = [" ".join("".join(shown.get(c, c) for c in word).split()) for word in words[:3]]
    share = sum(letters[c] for c in lost) / max(1, sum(letters.values()))
    return share, [f"{word} -> {after}" for word, after in zip(words, afters, strict=False)]


@functools.cache
def _unsplit_punctuation() -> frozenset[str]:
    """Punctuation of this Python's Unicode at which the WordPiece op does not split."""
    punctuation = [chr(c) for c in _assigned() if is_punctuation(chr(c))]
    model = pywrap_fast_wordpiece_tokenizer_model_builder.build_fast_wordpiece_model(
        ["[UNK]", "a"], 200, "##", "[UNK]", False, False
    )
    with tf.init_scope(), tf.device(HOST):
        row_splits = gen_fast_wordpiece_tokenizer.fast_wordpiece_tokenize_with_offsets(
            input_values=[f"a{c}a" for c in punctuation],
            wp_model=np.frombuffer(model, np.uint8),
        )[2]
        words = np.diff(row_splits.numpy())
    return frozenset(c for c, n in zip(punctuation, words, strict=True) if n != 3)


def _flatbuffer(replacements: dict[int, str]) -> np.ndarray:
    """Packs a map from code points to strings in the op's format."""
    pool = bytearray()
    values: dict[str, int] = {}
    for replacement in dict.fromkeys(replacements.values()):
        encoded = replacement.encode()
        if len(encoded) > 63:
            raise ValueError(f"{replacement!r} is longer than the format's 63 bytes")
        # Bit 30: the code point changes; then the place in the pool; 6 bits of length.
        values[replacement] = 1 << 30 | len(pool) << 6 | len(encoded)
        pool += encoded
    zero = values[replacements.pop(0)]  # U+0000 cannot be a key of the trie
    trie = _double_array({code_point: values[text] for code_point, text in replacements.items()})

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


def _double_array(values: dict[int, int]) -> np.ndarray:
    """The darts-clone double array of a map from code points to values: uint32 [units].

    Its keys are the UTF-8 bytes of the code points. A node with base b has its child by byte c at
    index b ^ c, and its value, if any, at index b. All bytes of a UTF-8 sequence but the first are
    in 0x80 to 0xBF, so the children of a node fill an aligned page of 64 units of their own.
    """
    root = 256  # base of the root; its children take one unit per first byte
    places = {value: root + 256 + i for i, value in enumerate(dict.fromkeys(values.values()))}
    # The values fill aligned blocks of 256: no byte leads from a value to a node.
    pages = root + 256 - len(places) // -256 * 256
    units = {0: root << 10} | {place: value | 1 << 31 for value, place in places.items()}
    bases = {b"": root}

    def base(key: bytes) -> int:
        """The base of the inner node to which the bytes of `key` lead."""
        if key not in bases:
            index = base(key[:-1]) ^ key[-1]
            bases[key] = pages + 64 * len(bases) ^ 0x80
            units[index] = key[-1] | (index ^ bases[key]) << 10
        return bases[key]

    for code_point, value in values.items():
        key = chr(code_point).encode()
        index = base(key[:-1]) ^ key[-1]
        units[index] = key[-1] | 1 << 8 | (index ^ places[value]) << 10
    array = np.zeros((max(units) | 255) + 1, np.uint32)  # whole blocks, for whatever byte follows
    array[list(units)] = list(units.values())
    return array

"""The original BERT's text normalization in the graph, as one table lookup per code point.

The rules are those of `BasicTokenizer` in the original `tokenization.py`. All but two look at a
single code point and fit in the table of TF Text's `FastBertNormalize` op, a double-array trie
from UTF-8 bytes to replacements. The op's own table has other rules (NFKC case folding).
"""

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import flatbuffers
import numpy as np
import tensorflow as tf
from tensorflow_text.python.ops.fast_bert_normalizer import gen_fast_bert_normalizer

from bert_tf.tokenization.strings import host_constant
from bert_tf.tokenization.wordpiece import LONGEST_WORD, match, model_buffer

# The blocks of the original's `_is_chinese_char`.
_CHINESE = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f]"
)


_MANY_DECOMPOSED = 0.001  # share of the letters


def is_chinese(character: str) -> bool:
    """Whether the original tokenizer makes this character a word of its own."""
    return _CHINESE.match(character) is not None


def is_punctuation(character: str) -> bool:
    """Whether the original tokenizer splits here: P* categories and every ASCII symbol."""
    return character in string.punctuation or unicodedata.category(character).startswith("P")


def _is_removed(character: str) -> bool:
    """Whether the original tokenizer drops the character: controls, formats, U+0000, U+FFFD."""
    is_control = unicodedata.category(character) in ("Cc", "Cf") and character not in "\t\n\r"
    return is_control or character in "\0\ufffd"


class Normalizer(tf.Module):
    """Normalizes text as the original BERT does before it looks words up.

    Stripping accents means to decompose (NFD) and to drop nonspacing marks; it is the default if
    the text is lower-cased. The `isolate` options put spaces around Chinese characters, around
    "all" punctuation, what `WordPiece` leaves "unsplit", or "no" punctuation.

    One rule of the original needs two characters and is missing: NFD swaps *spacing* combining
    marks (25, such as musical stems and Hangul tone marks) in non-canonical order.
    """

    def __init__(
        self,
        do_lower_case: bool,
        strip_accents: bool | None,
        isolate_chinese: bool = False,
        isolate_punctuation: str = "unsplit",
    ):
        super().__init__()
        self._lower_case = do_lower_case
        strips = do_lower_case if strip_accents is None else strip_accents
        table = _table(do_lower_case, strips, isolate_chinese, isolate_punctuation)
        self._table = host_constant(table)

    def __call__(self, texts: tf.Tensor, get_offsets: bool = False) -> tuple[tf.Tensor, ...]:
        """Normalizes strings [batch] and returns the origins of their bytes, int64, and row splits.

        Each text has an origin per normalized byte, and the end of the last one.
        """
        if self._lower_case:
            texts = _lower_final_sigmas(texts)
        return gen_fast_bert_normalizer.fast_bert_normalize(
            input_values=texts, fast_bert_normalizer_model=self._table, get_offsets=get_offsets
        )


def _lower_final_sigmas(texts: tf.Tensor) -> tf.Tensor:
    """Lower-cases each capital sigma at the end of a word to ς; the table makes the others σ."""
    # Few batches have that letter: a search through all texts costs a sixth of the matching. Both
    # letters have two bytes, so all offsets stay right.
    joined = tf.strings.reduce_join(texts)
    return tf.cond(
        tf.strings.regex_replace(joined, "Σ", "") != joined,
        lambda: tf.strings.regex_replace(texts, _final_sigma_pattern(), "\\1ς\\2"),
        lambda: tf.identity(texts),
    )


@functools.cache
def _final_sigma_pattern() -> str:
    """The regular expression for a capital sigma that ends a word, by `str.lower`'s rule.

    Cased letter, any case-ignorable characters, sigma, any case-ignorable characters, and then no
    cased letter (Unicode 3.13, table 3-17); removed characters count as case-ignorable. Python has
    no names for these classes, so each character is lower-cased beside a sigma.
    """
    through: list[int] = []
    cased: list[int] = []
    for character in _assigned():
        if _is_removed(character) or f"A{character}Σ".lower() == f"a{character.lower()}ς":
            (cased if f"{character}Σ".lower().endswith("ς") else through).append(ord(character))
    # The op has no lookahead: what follows the sigma, no cased letter, is matched and put back.
    letter, ignorable, both = (_ranges(points) for points in (cased, through, through + cased))
    return f"([{letter}][{ignorable}]*)Σ([{ignorable}]*(?:[^{both}]|$))"


def _ranges(code_points: list[int]) -> str:
    """The inside of a character class in RE2's syntax, with as few ranges as possible."""
    points = np.sort(code_points)
    runs = np.split(points, np.flatnonzero(np.diff(points) > 1) + 1)
    return "".join(f"\\x{{{run[0]:x}}}-\\x{{{run[-1]:x}}}" for run in runs)


@functools.cache
def _assigned() -> list[str]:
    """Assigned characters, without private use and surrogates."""
    # Planes 4 to 13 are empty, 15 and 16 for private use: two thirds of all code points.
    characters = map(chr, [*range(0x40000), *range(0xE0000, 0xF0000)])
    return [c for c in characters if unicodedata.category(c) not in ("Cn", "Co", "Cs")]


@functools.lru_cache(maxsize=16)
def _table(
    do_lower_case: bool, strip_accents: bool, isolate_chinese: bool, isolate_punctuation: str
) -> np.ndarray:
    """The flatbuffer that `FastBertNormalize` reads: uint8 [bytes]."""
    is_isolated: Callable[[str], bool] = is_punctuation
    if isolate_punctuation != "all":
        unsplit = _unsplit_punctuation() if isolate_punctuation == "unsplit" else frozenset()
        is_isolated = unsplit.__contains__
    replacements: dict[str, str] = {}
    for character in _assigned():
        replacement = _replacement(character, do_lower_case, strip_accents)
        if isolate_chinese and is_chinese(character):
            replacement = f" {replacement} "
        elif not replacement.isalnum():
            replacement = "".join(f" {c} " if is_isolated(c) else c for c in replacement)
        if replacement != character:
            replacements[character] = replacement
    return _flatbuffer(replacements)


def _replacement(character: str, do_lower_case: bool, strip_accents: bool) -> str:
    """The replacement of a character: `_clean_text`, `str.lower` and `_run_strip_accents`."""
    if _is_removed(character):
        return ""
    if character.isspace() or unicodedata.category(character) == "Zs":
        return " "
    if do_lower_case:
        character = character.lower()
    if strip_accents and not character.isascii():
        decomposed = unicodedata.normalize("NFD", character)
        character = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    return character


def unreachable_pieces(
    pieces: Sequence[str], do_lower_case: bool, strip_accents: bool
) -> list[str]:
    """Pieces with characters that no normalized text has: capitals, accents, controls."""
    used = set().union(*pieces)
    changed = {c for c in used if _replacement(c, do_lower_case, strip_accents) != c}
    # Tokens in brackets stand for no text, and blank pieces for none.
    return [p for p in pieces if not changed.isdisjoint(p) and p[0] + p[-1] != "[]" and p.strip()]


def lost_letters(texts: Iterable[str]) -> tuple[float, list[str]]:
    """The share of letters that `strip_accents` changes, and three frequent words, "für -> fur"."""
    text = " ".join(texts).lower()
    letters = {c: n for c, n in Counter(text).items() if unicodedata.category(c)[0] in "LM"}
    plain = {c: _replacement(c, True, True) for c in letters}
    lost = {c for c in letters if plain[c] != c}
    # Letters of Hangul are shown apart, or they would look like the syllable.
    shown = {c: f" {' '.join(after)} " if len(after) > 1 else after for c, after in plain.items()}
    counts = Counter(word[:24] for word in text.split())  # Thai has few spaces
    words = [word for word, _ in counts.most_common() if not lost.isdisjoint(word)]
    afters = [" ".join("".join(shown.get(c, c) for c in word).split()) for word in words[:3]]
    share = sum(letters[c] for c in lost) / max(1, sum(letters.values()))
    return share, [f"{word} -> {after}" for word, after in zip(words, afters, strict=False)]


def decomposed_letters(texts: Iterable[str]) -> str | None:
    """A line if composing (NFC) joins many letters and marks of a text, else None."""
    text = " ".join(texts)
    composed = Counter(unicodedata.normalize("NFC", text))
    joined = composed - Counter(text)
    joined = Counter({c: n for c, n in joined.items() if unicodedata.normalize("NFD", c) != c})
    share = joined.total() / max(1, sum(n for c, n in composed.items() if c.isalpha()))
    if share < _MANY_DECOMPOSED:
        return None
    letters = ", ".join(letter for letter, _ in joined.most_common(3))
    return (
        f"{share:.1%} of the letters in this text are decomposed (NFD: {letters} as several "
        "characters), and no piece matches both them and composed letters: use one form "
        "everywhere, for example by uconv -x nfc"
    )


@functools.cache
def _unsplit_punctuation() -> frozenset[str]:
    """Punctuation of this Python's Unicode at which `WordPiece` does not split."""
    punctuation = [character for character in _assigned() if is_punctuation(character)]
    model = host_constant(model_buffer(("[UNK]", "a"), "[UNK]", LONGEST_WORD, True))
    with tf.init_scope():
        pieces = np.diff(match(tf.constant([f"a{c}a" for c in punctuation]), model)[1])
    return frozenset(c for c, n in zip(punctuation, pieces, strict=True) if n != 3)


def _flatbuffer(replacements: dict[str, str]) -> np.ndarray:
    """Packs a map from characters to strings in the op's format."""
    pool = bytearray()
    values: dict[str, int] = {}
    for replacement in dict.fromkeys(replacements.values()):
        encoded = replacement.encode()
        if len(encoded) > 63:
            raise ValueError(f"{replacement!r} is longer than the format's 63 bytes")
        # Bit 30: the character changes; then the offset in the pool; 6 bits of length.
        values[replacement] = 1 << 30 | len(pool) << 6 | len(encoded)
        pool += encoded
    zero = values[replacements.pop("\0")]  # U+0000 cannot be a key of the trie
    trie = _double_array({character: values[text] for character, text in replacements.items()})

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


def _double_array(values: dict[str, int]) -> np.ndarray:
    """The darts-clone double array of a map from characters to values: uint32 [units].

    Its keys are the UTF-8 bytes of the characters. A node with base b has its child by byte c at
    index b ^ c, and its value, if any, at index b. All bytes of a UTF-8 sequence but the first are
    in 0x80 to 0xBF, so the children of a node fill an aligned page of 64 units of their own.
    """
    root = 256  # base of the root; its children take one unit per first byte
    indexes = {value: root + 256 + i for i, value in enumerate(dict.fromkeys(values.values()))}
    # The values fill aligned blocks of 256: no byte leads from a value to a node.
    pages = root + 256 - len(indexes) // -256 * 256
    units = {0: root << 10} | {index: value | 1 << 31 for value, index in indexes.items()}
    bases = {b"": root}

    def base(key: bytes) -> int:
        """The base of the inner node to which the bytes of `key` lead."""
        if key not in bases:
            index = base(key[:-1]) ^ key[-1]
            bases[key] = pages + 64 * len(bases) ^ 0x80
            units[index] = key[-1] | (index ^ bases[key]) << 10
        return bases[key]

    for character, value in values.items():
        key = character.encode()
        index = base(key[:-1]) ^ key[-1]
        units[index] = key[-1] | 1 << 8 | (index ^ indexes[value]) << 10
    array = np.zeros((max(units) | 255) + 1, np.uint32)  # whole blocks, for whatever byte follows
    array[list(units)] = list(units.values())
    return array

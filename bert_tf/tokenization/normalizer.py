"""The original BERT's rules for normalizing text; `tf_text` and `core_ops` apply them in the graph.

They are those of `BasicTokenizer` in the original `tokenization.py`. All but two look at a single
code point and fit in a table. One is missing: NFD swaps *spacing* combining marks (25, such as
musical stems and Hangul tone marks) in non-canonical order.
"""

import functools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import tensorflow as tf

from bert_tf.tokenization.strings import Pieces, bytes_of, starts_of

Normalize = Callable[..., tuple[tf.Tensor, ...]]  # texts, get_offsets -> see `tf_text.Normalizer`
INVALID = "\U0010ffff"  # no character: `core_ops` has it for bytes that are not UTF-8
LONGEST_WORD = 200  # characters; the original calls a longer word unknown
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


@functools.cache
def chinese() -> list[str]:
    """All characters of `is_chinese`, assigned or not."""
    return list(filter(is_chinese, map(chr, range(0x3400, 0x2FA20))))


def strips_accents(do_lower_case: bool, strip_accents: bool | None) -> bool:
    """What `strip_accents` means: None strips accents if the text is lower-cased."""
    return do_lower_case if strip_accents is None else strip_accents


def _is_removed(character: str) -> bool:
    """Whether the original tokenizer drops the character: controls, formats, U+0000, U+FFFD."""
    is_control = unicodedata.category(character) in ("Cc", "Cf") and character not in "\t\n\r"
    return is_control or character in "\0\ufffd"


def lower_final_sigmas(texts: tf.Tensor) -> tf.Tensor:
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
    letter, ignorable, both = letters_around_sigma()
    # The op has no lookahead: what follows the sigma, no cased letter, is matched and put back.
    return f"([{letter}][{ignorable}]*)Σ([{ignorable}]*(?:[^{both}]|$))"


@functools.cache
def letters_around_sigma() -> tuple[str, str, str]:
    """Cased letters, case-ignorable characters, and both, as the insides of character classes."""
    through: list[int] = []
    cased: list[int] = []
    for character in assigned():
        if _is_removed(character) or f"A{character}Σ".lower() == f"a{character.lower()}ς":
            (cased if f"{character}Σ".lower().endswith("ς") else through).append(ord(character))
    return ranges(cased), ranges(through), ranges(through + cased)


def ranges(code_points: Collection[int]) -> str:
    """The inside of a character class, for RE2 and PCRE, with as few ranges as possible."""
    points = np.sort(list(code_points))
    runs = np.split(points, np.flatnonzero(np.diff(points) > 1) + 1)
    return "".join(f"\\x{{{run[0]:x}}}-\\x{{{run[-1]:x}}}" for run in runs)


@functools.cache
def assigned() -> list[str]:
    """Assigned characters, without private use and surrogates."""
    return [c for c in planes() if unicodedata.category(c) not in ("Cn", "Co", "Cs")]


def planes() -> Iterable[str]:
    """The characters of the planes that Unicode fills."""
    # Planes 4 to 13 are empty, 15 and 16 for private use: two thirds of all code points.
    return map(chr, [*range(0x40000), *range(0xE0000, 0xF0000)])


@functools.cache
def punctuation() -> frozenset[str]:
    """All punctuation of this Python's Unicode."""
    return frozenset(filter(is_punctuation, assigned()))


@functools.cache
def replacements(do_lower_case: bool, strip_accents: bool) -> dict[str, str]:
    """The replacement of each character that normalizing changes."""
    pairs = ((c, _replacement(c, do_lower_case, strip_accents)) for c in assigned())
    return {character: replacement for character, replacement in pairs if replacement != character}


def isolating_replacements(
    do_lower_case: bool,
    strip_accents: bool,
    isolate_chinese: bool,
    isolated: Collection[str],
) -> dict[str, str]:
    """`replacements` with spaces around Chinese characters, and around those of `isolated`."""
    changed = replacements(do_lower_case, strip_accents)
    result = {}
    for character in assigned():
        replacement = changed.get(character, character)
        if isolate_chinese and is_chinese(character):
            replacement = f" {replacement} "
        elif not replacement.isalnum():
            replacement = "".join(f" {c} " if c in isolated else c for c in replacement)
        if replacement != character:
            result[character] = replacement
    return result


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
    letters = {c: n for c, n in Counter(text).items() if _is_letter_or_accent(c)}
    plain = {c: _replacement(c, True, True) for c in letters}
    lost = {c for c in letters if plain[c] != c}
    # Letters of Hangul are shown apart, or they would look like the syllable.
    shown = {c: f" {' '.join(after)} " if len(after) > 1 else after for c, after in plain.items()}
    counts = Counter(word[:24] for word in text.split())  # Thai has few spaces
    words = [word for word, _ in counts.most_common() if not lost.isdisjoint(word)]
    afters = [" ".join("".join(shown.get(c, c) for c in word).split()) for word in words[:3]]
    share = sum(letters[c] for c in lost) / max(1, sum(letters.values()))
    return share, [f"{word} -> {after}" for word, after in zip(words, afters, strict=False)]


def _is_letter_or_accent(character: str) -> bool:
    """Not the marks of emoji, such as a red heart and keycaps."""
    is_selector = "VARIATION SELECTOR" in unicodedata.name(character, "")
    return unicodedata.category(character)[0] in "LM" and not is_selector


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


def normalized_pieces(
    texts: tf.Tensor,
    normalizer: Normalize,
    split: Callable[[tf.Tensor], Pieces],
    get_offsets: bool,
) -> Pieces:
    """Pieces of normalized texts, with their offsets in `texts`."""
    normalized, origins, origin_splits = normalizer(texts, get_offsets)
    ids, row_splits, starts, ends = split(normalized)
    if not get_offsets:
        return ids, row_splits, starts, ends
    counts = row_splits[1:] - row_splits[:-1]
    first_origin = tf.repeat(origin_splits[:-1], counts)
    last = tf.gather(origins, first_origin + ends - 1)  # origin of the piece's last byte
    starts = tf.gather(origins, first_origin + starts)
    ends = tf.gather(origins, first_origin + ends)
    # If the next byte comes from the same character, the piece ends with the character.
    text_starts = tf.repeat(starts_of(tf.strings.length(texts))[:-1], counts)
    first_byte = tf.gather(bytes_of(texts), text_starts + last)
    width = 1 + sum(tf.cast(first_byte >= mark, tf.int64) for mark in (0xC0, 0xE0, 0xF0))
    return ids, row_splits, starts, tf.where(ends > last, ends, last + width)


def double_array(values: dict[str, int]) -> np.ndarray:
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
        key = character.encode(errors="surrogateescape")
        index = base(key[:-1]) ^ key[-1]
        units[index] = key[-1] | 1 << 8 | (index ^ indexes[value]) << 10
    array = np.zeros((max(units) | 255) + 1, np.uint32)  # whole blocks, for whatever byte follows
    array[list(units)] = list(units.values())
    return array

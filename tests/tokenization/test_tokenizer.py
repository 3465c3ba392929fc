"""The tokenizer against the original's rules, written here once more in plain Python."""

import functools
import gzip
import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_tf import BertTokenizer

SHARED = Path(__file__).parents[3] / "shared"
GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHINESE = [range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0)]
CHINESE += [range(0x2A700, 0x2B740), range(0x2B740, 0x2B820), range(0x2B820, 0x2CEB0)]
CHINESE += [range(0xF900, 0xFB00), range(0x2F800, 0x2FA20)]
CASES = [(True, None), (True, False), (False, None), (False, True)]
SWITCHES = st.fixed_dictionaries({"tokenize_chinese_chars": st.booleans()}).flatmap(
    lambda chinese: st.sampled_from(
        [{"do_lower_case": lower, "strip_accents": strip, **chinese} for lower, strip in CASES]
    )
)


@pytest.fixture(scope="module", autouse=True)
def _both_ops(tokenizer_ops):
    spelling_tokenizer.cache_clear()


# The oracle: a character loop for each rule of the original.


def is_chinese(character):
    return ord(character) >= 0x3400 and any(ord(character) in block for block in CHINESE)


def is_punctuation(character):
    symbols = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    return character in symbols or unicodedata.category(character)[0] == "P"


def oracle_words(text, do_lower_case=True, strip_accents=None, tokenize_chinese_chars=True):
    cleaned = []
    for character in text:
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            cleaned.append(" ")
        elif character in "\0\ufffd" or category in ("Cc", "Cf"):
            continue
        elif tokenize_chinese_chars and is_chinese(character):
            cleaned.append(f" {character} ")
        else:
            cleaned.append(character)
    for word in "".join(cleaned).split():
        if do_lower_case:
            word = word.lower()
        if do_lower_case if strip_accents is None else strip_accents:
            decomposed = unicodedata.normalize("NFD", word)
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        spaced = "".join(f" {c} " if is_punctuation(c) else c for c in word)
        yield from spaced.split()


def oracle_pieces(word, pieces):
    if len(word) > 200:
        return ["[UNK]"]
    found, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if prefix + word[start:end] in pieces), None)
        if end is None:
            return ["[UNK]"]
        found.append(prefix + word[start:end])
        start = end
    return found


def oracle(text, pieces, **switches):
    words = oracle_words(text, **switches)
    return [piece for word in words for piece in oracle_pieces(word, pieces)]


def pieces_of(tokenizer, texts):
    vocabulary = np.array(tokenizer.vocabulary, dtype=object)
    ids = tokenizer.tokenize(texts)
    return [list(vocabulary[row]) for row in ids.to_list()]


def spelling_vocabulary(texts, **switches):
    """Every character of the oracle's words, as a beginning and as a continuation."""
    words = (word for text in texts for word in oracle_words(text, **switches))
    characters = sorted({character for word in words for character in word})
    return [*SPECIALS, "any", *characters, *(f"##{c}" for c in characters)]


@functools.lru_cache(maxsize=16)  # each takes a tenth of a second to make
def spelling_tokenizer(texts, **switches):
    return BertTokenizer(spelling_vocabulary(texts, **switches), **switches)


def check(texts, spelled=None, **switches):
    """Compares with the oracle, with a vocabulary that spells the texts, or the texts `spelled`."""
    tokenizer = spelling_tokenizer(tuple(spelled or texts), **switches)
    known = set(tokenizer.vocabulary)
    for text, found in zip(texts, pieces_of(tokenizer, texts), strict=True):
        expected = oracle(text, known, **switches)
        assert found == expected, f"{text!r}: {found} instead of {expected}"


@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
@pytest.mark.parametrize(
    ("golden", "vocabulary", "lines"),
    [
        (GOLDEN / "original.jsonl.gz", GOLDEN / "vocab.txt", 299),
        (SHARED / "golden/tokenizer.jsonl.gz", SHARED / "data/vocab/bert_base_uncased.txt", 1389),
    ],
    ids=["shipped", "full"],
)
def test_golden_ids_of_the_original(cased, golden, vocabulary, lines):
    if SHARED in golden.parents and not (golden.exists() and vocabulary.exists()):
        pytest.skip("the full golden ids are not beside the repository")
    with gzip.open(golden, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    tokenizer = BertTokenizer(str(vocabulary), do_lower_case=not cased)
    found = tokenizer.tokenize([row["text"] for row in rows]).to_list()
    expected = [row["cased_ids" if cased else "uncased_ids"] for row in rows]
    differences = [i for i, row in enumerate(expected) if row != found[i]]
    assert len(rows) == lines
    assert differences == []


@pytest.mark.parametrize(
    ("lower", "strip", "chinese", "each"),
    [
        (*CASES[0], True, 40),
        *(pytest.param(*case, True, 1, marks=pytest.mark.slow) for case in CASES),
        pytest.param(True, None, False, 1, marks=pytest.mark.slow),
    ],
)
def test_every_assigned_code_point(lower, strip, chinese, each):
    """Of ideographs and syllables, which are alike, one of `each`."""
    alike = ("CJK UNIFIED", "HANGUL SYLLABLE")
    points = (chr(c) for c in range(sys.maxunicode + 1))
    points = [c for c in points if unicodedata.category(c) not in ("Cn", "Cs", "Co")]
    assert len(points) > 140_000
    names = (unicodedata.name(c, "") for c in points)
    pairs = zip(points, names, strict=True)
    texts = [f"a{c}b" for c, name in pairs if not name.startswith(alike) or ord(c) % each == 0]
    check(texts, do_lower_case=lower, strip_accents=strip, tokenize_chinese_chars=chinese)


# Characters that rules meet in, beside any at all. Surrogates have no UTF-8; two spacing marks of
# different combining classes in a row are the one documented difference.
spacing_marks = "".join(
    chr(c)
    for c in range(sys.maxunicode + 1)
    if unicodedata.combining(chr(c)) and unicodedata.category(chr(c)) != "Mn"
)
characters = st.one_of(
    st.sampled_from(
        "aZΣσς'’. \t\u2028İßŐé\u0301\u0345ªʰ\u00ad\u200d\ufeff\0\ufffd中豈각ᄀ!$+，·\u037e"
    ),
    st.characters(exclude_categories=["Cs"], exclude_characters=spacing_marks),
)


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(st.text(characters, max_size=30), max_size=8), switches=SWITCHES)
def test_random_unicode(texts, switches):
    check(texts, **switches)


SIGMAS = "aΣ'.’ \u0301\u00adʰᾼ1\n中"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(SIGMAS, max_size=12), max_size=8))
def test_capital_sigmas(texts):
    check(texts, [*SIGMAS, "aΣ"])
    check(texts, [*SIGMAS, "aΣ"], strip_accents=False)


# Words around the limit of 200 characters, in one to four bytes each.
word_lengths = st.sampled_from([1, 50, 51, 66, 67, 100, 101, 199, 200, 201, 267, 400, 801])


@settings(max_examples=40, deadline=None)
@example(texts=["𝛼" * 200], chinese=True)  # as many bytes as such a word can have
@example(texts=[c * n for c in "aбก𝛼é" for n in (200, 201)], chinese=True)
@given(
    texts=st.lists(
        st.lists(
            st.tuples(st.sampled_from("aбก𝛼é"), word_lengths, st.sampled_from(" -\u200b"))
        ).map(lambda runs: "".join(c * n + after for c, n, after in runs)),
        max_size=4,
    ),
    chinese=st.booleans(),
)
def test_words_of_over_200_characters(texts, chinese):
    check(texts, ["aбก𝛼é", "-"], tokenize_chinese_chars=chinese)


@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(characters, max_size=20), max_size=5),
    switches=SWITCHES,
    long_word=st.booleans(),
)
def test_offsets_lie_in_the_callers_text(texts, switches, long_word):
    """What a piece spans in the text is, normalized, the piece."""
    texts = [*texts, "é" + "ก" * 150 + " x" * long_word]
    tokenizer = spelling_tokenizer(tuple(texts), **switches)
    ids, starts, ends = tokenizer.tokenize_with_offsets(texts)
    assert ids.to_list() == tokenizer.tokenize(texts).to_list()
    assert starts.dtype == ends.dtype == tf.int64
    known = set(tokenizer.vocabulary)
    for text, *row in zip(texts, ids.to_list(), starts.to_list(), ends.to_list(), strict=True):
        encoded = text.encode()
        previous = 0
        for piece, start, end in zip(*row, strict=True):
            assert previous <= start < end <= len(encoded)
            previous = start
            span = encoded[start:end].decode()  # whole characters, or this raises
            piece = tokenizer.id_to_token(piece).removeprefix("##")
            # One character may decompose into several pieces; each spans all of it. A capital
            # sigma does not know, cut out, where it stood.
            spelled = "".join(p.removeprefix("##") for p in oracle(span, known, **switches))
            assert piece.replace("ς", "σ") in spelled.replace("ς", "σ")


def test_offsets_by_hand():
    vocabulary = [*SPECIALS, "h", "##e", "##llo", ",", "中", "ᄀ", "##ᅡ", "##ᆨ", "a", "##σ", "##ς"]
    tokenizer = BertTokenizer(vocabulary)
    text = "Hé\u200bllo,中각 e\u0301 AΣ"
    ids, starts, ends = tokenizer.tokenize_with_offsets(text)
    encoded = text.encode()
    spans = [encoded[a:b].decode() for a, b in zip(starts.numpy(), ends.numpy(), strict=True)]
    assert [tokenizer.id_to_token(i) for i in ids.numpy()] == (
        ["h", "##e", "##llo", ",", "中", "ᄀ", "##ᅡ", "##ᆨ", "[UNK]", "a", "##ς"]
    )
    # A dropped accent belongs to the letter before it, and so does a dropped control.
    assert spans == ["H", "é\u200b", "llo", ",", "中", "각", "각", "각", "e\u0301", "A", "Σ"]


def test_special_tokens_in_text():
    vocabulary = [*SPECIALS, "a", "##b", "[", "]", "mask", "pad"]
    text = "a[MASK]ab [PAD][UNK] [mask]\U0010fffd [CLS]é[SEP]"
    marked = BertTokenizer(vocabulary, special_tokens_in_text=True)
    ids, starts, ends = marked.tokenize_with_offsets(text)
    pieces = " ".join(marked.id_to_token(i) for i in ids.numpy())
    assert pieces == "a [MASK] a ##b [PAD] [UNK] [ mask ] [UNK] [CLS] [UNK] [SEP]"
    encoded = text.encode()
    spans = [encoded[a:b].decode() for a, b in zip(starts.numpy(), ends.numpy(), strict=True)]
    assert " ".join(spans) == "a [MASK] a b [PAD] [UNK] [ mask ] \U0010fffd [CLS] é [SEP]"
    plain = BertTokenizer(vocabulary)
    assert pieces_of(plain, ["[MASK]"]) == [["[", "mask", "]"]]
    whole = {"tokenize_chinese_chars": False, "special_tokens_in_text": True}
    tokenizer = BertTokenizer([*SPECIALS, "中国"], **whole)
    assert pieces_of(tokenizer, ["中国[MASK]中国"]) == [["中国", "[MASK]", "中国"]]


def test_invalid_utf8_is_unknown():
    tokenizer = BertTokenizer([*SPECIALS, "a", "##b"])
    texts = tf.constant([b"ab a\xffb ab", b"ab\xe4\xb8", b"\xf0"])
    assert pieces_of(tokenizer, texts) == [["a", "##b", "[UNK]", "a", "##b"], ["[UNK]"], ["[UNK]"]]
    _, starts, ends = tokenizer.tokenize_with_offsets(texts)
    assert starts.to_list() == [[0, 1, 3, 7, 8], [0], [0]]
    assert ends.to_list() == [[1, 2, 6, 8, 9], [4], [1]]


def test_detokenize():
    tokenizer = BertTokenizer([*SPECIALS, "un", "##aff", "##able", "x", "##"])
    ids = tokenizer.tokenize(["unaffable x", "", "x"])
    assert tokenizer.detokenize(ids).numpy().tolist() == [b"unaffable x", b"", b"x"]
    dense = ids.to_tensor(tokenizer.pad_token_id)
    assert tokenizer.detokenize(dense)[2].numpy() == b"x [PAD] [PAD] [PAD]"
    assert tokenizer.detokenize([5, 6]).numpy() == b"unaff"
    assert tokenizer.detokenize([[5, 6], [8]]).numpy().tolist() == [b"unaff", b"x"]
    assert np.flatnonzero(tokenizer.is_continuation).tolist() == [6, 7, 9]


def test_kinds_of_input():
    tokenizer = BertTokenizer([*SPECIALS, "a", "b"])
    for texts in (["a", "b a"], np.array(["a", "b a"]), tf.constant(["a", "b a"])):
        ids = tokenizer.tokenize(texts)
        assert isinstance(ids, tf.RaggedTensor)
        assert ids.dtype == tf.int32
        assert ids.to_list() == [[5], [6, 5]]
    for text in ("b a", tf.constant("b a")):
        ids = tokenizer.tokenize(text)
        assert ids.dtype == tf.int32
        assert ids.numpy().tolist() == [6, 5]
    assert tokenizer.tokenize([]).shape.as_list() == [0, None]
    assert tokenizer.tokenize(["", " "]).to_list() == [[], []]
    assert [part.to_list() for part in tokenizer.tokenize_with_offsets(["", "\0"])] == [
        [[], []]
    ] * 3

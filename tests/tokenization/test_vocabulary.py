import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from bert_tf.errors import InputError
from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary
from bert_tf.tokenization import vocabulary as vocabulary_module
from bert_tf.tokenization.merges import learn_merges
from bert_tf.tokenization.vocabulary import check_alphabet

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Words enough to merge, from one sentence's letters and their neighbours.
WORDS = {
    f"{a}{b}{c}": 1 + (7 * i + 5 * j + 3 * k) % 11
    for i, a in enumerate("bcdfghlmnprst")
    for j, b in enumerate(["a", "e", "i", "o", "u", "ai", "ou"])
    for k, c in enumerate(["", "n", "r", "st", "ing", "ed"])
}


def batches(texts, size=3):
    return tf.data.Dataset.from_tensor_slices(tf.constant(texts, tf.string)).batch(size)


TEXTS = ["The café, the CAFE!", "", "中国 the\u200b", "[MASK] ΑΣ", "x" * 300, "a\0b the"]


def test_counts_words_as_the_tokenizer_cuts_them():
    once = dict.fromkeys([",", "!", "中", "国", "[", "mask", "]", "ας", "ab"], 1)
    assert count_words(batches(TEXTS)) == {"the": 4, "cafe": 2, **once}
    off = dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), False)
    counts = count_words(batches(TEXTS), **off)
    assert counts["café"] == counts["CAFE"] == counts["中国"] == counts["The"] == 1


def test_words_that_the_tokenizer_does_not_know_are_not_counted():
    said = []
    texts = ["ก" * 200 + " " + "ก" * 201, "x" * 60_000 + " y", "x" * 60_000]
    assert count_words(batches(texts), notice=said.append) == {"ก" * 200: 1, "y": 1}
    assert said == ["3 words of over 200 characters are not counted"]
    seen = []
    counts = count_words(batches([b"a b", b"a\xff b", b"c"], size=2), progress=seen.append)
    assert counts == {"a": 1, "b": 2, "c": 1}
    assert seen == [2, 3]


def test_the_rarest_words_are_forgotten_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(vocabulary_module, "MOST_DISTINCT", 100)
    texts = ["usual words"] * 9 + [f"r{i} s{i} t{i}" for i in range(1000)] + ["usual words"] * 9
    said, sizes = [], []
    counts = count_words(batches(texts), notice=said.append, check=lambda n: sizes.append(len(n)))
    assert counts["usual"] == counts["words"] == 18 and len(counts) <= 100
    forgotten = 36 + 3000 - sum(counts.values())
    assert said == [
        f"{forgotten:,} occurrences of rare words are not counted: memory is for 100 different "
        "words"
    ]


def test_the_rarest_words_are_not_learned_from_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(vocabulary_module, "MOST_LEARNED", 30)
    counts = {f"rare{c}": 2 for c in "abcdefghi"} | {"usual": 9, "words": 8, "again": 7}
    said = []
    pieces = learn_vocabulary(counts, 100, notice=said.append)
    assert {"usual", "words", "again"} <= set(pieces)
    assert said == [
        "6 of 12 different words are learned from, the most frequent ones: memory is for 30 "
        "characters of them"
    ]
    words = sorted(counts)
    kept = vocabulary_module._most_frequent(words, counts)
    assert kept == sorted(kept) and len(kept) == 6 and kept[:5] != words[:5]


def test_a_size_without_room_for_the_characters_is_refused_while_counting(monkeypatch):
    monkeypatch.setattr(vocabulary_module, "_FIRST_CHECK", 10)
    seen = []

    def count(size, text_bytes=1):
        seen.clear()
        return count_words(
            batches([f"{chr(0xAC00 + i % 50)}{i}" for i in range(600)]),
            do_lower_case=False,
            progress=seen.append,
            check=lambda counts: check_alphabet(counts, size, text_bytes),
        )

    # 50 syllables and 10 digits, which are within words, too; all are there twice by half-way.
    with pytest.raises(InputError, match=r"of 60 cannot hold the 5 .* give --size \d+ or more$"):
        count(60)
    assert seen[-1] < 300
    with pytest.raises(InputError, match=r"give --size 75 or more$"):
        learn_vocabulary(count(75), 74)
    assert len(learn_vocabulary(count(75), 75)) == 75
    # In ten times ten million characters, twelve of a kind may be too few.
    count(60, text_bytes=100_000_000)
    assert seen[-1] == 600


def test_learned_pieces_spell_the_corpus():
    vocabulary = learn_vocabulary(WORDS, 150)
    assert len(vocabulary) == len(set(vocabulary)) == 150
    assert vocabulary[:5] == SPECIALS
    assert learn_vocabulary(dict(reversed(WORDS.items())), 150) == vocabulary
    tokenizer = BertTokenizer(vocabulary)
    words = sorted(WORDS)
    ids = tokenizer.tokenize(words)
    assert not tf.reduce_any(ids.flat_values == tokenizer.unk_token_id)
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == words
    # Frequent words have fewer pieces than letters.
    assert ids.flat_values.shape[0] < sum(map(len, words)) / 1.5
    larger = BertTokenizer(learn_vocabulary(WORDS, 220)).tokenize(words)
    assert larger.flat_values.shape[0] < ids.flat_values.shape[0]


def test_frequent_characters_are_covered_and_reserved_tokens_come_first():
    counts = {"ab": 3, "ba": 1, "cd": 2, "é": 1, "aé": 1, "ü": 1, "bü": 1, "!": 9, "zz": 1}
    learned = learn_vocabulary(counts, 100, min_frequency=100)
    assert learned == [*SPECIALS, *"!abcdzéü", *("##" + c for c in "abdzéü")]
    counts = {"abab": 4, "ab": 9}
    reserved = ["[unused0]", "[E1]", "[SEP]", "ab", "a"]
    pieces = learn_vocabulary(counts, 20, reserved=reserved)
    assert pieces[:9] == [*SPECIALS, "[unused0]", "[E1]", "ab", "a"]
    assert len(set(pieces)) == len(pieces)
    with pytest.raises(InputError, match="the 9 special tokens and 3 pieces"):
        learn_vocabulary(counts, 8, reserved=reserved)


def test_rare_characters_are_let_go_in_a_large_corpus():
    said = []
    pieces = learn_vocabulary({"a" * 10: 5_000_000, "é": 4, "ö": 5}, 30, notice=said.append)
    assert "é" not in pieces and "ö" in pieces
    assert said[0] == (
        "1 rare characters (0.00% of the text) have no piece, and words with them are [UNK]: é"
    )


def test_min_frequency_counts_words_of_the_corpus():
    counts = {"a": 10**9, "xy": 100, "pq": 90, **{c * 2: 10 for c in "bcde"}}
    pieces = learn_vocabulary(counts, 100, min_frequency=95)
    assert "xy" in pieces and "pq" not in pieces and not {"bb", "cc"} & set(pieces)


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 9), min_size=1),
    st.integers(20, 60),
    st.integers(1, 4),
)
def test_merges_are_those_of_hugging_face(counts, size, min_frequency):
    """Also of runs (`aaaa`), of pairs side by side (`abab`), and of a piece made in two ways."""
    tokenizers = pytest.importorskip("tokenizers")
    if not hasattr(tokenizers, "trainers"):
        pytest.skip("tokenizers 1.0 has no trainers")
    alphabet = [*SPECIALS, *"abc", *("##" + c for c in "abc")]
    theirs = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    theirs.train_from_iterator(
        [f"{word} " * times for word, times in sorted(counts.items())],
        tokenizers.trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=alphabet,
            continuing_subword_prefix="##",
            show_progress=False,
        ),
    )
    ids = theirs.get_vocab(with_added_tokens=False)
    ours = learn_merges(list(counts), list(counts.values()), alphabet, size, min_frequency)
    assert ours == sorted(ids, key=ids.__getitem__)


def test_no_words_and_no_room():
    for counts in ({}, {"x" * 201: 5}):
        with pytest.raises(InputError, match="no words of up to 200 characters"):
            learn_vocabulary(counts, 100)
    counts = {"abcdef": 2}
    with pytest.raises(InputError, match=r"of 15 cannot hold the 5 special tokens and 11 p"):
        learn_vocabulary(counts, 15)
    assert len(learn_vocabulary(counts, 16)) == 16

import resource

import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.tokenization.windows import packed_words
from bert_tf.tokenization.words import (
    code_points,
    hashes,
    spans,
    words_between_spaces,
    words_of_raw_text,
)

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"eaunst-.,&()'_北京", "##s", "mail"]
PIECES += ["new", "york", "ηλιος", "한", "국"]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(PIECES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("New York, (U.S.) e-mail", ["New", "York", ",", "(", "U.S", ".", ")", "e-mail"]),
        ("AT&T's -", ["AT&T", "'", "s", "-"]),
        ("北京-new。京", ["北", "京", "-", "new", "。", "京"]),
        ("Ήλιος  한국\t😀 cafe\u0301s", ["Ήλιος", "한국", "😀", "cafe\u0301s"]),
        (" \u200bnew\u00a0york ", ["new", "york"]),
        ("", []),
    ],
)
def test_words_of_raw_text_have_exact_spans(text, expected, tokenizer):
    texts = tf.constant(["new 😀", text, "é"])
    words = words_of_raw_text(texts, tokenizer)
    ours = words.text_index.numpy() == 1
    assert [s.decode() for s in spans(texts, *words[:1], *words[2:]).numpy()[ours]] == expected
    starts = code_points(texts, words.text_index, words.starts).numpy()[ours]
    ends = code_points(texts, words.text_index, words.ends).numpy()[ours]
    assert [text[start:end] for start, end in zip(starts, ends, strict=True)] == expected
    assert [len(row) > 0 for row in words.pieces.to_list()] == [True] * len(words.text_index)


def test_words_between_spaces_all_come_back(tokenizer):
    """Even one that the tokenizer drops; only ASCII white space splits."""
    texts = tf.constant(["U.S. new\u00a0york\n\u200b  e", "", " "])
    words = words_between_spaces(texts, tokenizer)
    assert words.text_index.numpy().tolist() == [0, 0, 0, 0]
    found = [s.decode() for s in spans(texts, *words[:1], *words[2:]).numpy()]
    assert found == ["U.S.", "new\u00a0york", "\u200b", "e"]
    named = [[PIECES[i] for i in row] for row in words.pieces.to_list()]
    assert named == [["u", ".", "s", "."], ["new", "york"], ["[UNK]"], ["e"]]


def test_packed_words_say_where_each_begins(tokenizer):
    """Against a loop over words; a word whose first piece is cut has no position, nor has none."""
    texts = ["new cafe\n\u200b york", "", "e s U.S. uns e", " mails "]
    length = 9
    words = words_between_spaces(tf.constant(texts), tokenizer)
    inputs, found = packed_words(words, len(texts), tokenizer, length)
    rows, positions = [], []
    for text in texts:
        row, firsts = [tokenizer.cls_token_id], []
        for word in text.split():
            firsts.append(len(row) if len(row) < length - 1 else 0)
            row += tokenizer.tokenize([word]).to_list()[0] or [tokenizer.unk_token_id]
        row = [*row[: length - 1], tokenizer.sep_token_id]
        rows.append(row + [tokenizer.pad_token_id] * (length - len(row)))
        positions.append(firsts + [0] * (5 - len(firsts)))
    assert 0 in positions[2] and len(set(map(tuple, positions))) == 4
    assert inputs["token_ids"].numpy().tolist() == rows
    assert found.dtype == tf.int32 and found.numpy().tolist() == positions
    nothing = words_between_spaces(tf.constant([], tf.string), tokenizer)
    assert packed_words(nothing, 0, tokenizer, length)[1].shape == (0, 0)


def test_a_long_text_is_not_copied_for_each_word(tokenizer):
    count = 20_000
    texts = tf.constant(["new " * count])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = words_between_spaces(texts, tokenizer)
    found = spans(texts, words.text_index, words.starts, words.ends).numpy()
    assert found.tolist() == [b"new"] * count
    # In kilobytes; a copy for each word would take 1.6 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_parts_of_texts_are_told_apart_without_a_copy_of_each():
    texts = [b"sea sea\0", b"", b"a sea \xff\xff", b"aaaa"]
    parts = [
        (number, start, end)
        for number, text in enumerate(texts)
        for start in range(len(text) + 1)
        for end in range(start, len(text) + 1)
    ]
    columns = (tf.constant(column, tf.int64) for column in zip(*parts, strict=True))
    keys = hashes(tf.constant(texts), *columns).numpy().tolist()
    cut = [texts[number][start:end] for number, start, end in parts]
    assert len(set(zip(cut, keys, strict=True))) == len(set(cut)) == len(set(keys))

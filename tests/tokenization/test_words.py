"""Words of texts with exact spans, and windows over long texts."""

import resource

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.tokenization import windows as windows_module
from bert_tf.tokenization.windows import windows, word_rows
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
    ours = words.text.numpy() == 1
    assert [s.decode() for s in spans(texts, *words[:1], *words[2:]).numpy()[ours]] == expected
    starts = code_points(texts, words.text, words.starts).numpy()[ours]
    ends = code_points(texts, words.text, words.ends).numpy()[ours]
    assert [text[start:end] for start, end in zip(starts, ends, strict=True)] == expected
    assert [len(row) > 0 for row in words.pieces.to_list()] == [True] * len(words.text)


def test_words_between_spaces_all_come_back(tokenizer):
    """Even one that the tokenizer drops; only ASCII white space splits."""
    texts = tf.constant(["U.S. new\u00a0york\n\u200b  e", "", " "])
    words = words_between_spaces(texts, tokenizer)
    assert words.text.numpy().tolist() == [0, 0, 0, 0]
    found = [s.decode() for s in spans(texts, *words[:1], *words[2:]).numpy()]
    assert found == ["U.S.", "new\u00a0york", "\u200b", "e"]
    named = [[PIECES[i] for i in row] for row in words.pieces.to_list()]
    assert named == [["u", ".", "s", "."], ["new", "york"], ["[UNK]"], ["e"]]


@pytest.mark.parametrize(("max_length", "stride"), [(9, 3), (3, 1)])
def test_windows_cover_a_text_and_the_best_has_the_most_context(max_length, stride, tokenizer):
    size = max_length - 2
    for length in range(1, 30):
        texts = tf.constant(["a " * 3, "e " * length])
        rows = word_rows(words_between_spaces(texts, tokenizer), 2, tokenizer, max_length)
        found = windows(tf.constant([3, length], tf.int64), size, stride)
        ranges = {
            row: range(int(found.starts[row]) - 3, int(found.ends[row]) - 3)
            for row in np.flatnonzero(found.text == 1)
        }
        assert set().union(*ranges.values()) == set(range(length))
        for row, window in ranges.items():
            ids = rows.inputs["token_ids"][row].numpy()
            assert (ids == PIECES.index("e")).sum() == len(window)

        def context(row, place, length=length, ranges=ranges):
            """The poorer side; the text's own ends do not count."""
            window = ranges[row]
            if place not in window:
                return -1
            left = size if window.start == 0 else place - window.start
            right = size if window.stop == length else window.stop - 1 - place
            return min(left, right)

        np.testing.assert_array_equal(rows.pieces, rows.first_pieces)
        for place, (row, column) in enumerate(rows.pieces[3:].numpy()):
            assert ranges[row][column - 1] == place
            most = max(context(r, place) for r in ranges)
            assert context(row, place) >= max(0, most - 1)  # an odd rest has no exact middle


def test_windows_of_any_stride():
    for size, stride in ((8, 8), (8, 3), (1, 1)):
        found = windows(tf.range(20, dtype=tf.int64), size, stride)
        first = np.cumsum(np.arange(20)) - np.arange(20)
        for length in range(20):
            rows = np.flatnonzero(found.text == length)
            assert found.number.numpy()[rows].tolist() == list(range(len(rows)))
            assert len(rows) == found.counts[length] == 1 + max(0, -(-(length - size) // stride))
            starts = first[length] + stride * np.arange(len(rows))
            np.testing.assert_array_equal(found.starts.numpy()[rows], starts)
            ends = np.minimum(starts + size, first[length] + length)
            np.testing.assert_array_equal(found.ends.numpy()[rows], ends)


def test_a_long_text_is_not_copied_for_each_word(tokenizer):
    count = 20_000
    texts = tf.constant(["new " * count])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = words_between_spaces(texts, tokenizer)
    found = spans(texts, words.text, words.starts, words.ends).numpy()
    assert found.tolist() == [b"new"] * count
    # In kilobytes; a copy for each word would take 1.6 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


def test_rows_are_computed_in_parts_of_any_number(monkeypatch):
    monkeypatch.setattr(windows_module, "_MOST_TOKENS", 6)
    parts = []

    @tf.function
    def doubled(x):
        def function(part):
            tf.py_function(lambda x: parts.append(len(x)), [part["x"]], [])
            return 2 * part["x"], tf.strings.as_string(part["x"][:, 0])

        return windows_module.map_rows(function, {"x": x})

    for rows, wanted in ((0, [1]), (1, [1]), (3, [3]), (7, [3, 3, 1])):
        x = tf.reshape(tf.range(2 * rows), [rows, 2])
        parts.clear()
        twice, first = doubled(x)
        np.testing.assert_array_equal(twice, 2 * x)
        assert [text.decode() for text in first.numpy()] == [str(2 * n) for n in range(rows)]
        assert parts == wanted


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

"""Rows of tokens from strings, with words remembered: as `BertTokenizer` and `Packer` make them."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf import BertTokenizer, Packer
from bert_tf.serving import token_rows
from bert_tf.serving.token_rows import TokenRows
from bert_tf.tasks.kinds.rows import paired_rows

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "##s", "at", "sea", "σ", "ς"]
PIECES += ["new york", "a", "##a", "?", "[", "]", "mask", "中"]
TOKENIZERS = {
    "uncased": BertTokenizer(PIECES),
    "cased": BertTokenizer(PIECES, do_lower_case=False, tokenize_chinese_chars=False),
    "special tokens": BertTokenizer(PIECES, special_tokens_in_text=True),
    "added tokens": BertTokenizer(PIECES, added_tokens=[{"content": "new york"}]),
}
LENGTH = 12
ROWS = {name: TokenRows(tokenizer, LENGTH) for name, tokenizer in TOKENIZERS.items()}

_words = st.sampled_from(
    ["the", "ships", "[MASK]", "new york", "Σ", "ΑΣ", "\u0301", "a\u0300", "中a", ""]
)
_texts = st.one_of(st.text(max_size=12), st.lists(_words, max_size=6).map(" ".join))
_bytes = st.one_of(_texts.map(str.encode), st.binary(max_size=8))


def packed(tokenizer: BertTokenizer, *segments: list[bytes]) -> dict[str, np.ndarray]:
    ids = [tokenizer.tokenize(tf.constant(texts, tf.string, [len(texts)])) for texts in segments]
    pack = Packer(tokenizer, LENGTH)
    truncated = pack.truncated(*(pieces.row_lengths() for pieces in ids))
    return {name: x.numpy() for name, x in {**pack(*ids), "truncated": truncated}.items()}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.lists(_bytes, max_size=3))
@settings(max_examples=20)
def test_texts(name, texts):
    array = np.array(texts, object)
    same(ROWS[name]({"text": array}), packed(TOKENIZERS[name], texts))


@given(pairs=st.lists(st.tuples(_bytes, _bytes), max_size=3))
@settings(max_examples=20)
def test_pairs(pairs):
    first, second = ([pair[i] for pair in pairs] for i in (0, 1))
    arrays = {"text": np.array(first, object), "text_pair": np.array(second, object)}
    same(ROWS["uncased"](arrays), packed(TOKENIZERS["uncased"], first, second))


def test_choices():
    contexts, choices = [b"the ships", b""], [[b"at sea", b"", b"sea " * 9], [b"a", b"?", b"sea"]]
    arrays = {"context": np.array(contexts, object), "choices": np.array(choices, object)}
    found = ROWS["uncased"](arrays)
    rows, truncated = paired_rows(
        tf.constant(contexts), tf.constant(choices), TOKENIZERS["uncased"], LENGTH
    )
    expected = {name: x.numpy() for name, x in rows.items()}
    expected |= {"truncated": truncated.numpy().max(-1), "is_blank": np.array(choices) == b""}
    same(found, expected)


@pytest.mark.parametrize("shape", [(1, 2), (2, 0)])
def test_each_context_has_choices(shape):
    arrays = {"context": np.full(2, b"a", object), "choices": np.full(shape, b"a", object)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="one choice or more for each context"):
        ROWS["uncased"](arrays)


def test_a_prompt_stands_before_each_text():
    found = TokenRows(TOKENIZERS["uncased"], LENGTH, "the ")({"text": np.array([b"ship"], object)})
    same(found, packed(TOKENIZERS["uncased"], [b"the ship"]))


def test_words_met_before_need_no_tokenizer(monkeypatch):
    rows = TokenRows(BertTokenizer(PIECES), LENGTH)
    rows({"text": np.array([b"the ships at sea", b"a" * 33], object)})
    asked = []
    monkeypatch.setattr(rows, "_tokenized", lambda words: asked.extend(words) or [[]] * len(words))
    found = rows({"text": np.array([b"sea the ships", b"a" * 33], object)})
    assert asked == [b"a" * 33]  # too long to be kept
    assert found["token_ids"][0].tolist() == [2, 9, 5, 6, 7, 3]


def test_few_words_are_remembered(monkeypatch):
    monkeypatch.setattr(token_rows, "_MOST_WORDS", 2)
    rows = TokenRows(BertTokenizer(PIECES), LENGTH)
    for text in (b"the ships at sea", b"a ship", b"the sea"):
        same(rows({"text": np.array([text], object)}), packed(TOKENIZERS["uncased"], [text]))
        assert len(rows._known) <= 2

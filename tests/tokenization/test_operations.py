"""Both kinds of operations that a tokenizer is made of, side by side."""

import random

import pytest
import tensorflow as tf
from cases import refused
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_tf import BertTokenizer
from bert_tf.tokenization import AddedToken, count_words
from bert_tf.tokenization.operations import whole_table

pytestmark = pytest.mark.tf_text
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIALS,
    *["a", "man", "e", "##1", "1", "[", "]", "f", "##o", "学", "!", "_", "-", "##a", "##e", "“"],
]
# Words of the table and others, spaces of both kinds, and what belongs to the piece before it.
PARTS = [
    "a",
    "A",
    " ",
    "  ",
    "\n",
    "\u00a0",
    "[E1]",
    "[e1]",
    "foo",
    "é!",
    "É",
    "学校",
    "-",
    "1",
    "“",
]
PARTS += ["\u0301", "\u200b", "\0", "Σ", "ΑΣ", "각", "b" * 199, "\t"]
TOKENS = [AddedToken("[E1]", lstrip=True), AddedToken("a ", normalized=False)]


@pytest.mark.parametrize(
    "switches", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"added_tokens": TOKENS}]
)
def test_ids_and_offsets_are_the_same(switches):
    draw = random.Random(0)
    texts = ["".join(draw.choices(PARTS, k=draw.randrange(12))) for _ in range(60)]
    plain = ["a man", "[a-man] e1", "", "fo foo\n!"]  # no character there is removed
    core, tf_text = (BertTokenizer(PIECES, ops=ops, **switches) for ops in ("core", "tf_text"))
    for batch in (texts, plain):
        columns = zip(*(x.tokenize_with_offsets(batch) for x in (core, tf_text)), strict=True)
        for ours, theirs in columns:
            assert ours.to_list() == theirs.to_list()
        assert core.tokenize(batch).to_list() == tf_text.tokenize(batch).to_list()


def test_a_vocabulary_without_letters():
    for ops in ("core", "tf_text"):
        tokenizer = BertTokenizer([*SPECIALS, "!", "学"], ops=ops)
        assert tokenizer.tokenize("a!学b").numpy().tolist() == [1, 5, 6, 1]
        refused("Give it pieces beside the special", BertTokenizer, [*SPECIALS, "##!"], ops=ops)


def test_where_tf_text_is_missing(monkeypatch):
    """What takes no `ops`: words that are counted, and the table for other runtimes."""
    monkeypatch.setattr("bert_tf.tokenization.operations.has_tf_text", lambda: False)
    words = tf.data.Dataset.from_tensors([b"a b", b"a\xff b", b"c"])
    assert count_words(words) == {"a": 1, "b": 2, "c": 1}
    assert whole_table(True, True, True)["\ufaff"] == " \ufaff "  # unassigned


# Halves of letters, and what is removed between them or stands beside them.
HALVES = [
    b"\xe2",
    b"\x81",
    b"\x98",
    b"\xd6",
    b"\xf0\x9f",
    b"\xcc",
    b"\xed\xa0",
    b"\xff",
    b"\xce\xa3",
]
HALVES += [
    b"\x18",
    b"\0",
    b"\xcc\x81",
    b"\xef\xbf\xbd",
    b"a",
    b"A",
    b" ",
    b"!",
    "\u2058\u0582学".encode(),
]
BYTES = st.binary(max_size=12) | st.lists(st.sampled_from(HALVES), max_size=8).map(b"".join)
ADDED = [AddedToken("a\u2058"), AddedToken("!", normalized=False)]


@pytest.fixture(
    scope="module", params=[{}, {"added_tokens": ADDED}, {"tokenize_chinese_chars": False}]
)
def both(request):
    """Tokenizers of both kinds that have pieces of what halves of letters make."""
    pieces = [*PIECES, *"\u2058\u0582σς", *(f"##{c}" for c in "\u2058\u0582σς")]
    return [BertTokenizer(pieces, ops=ops, **request.param) for ops in ("core", "tf_text")]


@settings(max_examples=20, deadline=None)
@example([b"\xe2\x81\x18\x98", b"a\xd6\x14\x82", b"a\xe2\x81\xcc\x81\x98!"])
@given(st.lists(BYTES, min_size=1, max_size=20))
def test_halves_of_letters_stay_apart(both, texts):
    """In any bytes: what is removed between two halves makes no letter of them."""
    core, tf_text = both
    texts = tf.constant(texts)
    assert tf_text.tokenize(texts).to_list() == core.tokenize(texts).to_list()
    if dict(tf_text.settings)["tokenize_chinese_chars"]:
        for ours, theirs in zip(*(x.tokenize_with_offsets(texts) for x in both), strict=True):
            assert ours.to_list() == theirs.to_list()


def test_offsets_of_halves_lie_in_the_callers_bytes(both):
    for tokenizer in both:
        ids, *offsets = tokenizer.tokenize_with_offsets([b"e\xe2\x81\x18\x98 e\x98", b"\x98"])
        assert ids.to_list() == [[1, 1], [1]]
        assert [x.to_list() for x in offsets] == [[[0, 6], [0]], [[5, 8], [1]]]

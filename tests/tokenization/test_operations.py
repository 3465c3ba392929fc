"""Both kinds of operations that a tokenizer is made of, side by side."""

import random

import pytest

from bert_tf import BertTokenizer
from bert_tf.tokenization import AddedToken

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

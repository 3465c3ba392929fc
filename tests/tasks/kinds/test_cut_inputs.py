"""How many inputs are cut, said for every kind, by evaluate and predict, for SavedModels, too."""

import pytest

from bert_tf import BertTokenizer
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.table import TASKS

TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "cow"])


@pytest.mark.parametrize(
    ("task", "columns", "expected"),
    [
        (  # [CLS] and [SEP] count: 8 tokens fit
            "sst2", {"text": ["sea " * 6, "sea " * 7, "seas seas seas", ""]},
            "cut at 8 tokens: 1 of 4 inputs",
        ),
        (
            "rte", {"text": ["sea sea", "sea sea"], "text_pair": ["cow cow cow", "cow " * 4]},
            "cut at 8 tokens: 1 of 2 inputs",
        ),
        ("stsb", {"text": ["sea"], "text_pair": ["cow"]}, "cut at 8 tokens: 0 of 1 inputs"),
        (  # one long choice is enough
            "swag", {"context": ["sea", "sea"], "choices": [["cow", "cow"], ["cow", "cow " * 5]]},
            "cut at 8 tokens: 1 of 2 inputs",
        ),
        (
            "conll2003", {"words": ["sea " * 7, "cow"]},
            "cut: 0 of 2 texts; the 1 longer than 8 tokens are read in windows",
        ),
        ("tagging", {"words": ["sea", "cow"]}, "cut: 0 of 2 texts"),
        (  # a question has at most half of the window
            "squad", {"question": ["sea sea", "sea sea sea"], "context": ["cow " * 50] * 2},
            "cut at 2 word pieces: 1 of 2 questions; contexts are read in windows",
        ),
    ],
)  # fmt: skip
def test_every_kind_says_what_is_cut(task, columns, expected):
    assert TASKS[task].kind.cut(columns, TOKENIZER, 8)[1] == expected


def test_questions_are_cut_at_64_pieces():
    columns = {"question": ["sea " * 64, "sea " * 65], "context": ["cow", "cow"]}
    expected = "cut at 64 word pieces: 1 of 2 questions; contexts are read in windows"
    assert Span().cut(columns, TOKENIZER, 384) == (1, expected)
    shorter = Span().with_settings({"max_query_length": 9})
    assert shorter.cut(columns, TOKENIZER, 384)[1].startswith("cut at 9 word pieces: 2 of 2")

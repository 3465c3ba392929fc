"""Remarks: on training data, on inputs that are cut, for every kind, and on scores."""

import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.models.answerer import Answerer
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.remarks import doubts, remarks_on_scores, truncation
from bert_tf.tasks.table import TASKS

TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "cow"])


@pytest.mark.parametrize(
    ("task", "columns", "expected"),
    [
        (  # [CLS] and [SEP] count: 8 tokens fit
            "sst2",
            {"text": ["sea " * 6, "sea " * 7, "seas seas seas", ""]},
            "cut at 8 tokens: 1 of 4 inputs",
        ),
        (
            "rte",
            {"text": ["sea sea", "sea sea"], "text_pair": ["cow cow cow", "cow " * 4]},
            "cut at 8 tokens: 1 of 2 inputs",
        ),
        ("stsb", {"text": ["sea"], "text_pair": ["cow"]}, "cut at 8 tokens: 0 of 1 inputs"),
        (  # one long choice is enough
            "swag",
            {"context": ["sea", "sea"], "choices": [["cow", "cow"], ["cow", "cow " * 5]]},
            "cut at 8 tokens: 1 of 2 inputs",
        ),
        (
            "conll2003",
            {"words": ["sea " * 7, "cow"]},
            "cut: 0 of 2 texts; long ones are read in windows",
        ),
        (  # a question has at most half of the window
            "squad",
            {"question": ["sea sea", "sea sea sea"], "context": ["cow " * 50] * 2},
            "cut at 2 word pieces: 1 of 2 questions; contexts are read in windows",
        ),
    ],
)
def test_every_kind_says_what_is_cut(task, columns, expected):
    found = truncated(TASKS[task].kind, columns, 8)
    assert truncation(TASKS[task].kind, found, 8) == expected


def test_texts_in_windows_are_not_cut():
    kind = TASKS["classification"].kind.with_settings({"long_texts": "windows"})
    assert truncation(kind, [0, 0], 8) == "cut: 0 of 2 texts; long ones are read in windows"


@pytest.mark.parametrize(("longest", "cut"), [(64, [0, 1]), (9, [55, 56])])
def test_questions_are_cut_at_64_pieces(longest, cut):
    columns = {"question": ["sea " * 64, "sea " * 65], "context": ["cow", "cow"]}
    kind = Span().with_settings({"max_query_length": None if longest == 64 else longest})
    assert truncated(kind, columns, 384).tolist() == cut
    assert truncation(kind, cut, 384).startswith(
        f"cut at {longest} word pieces: {sum(map(bool, cut))} of 2"
    )


def truncated(kind, columns, max_length):
    """Word pieces that each example loses, as the kind's answers tell."""
    outputs = {"Span": [2], "Tagging": [3], "Classification": [2], "Regression": [], "Choice": [1]}
    size = outputs[type(kind).__name__]

    def model(rows, training):
        ids = rows["token_ids"]
        by_token = type(kind).__name__ in ("Span", "Tagging")
        return tf.zeros([*tf.unstack(tf.shape(ids)[: 1 + by_token]), *size])

    task = TASKS["classification"].with_settings({"max_length": max_length})
    answerer = Answerer(task, model, TOKENIZER, ["O", "B-X", "I-X"][: max(size, default=0)])
    strings = {name: tf.constant(values) for name, values in columns.items()}
    return kind.respond(strings, answerer)["truncated"].numpy()


def labelled(*labels) -> Examples:
    return Examples("d.tsv", [*range(len(labels))], {"text": ["a"] * len(labels), "label": labels})


def test_labels_in_one_cell_are_doubted_in_classification():
    found = doubts(TASKS["classification"].kind, labelled("sea,cow", "sea", "cow"))
    assert found[-1].endswith('did you mean --task multi_label --label_separator ","?')
    found = doubts(TASKS["classification"].kind, labelled("['sea', 'cow']", "['cow']", "[]"))
    assert found[-1].endswith('did you mean --task multi_label --label_separator ","?')
    assert not doubts(TASKS["classification"].kind, labelled("yes, of course", "no"))
    found = doubts(TASKS["multi_label"].kind, labelled("sea|cow", "sea", "cow"))
    assert found[-1].endswith("contain '|': did you mean --label_separator \"|\"?")


def test_labels_that_look_wrong_are_doubted():
    """SNLI's mark of no agreed label, and one label in two spellings."""
    found = doubts(TASKS["classification"].kind, labelled("pos", "pos", "pos ", "neg", "-"))
    assert found[0].startswith("d.tsv: the label 'pos ' is a class beside 'pos'")
    assert found[1].startswith("d.tsv: the label '-' of 1 examples is a class; in SNLI")


@pytest.mark.parametrize(
    ("task", "score", "expected"),
    [
        ("stsb", "spearman", "spearman: undefined for constant values"),
        ("tags", "f1_NN", "f1_NN: undefined without an example"),
        ("multi_label", "f1_sea", "f1_sea: undefined without an example"),
    ],
)
def test_an_undefined_score_has_its_reason(task, score, expected):
    answered = Answered(TASKS[task], labelled("a"), {})
    assert remarks_on_scores(answered, {score: None, "other": 1.0}) == [expected]

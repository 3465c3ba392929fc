"""Remarks: on training data, on inputs that are cut, for every kind, and on scores."""

import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.models.answerer import Answerer
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.remarks import doubts, remarks_on_scores, truncation
from bert_tf.tasks.task_table import TASKS

TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "cow"])


ROWS, WINDOWS = "cut at 8 tokens", "; long ones are read in windows"
QUESTIONS = "cut at 2 word pieces: 1 of 2 questions; contexts are read in windows"
TEXTS = ["sea " * 6, "sea " * 7, "seas seas seas", ""]  # [CLS] and [SEP] count: 8 tokens fit
PAIRS = {"text": ["sea sea", "sea sea"], "text_pair": ["cow cow cow", "cow " * 4]}
CHOICES = [["cow", "cow"], ["cow", "cow " * 5]]  # one long choice is enough
ASKED = ["sea sea", "sea sea sea"]  # a question has at most half of the window


@pytest.mark.parametrize(
    ("task", "columns", "expected"),
    [
        ("sst2", {"text": TEXTS}, f"{ROWS}: 1 of 4 inputs"),
        ("rte", PAIRS, f"{ROWS}: 1 of 2 inputs"),
        ("stsb", {"text": ["sea"], "text_pair": ["cow"]}, f"{ROWS}: 0 of 1 inputs"),
        ("swag", {"context": ["sea", "sea"], "choices": CHOICES}, f"{ROWS}: 1 of 2 inputs"),
        ("conll2003", {"words": ["sea " * 7, "cow"]}, f"cut: 0 of 2 texts{WINDOWS}"),
        ("squad", {"question": ASKED, "context": ["cow " * 50] * 2}, QUESTIONS),
    ],
)
def test_every_kind_says_what_is_cut(task, columns, expected):
    found = truncated(TASKS[task].kind, columns, 8)
    assert truncation(TASKS[task].kind, found, 8) == expected


def test_texts_in_windows_are_not_cut():
    kind = TASKS["classification"].kind.with_settings({"long_texts": "windows"})
    assert truncation(kind, [0, 0], 8) == f"cut: 0 of 2 texts{WINDOWS}"


def test_questions_are_cut_at_64_pieces():
    columns = {"question": ["sea " * 64, "sea " * 65], "context": ["cow", "cow"]}
    shorter = Span(max_query_length=9)
    assert truncated(Span(), columns, 384).tolist() == [0, 1]
    assert truncated(shorter, columns, 384).tolist() == [55, 56]
    assert truncation(shorter, [55, 56], 384).startswith("cut at 9 word pieces: 2 of 2")


def truncated(kind, columns, max_length):
    """Word pieces that each example loses, as the kind's answers tell."""
    outputs = {"Span": [2], "Tagging": [3], "Classification": [2], "Regression": [], "Choice": [1]}
    size = outputs[type(kind).__name__]
    by_token = type(kind).__name__ in ("Span", "Tagging")

    def model(rows, training):
        return tf.zeros([*tf.unstack(tf.shape(rows["token_ids"])[: 1 + by_token]), *size])

    task = TASKS["classification"].with_settings({"max_length": max_length})
    answerer = Answerer(task, model, TOKENIZER, ["O", "B-X", "I-X"][: max(size, default=0)])
    strings = {name: tf.constant(values) for name, values in columns.items()}
    return kind.respond(strings, answerer)["truncated"].numpy()


def labelled(*labels) -> Examples:
    return Examples("d.tsv", [*range(len(labels))], {"text": ["a"] * len(labels), "label": labels})


@pytest.mark.parametrize(
    ("labels", "label", "separator"),
    [
        (["sea|cow", "cow"], "sea|cow", "|"),
        (["a | b", "b | c", "c | a"], "a | b", "|"),  # no label stands alone
        (["sport;news", "sport", "news;art"], "news;art", ";"),
        (["sea,cow", "sea", "cow"], "sea,cow", ","),
        (["['sea', 'cow']", "['cow']", "[]"], "'sea', 'cow'", ","),
        (["yes, of course", "no"], None, None),
        (["Washington, USA", "New York, USA", "Lyon, France", "Bern, Switzerland"], None, None),
        (["a|", "b"], None, None),
    ],
)
def test_labels_that_look_like_lists_are_doubted(labels, label, separator):
    found = doubts(TASKS["classification"].kind, labelled(*labels))
    cure = f'did you mean --task multi_label --label_separator "{separator}"?'
    remark = f"d.tsv: labels such as {label!r} contain {separator!r}: {cure}"
    assert found == ([] if label is None else [remark])
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

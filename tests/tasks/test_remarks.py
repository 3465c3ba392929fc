import numpy as np
import tensorflow as tf
from cases import for_each

from bert_tf import BertTokenizer
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.readers import spelt_twice
from bert_tf.tasks.remarks import (
    baseline,
    doubts,
    label_counts,
    listed_counts,
    remarks_on_classes,
    remarks_on_scores,
    truncation,
    unlearned,
)
from bert_tf.tasks.scoring.metrics import Counts
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "cow"])


ROWS, WINDOWS = "truncated at 8 tokens", "; long ones are read in windows"
QUESTIONS = "truncated at 2 word pieces: 1 of 2 questions; contexts are read in windows"
TEXTS = ["sea " * 6, "sea " * 7, "seas seas seas", ""]  # [CLS] and [SEP] count: 8 tokens fit
PAIRS = {"text": ["sea sea", "sea sea"], "text_pair": ["cow cow cow", "cow " * 4]}
CHOICES = [["cow", "cow"], ["cow", "cow " * 5]]  # one long choice is enough
ASKED = ["sea sea", "sea sea sea"]  # a question has at most half of the window


@for_each(
    "task columns expected",
    ("sst2", {"text": TEXTS}, f"{ROWS}: 1 of 4 inputs"),
    ("rte", PAIRS, f"{ROWS}: 1 of 2 inputs"),
    ("stsb", {"text": ["sea"], "text_pair": ["cow"]}, f"{ROWS}: 0 of 1 inputs"),
    ("swag", {"context": ["sea", "sea"], "choices": CHOICES}, f"{ROWS}: 1 of 2 inputs"),
    ("conll2003", {"words": ["sea " * 7, "cow"]}, f"truncated: 0 of 2 texts{WINDOWS}"),
    ("squad", {"question": ASKED, "context": ["cow " * 50] * 2}, QUESTIONS),
)
def test_every_kind_says_what_is_truncated(task, columns, expected):
    found = truncated(TASKS[task].kind, columns, 8)
    assert truncation(TASKS[task].kind, found, 8) == expected


def test_texts_in_windows_are_not_truncated_and_questions_are_at_64_pieces():
    kind = TASKS["classification"].kind.with_settings({"long_texts": "windows"})
    assert truncation(kind, [0, 0], 8) == f"truncated: 0 of 2 texts{WINDOWS}"
    columns = {"question": ["sea " * 64, "sea " * 65], "context": ["cow", "cow"]}
    shorter = Span(max_query_length=9)
    assert truncated(Span(), columns, 384).tolist() == [0, 1]
    assert truncated(shorter, columns, 384).tolist() == [55, 56]
    assert truncation(shorter, [55, 56], 384).startswith("truncated at 9 word pieces: 2 of 2")


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


@for_each(
    "labels label separator",
    (["sea|cow", "cow"], "sea|cow", "|"),
    (["a | b", "b | c", "c | a"], "a | b", "|"),  # no label stands alone
    (["sport;news", "sport", "news;art"], "news;art", ";"),
    (["sea,cow", "sea", "cow"], "sea,cow", ","),
    (["['sea', 'cow']", "['cow']", "[]"], "'sea', 'cow'", ","),
    (["yes, of course", "no"], None, None),
    (["Washington, USA", "New York, USA", "Lyon, France", "Bern, Switzerland"], None, None),
    (["a|", "b"], None, None),
)
def test_labels_that_look_like_lists_are_doubted(labels, label, separator):
    found = doubts(TASKS["classification"].kind, labelled(*labels))
    cure = f'did you mean --task multi_label --label_separator "{separator}"?'
    remark = f"d.tsv: labels such as {label!r} contain {separator!r}: {cure}"
    assert found == ([] if label is None else [remark])
    found = doubts(TASKS["multi_label"].kind, labelled("sea|cow", "sea", "cow"))
    assert found[-1].endswith("contain '|': did you mean --label_separator \"|\"?")


def test_labels_that_look_wrong_are_doubted():
    found = doubts(TASKS["classification"].kind, labelled("pos", "pos", "pos ", "neg", "-"))
    assert found[0].startswith("d.tsv: the label 'pos ' is a class beside 'pos'")
    assert found[1].startswith("d.tsv: the label '-' of 1 examples is a class; in SNLI")


@for_each(
    "task score expected",
    ("stsb", "spearman", "spearman: undefined for constant values"),
    ("tags", "f1_NN", "f1_NN: undefined without an example"),
    ("multi_label", "f1_sea", "f1_sea: undefined without an example"),
)
def test_an_undefined_score_has_its_reason(task, score, expected):
    answered = Answered(TASKS[task], labelled("a"), {})
    assert remarks_on_scores(answered, {score: None, "other": 1.0}) == [expected]


RARE = "Try --class_weights balanced if you have not, more epochs, or more examples of the rare"


def classes(*outputs):
    """Logits of three classes, of which each has the largest for one."""
    return [[9.0 * (number == output) for number in range(3)] for output in outputs]


@for_each(
    "labels outputs expected",
    (
        *(["a", "a", "a", "b"], (0, 0, 0, 0)),
        [
            "never predicted: 'b' (0 of 1 right)",
            "accuracy 75.0%, no better than always answering 'a' (75.0%)",
        ],
    ),
    (["a", "a", "b", "c", "c"], (0, 0, 1, 1, 1), ["never predicted: 'c' (0 of 2 right)"]),
    (
        *(["a", "a", "b"], (1, 1, 0)),
        [
            "predicted but never right: 'a' (0 of 2 right), 'b' (0 of 1 right)",
            "accuracy 0.0%, no better than always answering 'a' (66.7%)",
        ],
    ),
    (["a", "a", "b"], (0, 0, 1), []),  # what no example has need not be predicted
    (["a", "a"], (0, 0), []),
)
def test_what_a_classifier_has_not_learned_is_said_with_a_cure(labels, outputs, expected, answered):
    columns = {"text": ["x"] * len(labels), "label": labels}
    given = answered(TASKS["classification"], columns, classes(*outputs), ["a", "b", "c"])
    *found, cure = remarks_on_classes(given) or [RARE]
    assert found == expected
    assert RARE in cure


def test_labels_entities_and_tags_that_are_never_predicted(answered):
    sets = {"text": ["x", "x"], "label": ["a,b", "a"]}
    logits = np.array(classes(0, 0)) - 4.5
    never, cure = remarks_on_classes(answered(TASKS["multi_label"], sets, logits, ["a", "b", "c"]))
    assert never == "never predicted: 'b' (0 of 1 right)" and RARE in cure
    for task, names, expected in (
        ("tagging", ["O", "B-PER", "B-LOC"], ["never predicted: 'LOC' (0 of 1 right)"]),
        (
            *("tags", ["O", "B-LOC", "B-PER"]),
            [
                "never predicted: 'B-LOC' (0 of 1 right)",
                "accuracy 50.0%, no better than always answering 'O' (50.0%)",
            ],
        ),
    ):
        words = {"words": ["a b c d"], "label": ["O O B-PER B-LOC"]}
        labels = np.array([[b"O", b"B-PER", b"B-PER", b"O"]], object)
        given = answered(TASKS[task], words, {"words_label": labels, "words_score": labels}, names)
        given.answers["words_score"] = np.ones([1, 4])
        *found, cure = remarks_on_classes(given)
        assert found == expected
        assert cure.startswith("Try more epochs, or more examples")


def test_entities_that_are_predicted_at_wrong_places_alone_are_said():
    counts = {"LOC": Counts(4, 4, 3), "ORG": Counts(3, 2, 0), "PER": Counts(0, 1, 0)}
    first, _ = unlearned(counts, one_each=False, weights="")
    assert first == "predicted but never right: 'ORG' (0 of 3 right)"


def test_of_many_classes_the_most_frequent_are_listed(answered):
    names = [f"c{number}" for number in range(9)]
    labels = [name for number, name in enumerate(names) for _ in range(number + 1)]
    outputs = np.eye(9)[[0] * len(labels)]
    columns = {"text": labels, "label": labels}
    first, *_ = remarks_on_classes(answered(TASKS["classification"], columns, outputs, names))
    assert first.startswith("never predicted: 'c8' (0 of 9 right), 'c7' (0 of 8 right), 'c6'")
    assert first.endswith("'c4' (0 of 5 right) and 3 more")


@for_each(
    "labels expected",
    (["Sport"] * 3 + ["sport ", " SPORT"], {"sport ": "Sport", " SPORT": "Sport"}),
    (["Pos", "pos", "pos "], {"Pos": "pos", "pos ": "pos"}),
    (["pos ", "neg"], {}),
    (["C", "C++", "C#", ">50K", "<=50K", "A+", "A-", "A", "world news", "world-news"], {}),
    (["กา", "กี", "กิ", "हिन्दी", "हिन्दु", "é", "e", "1.5", "1", "?", ""], {}),
    (["1", "1.0", "2.0", "1"], {"1.0": "1"}),  # a column of floats
)
def test_only_case_white_space_around_and_decimals_are_spellings(labels, expected):
    assert spelt_twice(labels) == expected


IDS = np.array([0, 1, 1, 1], np.int32)
WORDS = np.array([[0, 0, 1], [1, -1, -1]], np.int32)
MARKS = np.array([[1, 1], [0, 1]], np.float32)


@for_each("ids counts", (IDS, [1, 3, 0]), (WORDS, [2, 2, 0]), (MARKS, [1, 2]))
def test_labels_are_counted(ids, counts):
    assert label_counts(ids, ["a", "b", "c"]) == counts
    assert label_counts(ids, []) == []


def test_counts_and_the_baseline():
    assert listed_counts(["no", "yes"], [1, 1200]) == "no 1, yes 1,200"
    labels = [*"abcdefgh"]
    listed = "b 9, d 8, a 7, c 6, 3 more, rarest g 1"
    assert listed_counts(labels, [7, 9, 6, 8, 5, 4, 1, 3]) == listed
    (line,) = baseline(["no", "yes"], IDS, np.array([0, 0, 0, 1], np.int32), "texts")
    assert line == "always answering 'yes' has an accuracy of 25.0% on the texts"
    (line,) = baseline(["O", "B-LOC"], WORDS, WORDS, "words")
    assert "'O' has an accuracy of 50.0%" in line  # without the padding
    assert baseline(["a", "b"], MARKS, MARKS, "texts") == []
    assert baseline([], np.array([0.5], np.float32), np.array([0.5], np.float32), "texts") == []

"""Reports of every kind, worked by hand."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.reports.tables import ReportTable
from bert_tf.tasks.table import TASKS


def table(parts, name) -> ReportTable:
    (part,) = (part for part in parts if isinstance(part, ReportTable) and part.name == name)
    return part


def answers_of(kind, outputs, labels=()):
    found = kind.answers(tf.constant(outputs, tf.float32), list(labels))
    return {name: value.numpy() for name, value in found.items()}


def test_classes_of_a_model_in_another_order():
    mnli = TASKS["mnli"]
    labels = list(mnli.labels[::-1])
    answers = answers_of(mnli.kind, [[9, 0, 0], [0, 0, 9]], labels)
    examples = Examples("d", [1, 2], {"text": ["a", "b"], "label": [labels[0]] * 2})
    found = report(mnli.kind, Answered(mnli, examples, answers, labels))
    assert table(found, "confusion").rows == [
        ["contradiction", 0, 0, 0],
        ["entailment", 0, 0, 0],
        ["neutral", 1, 0, 1],
    ]


def test_regression():
    task = TASKS["stsb"]
    examples = Examples("d", [1, 2, 3], {"text": ["a", "b", "c"], "label": ["0", "5", "5"]})
    found = report(
        task.kind, Answered(task, examples, {"score": np.array([0, 4, 5.5], np.float32)}, [])
    )
    errors = table(found, "errors")
    assert errors.rows[0] == ["0.00 to 1.00", 1, 0, 0]
    assert errors.rows[4] == ["4.00 to 5.00", 2, -0.25, 0.75]
    assert errors.note == "mean absolute error 0.5000"
    assert [row[1] for row in table(found, "worst").rows] == ["b", "c"]
    constant = examples.take([1, 2])
    found = report(task.kind, Answered(task, constant, {"score": np.array([5, 5], np.float32)}, []))
    assert table(found, "errors").rows[0][1:] == [0, None, None]


def test_choices():
    task = TASKS["swag"]
    columns = {"context": ["a", "b"], "choices": [["x", "y"]] * 2, "label": ["0", "1"]}
    found = report(
        task.kind,
        Answered(task, Examples("d", [1, 2], columns), answers_of(task.kind, [[2, 0], [1, 0]]), []),
    )
    assert table(found, "confusion").rows == [["0", 1, 0], ["1", 1, 0]]
    assert table(found, "worst").rows[0][0] == "d, line 2"


def test_words():
    task = TASKS["tagging"]
    columns = {"words": ["Wolff in\nBonn", "x"], "label": ["B-PER O\nB-LOC", "O"]}
    answers = {
        "words_label": np.array([[b"B-PER", b"O", b"I-PER"], [b"O", b"", b""]], object),
        "words_score": np.array([[0.9, 0.8, 0.7], [0.6, 0, 0]]),
    }
    found = report(
        task.kind, Answered(task, Examples("d", [1, 5], columns), answers, ["O", "B-PER"])
    )
    assert table(found, "types").rows == [["LOC", 0, 0, 0, 1, 0], ["PER", 0.5, 1, 2 / 3, 1, 2]]
    assert table(found, "confusion").rows == [["LOC", 0, 0, 1], ["O", 0, 2, 0], ["PER", 0, 0, 1]]
    assert [part.rows for part in found if getattr(part, "name", "") == "worst"] == [
        [["d, line 1", "[Bonn]", "B-LOC", "B-PER", 0.7]]
    ]
    calibrated = table(found, "calibration")
    assert sum(row[1] for row in calibrated.rows) == 4


def test_masked_words():
    task = TASKS["masked_words"]
    answers = {
        "pieces_count": np.array([2, 1]),
        "pieces_text": np.array([[b"sea", b"ship"], [b"cow", b""]], object),
        "pieces_guess": np.array([[b"sea", b"farm"], [b"ship", b""]], object),
        "pieces_log_probability": np.array([[-0.1, -2.0], [-3.0, 0.0]]),
    }
    examples = Examples("d", [4, 7], {"sentence": ["sea ship", "cow"]})
    (found,) = report(task.kind, Answered(task, examples, answers, []))
    assert found.rows == [
        ["d, line 7", "cow", "cow", "ship", -3.0],
        ["d, line 4", "sea ship", "ship", "farm", -2.0],
    ]


@pytest.mark.parametrize("name", ["squad", "squad2"])
def test_spans(name):
    task = TASKS[name]
    columns = {
        "id": ["a", "b", "c"],
        "question": ["How many cows?", "Who?", "In what?"],
        "context": ["x"] * 3,
        "answers": [["12 cows", "12"], ["Bonn"], ["sea"]],
    }
    if name == "squad2":
        columns["answers"][2] = []
    answers = {
        "answer": np.array([b"12", b"", b"the deep sea"], object),
        "score": np.array([0.9, 0.8, 0.95]),
    }
    found = report(task.kind, Answered(task, Examples("d", [1, 2, 3], columns), answers, []))
    groups = {row[0]: row[1:] for row in table(found, "groups").rows}
    last = [1, 0, 0] if name == "squad2" else [1, 0, pytest.approx(200 / 3)]
    assert groups == {
        "answer: with a number": [1, 100, 100],
        "answer: capitalized": [1, 0, 0],
        "answer: none" if name == "squad2" else "answer: other": last,
        "question: how many": [1, 100, 100],
        "question: who": [1, 0, 0],
        "question: what": last,
    }
    assert [row[2] for row in table(found, "worst").rows] == (
        ["(no answer)", "Bonn"] if name == "squad2" else ["Bonn", "sea"]
    )
    if name == "squad2":
        assert table(found, "confusion").rows == [["answer", 1, 1], ["no answer", 1, 0]]

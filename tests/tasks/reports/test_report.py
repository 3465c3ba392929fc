"""Reports of every kind, worked by hand."""

import numpy as np
import pytest
from cases import for_each

from bert_tf.tasks.reports.report import report
from bert_tf.tasks.reports.tables import ReportTable
from bert_tf.tasks.task_table import TASKS


def table(parts, name) -> ReportTable:
    (part,) = (part for part in parts if isinstance(part, ReportTable) and part.name == name)
    return part


def test_classes_of_a_model_in_another_order(answered):
    mnli = TASKS["mnli"]
    labels = list(mnli.labels[::-1])
    columns = {"text": ["a", "b"], "label": [labels[0]] * 2}
    found = report(mnli.kind, answered(mnli, columns, [[9, 0, 0], [0, 0, 9]], labels))
    nothing = [["contradiction", 0, 0, 0], ["entailment", 0, 0, 0]]
    assert table(found, "confusion").rows == [*nothing, ["neutral", 1, 0, 1]]


def test_regression(answered):
    task = TASKS["stsb"]
    columns = {"text": ["a", "b", "c"], "label": ["0", "5", "5"]}
    found = report(task.kind, answered(task, columns, [0, 4, 5.5]))
    errors = table(found, "errors")
    assert errors.rows[0] == ["0.00 to 1.00", 1, 0, 0]
    assert errors.rows[4] == ["4.00 to 5.00", 2, -0.25, 0.75]
    assert errors.note == "mean absolute error 0.5000"
    assert [row[1] for row in table(found, "worst").rows] == ["b", "c"]
    constant = {"text": ["a", "b"], "label": ["5", "5"]}
    found = report(task.kind, answered(task, constant, [5, 5]))
    assert table(found, "errors").rows[0][1:] == [0, None, None]


def test_choices(answered):
    task = TASKS["swag"]
    columns = {"context": ["a", "b"], "choices": [["x", "y"]] * 2, "label": ["0", "1"]}
    found = report(task.kind, answered(task, columns, [[2, 0], [1, 0]]))
    assert table(found, "confusion").rows == [["0", 1, 0], ["1", 1, 0]]
    assert table(found, "worst").rows[0][0] == "d.tsv, line 3"


def test_words(answered):
    task = TASKS["tagging"]
    columns = {"words": ["Wolff in\nBonn", "x"], "label": ["B-PER O\nB-LOC", "O"]}
    labels = np.array([[b"B-PER", b"O", b"I-PER"], [b"O", b"", b""]], object)
    answers = {"words_label": labels, "words_score": np.array([[0.9, 0.8, 0.7], [0.6, 0, 0]])}
    found = report(task.kind, answered(task, columns, answers, ["O", "B-PER"]))
    assert table(found, "types").rows == [["LOC", 0, 0, 0, 1, 0], ["PER", 0.5, 1, 2 / 3, 1, 2]]
    assert table(found, "confusion").rows == [["LOC", 0, 0, 1], ["O", 0, 2, 0], ["PER", 0, 0, 1]]
    expected = ["d.tsv, line 2", "[Bonn]", "B-LOC", "B-PER", 0.7]
    assert table(found, "worst").rows == [expected]
    assert sum(row[1] for row in table(found, "calibration").rows) == 4


@for_each("is_answerable", True, False)
def test_spans(is_answerable, answered):
    task = TASKS["squad" if is_answerable else "squad2"]
    columns = {"id": ["a", "b", "c"], "question": ["How many cows?", "Who?", "In what?"]}
    columns["answers"] = [["12 cows", "12"], ["Bonn"], ["sea"] if is_answerable else []]
    texts = np.array([b"12", b"", b"the deep sea"], object)
    found = report(task.kind, answered(task, columns, {"answer": texts, "score": [0.9, 0.8, 0.95]}))
    last = [1, 0, pytest.approx(200 / 3)] if is_answerable else [1, 0, 0]
    assert {row[0]: row[1:] for row in table(found, "groups").rows} == {
        "answer: with a number": [1, 100, 100],
        "answer: capitalized": [1, 0, 0],
        "answer: other" if is_answerable else "answer: none": last,
        "question: how many": [1, 100, 100],
        "question: who": [1, 0, 0],
        "question: what": last,
    }
    right = [row[2] for row in table(found, "worst").rows]
    assert right == (["Bonn", "sea"] if is_answerable else ["(no answer)", "Bonn"])
    if not is_answerable:
        assert table(found, "confusion").rows == [["answer", 1, 1], ["no answer", 1, 0]]

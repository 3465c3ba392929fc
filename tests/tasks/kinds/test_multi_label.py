from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.ensembles import joint_kind
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.remarks import doubts
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.task_table import TASKS

TASK = TASKS["multi_label"]
KIND = TASK.kind
LABELS = ["cow", "sea", "ship"]


def examples_of(*labels) -> Examples:
    columns = {"text": [f"text {i}" for i in range(len(labels))], "label": list(labels)}
    return Examples("d.tsv", [*range(len(labels))], columns)


@pytest.fixture
def given(answered):
    """`given(kind, labels, probabilities)`: examples with labels, answered with probabilities."""

    def make(kind, labels, probabilities) -> Answered:
        columns = examples_of(*labels).columns
        shares = np.array(probabilities, np.float32)
        logits = np.log(shares) - np.log1p(-shares)
        return answered(replace(TASK, kind=kind), columns, logits, LABELS)

    return make


LISTS = """\
{"text": "a", "tags": ["ship", "sea"]}
{"text": "b", "tags": []}
{"text": "c", "tags": "cow"}
"""
COLUMNS = """\
{"text": "a", "sea": true, "ship": true, "cow": 0}
{"text": "b", "sea": false, "ship": 0, "cow": 0}
{"text": "c", "sea": 0, "ship": 0, "cow": 1}
"""
TABLE = "text,sea,cow,ship\na,1,0,1\nb,0,0,0\nc,0,1.0,False\n"


HELD = (
    "text\tlabel\na\tdict_keys(['ship', 'sea'])\nb\tarray([], dtype=object)\n"
    "c\tarray(['cow'], dtype='<U3')\n"
)


@for_each(
    "name text settings",
    ("d.tsv", "text\tlabel\na\tship, sea\nb\t\nc\tcow,cow\n", {}),
    ("d.tsv", "text\tlabel\na\tship;sea\nb\t \nc\tcow\n", {"label_separator": ";"}),
    ("d.csv", 'text,label\na,"sea,ship"\nb,\nc,cow\n', {}),
    ("d.csv", TABLE, {"label_column": "cow, sea, ship"}),
    ("d.jsonl", LISTS, {"label_column": "tags"}),
    ("d.csv", 'text,label\na,"[\'ship\', \'sea\']"\nb,[]\nc,"[""cow""]"\n', {}),
    ("d.csv", "text,label\na,\"{'ship', 'sea'}\"\nb,set()\nc,\"('cow',)\"\n", {}),
    ("d.tsv", "text\tlabel\na\tfrozenset({'ship', 'sea'})\nb\tfrozenset()\nc\t['cow']\n", {}),
    ("d.tsv", HELD, {}),
    ("d.jsonl", COLUMNS, {"label_column": "cow,sea,ship"}),
)
def test_forms_of_files(tmp_path, name, text, settings):
    (tmp_path / name).write_text(text)
    task = TASK.with_settings(settings)
    examples = task.read(tmp_path / name, "train")
    assert task.kind.label_names(task, examples) == LABELS
    assert task.kind.targets(examples, LABELS).tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert doubts(task.kind, examples)[-1].endswith("1 of 3 examples have no label")
    if "label_column" not in settings:  # what stays is how the file has them
        unlabelled = task.read(tmp_path / name, "test", labelled=False)
        assert list(unlabelled.columns) == ["text"]


MARKS = '{"text": "a", "label": [0, 1, 0]}\n{"text": "b", "label": [1, 1, 0]}\n'


@for_each(
    "name text columns message",
    ("d.tsv", "text\tsea\na\t1\n", "sea,cow", "no column 'cow', .* give --label_column o"),
    ("d.tsv", "text\tsea\tcow\na\t1\tyes\n", "sea,cow", "line 2: cow is 'yes'; give 1 if it"),
    ("d.jsonl", '{"text": "a", "label": ["sea, a"]}', None, "'sea, a' is empty or has the sep"),
    ("d.tsv", "text\tlabel\na\t\n", None, "no example has a label"),
    ("d.jsonl", MARKS, None, "d.jsonl: the labels are 3 marks of 0 and 1 without names; write"),
    ("d.csv", 'text,label\na,"[0, 1]"\n', None, "d.csv: the labels are 2 marks of 0 and 1 w"),
    ("d.tsv", "text\tlabel\na\t{'a': 1}\n", None, "line 2: the labels {'a': 1} are a dict; w"),
    ("d.csv", "text,label\na,\"['a'\n 'b']\"\n", None, "line 2: .* in brackets that Python"),
    ("d.tsv", "text\tlabel\na\t['a' 'b']\n", None, "line 2: .* in brackets that Python cannot"),
    ("d.tsv", "text\tlabel\na\t[['a'], ['b']]\n", None, r"line 2: the labels .* hold \['a'\];"),
    ("d.tsv", "text\tlabel\na\t['a', nan]\n", None, "line 2: the labels .* hold a missing lab"),
)
def test_mistakes_in_files_are_named(tmp_path, name, text, columns, message):
    (tmp_path / name).write_text(text)
    task = TASK.with_settings({"label_column": columns})
    refused(message, lambda: task.kind.label_names(task, task.read(tmp_path / name, "train")))


def test_a_label_never_seen_is_named_with_its_line():
    with pytest.raises(InputError, match=r"d\.tsv, line 1: the label 'goat' .* \(now ','\)"):
        KIND.targets(examples_of("sea", "cow,goat"), LABELS)


def test_each_label_has_its_threshold(given):
    kind = MultiLabel(thresholds={"sea": 0.2, "ship": 0.9})
    answers = given(kind, ["sea", ""], [[0.4, 0.3, 0.8], [0.6, 0.1, 0.95]]).answers
    labels = answers["predicted_label"].tolist()
    assert answers["predicted_count"].tolist() == [1, 2]
    assert [[x for x in row if x] for row in labels] == [[b"sea"], [b"ship", b"cow"]]
    assert answers["probabilities"][0].tolist() == pytest.approx([0.8, 0.4, 0.3])
    assert kind.renamed({"sea": "ocean"}).thresholds == {"ocean": 0.2, "ship": 0.9}
    found = KIND.answers(tf.constant([[0.0, -1.0, 1.0]]), LABELS)
    assert found["predicted_label"].numpy().tolist() == [[b"ship", b"cow"]]


def test_thresholds_are_tuned_and_kept(given):
    labels = ["sea", "sea,cow", "cow", ""]
    shares = [[0.1, 0.3, 0.5], [0.4, 0.35, 0.5], [0.3, 0.2, 0.5], [0.2, 0.1, 0.5]]
    before = given(KIND, labels, shares)
    assert KIND.scores(before)["f1_sea"] == 0
    tuned = KIND.tuned(before)
    assert tuned.thresholds == pytest.approx({"cow": 0.25, "sea": 0.25, "ship": 0.5})
    after = given(tuned, labels, shares)
    scores = tuned.scores(after)
    assert scores["f1_sea"] == scores["f1_cow"] == 1
    assert scores["average_precision"] == KIND.scores(before)["average_precision"]
    assert TASK.with_settings(tuned.settings()).kind == tuned
    other = MultiLabel(thresholds={"cow": 0.9})
    # Odds of 1 : 3 and 9 : 1 have the geometric mean 3 ** 0.5; those of 1 : 3 and 1, its inverse.
    root = 3**0.5
    assert joint_kind(tuned, [tuned, other]).thresholds == pytest.approx(
        {"cow": root / (1 + root), "sea": 1 / (1 + root), "ship": 0.5}
    )
    assert joint_kind(tuned, [tuned]) == tuned


def test_reports_and_predictions_have_every_label(tmp_path, given):
    shares = [[0.1, 0.8, 0.2], [0.4, 0.9, 0.2], [0.7, 0.2, 0.1]]
    answered = given(KIND, ["sea", "cow,sea", ""], shares)
    classes, reliability, _, errors = report(KIND, answered)
    expected = [["cow", 0, 0, 0], ["sea", 1, 1, 1], ["ship", None, None, None]]
    assert [row[:4] for row in classes.rows] == expected
    assert sum(row[1] for row in reliability.rows) == 9
    assert [row[0] for row in errors.rows] == ["d.tsv, line 4", "d.tsv, line 3"]
    write_predictions(KIND, tmp_path, answered)
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    assert lines[0] == "text\tlabel\tpredicted\tcow\tsea\tship"
    assert lines[2] == "text 1\tcow,sea\tsea\t0.400000\t0.900000\t0.200000"

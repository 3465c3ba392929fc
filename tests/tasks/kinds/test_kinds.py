import dataclasses
import json
import re
import tracemalloc
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.files import read_table
from bert_tf.pipelines.examples.table import Examples
from bert_tf.serving.predictor import answer
from bert_tf.tasks.kinds.kind import Answered, Kind
from bert_tf.tasks.kinds.rows import checked_rows
from bert_tf.tasks.model_task import task_of_model
from bert_tf.tasks.predictions import _cells, write_predictions
from bert_tf.tasks.remarks import remarks_on_scores
from bert_tf.tasks.scoring.metrics import accuracy, macro_f1, matthews_correlation
from bert_tf.tasks.task_options import check_stored
from bert_tf.tasks.task_table import TASKS, find_task

CLASSES = TASKS["classification"]
KIND = CLASSES.kind


def outputs_of(labels, predicted):
    return 9 * np.eye(len(labels))[[labels.index(label) for label in predicted]]


def test_predictions_are_read_back_whatever_columns_and_labels_are_called(tmp_path, answered):
    data = tmp_path / "d.tsv"
    data.write_text("label\tpredicted\tx\none\t two  spaces\tx  y\n\tb\tx y\nc\t\tlabel\n")
    columns = {"text_column": "label", "pair_column": "predicted", "label_column": "x"}
    task = CLASSES.with_settings(columns)
    examples = task.read(data, "train")
    labels = ["label", "predicted", "text", "x  y", "x y"]
    predicted = ["x y", "x  y", "text"]
    outputs = outputs_of(labels, predicted)
    write_predictions(KIND, tmp_path, answered(task, examples.columns, outputs, labels))
    header = (tmp_path / "predictions.tsv").read_text().splitlines()[0].replace("\t", "|")
    assert header == "label|predicted|label_2|predicted_2|label_3|predicted_3|text|x  y|x y"
    roles = {"text": "label", "text_pair": "predicted", "label": "label_2", "answer": "predicted_2"}
    read = read_table(tmp_path / "predictions.tsv").examples(roles).columns
    assert read.pop("answer") == predicted
    assert read == examples.columns


ROWS = "text,label\na,1\nb,\nc\nd,2\ne,x\n"
WORDS = "a O\nb B-X\n\nc O\nd\n\ne B-X\nf PER\n\ng O\n"
SETS = '{"text": "a", "label": [0, 1]}\n{"text": "b", "label": ["x"]}\n{"text": 1e999}\n7\n'
CHOICES = "context,choice0,choice1,label\na,x,y,0\nb,x,,0\nc,x,y,2\nd,x,y,1\n"


@for_each(
    "task name text good lines",
    ("classification", "d.csv", ROWS, [2, 5, 6], [4, 3]),
    ("regression", "d.csv", ROWS, [2, 5], [4, 3, 6]),
    ("tagging", "d.conll", WORDS, [1, 10], [5, 8]),
    ("multi_label", "d.jsonl", SETS, [1, 2], [4, 3]),
    ("choice", "d.csv", CHOICES, [2, 5], [3, 4]),
)
def test_all_bad_rows_are_named_at_once(tmp_path, task, name, text, good, lines):
    (tmp_path / name).write_text(text)
    table_task = TASKS[task].with_settings({"pair_column": "choice*"} if task == "choice" else {})
    reading = dataclasses.replace(TASKS.data[task], kind=TASKS.data[task].kind.reader())
    reading = reading.with_settings({"pair_column": "choice*"} if task == "choice" else {})
    for either in (table_task, reading):
        faults = []
        examples = either.read(tmp_path / name, "train", faults=faults)
        bad = either.kind.label_faults(examples, either.kind.label_names(either, examples))
        assert [x for i, x in enumerate(examples.lines) if i not in bad] == good
        messages = [str(fault) for fault in [*faults, *bad.values()]]
        assert [int(re.search("line ([0-9]+): ", x)[1]) for x in messages] == lines
        if len(faults) > 1:
            with pytest.raises(InputError, match=f"^{len(faults)} rows .* line {lines[0]}") as e:
                either.read(tmp_path / name, "train")
            *notes, last = e.value.__notes__
            assert notes == messages[1 : len(faults)] and last.startswith("bert-tf check lists")


def test_a_fault_of_the_whole_table_is_no_row_s_and_ten_bad_rows_are_shown(tmp_path):
    """Nor is that of a table whose rows all have it."""
    for text, message in (
        ("x\n1\n2\n", "d.csv: no column 'text'"),
        ("text,label\na,\nb,\n", "2: the label"),
    ):
        (tmp_path / "d.csv").write_text(text)
        with pytest.raises(InputError, match=message) as error:
            CLASSES.read(tmp_path / "d.csv", "train", faults=[])
        assert not hasattr(error.value, "__notes__")
    (tmp_path / "d.csv").write_text("text,label\n" + "a,\n" * 2000 + "a,b\n" * 300)
    with pytest.raises(InputError, match=r"^2,000 rows cannot be used") as error:
        CLASSES.read(tmp_path / "d.csv", "train")
    *notes, last = error.value.__notes__
    assert len(notes) == 9 and last.startswith("and 1,990 more; bert-tf check")


@for_each("labels cell", (["0", "1"], "1.0"), (["0.0", "1.0"], "1"))
@for_each("task", "classification", "multi_label")
def test_whole_numbers_are_labels_with_and_without_decimals(task, labels, cell):
    examples = Examples("d.csv", [2, 3], {"text": ["a", "b"], "label": [cell, labels[0]]})
    targets = TASKS[task].kind.targets(examples, labels)
    assert targets.tolist() == ([1, 0] if task == "classification" else [[0, 1], [1, 0]])


def test_f1_is_of_the_dataset_s_second_label_whatever_the_model_s_order(answered):
    task = TASKS["mrpc"]
    columns = {"text": ["a"] * 4, "text_pair": ["b"] * 4, "label": ["1", "0", "0", "0"]}
    for labels in (["0", "1"], ["1", "0"]):
        given = answered(task, columns, outputs_of(labels, "1100"), labels)
        assert KIND.scores(given) == {"f1": pytest.approx(2 / 3), "accuracy": 0.75}
        assert remarks_on_scores(given, {"f1": 1.0}) == ["f1 is the F1 score of the label '1'"]
    of_three = CLASSES.score_functions(["a", "b", "c"])
    assert of_three == [accuracy, macro_f1, matthews_correlation]


@for_each("scale", 1e-4, 1.0, 1e4)
def test_scores_of_regression_know_order_from_noise(scale, answered):
    """Outputs that differ count, however narrow they are; the last bits of equal ones do not."""
    task = TASKS["regression"]
    columns = {"text": ["x"] * 4, "label": ["1", "2", "3", "3"]}
    outputs = np.float32(scale) * np.array([0.5, 0.50001, 0.500021, 0.500021], np.float32)
    noisy = outputs * (1 + np.array([0, 0, 0, 2**-23], np.float32))
    for found in (outputs, noisy):
        scores = task.kind.scores(answered(task, columns, found))
        assert scores["spearman"] == pytest.approx(1, abs=1e-12)


def test_kinds_stay_small():
    """Reports, files, ensembles and remarks are functions of a kind's answers, beside the kinds."""
    members = {name for name in {*dir(Kind), *Kind.__annotations__} if not name.startswith("_")}
    assert len(members) <= 25


@for_each("task", "classification", "choice", "regression", "multi_label")
def test_the_validation_loss_is_that_of_the_model_s_outputs(task):
    kind = TASKS[task].kind
    labels = ["no", "yes", "né"] if task in ("classification", "multi_label") else []
    outputs = np.random.default_rng(3).normal(size=(20, 3)).astype(np.float32)
    outputs = outputs[:, 0] if task == "regression" else outputs
    targets = (outputs[::-1] > 0).astype(np.float32)
    if task in ("classification", "choice"):
        targets = np.arange(20, dtype=np.int32) % 3
    answers = {k: v.numpy() for k, v in kind.answers(tf.constant(outputs), labels).items()}
    loss = kind.losses.loss
    found = loss(targets, kind.to_outputs(answers, labels))
    np.testing.assert_allclose(found, loss(targets, outputs), rtol=1e-5, atol=1e-6)


def test_settings_come_back_from_task_json():
    cola = TASKS["cola"]
    changed = cola.with_settings({"text_column": "sentence", "max_length": 9, "format": "csv"})
    values = {"text": "sentence", "max_length": 9, "format": "csv", "header": True}
    assert changed == dataclasses.replace(cola, **values)
    for task in (*TASKS.values(), changed):
        check_stored(json.loads(json.dumps(task.settings())))
        assert find_task(task.name).with_settings(task.settings()) == task


@for_each(
    "task values",
    ("classification", {"max_length": "9"}),
    ("classification", {"max_length": 0}),
    ("classification", {"text_column": "a\0b"}),
    ("classification", {"format": ["csv"]}),
    ("vectors", {"scale": float("nan")}),
    ("multi_label", {"thresholds": {"a": "0.5"}}),
    ("squad2", {"null_score_diff_threshold": 10**400}),
    ("squad2", {"null_score_diff_threshold": {}}),
)
def test_values_of_other_types_in_task_json(tmp_path, task, values):
    path = tmp_path / "task.json"
    path.write_text(json.dumps({"task": task, **values}))
    assert "task.json" in refused(next(iter(values)), task_of_model, tmp_path)


def test_tasks_are_found_by_entry_point_and_file(tmp_path, monkeypatch):
    task = dataclasses.replace(CLASSES, text="body")

    def points(group, name=None):
        return {"own": Mock(load=lambda: task)} if group == "bert_tf.tasks" else {}

    monkeypatch.setattr("bert_tf.tasks.task_table.entry_points", points)
    assert find_task("own") == dataclasses.replace(task, name="own")
    mistakes = {"TASK = 1": "TASK is a int", "1 / 0": "ZeroDivisionError", "": "define TASK"}
    for text, message in mistakes.items():
        (tmp_path / "own.py").write_text(text)
        refused(message, find_task, str(tmp_path / "own.py"))
    refused(r"gone\.py", find_task, str(tmp_path / "gone.py"))


def test_many_classes_and_rows_share_the_strings_of_the_labels(tmp_path):
    labels = [f"a label of some length, number {n}" for n in range(500)]
    logits = np.random.default_rng(1).normal(size=[600, len(labels)]).astype(np.float32)

    class Signature:
        structured_input_signature = ((), {"text": tf.TensorSpec([None], tf.string)})

        def __call__(self, text):
            rows = tf.strings.to_number(text, tf.int32)
            return KIND.answers(tf.gather(tf.constant(logits), rows), labels)

    texts = [str(n) for n in range(len(logits))]
    tracemalloc.start()
    found = answer(Signature(), {"text": texts}, 32)
    examples = Examples("d.tsv", [*range(600)], {"text": texts, "label": [labels[0]] * 600})
    outputs = KIND.to_outputs(found, labels)
    write_predictions(KIND, tmp_path, Answered(CLASSES, examples, found, labels))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 64 * logits.size  # what strings of their own would take, without anything else
    np.testing.assert_allclose(np.exp(outputs), tf.nn.softmax(logits), rtol=1e-5)
    last = (tmp_path / "predictions.tsv").read_text().splitlines()[-1].split("\t")
    assert last[2] == labels[int(np.argmax(logits[-1]))] and len(last) == 3 + len(labels)
    assert last[3] == f"{float(tf.nn.softmax(logits[-1])[0]):.6f}"


def test_rows_of_ids_are_checked():
    config = SimpleNamespace(
        max_position_embeddings=4, vocab_size=9, type_vocab_size=2, is_distilbert=False
    )
    ids = tf.constant([[2, 8, 3], [2, 3, 9]])
    rows = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": tf.cast(ids < 9, tf.int32)}
    model = SimpleNamespace(config=config)
    found = checked_rows(rows, model)  # 9 stands in padding
    assert all(np.array_equal(found[name], rows[name]) for name in rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match="give token_ids of 0 to 8, not"):
        checked_rows({**rows, "padding_mask": tf.ones_like(ids)}, model)


def test_cells_of_predictions():
    assert [*_cells(np.array([1, 2]))] == [1, 2]
    assert [*_cells(np.array([b"ja", b"nein"], object))] == ["ja", "nein"]
    assert [*_cells(np.array([0.5]))] == ["0.500000"]

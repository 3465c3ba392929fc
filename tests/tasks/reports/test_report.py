"""Reports of evaluations: worked by hand, written, and for every kind."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from bert_tf.cli import main
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.reports import report as reports
from bert_tf.tasks.reports.report import (
    ReportTable,
    calibration,
    classes_report,
    confusion,
    per_class,
    write_report,
)
from bert_tf.tasks.table import TASKS

TRUTH, PREDICTED = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])


def table(report, name) -> ReportTable:
    (found,) = (part for part in report if isinstance(part, ReportTable) and part.name == name)
    return found


def test_confusion_and_scores_of_each_label():
    found, picture = confusion(["no", "yes", "maybe"], TRUTH, PREDICTED)
    assert found.rows == [["no", 1, 2, 0], ["yes", 0, 1, 0], ["maybe", 0, 0, 0]]
    image = picture.draw()
    assert image.dtype == np.uint8 and image.ndim == 3
    scores = per_class(["no", "yes", "maybe"], TRUTH, PREDICTED)
    assert scores.rows == [
        ["no", 1.0, 1 / 3, 0.5, 3, 1],
        ["yes", 1 / 3, 1.0, 0.5, 1, 3],
        ["maybe", None, None, None, 0, 0],
    ]
    assert scores.note == "no example has the label maybe"
    assert scores.texts()[2] == ["maybe", "-", "-", "-", "0", "0"]


def test_calibration():
    """Two answers at 0.95 of which one is right, one at 0.55 that is right, one at 1.0."""
    confidence, right = np.array([0.95, 0.95, 0.55, 1.0]), np.array([True, False, True, True])
    found = table(calibration(confidence, right), "calibration")
    assert found.rows[9][1] == 3 and found.rows[5][1:] == [1, 0.55, 1.0]
    assert found.rows[0] == ["0.0 to 0.1", 0, None, None]
    expected = (3 * (2.9 / 3 - 2 / 3) + 1 * 0.45) / 4
    assert found.note == f"expected calibration error {expected:.4f} (10 bins)"


def test_the_worst_errors_have_the_highest_loss():
    examples = Examples("d.tsv", [2, 3, 4], {"text": ["a", "b", "c\td"], "label": ["x", "y", "y"]})
    probabilities = np.array([[0.6, 0.4], [0.7, 0.3], [0.99, 0.01]])
    found = table(classes_report(examples, ["x", "y"], np.array([0, 1, 1]), probabilities), "worst")
    assert found.columns == ["place", "text", "label", "predicted", "probability", "loss"]
    assert found.texts() == [
        ["d.tsv, line 4", "c d", "y", "x", "0.9900", f"{-np.log(0.01):.4f}"],
        ["d.tsv, line 3", "b", "y", "x", "0.7000", f"{-np.log(0.3):.4f}"],
    ]


def rows(path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_files_pictures_and_events(tmp_path):
    long = ReportTable(
        "long", "A | B", ["a|b", "c"], [["x\n" * 300, None], ["x", np.nan]], note="noted"
    )
    write_report([long, *confusion(["a", "한국어"], TRUTH, PREDICTED)], tmp_path)
    assert rows(tmp_path / "confusion.tsv")[1] == ["a", "1", "2"]
    header, row, other = rows(tmp_path / "long.tsv")
    assert header == ["a|b", "c"] and len(row[0]) == 200 and row[1] == other[1] == "-"
    report = (tmp_path / "report.md").read_text()
    assert "## A | B\n\nnoted\n\n| a&#124;b " in report
    assert "| x".ljust(203) + "| - |" in report
    assert "![confusion](confusion.png)" in report
    with Image.open(tmp_path / "confusion.png") as image:
        assert image.format == "PNG" and image.size == (640, 500)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    tags = {
        value.tag
        for record in tf.data.TFRecordDataset(str(events)).as_numpy_iterator()
        for value in tf.compat.v1.Event.FromString(record).summary.value
    }
    assert tags == {"confusion", "long"}


def test_curves_join_the_means_of_hollow_points(monkeypatch):
    monkeypatch.setattr(reports, "_drawn", lambda figure: figure.axes[0])
    axes = reports.curves("title", {"one": [(1e-4, [3.0]), (1e-5, [0.0, 2.0])]}, "x", "y")
    (line,), (points,) = axes.lines, axes.collections
    assert line.get_xydata().tolist() == [[1e-5, 1.0], [1e-4, 3.0]]
    assert points.get_offsets().tolist() == [[1e-4, 3.0], [1e-5, 0.0], [1e-5, 2.0]]
    assert len(points.get_facecolor()) == 0
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1e-05", "0.0001"]


def test_curves_without_lines():
    picture = reports.curves("title", {}, "x", "y")
    assert picture.dtype == np.uint8 and picture.shape == (500, 640, 3)


def answers_of(kind, outputs, labels=()):
    found = kind.answers(tf.constant(outputs, tf.float32), list(labels))
    return {name: value.numpy() for name, value in found.items()}


def test_classes_of_a_model_in_another_order():
    mnli = TASKS["mnli"]
    labels = list(mnli.labels[::-1])
    answers = answers_of(mnli.kind, [[9, 0, 0], [0, 0, 9]], labels)
    examples = Examples("d", [1, 2], {"text": ["a", "b"], "label": [labels[0]] * 2})
    report = mnli.kind.report(Answered(mnli, examples, answers, labels))
    assert table(report, "confusion").rows == [
        ["contradiction", 0, 0, 0],
        ["entailment", 0, 0, 0],
        ["neutral", 1, 0, 1],
    ]


def test_regression():
    task = TASKS["stsb"]
    examples = Examples("d", [1, 2, 3], {"text": ["a", "b", "c"], "label": ["0", "5", "5"]})
    report = task.kind.report(
        Answered(task, examples, {"score": np.array([0, 4, 5.5], np.float32)}, [])
    )
    errors = table(report, "errors")
    assert errors.rows[0] == ["0.00 to 1.00", 1, 0, 0]
    assert errors.rows[4] == ["4.00 to 5.00", 2, -0.25, 0.75]
    assert errors.note == "mean absolute error 0.5000"
    assert [row[1] for row in table(report, "worst").rows] == ["b", "c"]
    constant = examples.take([1, 2])
    report = task.kind.report(Answered(task, constant, {"score": np.array([5, 5], np.float32)}, []))
    assert table(report, "errors").rows[0][1:] == [0, None, None]


def test_choices():
    task = TASKS["swag"]
    columns = {"context": ["a", "b"], "choices": [["x", "y"]] * 2, "label": ["0", "1"]}
    report = task.kind.report(
        Answered(task, Examples("d", [1, 2], columns), answers_of(task.kind, [[2, 0], [1, 0]]), [])
    )
    assert table(report, "confusion").rows == [["0", 1, 0], ["1", 1, 0]]
    assert table(report, "worst").rows[0][0] == "d, line 2"


def test_words():
    task = TASKS["tagging"]
    columns = {"words": ["Wolff in\nBonn", "x"], "label": ["B-PER O\nB-LOC", "O"]}
    answers = {
        "words_label": np.array([[b"B-PER", b"O", b"I-PER"], [b"O", b"", b""]], object),
        "words_score": np.array([[0.9, 0.8, 0.7], [0.6, 0, 0]]),
    }
    report = task.kind.report(
        Answered(task, Examples("d", [1, 5], columns), answers, ["O", "B-PER"])
    )
    assert table(report, "types").rows == [["LOC", 0, 0, 0, 1, 0], ["PER", 0.5, 1, 2 / 3, 1, 2]]
    assert table(report, "confusion").rows == [["LOC", 0, 0, 1], ["O", 0, 2, 0], ["PER", 0, 0, 1]]
    assert [part.rows for part in report if getattr(part, "name", "") == "worst"] == [
        [["d, line 1", "[Bonn]", "B-LOC", "B-PER", 0.7]]
    ]
    calibrated = table(report, "calibration")
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
    (found,) = task.kind.report(Answered(task, examples, answers, []))
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
    report = task.kind.report(Answered(task, Examples("d", [1, 2, 3], columns), answers, []))
    groups = {row[0]: row[1:] for row in table(report, "groups").rows}
    last = [1, 0, 0] if name == "squad2" else [1, 0, pytest.approx(200 / 3)]
    assert groups == {
        "answer: with a number": [1, 100, 100],
        "answer: capitalized": [1, 0, 0],
        "answer: none" if name == "squad2" else "answer: other": last,
        "question: how many": [1, 100, 100],
        "question: who": [1, 0, 0],
        "question: what": last,
    }
    assert [row[2] for row in table(report, "worst").rows] == (
        ["(no answer)", "Bonn"] if name == "squad2" else ["Bonn", "sea"]
    )
    if name == "squad2":
        assert table(report, "confusion").rows == [["answer", 1, 1], ["no answer", 1, 0]]


def test_evaluate_shows_and_writes_the_report(finetuned_classifier, tmp_path, capsys):
    data = tmp_path / "dev.tsv"
    data.write_text("text\tlabel\nsea\ta\ncow\ta\n")
    output = tmp_path / "out"
    arguments = ["--model", finetuned_classifier, "--data", data, "--output", output]
    assert main(["evaluate", *map(str, arguments)]) == 0
    captured = capsys.readouterr()
    scores = json.loads(captured.out)
    assert scores["matthews_correlation"] == 0  # of constant labels, not NaN
    assert "Scores of each label" in captured.err
    assert "no example has the label b" in captured.err
    assert "expected calibration error" in captured.err
    assert "cut at 128 tokens: 0 of 2 inputs" in captured.err
    names = {path.name for path in output.iterdir() if "tfevents" not in path.name}
    assert names == {
        "metrics.json",
        "predictions.tsv",
        "report.md",
        "classes.tsv",
        "confusion.tsv",
        "confusion.png",
        "calibration.tsv",
        "calibration.png",
        "worst.tsv",
        ".bert-tf.json",
    }
    assert "nan" not in (output / "report.md").read_text().lower()


@pytest.fixture
def finetuned_classifier(tmp_path):
    from bert_tf import BertClassifier, BertConfig, BertTokenizer
    from bert_tf.models.answerer import Answerer

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "cow"]
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=128,
    )
    model = BertClassifier(config, labels=["a", "b"])
    folder = tmp_path / "model"
    Answerer(TASKS["classification"], model, BertTokenizer(pieces), ["a", "b"]).save(folder)
    return folder

import csv
import json

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tiny import tiny_config

from bert_tf import BertClassifier, BertTokenizer
from bert_tf.commands.report_files import write_report
from bert_tf.tasks.reports.tables import ReportTable, confusion
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

TRUTH, PREDICTED = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])


def rows(path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_files_pictures_and_events(tmp_path):
    rows_of_long = [["x\n" * 300, None], ["x", np.nan]]
    long = ReportTable("long", "A | B", ["a|b", "c"], rows_of_long, note="noted")
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
    records = tf.data.TFRecordDataset(str(events)).as_numpy_iterator()
    found = (tf.compat.v1.Event.FromString(record).summary.value for record in records)
    tags = {value.tag for values in found for value in values}
    assert tags == {"confusion", "long"}


def test_evaluate_shows_and_writes_the_report(finetuned_classifier, tmp_path, call):
    data = tmp_path / "dev.tsv"
    data.write_text("text\tlabel\nsea\ta\ncow\ta\n")
    output = tmp_path / "out"
    out, err = call("evaluate", model=finetuned_classifier, data=data, output=output)
    assert json.loads(out)["matthews_correlation"] == 0  # of constant labels, not NaN
    assert "Scores of each label" in err
    assert "no example has the label b" in err
    assert "expected calibration error" in err
    assert "truncated at 128 tokens: 0 of 2 inputs" in err
    names = {path.name for path in output.iterdir() if "tfevents" not in path.name}
    pictured = {f"{x}.{kind}" for x in ("confusion", "calibration") for kind in ("tsv", "png")}
    others = {"metrics.json", "predictions.tsv", "report.md", "classes.tsv", "worst.tsv"}
    assert names == pictured | others | {".bert-tf.json"}
    assert "nan" not in (output / "report.md").read_text().lower()


@pytest.fixture
def finetuned_classifier(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "cow"]
    config = tiny_config(len(pieces), max_position_embeddings=128)
    model = BertClassifier(config, labels=["a", "b"])
    folder = tmp_path / "model"
    Answerer(TASKS["classification"], model, BertTokenizer(pieces), ["a", "b"]).save(folder)
    return folder

import json
from pathlib import Path

import numpy as np
import pytest
from cases import for_each
from tiny import tiny_config

from bert_tf import BertClassifier, BertTokenizer
from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.predictions import check_submission, write_submission
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "farm", "cow"]
CONFIG = tiny_config(len(PIECES), initializer_range=0.5)


def read(path) -> list[list[str]]:
    content = path.read_text(encoding="utf-8")
    assert content.endswith("\n")
    return [line.split("\t") for line in content.splitlines()]


FILES = {
    "cola": "CoLA.tsv",
    "sst2": "SST-2.tsv",
    "mrpc": "MRPC.tsv",
    "qqp": "QQP.tsv",
    "mnli": "MNLI-m.tsv",
    "mnli test_matched": "MNLI-m.tsv",
    "mnli test_mismatched": "MNLI-mm.tsv",
    "mnli ax": "AX.tsv",
    "qnli": "QNLI.tsv",
    "rte": "RTE.tsv",
    "wnli": "WNLI.tsv",
}


@for_each("case file", *FILES.items())
def test_glue_s_files(case, file, tmp_path, answered):
    """One row for each test row, indices from 0, labels by name in any order of the model's."""
    name, _, split = case.partition(" ")
    task, split = TASKS[name], split or "test"
    labels = list(task.labels[::-1])
    logits = np.eye(len(labels))[np.arange(5) % len(labels)]
    predicted = answered(task, {"text": ["", " ", "a", "a", '"']}, logits, labels)
    check_submission(task, split, predicted.examples, labels)
    write_submission(tmp_path, split, predicted)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    expected = [[str(i), labels[i % len(labels)]] for i in range(5)]
    assert read(tmp_path / file) == [["index", "prediction"], *expected]


def test_sts_b_has_three_decimals_within_0_to_5(tmp_path, answered):
    scores = [-0.3, 0, 2.34567, 5.0001, 4.9999]
    write_submission(tmp_path, "test", answered(TASKS["stsb"], {"text": ["a"] * 5}, scores))
    predictions = [row[1] for row in read(tmp_path / "STS-B.tsv")]
    assert predictions == ["prediction", "0.000", "0.000", "2.346", "5.000", "5.000"]


def test_answers_without_a_value_per_example_are_no_predictions(tmp_path, answered):
    task, columns = TASKS["embedding"], {"text": ["a"]}
    answers = {"vector": np.ones((1, 8)), "truncated": np.zeros(1, int)}
    with pytest.raises(InputError, match="answers of embedding have no value per example to write"):
        write_submission(tmp_path, "test", answered(task, columns, answers))
    write_submission(tmp_path, "test", answered(task, columns, {"score": np.ones(1)}))
    assert read(tmp_path / "predictions.tsv") == [["text", "predicted"], ["a", "1.000000"]]


def test_what_cannot_be_submitted_is_refused(tmp_path, answered):
    mnli = TASKS["mnli"]
    examples = Examples("tfds:glue/mnli:test_matched", [0, 1, 3], {"text": ["a"] * 3})
    with pytest.raises(InputError, match=r"lacks row 2, and MNLI-m\.tsv needs every row"):
        check_submission(mnli, "test", examples, mnli.labels)
    with pytest.raises(InputError, match=r"labels are LABEL_0, .*: match them with --label_map"):
        check_submission(mnli, "test", examples.take([0, 1]), ["LABEL_0", *mnli.labels[1:]])
    check_submission(mnli, "train", examples, ["LABEL_0"])  # no official file
    rte, labels = TASKS["rte"], ["LABEL_0", "LABEL_1"]
    with pytest.raises(InputError, match="labels are LABEL_1, those of rte are"):
        write_submission(tmp_path, "test", answered(rte, {"text": ["a"]}, [[0, 1]], labels))
    assert not list(tmp_path.iterdir())


TEXTS = ["sea", '"ship', "", "cow " * 50, "farm\u2028sea"]


@pytest.fixture(scope="module")
def cola(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cola")
    task = TASKS["cola"].with_settings({"max_length": 16})
    model = BertClassifier(CONFIG, labels=["0", "1"])
    Answerer(task, model, BertTokenizer(PIECES)).save(folder / "model")
    (folder / "CoLA").mkdir()
    lines = ["index\tsentence", *(f"{i}\t{text}" for i, text in enumerate(TEXTS))]
    (folder / "CoLA" / "test.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_test_folder_becomes_the_official_file_and_json_lines(cola, tmp_path, call):
    """Rows that are blank, too long or quoted all have a prediction."""
    files = {"output": tmp_path / "out.jsonl", "submission": tmp_path / "submission"}
    _, err = call("predict", model=cola / "model", input=cola / "CoLA", batch_size=2, **files)
    answers = [json.loads(line) for line in files["output"].open(encoding="utf-8")]
    assert [answer["text"] for answer in answers] == TEXTS
    rows = read(files["submission"] / "CoLA.tsv")
    assert rows[1:] == [[str(i), answer["label"]] for i, answer in enumerate(answers)]
    assert "1 examples have a blank text, the first in line 4" in err
    assert "truncated at 16 tokens: 1 of 5 inputs" in err
    assert call("predict --text sea", model=cola / "model")[1] == ""
    message = call.refused("predict --text a --submission x", model=cola / "model")
    assert "--submission is for files and data sets" in message


@pytest.mark.slow
def test_a_saved_model_makes_the_same_files(cola, tmp_path, call, exports_of):
    data, served = cola / "CoLA", tmp_path / "served" / "cola"
    with exports_of("serving_default"):
        call("export --name cola", model=cola / "model", output=served.parent)
    for model in (cola / "model", served):
        folder = tmp_path / model.name
        _, err = call("predict", model=model, input=data / "test.tsv", submission=folder)
        assert "truncated at 16 tokens: 1 of 5 inputs" in err
    assert read(tmp_path / "cola" / "CoLA.tsv") == read(tmp_path / "model" / "CoLA.tsv")
    _, err = call("predict --text", "sea", "cow " * 50, model=served)
    assert "truncated at 16 tokens: 1 of 2 inputs" in err
    # A split without an official file.
    (tmp_path / "labelled").mkdir()
    (tmp_path / "labelled" / "dev.tsv").write_text("gj04\t1\t\tsea\n")
    files = {"input": tmp_path / "labelled", "submission": tmp_path / "own"}
    call("predict --split validation", model=served, **files)
    header, row = read(tmp_path / "own" / "predictions.tsv")
    assert header == ["text", "predicted", "0", "1"] and row[0] == "sea"

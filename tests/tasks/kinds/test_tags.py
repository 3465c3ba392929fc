"""Tags of words that are no entities: any labels, as the file has them."""

import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer
from bert_tf.serving.predictor import rows
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.table import TASKS

TASK = TASKS["tags"]
KIND = TASK.kind
LABELS = [",", "NN", "VB"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "cow", "runs", "##x"]


def model(inputs, training):
    """Stands in for a model: the tag is a function of the piece alone."""
    return 9.0 * tf.one_hot(inputs["token_ids"] - PIECES.index(","), len(LABELS))


def answered(examples) -> Answered:
    strings = {"words": tf.constant(examples.columns["words"])}
    found = KIND.respond(
        strings,
        Answerer(TASK.with_settings({"max_length": 16}), model, BertTokenizer(PIECES), LABELS),
    )
    return Answered(TASK, examples, {k: x.numpy() for k, x in found.items()}, LABELS)


def write(path):
    path.write_text("cow NN\nruns NN\n, ,\n\nruns VB\n")
    return path


def test_tags_are_read_as_they_are(tmp_path):
    examples = TASK.read(write(tmp_path / "d.conll"), "train")
    assert examples.columns == {"words": ["cow runs ,", "runs"], "label": ["NN NN ,", "VB"]}
    assert KIND.label_names(TASK, examples) == LABELS
    assert KIND.targets(examples, LABELS).tolist() == [[1, 1, 0], [2, -1, -1]]


def test_answers_scores_report_and_predictions(tmp_path):
    given = answered(TASK.read(write(tmp_path / "d.conll"), "train"))
    first, second = rows(given.answers)
    assert [word["label"] for word in first["words"]] == ["NN", "VB", ","]
    assert (second["words"][0]["text"], second["words"][0]["end"]) == ("runs", 4)
    assert "entities" not in first
    scores = KIND.scores(given)
    assert list(scores) == KIND.score_names(TASK, LABELS)
    assert scores == {
        "accuracy": 0.75,
        "f1": pytest.approx(7 / 9),
        "f1_,": 1,
        "f1_NN": pytest.approx(2 / 3),
        "f1_VB": pytest.approx(2 / 3),
    }
    classes, table, *_, errors = report(KIND, given)
    assert classes.rows[1] == ["NN", 1, 0.5, pytest.approx(2 / 3), 2, 1]
    assert table.rows[1] == ["NN", 0, 1, 1]
    assert [row[1] for row in errors.rows] == ["cow [runs] ,"]
    write_predictions(KIND, tmp_path, given)
    written = (tmp_path / "predictions.conll").read_text()
    assert written == "cow NN NN\nruns NN VB\n, , ,\n\nruns VB VB\n\n"
    assert not (tmp_path / "conlleval.txt").exists()


def test_mistakes_are_named(tmp_path):
    (tmp_path / "d.conll").write_text("cow NN\nruns NN\n")
    with pytest.raises(InputError, match="every label is NN"):
        KIND.label_names(TASK, TASK.read(tmp_path / "d.conll", "train"))
    with pytest.raises(InputError, match=r"'NN' is neither O nor .* give --task tags"):
        TASKS["tagging"].read(tmp_path / "d.conll", "train")
    (tmp_path / "d.jsonl").write_text('{"words": ["cow"], "label": ["N N"]}')
    with pytest.raises(InputError, match="the label 'N N' is empty or holds white space"):
        TASK.read(tmp_path / "d.jsonl", "train")

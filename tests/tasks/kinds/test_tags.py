"""Tags of words that are no entities: any labels, as the file has them."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tiny import tiny_config

from bert_tf import BertTokenizer, save_model
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer
from bert_tf.models.presets import open_preset
from bert_tf.models.task_models import BertTagger
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
    lines = [{"words": ["cow", "runs"], "labels": ["NN", "VB"]}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
    task = TASK.with_settings({"label_column": "labels"})
    assert task.read(tmp_path / "d.jsonl", "train").columns["label"] == ["NN VB"]


def test_answers_scores_report_and_predictions(tmp_path):
    examples = TASK.read(write(tmp_path / "d.conll"), "train")
    given = answered(examples)
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
    with pytest.raises(InputError, match=r"'cow' has the label 'NN', which is not one of"):
        KIND.targets(TASK.read(tmp_path / "d.conll", "train"), ["INN", "VB"])


@pytest.mark.slow
def test_a_directory_of_others_learns_and_tags(tmp_path):
    config = tiny_config(len(PIECES), "1x4x2")
    save_model(BertTagger(config, labels=LABELS, seed=1), tmp_path, BertTokenizer(PIECES))
    model = open_preset(BertTagger, tmp_path)
    words, given = [["cow", "runs"]] * 4, [LABELS[1:]] * 4
    assert np.isfinite(model.fit(words, given, verbose=0).history["loss"][0])
    assert set(model.tag(["cow runs"])[0]) >= {"text", "words"} - {"text"}

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cases import refused
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, save_model
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_data import FinetuningData
from bert_tf.commands.int8_calibration import Calibration, compare, read_calibration
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer, Evaluation

LABELS = ["bad", "good"]
MODEL = Answerer(TASKS["classification"], SimpleNamespace(config=Mock()), None, LABELS)


@pytest.fixture
def rows(tmp_path):
    lines = [f"text {i % 40}\t{LABELS[i % 2]}" for i in range(60)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *lines, ""]))
    return tmp_path / "rows.tsv"


def test_int8_is_scored_on_rows_that_set_no_range(rows):
    calibration = read_calibration(MODEL, str(rows), rows.parent)
    sides = [set(examples.columns["text"]) for examples in (calibration.ranges, calibration.scored)]
    assert not sides[0] & sides[1]
    assert (len(calibration.ranges), len(calibration.scored)) == (30, 30)


def test_int8_is_scored_on_what_the_run_validated_on(rows, tmp_path):
    config = tiny_config(6, intermediate_size=8, max_position_embeddings=8)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "text"]
    save_model(BertEncoder(config), tmp_path / "model", BertTokenizer(pieces))
    paths = {"model": str(tmp_path / "model"), "train": str(rows), "output": "run"}
    options = FinetuningOptions(**paths, seed=7, validation_share=0.2, max_length=8)
    (tmp_path / "config.yaml").write_text(f"train: {rows}\nseed: 7\nvalidation_share: 0.2\n")
    data = FinetuningData.read(options.task_to_train(), options)
    calibration = read_calibration(MODEL, None, tmp_path / "best")
    assert calibration.scored.lines == data.validation.lines
    assert set(calibration.ranges.lines) <= set(data.train.lines)
    (tmp_path / "config.yaml").write_text(f"train: {rows}\nvalidation: {rows}\n")
    refused("too few different rows to set int8", read_calibration, MODEL, None, tmp_path / "best")


def test_the_gate_compares_what_thresholds_decide():
    scores = {"average_precision": [0.9, 0.9], "f1_micro": [0.8, 0.5], "exact_match": [0.5, 0.0]}
    models = [Mock() for _ in range(2)]
    for number, model in enumerate(models):
        alone = {name: values[number] for name, values in scores.items()}
        model.task, model.labels = TASKS["multi_label"], LABELS
        model.evaluate = lambda examples, size, alone=alone: Evaluation(None, alone, [])
    examples = Examples("x", [1], {"text": ["a"], "label": [""]})
    loss = compare(*models, Calibration(examples, examples))
    assert (loss.name, loss.points) == ("f1_micro", pytest.approx(30))

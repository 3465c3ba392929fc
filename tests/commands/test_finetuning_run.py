from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused

from bert_tf import BertEncoder
from bert_tf.commands import finetuning_model, finetuning_run
from bert_tf.commands.finetuning_run import _evaluate_best, best_temperature, check_task
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.task_table import TASKS

LABELS = ["no", "perhaps", "yes"]
WINDOWS = {"long_texts": "windows", "max_length": 8}
USUAL = {
    **dict.fromkeys(("teacher", "teacher_layers", "class_weights", "mine_negatives")),
    **dict.fromkeys(("jit_compile", "strategy"), "auto"),
    **{"calibrate": False, "label_smoothing": 0.0, "batch_size": 8},
    "gradient_accumulation_steps": 1,
}


@for_each("name", "classification", "choice", "multi_label")
@for_each("true", 0.4, 1.0, 3.0)
def test_the_temperature_that_outputs_were_multiplied_by_is_found(name, true):
    kind, draw = TASKS[name].kind, np.random.default_rng(1)
    logits = draw.normal(size=(4000, 3), scale=2.0)
    columns = {"choices": [["a", "b", "c"]] * len(logits)}
    if name == "multi_label":
        drawn = draw.random(logits.shape) < 1 / (1 + np.exp(-logits))
        columns["label"] = [",".join(np.array(LABELS)[row]) for row in drawn]
    else:
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        numbers = [draw.choice(3, p=row) for row in shares]
        columns["label"] = [str(n) if name == "choice" else LABELS[n] for n in numbers]
    outputs = tf.constant(logits * true, tf.float32)
    answers = {key: x.numpy() for key, x in kind.answers(outputs, LABELS).items()}
    given = Answered(TASKS[name], Examples("d", [*range(4000)], columns), answers, LABELS)
    # Its relative deviation is below 1 / sqrt(examples * information), about 2%.
    assert best_temperature(given) == pytest.approx(true, rel=0.08)


@pytest.fixture
def detailed(monkeypatch):
    monkeypatch.setattr(finetuning_run, "_in_detail", lambda model: model)


@pytest.mark.usefixtures("detailed")
@for_each("finished saved", (True, 0), (False, 1))
def test_a_finished_model_is_calibrated_and_written_once(tmp_path, monkeypatch, finished, saved):
    (tmp_path / "best").mkdir()
    if finished:
        (tmp_path / "best" / "metrics.json").write_text("{}")
    best = MagicMock()
    best.tuned.return_value = best
    monkeypatch.setattr(finetuning_run, "load_answerer", lambda folder: best)
    monkeypatch.setattr(finetuning_run, "best_temperature", lambda given: 2.0)
    run = SimpleNamespace(directory=tmp_path, precision="mixed_bfloat16", notice=lambda line: None)
    assert _evaluate_best(run, None, None, 8, calibrate=True) is best.evaluate.return_value
    assert best.save.call_count == best.evaluate.return_value.write.call_count == saved


@pytest.mark.usefixtures("detailed")
def test_the_metrics_of_a_run_are_those_of_its_best_model(tmp_path, monkeypatch):
    """In float32 the trained model, already traced, is evaluated with the best weights."""
    best, trained, saved = MagicMock(), MagicMock(), tmp_path / "best"
    best.model.encoder = MagicMock(spec=BertEncoder)
    monkeypatch.setattr(finetuning_run, "load_answerer", {saved: best}.__getitem__)
    weights, check = best.model.get_weights.return_value, trained.model.set_weights
    trained.evaluate.side_effect = lambda *_: check.assert_called_once_with(weights)
    saved.mkdir()
    (saved / "metrics.json").touch()
    run = SimpleNamespace(directory=tmp_path, precision="float32")
    _evaluate_best(run, trained, None, 8, calibrate=False)
    trained.evaluate.assert_called_once()


@for_each("temperature weight expected", (3.0, 0.25, (3.0, 5.0)), (None, None, (2.0, 7.6)))
def test_temperature_and_weight_are_the_options(monkeypatch, temperature, weight, expected):
    monkeypatch.setattr(finetuning_model, "_teacher", MagicMock())
    own = {"teacher": "large", "teacher_temperature": temperature, "teacher_weight": weight}
    options, student = SimpleNamespace(**USUAL | own), MagicMock()
    student.task.kind.losses.loss = lambda labels, own: 4.0
    student.task.kind.losses.soft.return_value = lambda taught, own: 8.0
    _, loss, _ = finetuning_model.model_and_losses(options, student, "float32")
    student.task.kind.losses.soft.assert_called_once_with(expected[0])
    assert loss(None, ("own", "taught")) == pytest.approx(expected[1])


@for_each(
    "task settings options message",
    ("masked_words", {}, {}, "masked_words trains no model"),
    ("regression", {}, {"calibrate": True}, "--calibrate is for tasks with classes"),
    ("tagging", {}, {"calibrate": True}, "--calibrate is for tasks with classes"),
    ("embedding", {}, {"teacher": "large"}, "--teacher is not for the task embedding"),
    ("multi_label", {}, {"label_smoothing": 0.1}, "--label_smoothing is for tasks with"),
    ("squad", {}, {"label_smoothing": 0.1}, "--label_smoothing is for tasks with classes"),
    ("classification", {**WINDOWS, "doc_stride": 7}, {}, "--doc_stride 7 is above the 6"),
    ("classification", WINDOWS, {"jit_compile": True}, "neither XLA nor TPUs can"),
    ("embedding", WINDOWS, {"strategy": "tpu"}, "neither XLA nor TPUs can"),
    ("regression", {**WINDOWS, "pair_column": "b"}, {}, "is for single texts, not for pairs"),
    ("embedding", {}, {"class_weights": True}, "--class_weights is not for vectors of texts"),
    ("embedding", {}, {"gradient_accumulation_steps": 2}, "micro-batches cannot"),
    ("embedding", {}, {"batch_size": 1}, "--batch_size 1 has none"),
)
def test_a_task_and_its_options(task, settings, options, message):
    options = SimpleNamespace(**USUAL | options)
    refused(message, check_task, TASKS[task].with_settings(settings), options)
    check_task(TASKS["mrpc"], options)

"""--calibrate: the temperature of a model, found, applied and kept."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertConfig, BertEncoder, BertTokenizer, save_model
from bert_tf.commands import finetuning
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning import _evaluate_best, best_temperature, finetune
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.table import TASKS

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
LABELS = ["no", "perhaps", "yes"]


@pytest.mark.parametrize("name", ["classification", "choice", "multi_label"])
@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
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


def options_of(folder, **more):
    config = BertConfig.named(
        "1x16x2",
        intermediate_size=16,
        vocab_size=len(PIECES),
        max_position_embeddings=8,
        initializer_range=0.2,
    )
    save_model(BertEncoder(config, seed=1), folder / "encoder", BertTokenizer(PIECES))
    draw = np.random.default_rng(2)
    for split in ("train", "validation"):  # a fifth of the labels is noise
        rows = [(draw.choice(PIECES[5:]), draw.choice(PIECES[5:])) for _ in range(80)]
        lines = [
            f"{a} {b}\t{('no', 'yes')[int((a in ('sea', 'ship')) ^ (draw.random() < 0.2))]}"
            for a, b in rows
        ]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return FinetuningOptions(
        model=str(folder / "encoder"),
        train=str(folder / "train.tsv"),
        validation=str(folder / "validation.tsv"),
        output=str(folder / "run"),
        epochs=8,
        batch_size=8,
        learning_rate=1e-2,
        max_length=8,
        strategy="one",
        calibrate=True,
        **more,
    )


@pytest.mark.slow
def test_a_calibrated_model_decides_as_before_with_less_loss(tmp_path):
    options = options_of(tmp_path, evaluate_every=80)
    finetune(replace(options, calibrate=False))
    result = finetune(options)  # asked for when the run is finished
    folders = {name: tmp_path / "run" / name for name in ("last", "best")}
    models = {name: Answerer.from_directory(folder) for name, folder in folders.items()}
    heads = {name: tuned.model.head.dense.get_weights() for name, tuned in models.items()}
    ratio = heads["last"][0] / heads["best"][0]  # of one evaluation, the last model is the best
    assert np.ptp(ratio) < 1e-4 and abs(ratio.mean() - 1) > 0.05
    examples = models["best"].task.read(options.validation, "validation")
    losses = {}
    for name, tuned in models.items():
        given = tuned.answers(examples, 16)
        kind = tuned.task.kind
        outputs = kind.to_outputs(given.answers, tuned.labels)
        losses[name] = np.mean(kind.losses.loss(kind.targets(examples, tuned.labels), outputs))
        assert kind.scores(given)["accuracy"] == result.evaluation.scores["accuracy"]
    assert losses["best"] < losses["last"]
    assert best_temperature(given) == pytest.approx(1, abs=0.01)
    before = {file.name: file.read_bytes() for file in folders["best"].iterdir()}
    assert finetune(options).evaluation.scores == result.evaluation.scores
    assert before == {file.name: file.read_bytes() for file in folders["best"].iterdir()}


@pytest.mark.parametrize(("finished", "saved"), [(True, 0), (False, 1)])
def test_a_finished_model_is_calibrated_and_written_once(tmp_path, monkeypatch, finished, saved):
    (tmp_path / "best").mkdir()
    if finished:
        (tmp_path / "best" / "metrics.json").write_text("{}")
    best = MagicMock()
    best.tuned.return_value = best
    monkeypatch.setattr(Answerer, "from_directory", lambda folder: best)
    monkeypatch.setattr(finetuning, "best_temperature", lambda given: 2.0)
    run = SimpleNamespace(directory=tmp_path, precision="mixed_bfloat16", notice=lambda line: None)
    options = SimpleNamespace(calibrate=True, features_only=None)
    assert _evaluate_best(run, options, None, None, 8) is best.evaluate.return_value
    assert best.save.call_count == best.evaluate.return_value.write.call_count == saved


def test_the_metrics_of_a_run_are_those_of_its_best_model(tmp_path, monkeypatch):
    """In float32 the trained model, already traced, is evaluated with the best weights."""
    best, trained, saved = MagicMock(), MagicMock(), tmp_path / "best"
    best.model.encoder = MagicMock(spec=BertEncoder)
    monkeypatch.setattr(Answerer, "from_directory", {saved: best}.__getitem__)
    trained.evaluate.side_effect = lambda *_: trained.model.set_weights.assert_called_once_with(
        best.model.get_weights.return_value
    )
    saved.mkdir()
    (saved / "metrics.json").touch()
    run = SimpleNamespace(directory=tmp_path, precision="float32")
    _evaluate_best(run, SimpleNamespace(features_only=None), trained, None, 8)
    trained.evaluate.assert_called_once()


def test_tasks_without_probabilities_refuse_it(tmp_path):
    with pytest.raises(
        InputError, match="--calibrate is for tasks with classes, not for regression"
    ):
        options = options_of(tmp_path, task="regression")
        text = (tmp_path / "train.tsv").read_text().replace("yes", "1").replace("no", "0")
        (tmp_path / "train.tsv").write_text(text)
        (tmp_path / "validation.tsv").write_text(text)
        finetune(options)

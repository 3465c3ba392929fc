from dataclasses import replace

import numpy as np
import pytest
from small_runs import finetuning
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, save_model
from bert_tf.commands.finetuning_run import best_temperature, run_finetuning
from bert_tf.text.opening import load_answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]


@pytest.mark.slow
def test_a_calibrated_model_decides_as_before_with_less_loss(tmp_path):
    config = tiny_config(len(PIECES), "1x16x2", max_position_embeddings=8, initializer_range=0.2)
    save_model(BertEncoder(config, seed=1), tmp_path / "encoder", BertTokenizer(PIECES))
    draw = np.random.default_rng(2)
    for split in ("train", "validation"):  # a fifth of the labels is noise
        rows = [(draw.choice(PIECES[5:]), draw.choice(PIECES[5:])) for _ in range(80)]
        labels = [("no", "yes")[(a in ("sea", "ship")) ^ (draw.random() < 0.2)] for a, _ in rows]
        lines = [f"{a} {b}\t{label}" for (a, b), label in zip(rows, labels, strict=True)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    options = finetuning(tmp_path, epochs=8, calibrate=True, evaluate_every=80)
    run_finetuning(replace(options, calibrate=False))
    result = run_finetuning(options)  # asked for when the run is finished
    folders = {name: tmp_path / "run" / name for name in ("last", "best")}
    models = {name: load_answerer(folder) for name, folder in folders.items()}
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
    assert run_finetuning(options).evaluation.scores == result.evaluation.scores
    assert before == {file.name: file.read_bytes() for file in folders["best"].iterdir()}

"""The whole path through the command line, on a tiny corpus."""

import json

import numpy as np
import pytest
from command_line import run
from pretraining_runs import SCALARS, SCORES
from rounding import rounding
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf import BertEncoder


def scalars(directory) -> dict[str, list]:
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    events.Reload()
    return {tag: [event.step for event in events.Tensors(tag)] for tag in events.Tags()["tensors"]}


def test_pretrain_writes_models_logs_checkpoints_and_config(pretrained, shards):
    for kind, names, steps in (("train", SCALARS, [5, 10, 15, 20]), ("held_out", SCORES, [10, 20])):
        found = scalars(pretrained / "logs" / kind)
        assert set(found) == names and found["mlm_loss"] == steps
    assert (pretrained / "checkpoints" / "step-00000020.safetensors").is_file()
    assert f'shards: "{shards}"' in (pretrained / "config.yaml").read_text()
    for model in ("best", "last"):
        assert BertEncoder.from_directory(pretrained / model).config.hidden_size == 16

    # Started again, the finished run changes nothing.
    before = (pretrained / "last" / "model.safetensors").read_bytes()
    # Without an option it has a tenth of the 20 steps to warm up.
    for changed in ({}, {"warmup_steps": 2}):
        run("pretrain", config=pretrained / "config.yaml", **changed)
    assert (pretrained / "last" / "model.safetensors").read_bytes() == before


def test_finetune_learns(finetuned):
    scores = json.loads((finetuned / "best" / "metrics.json").read_text())
    assert scores["accuracy"] > 0.8  # telling two disjoint sets of words apart
    header, *rows = (finetuned / "best" / "predictions.tsv").read_text().splitlines()
    assert header.split("\t") == ["text", "label", "predicted", "farm", "sea"]
    assert len(rows) == scores["examples"] == 10


def test_the_saved_model_answers_as_the_model_does(exported, finetuned, labelled, tmp_path, call):
    data, answers = labelled / "test.tsv", tmp_path / "answers.jsonl"
    out, _ = call("evaluate", model=finetuned / "best", data=data, output=tmp_path)
    assert json.loads(out) == json.loads((tmp_path / "metrics.json").read_text())
    assert json.loads(out)["examples"] == 24
    run("predict", model=exported, input=data, output=answers)
    _, *rows = (tmp_path / "predictions.tsv").read_text().splitlines()
    answers = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(rows) == len(answers) == 24
    for row, answer in zip(rows, answers, strict=True):
        text, _, predicted, farm, sea = row.split("\t")
        assert (answer["text"], answer["label"]) == (text, predicted)
        expected = {"farm": float(farm), "sea": float(sea)}
        probabilities = [answer["probabilities"][name] for name in expected]
        assert answer["probability"] == max(probabilities)
        atol = 0.5e-6 + rounding(30, 32)  # six decimals; a block and a head
        np.testing.assert_allclose(probabilities, list(expected.values()), rtol=0, atol=atol)


@pytest.mark.slow
def test_from_scratch_forgets_the_weights(pretrained, labelled, tmp_path):
    data = {"model": pretrained / "last", "train": labelled / "train.tsv"}
    line = "finetune --from-scratch --epochs 1 --learning-rate 1e-9 --max-length 16 --dropout 0.25"
    run(line, **data, output=tmp_path / "run")
    model = BertEncoder.from_directory(tmp_path / "run" / "last")
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.25
    fresh = model.get_layer("embeddings")
    trained = BertEncoder.from_directory(pretrained / "last").get_layer("embeddings")
    assert not np.allclose(fresh.get_weights()[0], trained.get_weights()[0], atol=1e-3)

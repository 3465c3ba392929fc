"""`bert-tf convert`: what it takes, what it says, what it writes."""

import json
import subprocess
import sys

import numpy as np
import pytest
from command_line import words

from bert_tf import BertConfig, BertTokenizer, load_model
from bert_tf.cli import COMMANDS, main
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.loading import save_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(COMMANDS, "convert", "turn a model of another format into a directory")


@pytest.fixture
def model(tmp_path):
    config = BertConfig.named(
        "1x8x2", intermediate_size=8, vocab_size=15, max_position_embeddings=6
    )
    save_model(BertPreTrainer(config, seed=1), tmp_path / "model", BertTokenizer(PIECES))
    return tmp_path / "model"


def run(*arguments):
    return main(["convert", *map(str, arguments)])


def test_there_and_back(model, tmp_path, capsys):
    assert run(model, tmp_path / "tf1", "--to", "tf1") == 0
    told = capsys.readouterr().err
    assert f"Found a Hugging Face model directory: {model}" in told
    assert "encoder, pooler, masked language model head, next sentence head" in told
    assert "1 layers, 8 wide, 2 heads, 15 pieces" in told
    assert "tanh approximation" in told
    assert f"Wrote a checkpoint of the original code (TensorFlow 1): {tmp_path / 'tf1'}" in told
    assert "run_classifier.py --init_checkpoint=" in told

    assert run(tmp_path / "tf1" / "bert_model.ckpt", tmp_path / "back") == 0
    told = capsys.readouterr().err
    assert "finetune --model" in told
    ours, theirs = (load_model(d, BertPreTrainer) for d in (model, tmp_path / "back"))
    for one, other in zip(ours.trainable_variables, theirs.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_missing_is_told(model, tmp_path, capsys):
    assert run(model, tmp_path / "preset", "--to", "keras_hub") == 0
    told = capsys.readouterr().err
    assert "next sentence head is left out" in told
    assert 'keras_nlp.models.BertBackbone.from_preset("' in told
    (tmp_path / "preset" / "tokenizer.json").unlink()
    assert run(tmp_path / "preset", tmp_path / "back") == 0
    told = capsys.readouterr().err
    assert "no next sentence head" in told
    assert f"put its vocab.txt into {tmp_path / 'back'}" in told


def test_options(model, tmp_path):
    out = tmp_path / "out"
    assert run(model, out, "--dtype", "bfloat16", "--shard-gigabytes", 1e-6) == 0
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert (out / "model.safetensors.index.json").exists()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"source: {model}\noutput: {out}\noverwrite: true\ndo_lower_case: false\n")
    assert run("--config", recipe) == 0
    assert (out / "model.safetensors").exists()
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "out"], "nowhere: no such file or folder"),
        (["model", "model"], "is the input"),
        (["model", "kept", "--overwrite"], "holds notes.txt, which this command did not make"),
        (words("model out --to tf1 --dtype float16"), "for Hugging Face directories"),
        (["model", "out", "--shard_gigabytes", "0"], "give above 0 and at most 1,000,000"),
    ],
)
def test_refusals(model, tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    assert run(*arguments) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("bert-tf convert: error: ")
    assert "\n" not in told
    assert said in told
    assert not (tmp_path / "out").exists()


def test_both_folders_are_asked_for(model, capsys):
    assert run(model) == 2
    assert "give OUTPUT" in capsys.readouterr().err


def test_options_import_nothing_heavy():
    code = "import bert_tf.commands.convert, sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

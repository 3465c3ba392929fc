import json

import pytest
from command_line import run
from tiny import tiny_config

from bert_tf import BertPreTrainer, BertTokenizer, save_model

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"]


@pytest.fixture
def model(tmp_path):
    config = tiny_config(15, intermediate_size=8, max_position_embeddings=6)
    save_model(BertPreTrainer(config, seed=1), tmp_path / "model", BertTokenizer(PIECES))
    return tmp_path / "model"


def test_there_and_back(model, tmp_path, call):
    _, shown = call("convert --to tf1", model, tmp_path / "tf1")
    assert f"Found a Hugging Face model directory: {model}" in shown
    assert "encoder, pooler, masked language model head, next sentence head" in shown
    assert "1 layers, 8 wide, 2 heads, 15 pieces" in shown
    assert "tanh approximation" in shown
    assert f"Wrote a checkpoint of the original code (TensorFlow 1): {tmp_path / 'tf1'}" in shown
    assert "run_classifier.py --init_checkpoint=" in shown

    _, shown = call("convert", tmp_path / "tf1" / "bert_model.ckpt", tmp_path / "back")
    assert "finetune --model" in shown


@pytest.mark.keras_hub
def test_what_is_missing_is_told_and_refused(model, tmp_path, call):
    _, shown = call("convert --to keras_hub", model, tmp_path / "preset")
    assert "next sentence head is left out" in shown
    assert 'keras_nlp.models.BertBackbone.from_preset("' in shown
    (tmp_path / "preset" / "tokenizer.json").unlink()
    _, shown = call("convert", tmp_path / "preset", tmp_path / "back")
    assert "no next sentence head" in shown
    assert f"put its vocab.txt into {tmp_path / 'back'}" in shown
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes.txt").write_text("mine")
    message = call.refused("convert --overwrite", model, tmp_path / "kept")
    assert "holds notes.txt, which this command did not make" in message
    assert "nowhere: no such file or folder" in call.refused("convert nowhere out")
    message = call.refused("convert --to model_garden", model, tmp_path / "out")
    assert "--to is 'model_garden': give one of hugging_face, tf1, keras_hub" in message


def test_options(model, tmp_path):
    out = tmp_path / "out"
    run("convert --dtype bfloat16 --shard-gigabytes 1e-6", model, out)
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert (out / "model.safetensors.index.json").exists()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"source: {model}\noutput: {out}\noverwrite: true\ndo_lower_case: false\n")
    run("convert", config=recipe)
    assert (out / "model.safetensors").exists()
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is False

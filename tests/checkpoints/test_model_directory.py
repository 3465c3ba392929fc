import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from cases import for_each, refused
from safetensors.numpy import load_file
from stored_models import assert_same_tensors, refusal_to_load, rewrite, set_config, tensors_of

from bert_tf import BertEncoder, BertPreTrainer, load_model
from bert_tf.checkpoints.other_formats.conversion import convert

TABLE = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(params=["encoder"])
def directory(models, request, tmp_path):
    return Path(shutil.copytree(models / request.param, tmp_path / "model"))


def test_names_of_older_versions_and_float64(directory):
    expected = tensors_of(directory)

    def rename(tensors):
        for name in list(tensors):
            older = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
            tensors[older] = np.float64(tensors.pop(name))
        tensors["embeddings.position_ids"] = np.arange(10)[None]

    rewrite(directory, rename)
    assert_same_tensors(tensors_of(directory), expected)


@for_each("directory", "pretrainer", indirect=True)
def test_a_decoder_is_a_copy(directory):
    bias = load_file(directory / "model.safetensors")["cls.predictions.bias"]

    def copy(tensors):
        tensors["cls.predictions.decoder.weight"] = tensors[TABLE]
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")

    rewrite(directory, copy)
    loaded = load_model(directory, BertPreTrainer)
    np.testing.assert_array_equal(loaded.masked_language_model.bias, bias)
    assert not any("decoder" in name for name in tensors_of(directory))
    rewrite(directory, lambda tensors: tensors.update({"cls.predictions.bias": bias + 1}))
    assert "cls.predictions.decoder.bias differs" in refusal_to_load(directory, BertPreTrainer)
    rewrite(directory, lambda tensors: tensors.pop("cls.predictions.bias"))
    rewrite(directory, lambda tensors: tensors["cls.predictions.decoder.weight"].fill(0))
    assert "cls.predictions.decoder.weight differs" in refusal_to_load(directory, BertPreTrainer)
    load_model(directory, BertEncoder)  # has no decoder to tie
    rewrite(directory, lambda tensors: tensors.pop("cls.predictions.decoder.weight"))
    set_config(directory, tie_word_embeddings=False)
    assert "lacks cls.predictions.decoder.weight" in refusal_to_load(directory, BertPreTrainer)
    set_config(directory, tie_word_embeddings=True)
    rewrite(directory, lambda x: x.update({"cls.predictions.decoder.weight": x.pop(TABLE)}))
    assert "word_embeddings.weight is missing" in refusal_to_load(directory, BertPreTrainer)


def test_missing_files_and_what_stands_for_weights(directory):
    assert "does not exist" in refusal_to_load(directory / "nowhere")
    (directory / "model.safetensors").unlink()
    assert "model.safetensors does not exist" in refusal_to_load(directory)
    (directory / "model.safetensors.index.json").write_text("{}")
    assert "not an index of weights files" in refusal_to_load(directory)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 400\n"
    (directory / "model.safetensors").write_text(pointer)
    assert "a pointer of Git LFS: fetch" in refusal_to_load(directory)
    (directory / "adapter_config.json").write_text("{}")
    assert "PEFT adapters are not supported: merge them" in refusal_to_load(directory)


@for_each("part", slice(0), slice(5), slice(400), slice(-1), None)
def test_damaged_weights(directory, part):
    path = directory / "model.safetensors"
    path.write_bytes(b"\xff" * 1000 if part is None else path.read_bytes()[part])
    assert "damaged or cut short" in refusal_to_load(directory)


@for_each("name", "config.json", "model.safetensors", "vocab.txt")
def test_pipes_and_devices_are_not_read(directory, name):
    (directory / name).unlink()
    os.mkfifo(directory / name)
    assert name in refusal_to_load(directory)
    (directory / name).unlink()
    (directory / name).symlink_to("/dev/zero")
    assert "not a regular file" in refusal_to_load(directory)


def test_tensors_of_no_part_are_left_out_and_others_named(directory, caplog):
    rewrite(directory, lambda tensors: tensors.update({"adapter.scale": np.zeros(3, "float32")}))
    BertEncoder.from_directory(directory)
    assert "Left out, as no part of a BERT: adapter.scale." in caplog.text

    def spoil(tensors):
        del tensors["encoder.layer.1.output.dense.bias"]
        tensors["encoder.layer.7.output.dense.bias"] = np.zeros(8, "float32")
        tensors["embeddings.LayerNorm.weight"] = np.zeros(9, "float32")

    rewrite(directory, spoil)
    message = refusal_to_load(directory)
    assert "encoder.layer.1.output.dense.bias is missing" in message
    assert "encoder.layer.7.output.dense.bias is unexpected" in message
    assert "embeddings.LayerNorm.weight is [9], not [8]" in message


def test_weights_that_do_not_fit_the_config(directory):
    set_config(directory, vocab_size=10**9)  # no model of that size is made
    assert "is [19, 8], not [1000000000, 8]" in refusal_to_load(directory)
    set_config(directory, vocab_size=19, num_hidden_layers=3)
    message = refusal_to_load(directory)
    assert message.count("is missing") == 5
    assert "and 11 more" in message
    refusal_to_load(directory, allow_new_head=True)  # no part of an encoder is drawn at random


@for_each("value", np.nan, np.inf)
def test_weights_that_are_no_numbers(directory, value):
    def damage(tensors):
        tensors["encoder.layer.1.output.dense.bias"][3] = value
        tensors["pooler.dense.bias"][0] = 3e38  # whose square overflows

    rewrite(directory, damage)
    assert "layer.1.output.dense.bias holds NaN or infinite numbers" in refusal_to_load(directory)
    refused("bias holds NaN", convert, directory, directory.with_name("other"))
    int8 = {"pooler.dense.weight": np.zeros((8, 8), "int8")}
    rewrite(directory, lambda tensors: tensors.update(int8))
    assert "pooler.dense.weight is of type I8" in refusal_to_load(directory)

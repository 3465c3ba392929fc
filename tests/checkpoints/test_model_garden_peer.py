"""Model Garden converts what we write for the original, and computes what we compute."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from peer_programs import find_peer

from bert_tf import BertConfig
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.loading import save_model

SCRIPT = Path(__file__).with_name("model_garden_peer.py")

pytestmark = [pytest.mark.slow, pytest.mark.peer("model-garden")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = BertConfig(
        vocab_size=23,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=10,
        hidden_act="gelu_new",
    )
    model = BertPreTrainer(config, seed=1)
    draw = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(draw.normal(size=variable.shape, scale=0.4))
    directory = tmp_path_factory.mktemp("ours") / "model"
    save_model(model, directory)
    return model, directory


def peer(directory, out):
    done = subprocess.run(
        [str(part) for part in (find_peer("model-garden"), SCRIPT, "tf1", directory, out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return np.load(out)


def ours(model, given):
    inputs = {
        "token_ids": given["input_word_ids"],
        "segment_ids": given["input_type_ids"],
        "padding_mask": given["input_mask"],
        "mask_positions": given["masked_lm_positions"],
    }
    encoded = model.encoder({name: inputs[name] for name in model.encoder.input})
    return {**model(inputs), **encoded}


def assert_close(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert np.abs(one - other).max() / np.abs(other).max() < 1e-5


def test_its_converter_reads_our_tensorflow_1(model, tmp_path):
    convert(model[1], tmp_path / "out", "tf1")
    theirs = peer(tmp_path / "out", tmp_path / "theirs.npz")
    found = ours(model[0], theirs)
    for name in ("sequence_output", "pooled_output", "mlm_logits"):
        assert_close(found[name], theirs[name])

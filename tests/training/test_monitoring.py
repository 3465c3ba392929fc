import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from run_logs import events
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf.training.monitoring import (
    Histograms,
    HyperParameters,
    Profile,
    ProjectorLog,
    hidden_states,
)
from bert_tf.training.resuming import TrainingState
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TeacherOptions, TrainingOptions


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])


@pytest.fixture
def state(model, tmp_path):
    return state_of(model, tmp_path)


def state_of(model, folder, steps_per_execution=1):
    how = {"loss": lambda x, y: tf.square(x - y), "steps_per_execution": steps_per_execution}
    trainer = Trainer(model, keras.optimizers.SGD(), **how)
    return TrainingState(trainer, folder / "checkpoints", settings={})


def train(state, *watchers):
    batches = tf.data.Dataset.from_tensors((tf.ones((8, 4)), tf.ones((8, 2)))).repeat()
    iterator, steps = state.trainer.iterate(batches), state.trainer.steps_per_execution
    for watcher in watchers:
        watcher.begin(12)
        for step in range(steps, 7, steps):
            watcher.before_step()
            state.trainer.train(iterator)
            state.advance(steps, ends_stretch=step == 6)
            watcher.after_step(state.step)
        watcher.after_evaluation()
        watcher.end_phase()


@for_each("every execution steps", (2, 1, [2, 4, 6]), (2, 3, [3, 6]), (4, 3, [6]), (5, 3, [6]))
def test_histograms_of_weights_and_activations(model, tmp_path, every, execution, steps):
    state = state_of(model, tmp_path, execution)
    output = {"activations": lambda: {"output": model(np.ones((8, 4)))}}
    histograms = Histograms(state, tmp_path, every, model, **output)
    assert not (tmp_path / "histograms").exists()
    train(state, histograms)
    events = EventAccumulator(str(tmp_path / "histograms")).Reload()
    tags = sorted(events.Tags()["tensors"])
    assert [tag.split("/")[-1] for tag in tags] == ["output", "bias", "kernel"]
    for tag in tags:
        assert [event.step for event in events.Tensors(tag)] == steps


@for_each("first last steps_per_execution", (3, 4, 1), (5, 400, 1), (2, 5, 3), (6, 6, 3))
def test_a_profile_of_some_steps(model, state, tmp_path, first, last, steps_per_execution):
    """Also of steps in the middle of an execution, and of some that the end cuts off."""
    state = state_of(model, tmp_path, steps_per_execution)
    train(state, Profile(state, tmp_path, first, last))
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1


def embeddings(folder):
    reader = tf.train.load_checkpoint(str(folder))
    (name,) = reader.get_variable_to_shape_map()
    return name, reader.get_tensor(name)


def test_the_projector_gets_the_table_as_it_is_after_each_stretch(model, state, tmp_path):
    table = model.layers[0].kernel  # (4, 2)
    columns = {"piece": ["a\tb", "c\nd\re", "\u2028é"], "id": [0, 1, 2]}
    log = ProjectorLog(state, tmp_path, name="table", table=table, columns=columns)
    assert not (tmp_path / "train").exists()
    train(state, log)
    name, first = embeddings(tmp_path / "train")
    assert name == "table_step_6"
    np.testing.assert_array_equal(first, table.numpy()[:3])

    train(state, log)
    name, second = embeddings(tmp_path / "train")
    assert name == "table_step_12"
    np.testing.assert_array_equal(second, table.numpy()[:3])
    assert not np.array_equal(first, second)
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == [
        "checkpoint",
        "metadata.tsv",
        "projector_config.pbtxt",
        "table-00000012.data-00000-of-00001",
        "table-00000012.index",
    ]
    lines = (tmp_path / "train" / "metadata.tsv").read_bytes().decode().split("\n")
    rows = [["piece", "id"], [r"a\tb", "0"], [r"c\nd\re", "1"], [r"\u2028é", "2"], [""]]
    assert [line.split("\t") for line in lines] == rows


def hyper_parameters(state, folder, values):
    return HyperParameters(state, folder, run="runs/a", values=values, score="best_loss")


def test_a_run_is_one_session_however_often_it_is_continued(model, state, tmp_path):
    values = {"learning_rate": 0.1, "steps": 12, "dropout": None}
    state.best = 0.5
    train(state, hyper_parameters(state, tmp_path / "logs", values))
    (start,) = (tmp_path / "logs").glob("*.hyper_parameters")
    before = start.read_bytes()
    state.best = 0.25
    train(state, hyper_parameters(state, tmp_path / "logs", values))
    assert start.read_bytes() == before
    accumulator = EventAccumulator(str(tmp_path / "logs")).Reload()
    # By the names of the files, whose order says nothing within a second.
    found = accumulator.Tensors("best_loss")
    best = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in found}
    assert best == {6: 0.5, 12: 0.25}
    tags = [(path == start, *x.tag.partition("/")) for path, _, x in events(tmp_path / "logs")]
    sessions = [(first, name) for first, group, _, name in tags if group == "_hparams_"]
    assert sessions == [(True, "session_start_info"), (False, "session_end_info")]


def test_a_run_that_patience_ends_ends_its_session(state, tmp_path):
    state.ended_early = True
    session = hyper_parameters(state, tmp_path, {})
    session.begin(12)
    session.after_evaluation()
    tags = [value.tag for _, _, value in events(tmp_path)]
    assert tags == ["_hparams_/session_start_info", "_hparams_/session_end_info"]


def test_activations_are_of_real_texts_alone():
    ids = np.array([[[2, 5, 3], [0, 0, 0]], [[2, 6, 3], [2, 7, 3]]])  # [B, N, T]
    batch = {
        "token_ids": ids,
        "padding_mask": (ids != 0) * 1,
        "mask_positions": np.array([[1, 0, 0, 0]]),
    }
    found = hidden_states(
        lambda rows, training: {"hidden_states": [rows["token_ids"]]}, lambda: [(batch, None)]
    )
    (states,) = found().values()
    assert states.numpy().tolist() == [[2, 5, 3], [2, 6, 3], [2, 7, 3]]


def test_steps_to_profile_and_the_teachers_weight():
    assert TrainingOptions(output="run", profile="2:5").profiled == (2, 5)
    assert TeacherOptions(teacher="model").implied()["teacher_weight"] == 0.9

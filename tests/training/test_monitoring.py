import keras
import numpy as np
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf.training.monitoring import Histograms, Profile


class State:
    step = 0


class Count(keras.callbacks.Callback):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch, logs=None):
        self.state.step += 1


def fit(make_callback):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="dense")])
    model.compile("sgd", "mse")
    state = State()
    batches = tf.data.Dataset.from_tensors((np.ones((8, 4)), np.ones((8, 2)))).repeat(6)
    model.fit(
        batches, callbacks=[Count(state), make_callback(model, state)], verbose=0, shuffle=False
    )


def test_histograms_of_weights_and_activations(tmp_path):
    fit(
        lambda model, state: Histograms(
            tmp_path, state, every=2, weights=model,
            activations=lambda: {"output": model(np.ones((8, 4)))},
        )
    )  # fmt: skip
    events = EventAccumulator(str(tmp_path / "histograms")).Reload()
    tags = sorted(events.Tags()["tensors"])
    assert [tag.split("/")[-1] for tag in tags] == ["output", "bias", "kernel"]
    for tag in tags:
        assert [event.step for event in events.Tensors(tag)] == [2, 4, 6]


def test_a_profile_of_some_steps(tmp_path):
    fit(lambda model, state: Profile(tmp_path, state, 3, 4))
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_profile_that_the_end_cuts_short_is_kept(tmp_path):
    fit(lambda model, state: Profile(tmp_path, state, 5, 400))
    assert list(tmp_path.rglob("*.xplane.pb"))

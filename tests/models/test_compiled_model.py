import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from rounding import rounding
from small_data import LABELS, NUMBERS, TEXTS, arrays, fit

from bert_tf import AdamWeightDecay, WarmupLinearDecay


def test_the_recipe_of_a_fit(opened):
    """Warm-up and decay over the steps of each fit; `initial_epoch` continues the one before."""
    model = opened()
    rates = []
    log = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    fit(model, batch_size=1, epochs=2, callbacks=[log])
    schedule = WarmupLinearDecay(5e-5, 2, 16)
    expected = [schedule(step) for step in range(1, 17)]
    np.testing.assert_allclose(rates, expected, rtol=0, atol=rounding(8, 2, 5e-5))
    assert isinstance(model.optimizer, AdamWeightDecay)
    first = model.optimizer
    fit(model, epochs=4, initial_epoch=2, batch_size=4)
    assert model.optimizer is first
    assert int(first.iterations) == 16 + 4
    fit(model)
    assert model.optimizer is not first
    assert int(model.optimizer.iterations) == 2
    optimizer = model.optimizer
    fit(model, epochs=1)  # from the start, with the step that is traced
    assert model.optimizer is optimizer
    assert int(model.optimizer.iterations) == 2


def test_data_of_unknown_size_has_no_schedule_and_fit_says_so(opened):
    model = opened()
    data = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(4).filter(lambda x, y: True)
    with pytest.warns(UserWarning, match="stays at 5e-05, without warm-up and decay. Give steps_"):
        fit(model, data, None, batch_size=None)
    assert float(model.optimizer.learning_rate) == np.float32(5e-5)
    counted = data.apply(tf.data.experimental.assert_cardinality(2))
    for known in ({"x": counted}, {"x": data.repeat(), "steps_per_epoch": 2}):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*stays at")
            fit(model, y=None, batch_size=None, **known)
        assert float(model.optimizer.learning_rate) == 0


@pytest.mark.slow
def test_compile_replaces_each_part(opened):
    model = opened()
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    assert set(fit(model)) == {"loss", "accuracy"}
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    model.compile(metrics=None, run_eagerly=True)
    assert set(fit(model)) == {"loss"}
    model.compile("auto", "auto", None, ["sparse_categorical_accuracy"], run_eagerly=True)
    assert set(fit(model)) == {"loss", "sparse_categorical_accuracy"}
    hinge = keras.losses.CategoricalHinge()
    model.compile(loss=hinge, run_eagerly=True)
    one_hot = np.eye(2, dtype="float32")[NUMBERS]
    assert set(fit(model, y=one_hot)) == {"loss"}
    found = model.evaluate(TEXTS, one_hot, verbose=0)
    expected = hinge(one_hot, model.predict(TEXTS, verbose=0))
    assert found == pytest.approx(float(expected), rel=rounding(24, 32))
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=sparse, run_eagerly=True)
    assert fit(model, y=LABELS)["loss"] != fit(model, y=LABELS[::-1])["loss"]
    assert isinstance(model.optimizer, AdamWeightDecay)


@pytest.mark.slow
def test_callbacks(opened, tmp_path):
    model = opened()
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, min_delta=100.0)
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_loss")
    board = keras.callbacks.TensorBoard(tmp_path / "logs")
    callbacks = [stop, checkpoint, board]
    history = fit(model, epochs=5, validation_split=0.25, callbacks=callbacks)
    assert len(history["loss"]) == 2
    assert list((tmp_path / "logs").rglob("events*"))
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    np.testing.assert_array_equal(loaded.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0))
    assert loaded.classify(TEXTS) == model.classify(TEXTS)


def test_a_fit_continues_after_a_kill(opened, tmp_path):
    class Killed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    first = opened()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(first, epochs=3, callbacks=[backup, Killed()], shuffle=False)
    assert first.predict(TEXTS, verbose=0).shape == (8, 2)  # usable as it is
    second = opened(seed=2)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    assert len(fit(second, epochs=3, callbacks=[backup], shuffle=False)["loss"]) == 2
    assert int(second.optimizer.iterations) == 6
    assert float(second.optimizer.learning_rate) == 0


@pytest.mark.slow
def test_bfloat16_steps_and_shuffling(opened):
    model = opened(dtype="mixed_bfloat16")
    fit(model, epochs=2, shuffle=False, steps_per_epoch=3)
    assert int(model.optimizer.iterations) == 6
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    half = opened(dtype="mixed_float16")
    fit(half)
    assert isinstance(half.optimizer, keras.optimizers.LossScaleOptimizer)


def test_a_batch_of_one_example(opened):
    model = opened(run_eagerly=False)
    assert np.isfinite(fit(model, ["a film"], ["bad"])["loss"])


def test_what_a_keras_file_keeps(opened, tmp_path):
    model = opened()
    model.compile(keras.optimizers.SGD(0.25), metrics=["sparse_categorical_accuracy"])
    model.save(tmp_path / "own.keras")
    own = keras.saving.load_model(tmp_path / "own.keras")
    assert isinstance(own.optimizer, keras.optimizers.SGD)
    assert float(own.optimizer.learning_rate) == 0.25
    assert own.get_compile_config()["metrics"] == ["sparse_categorical_accuracy"]
    model = opened()
    fit(model, epochs=2)
    model.save(tmp_path / "auto.keras")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of optimizers whose variables differ
        auto = keras.saving.load_model(tmp_path / "auto.keras")
    auto.run_eagerly = True
    fit(auto, epochs=3, initial_epoch=2)
    assert int(auto.optimizer.iterations) == 6
    assert auto.preprocessor.task == model.preprocessor.task
    assert [layer.name for layer in auto.layers] == [layer.name for layer in model.layers]


@pytest.mark.slow
def test_epochs_and_fits_share_a_trace(opened):
    """A step is traced in the first epoch alone, whatever the lengths of batches.

    Another fit of as many steps trains with it as a new optimizer would.
    """
    model = opened(run_eagerly=False)
    traced, step = [], model.train_step

    def train_step(data):
        traced.append(len(traced))
        return step(data)

    model.train_step = train_step
    counts = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counts.append(len(traced))
    )
    fit(model, epochs=3, batch_size=3, validation_split=0.25, callbacks=[count])
    assert counts[0] == counts[-1] > 0
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    one, other = (opened(run_eagerly=False, **plain) for _ in range(2))
    for each in (one, other):
        fit(each, batch_size=8, shuffle=False)
        each.set_weights(opened(**plain).get_weights())
    made = one.train_function
    other.compile()
    for each in (one, other):
        fit(each, batch_size=8, shuffle=False)
    assert one.train_function is made
    for first, second in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(first, second)
    one.encoder.freeze_layers(1)
    fit(one, batch_size=8)
    assert one.train_function is not made
    model.compile(steps_per_execution=2)
    assert fit(model, batch_size=2, epochs=2)["loss"]
    assert int(model.optimizer.iterations) == 8


def test_weights_bring_the_state_of_their_optimizer(opened, tmp_path):
    """As tuners load the weights of their best trial into a model that is compiled anew."""
    model = opened()
    model.fit(TEXTS, LABELS, verbose=0)
    model.save_weights(tmp_path / "of.weights.h5")
    for optimizer in ("auto", model.optimizer.from_config(model.optimizer.get_config())):
        again = opened(seed=2)
        again.compile(optimizer)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            again.load_weights(tmp_path / "of.weights.h5")
        found = [*zip(again.optimizer.variables, model.optimizer.variables, strict=False)]
        assert len(found) > 2 and all(np.array_equal(one, other) for one, other in found)
        assert int(again.optimizer.iterations) == 1

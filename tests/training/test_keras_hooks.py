"""Keras still calls the private methods that training overrides, and has those it calls.

Without them clipping, excluded weight decay or the build of a `Trainer` would change in silence.
"""

import inspect

import keras
import pytest

from bert_tf.training import optimizer, trainer


@pytest.mark.parametrize(
    ("ours", "base", "name", "caller"),
    [
        (
            optimizer.AdamWeightDecay,
            keras.optimizers.Optimizer,
            "_all_reduce_sum_gradients",
            "_backend_update_step",
        ),
        (trainer.Trainer, keras.Model, "_maybe_symbolic_build", "fit"),
        (trainer.Trainer, keras.Model, "_maybe_symbolic_build", "evaluate"),
    ],
)
def test_keras_calls_what_is_overridden(ours, base, name, caller):
    def parameters(function):
        return list(inspect.signature(function).parameters)

    assert parameters(getattr(ours, name)) == parameters(getattr(base, name))
    assert f"self.{name}(" in inspect.getsource(getattr(base, caller))


def test_keras_has_what_is_called():
    assert list(inspect.signature(keras.optimizers.Optimizer._use_weight_decay).parameters) == [
        "self", "variable",
    ]  # fmt: skip

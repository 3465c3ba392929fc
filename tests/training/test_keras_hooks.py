"""Keras still calls the private methods that the optimizer overrides, and has the one it calls.

Without them clipping and excluded weight decay would change in silence.
"""

import inspect

import keras
import pytest

from bert_tf.training.optimizer import AdamWeightDecay


@pytest.mark.parametrize(
    ("name", "caller"),
    [
        ("_all_reduce_sum_gradients", "_backend_update_step"),
        ("_clip_gradients", "_backend_apply_gradients"),
    ],
)
def test_keras_calls_what_is_overridden(name, caller):
    base = keras.optimizers.Optimizer
    ours, theirs = (inspect.signature(getattr(each, name)) for each in (AdamWeightDecay, base))
    assert list(ours.parameters) == list(theirs.parameters)
    assert f"self.{name}(" in inspect.getsource(getattr(base, caller))


def test_keras_has_what_is_called():
    assert list(inspect.signature(keras.optimizers.Optimizer._use_weight_decay).parameters) == [
        "self",
        "variable",
    ]

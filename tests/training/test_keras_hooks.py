"""Keras still calls the private method that the optimizer overrides, and has the one it calls.

Without them clipping and excluded weight decay would change in silence.
"""

import inspect

import keras

from bert_tf.training.optimizer import AdamWeightDecay


def test_keras_calls_what_is_overridden():
    base, name = keras.optimizers.Optimizer, "_all_reduce_sum_gradients"
    ours, theirs = (inspect.signature(getattr(each, name)) for each in (AdamWeightDecay, base))
    assert list(ours.parameters) == list(theirs.parameters)
    assert f"self.{name}(" in inspect.getsource(base._backend_update_step)


def test_keras_has_what_is_called():
    assert list(inspect.signature(keras.optimizers.Optimizer._use_weight_decay).parameters) == [
        "self", "variable",
    ]  # fmt: skip

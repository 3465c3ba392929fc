import gc

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from tensorflow.python.framework.ops import gradient_registry
from tiny import tiny_config

from bert_tf import BertClassifier
from bert_tf.networks.activations import gelu
from bert_tf.networks.tensorflow.graphs import custom_gradient, recomputed

X = tf.constant([1.0, -2.0, 3.0])


@custom_gradient
def doubled(x):
    """With 10 for its gradient, so that it is known where that comes from."""
    return 2 * x, lambda upstream: 10 * upstream


FUNCTIONS = {"own": doubled, "recomputed": recomputed(lambda x: doubled(x))}
FUNCTIONS["gelu"] = lambda x: gelu(x) * 0 + doubled(x)


def registered():
    gc.collect()
    return len(gradient_registry.list())


@for_each("name", *FUNCTIONS)
def test_graphs_take_their_gradients_with_them(name):
    function, before = FUNCTIONS[name], registered()

    def gradients():
        def within(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x)
            return tape.gradient(y, x)

        traced = tf.function(function, autograph=False)
        with tf.GradientTape() as tape:  # of a graph that is traced before
            tape.watch(X)
            y = traced(X)
        return within(X), tf.function(within, autograph=False)(X), tape.gradient(y, X)

    for found in gradients():
        np.testing.assert_array_equal(found, np.full(3, 10.0))
    assert registered() == before


def test_saved_models_keep_them(tmp_path):
    module = tf.Module()
    module.answer = tf.function(doubled, autograph=False, input_signature=[tf.TensorSpec([3])])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path / "saved", options=options)
    loaded = tf.saved_model.load(tmp_path / "saved")
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = loaded.answer(X)
    np.testing.assert_array_equal(tape.gradient(y, X), np.full(3, 10.0))


@pytest.mark.slow
def test_fits_leave_nothing():
    """Three fits of as many steps as no other, each traced anew."""
    config = tiny_config(11, intermediate_size=8, max_position_embeddings=6)
    model = BertClassifier(config, num_classes=2, seed=1)
    ids = {n: np.ones((2, 4), "int32") for n in model.input}
    counts = []
    for epochs in range(1, 4):
        model.fit(ids, np.arange(2), epochs=epochs, verbose=0)
        counts.append((registered(), len(gc.get_objects())))
    entries, objects = zip(*counts, strict=True)
    assert entries[-1] == entries[1]
    # Those of one trace are thousands; other parts of the process may keep a few.
    assert objects[-1] - objects[1] < 500

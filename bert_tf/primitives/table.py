"""The table of primitives: which ones a layer computes with, where it is called."""

import keras

from bert_tf.primitives.keras_ops import Primitives


def primitives(training: bool | None) -> Primitives:
    """The primitives for Keras' backend, the device and the graph in which the caller is."""
    if keras.backend.backend() == "tensorflow":
        from bert_tf.primitives.on_tensorflow import chosen  # other backends do without TensorFlow

        return chosen(bool(training))
    return Primitives(bool(training))

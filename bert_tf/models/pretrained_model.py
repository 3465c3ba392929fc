"""What every model shares: it is built from a config and loads from a model directory."""

import os
from typing import Any, Self

import keras


class PretrainedModel(keras.Model):
    """A Keras model that a model directory can hold.

    The model is functional: subclasses make their layers first, wire them second, and pass inputs
    and outputs to `__init__`.
    """

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, **options: Any) -> Self:
        """Loads this kind of model from a Hugging Face model directory.

        Args:
            directory: holds config.json and model.safetensors.
            options: as of `bert_tf.load_model`.

        Raises:
            InputError: if the directory does not hold such a model.
        """
        # Reading files is the work of bert_tf.checkpoints, a floor above: call it by the front
        # door, which knows where it lives.
        import bert_tf

        return bert_tf.load_model(directory, cls, **options)

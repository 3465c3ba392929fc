"""What every model shares: it is built from a config and loads from a model directory."""

import os
from typing import Any, Self

import keras

from bert_tf.config import BertConfig


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


class HeadedModel(PretrainedModel):
    """An encoder with a task's head; subclasses set `encoder` and `seed`."""

    @property
    def config(self) -> BertConfig:
        """The encoder's."""
        return self.encoder.config

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`; subclasses add their own."""
        return {
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "seed": self.seed,
            "dtype": keras.saving.serialize_keras_object(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Makes a model with weights of its own from `get_config`."""
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        dtype = keras.saving.deserialize_keras_object(config["dtype"])
        return cls(**{**config, "encoder": encoder, "dtype": dtype})

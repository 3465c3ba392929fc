"""The base of every model: inputs, dtype policy, saving and loading."""

import os
from typing import Any, Self

import keras

from bert_tf.config import BertConfig
from bert_tf.errors import InputError


class PretrainedModel(keras.Model):
    """A functional Keras model that a model directory can hold.

    Subclasses make their layers, wire them, and pass inputs and outputs to `__init__`. The names
    in `arguments` are arguments of their `__init__` and attributes of the same name.

    Args:
        config: hyper-parameters of the encoder.
        inputs: symbolic inputs by name.
        outputs: symbolic outputs.
        seed: random seed the model was made with.
        dtype: Keras dtype policy; None for the global one.
        kwargs: Keras' own, such as `name`.
    """

    arguments: tuple[str, ...] = ()

    def __init__(
        self, config: BertConfig, inputs: Any, outputs: Any, seed: int | None, dtype: Any,
        **kwargs: Any,
    ):  # fmt: skip
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        # Keras ignores a functional model's dtype; `compile` reads it to scale the loss.
        self.dtype_policy = keras.dtype_policies.get(dtype)
        self.config = config
        self.seed = seed

    @staticmethod
    def symbolic_inputs(*more: str) -> dict[str, Any]:
        """Symbolic int32 inputs [B, T] of an encoder, and more of the same kind by name."""
        names = ("token_ids", "segment_ids", "padding_mask", *more)
        return {name: keras.Input((None,), dtype="int32", name=name) for name in names}

    @property
    def label_names(self) -> list[str]:
        """Names of what the model tells apart, in the order of its outputs; none by default."""
        return []

    @property
    def summary_direction(self) -> str:
        """The direction in which to look for the token that has seen all others: see `summary`.

        Vectors of chosen layers and of LSTMs are read at [CLS], whatever the encoder sees.
        """
        if self.config.has_feature_encoder:
            return "both"
        direction = self.config.attention_direction
        return "left_to_right+right_to_left" if direction == "recurrent" else direction

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        values = {name: getattr(self, name) for name in (*self.arguments, "seed")}
        if "config" in values:
            values["config"] = self.config.to_dict()
        if "encoder" in values:
            values["encoder"] = keras.saving.serialize_keras_object(self.encoder)
        dtype = keras.saving.serialize_keras_object(self.dtype_policy)
        return {**values, "dtype": dtype, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Makes a model with new weights from `get_config`."""
        values = dict(config)
        for name in {"encoder", "dtype"} & values.keys():
            values[name] = keras.saving.deserialize_keras_object(values[name])
        if "config" in values:
            values["config"] = BertConfig.from_dict(values["config"])
        trainable = values.pop("trainable", True)
        model = cls(**values)
        if not trainable:  # True would reach every layer, those that are frozen, too
            model.trainable = False
        return model

    @classmethod
    def from_directory(cls, directory: str | os.PathLike, **options: Any) -> Self:
        """Loads this kind of model from a Hugging Face model directory.

        Args:
            directory: holds config.json and model.safetensors.
            options: those of `bert_tf.load_model`.

        Raises:
            InputError: the directory does not hold such a model.
        """
        # bert_tf.checkpoints is a layer above this one: the package itself knows where it is.
        import bert_tf

        return bert_tf.load_model(directory, cls, **options)


def freeze(encoder: Any, number: int) -> None:
    """Freezes the embeddings and the first `number` of the blocks; see `BertEncoder`."""
    if not 0 <= number <= len(encoder.blocks):
        raise InputError(
            f"{number} layers cannot be frozen: the encoder has {len(encoder.blocks)}, give 0 to "
            f"{len(encoder.blocks)}"
        )
    encoder.embeddings.trainable = False
    for block in encoder.blocks[:number]:
        block.trainable = False

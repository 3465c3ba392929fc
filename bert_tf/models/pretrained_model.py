"""The base of every model: inputs, dtype policy, saving and loading."""

import difflib
import os
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras

from bert_tf.config import BertConfig
from bert_tf.errors import InputError

# Of every model; the last two are Keras' own.
_KEYWORDS = ("seed", "dtype", "name", "trainable")


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
        kwargs: Keras' own: `name` and `trainable`.

    Raises:
        InputError: there are other keywords, which Keras would drop in silence.
    """

    arguments: tuple[str, ...] = ()

    def __init__(
        self, config: BertConfig, inputs: Any, outputs: Any, seed: int | None, dtype: Any,
        **kwargs: Any,
    ):  # fmt: skip
        self.refuse_unknown(kwargs)
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
    def refuse_unknown(cls, given: Iterable[str], known: Iterable[str] = ()) -> None:
        """Refuses keywords that are neither `known` nor the class's own; proposes the nearest."""
        names = {*known, *_KEYWORDS, *cls.arguments} - {"config", "encoder"}
        for name in sorted(set(given) - names):
            near = difflib.get_close_matches(name, sorted(names), n=1)
            cure = f"did you mean {near[0]}?" if near else f"give one of {', '.join(sorted(names))}"
            raise InputError(f"{cls.__name__} takes no {name!r}: {cure}")

    @classmethod
    def from_directory(
        cls,
        directory: str | os.PathLike,
        *,
        allow_new_head: bool = False,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        seed: int | None = None,
        dtype: Any = None,
        **config: Any,
    ) -> Self:
        """Loads this kind of model from a Hugging Face model directory; see `bert_tf.load_model`.

        Args:
            directory: holds config.json and model.safetensors.
            allow_new_head: randomly initialize any missing pooler or head, and replace the head of
                another task or a classifier whose classes differ.
            num_classes: number of classes of a classifier; None for the directory's.
            labels: names of a classifier's classes; None for the directory's.
            seed: random seed for dropout and for weights that are initialized at random.
            dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
            config: values that replace config.json's, such as `hidden_dropout_prob=0.0`, and other
                arguments of the class, such as an encoder's `attention_probabilities=True`.

        Raises:
            InputError: the directory does not hold such a model, or a keyword is unknown.
        """
        # bert_tf.checkpoints is a layer above this one: the package itself knows where it is.
        import bert_tf

        return bert_tf.load_model(
            directory, cls, allow_new_head=allow_new_head, num_classes=num_classes, labels=labels,
            seed=seed, dtype=dtype, **config,
        )  # fmt: skip


class Encoder(PretrainedModel):
    """A model whose outputs heads read by name; `BertEncoder` has the call argument `reads`."""

    def call(
        self, inputs: Any, training: bool | None = None, mask: Any = None, reads: str = "all"
    ) -> Any:
        """Computes the outputs."""
        return _read(super().call(inputs, training=training, mask=mask), reads)

    def compute_output_spec(
        self, inputs: Any, training: bool | None = None, mask: Any = None, reads: str = "all"
    ) -> Any:
        """The outputs that `call` returns."""
        return _read(super().compute_output_spec(inputs), reads)

    def towers(self) -> list[Any]:
        """The encoder itself; see `TwoEncoders`."""
        return [self]


def _read(outputs: dict[str, Any], reads: str) -> dict[str, Any]:
    return {reads: outputs[reads]} if reads in outputs else outputs


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

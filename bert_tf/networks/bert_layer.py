"""The base of every layer: its config, its seeds, its sublayers."""

import zlib
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import keras

from bert_tf.config import BertConfig
from bert_tf.networks.activations import ACTIVATIONS
from bert_tf.networks.context import set_within
from bert_tf.networks.layer_state import restore, state_of

_is_read = ContextVar("_is_read", default=False)


def encoders_of_files() -> AbstractContextManager:
    """Encoders made within it begin as zeros: drawing BERT-base, to replace it, takes seconds."""
    return set_within(_is_read, True)


def child_seed(seed: int | None, name: str) -> int | None:
    """The seed, in [0, 2^31), of the part called `name` of something seeded; None if it is not.

    Equal seeds draw equal values. One from the name, not a counter, stays when parts are added.
    """
    return None if seed is None else zlib.crc32(f"{seed}/{name}".encode()) & 0x7FFFFFFF


def part(name: str, seed: int | None, dtype: Any) -> dict[str, Any]:
    """Keywords for the layer called `name` of something seeded."""
    return {"seed": child_seed(seed, name), "dtype": dtype, "name": name}


class BertLayer(keras.layers.Layer):
    """A layer made from a `BertConfig`, a seed (see `PretrainedModel`) and Keras' own arguments."""

    is_of_encoder: ClassVar[bool] = False  # whether every file of a model holds its weights

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        # Weights are read as they are, and cast where they are used: Keras would cast whole tables.
        super().__init__(autocast=False, **kwargs)
        self.config = config
        self.seed = seed
        self._input_widths: dict[str, int] = {}
        self._state_of_config: dict[str, Any] = {}  # for the sublayers, once they are built

    def build(self, input_shape: Any = None) -> None:
        """Makes the weights of the sublayers, whose shapes all follow from the config."""
        for layer in self._flatten_layers(include_self=False, recursive=False):
            if not layer.built:
                width = self._input_widths.get(layer.name, self.config.hidden_size)
                layer.build((None, None, width))
        if not self.trainable:  # setting it to what it is would not reach the sublayers
            for layer in self._layers:
                layer.trainable = False
        restore(self, self._state_of_config)
        self.built = True

    def new_initializer(self, name: str) -> keras.initializers.Initializer:
        """The original's `create_initializer` (modeling.py), for the weight called `name`."""
        if self.is_of_encoder and _is_read.get():
            return keras.initializers.Zeros()
        return keras.initializers.TruncatedNormal(
            stddev=self.config.initializer_range, seed=child_seed(self.seed, name)
        )

    def new_dense(
        self, name: str, units: int, activation: str | None = None, inputs: int | None = None
    ) -> keras.layers.Dense:
        """A dense sublayer; `activation` is a key of `ACTIVATIONS`, `inputs` H unless given."""
        self._input_widths[name] = inputs or self.config.hidden_size
        return keras.layers.Dense(
            units,
            activation=None if activation is None else ACTIVATIONS[activation],
            kernel_initializer=self.new_initializer(name),
            dtype=self.dtype_policy,
            name=name,
        )

    def new_table(self, name: str, rows: int) -> keras.layers.Embedding:
        return keras.layers.Embedding(
            rows,
            self.config.hidden_size,
            embeddings_initializer=self.new_initializer(name),
            dtype=self.dtype_policy,
            name=name,
        )

    def new_layer_norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(
            epsilon=self.config.layer_norm_eps, dtype=self.dtype_policy, name=name
        )

    def new_dropout(self, name: str, rate: float) -> keras.layers.Dropout:
        return keras.layers.Dropout(
            rate, seed=child_seed(self.seed, name), dtype=self.dtype_policy, name=name
        )

    def get_config(self) -> dict[str, Any]:
        own = {"config": self.config.to_dict(), "seed": self.seed}
        state = state_of(self)
        return {**super().get_config(), **own} | ({"layers": state} if state else {})

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        values = {**config, "config": BertConfig.from_dict(config["config"])}
        state = values.pop("layers", {})
        layer = cls(**values)
        layer._state_of_config = state
        return layer

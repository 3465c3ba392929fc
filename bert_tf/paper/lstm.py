"""LSTM layers and their embeddings. B is the batch, T its length, H the width of the states."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.networks.bert_layer import BertLayer, child_seed


def new_lstm(
    units: int, seed: int | None, dtype: Any, direction: str = "forward", name: str | None = None
) -> keras.layers.LSTM:
    """Keras' LSTM, [B, T, W] -> [B, T, units], with seeds of its own for its weights.

    A "backward" one reads from the end, and returns its outputs in that order.
    """
    return keras.layers.LSTM(
        units,
        return_sequences=True,
        go_backwards=direction == "backward",
        kernel_initializer=keras.initializers.GlorotUniform(child_seed(seed, "kernel")),
        recurrent_initializer=keras.initializers.Orthogonal(seed=child_seed(seed, "recurrent")),
        use_cudnn=False,  # a SavedModel made on a GPU must run on servers without one
        dtype=dtype,
        name=name,
    )


WEIGHTS = ((keras.layers.LSTM, {x: f"cell.{x}" for x in ("kernel", "recurrent_kernel", "bias")}),)


@keras.saving.register_keras_serializable(package="bert_tf")
class WordEmbeddings(BertLayer):
    """Word embeddings [B, T, H], LayerNorm and dropout: an LSTM knows the order by itself."""

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.word_embeddings = self.new_table("word_embeddings", config.vocab_size)
        self.layer_norm = self.new_layer_norm("layer_norm")
        self.dropout = self.new_dropout("dropout", config.hidden_dropout_prob)

    # Before 3.14, Keras refuses an input of a model that no layer takes: `segment_ids`.
    def call(self, token_ids: Any, segment_ids: Any = None, training: bool = False) -> Any:
        return self.dropout(self.layer_norm(self.word_embeddings(token_ids)), training=training)


@keras.saving.register_keras_serializable(package="bert_tf")
class LstmBlock(BertLayer):
    """A layer of a forward and a backward language model (Peters et al. 2018, section 3.1).

    Each direction has dropout, an LSTM of H units, and a `residual` connection, except in the first
    layer (`use_skip_connections` in the original's training.py).

    Takes [B, T, 2 H], the states of the forward model and then of the backward one, and the
    padding mask. Returns [B, T, 2 H] in the layer's compute dtype: the first half depends on no
    later token, the second on no earlier one, and neither on padding after the tokens.
    """

    def __init__(
        self, config: BertConfig, seed: int | None = None, residual: bool = True, **kwargs: Any
    ):
        super().__init__(config, seed, **kwargs)
        self.rematerialize = False
        self.residual = residual
        self.dropout = self.new_dropout("dropout", config.hidden_dropout_prob)
        self.forward, self.backward = (
            new_lstm(config.hidden_size, child_seed(seed, name), self.dtype_policy, name, name)
            for name in ("forward", "backward")
        )

    def call(self, states: Any, padding_mask: Any, training: bool = False) -> Any:
        states = ops.cast(states, self.compute_dtype)
        is_token = ops.cast(padding_mask, "bool")
        before, after = ops.split(self.dropout(states, training=training), 2, axis=-1)
        before = self.forward(before, mask=is_token)  # (B, T, H)
        after = ops.flip(self.backward(after, mask=is_token), axis=1)
        outputs = ops.concatenate([before, after], axis=-1)
        return states + outputs if self.residual else outputs

    def compute_output_spec(self, states: Any, padding_mask: Any, training: bool = False) -> Any:
        return keras.KerasTensor(states.shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "residual": self.residual}

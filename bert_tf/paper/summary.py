"""The vector of the token that has seen all others, in models that see one side of the text."""

from typing import Any

import keras
from keras import ops

from bert_tf.networks.heads import take_tokens
from bert_tf.networks.kernels import last_positions


def summary(states: Any, padding_mask: Any, direction: str) -> Any:
    """The vectors [B, W] of the tokens that have seen all others, of states [B, T, W].

    In a left-to-right model it is the last token, in others [CLS]; in two encoders one for each
    half of the vector. `direction` is the encoder's `attention_direction`.
    """
    if direction == "left_to_right+right_to_left":
        parts = zip(ops.split(states, 2, axis=-1), direction.split("+"), strict=True)
        return ops.concatenate([summary(x, padding_mask, side) for x, side in parts], axis=-1)
    if direction == "left_to_right":
        return take_tokens(states, last_positions(padding_mask)[:, None])
    return states[:, 0]


@keras.saving.register_keras_serializable(package="bert_tf")
class SummaryFirst(keras.layers.Layer):
    """Swaps [CLS] and the token that has seen all others; the arguments are `summary`'s."""

    def __init__(self, direction: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.direction = direction

    def call(self, states: Any, padding_mask: Any) -> Any:
        positions = ops.arange(ops.shape(states)[1], dtype="int32")[None, :, None]  # (1, T, 1)
        last = last_positions(padding_mask)[:, None, None]
        first = summary(states, padding_mask, self.direction)[:, None]  # (B, 1, W)
        x = ops.where(positions == 0, first, ops.where(positions == last, states[:, :1], states))
        if self.direction == "left_to_right":
            return x
        half = states.shape[-1] // 2  # of a right-to-left encoder, where [CLS] stays
        return ops.concatenate([x[..., :half], states[..., half:]], axis=-1)

    def compute_output_spec(self, states: Any, padding_mask: Any) -> Any:
        return keras.KerasTensor(states.shape, dtype=states.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "direction": self.direction}

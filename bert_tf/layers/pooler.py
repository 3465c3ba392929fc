"""The [CLS] pooler."""

from typing import Any

import keras

from bert_tf.layers.initialization import truncated_normal


@keras.saving.register_keras_serializable(package="bert_tf")
class Pooler(keras.layers.Layer):
    """tanh(x W + b) of the first token's vector (`BertModel` in the original's modeling.py).

    Args:
        hidden_size: H.
        initializer_range: standard deviation of the kernel's truncated normal start.
        seed: of the start; None draws anew each time.

    Call arguments:
        sequence_output: [B, T, H].

    Returns:
        [B, H] in the layer's compute dtype.
    """

    def __init__(
        self,
        hidden_size: int,
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.initializer_range = initializer_range
        self.seed = seed
        self.dense = keras.layers.Dense(
            hidden_size,
            activation="tanh",
            kernel_initializer=truncated_normal(initializer_range, seed, "dense"),
            dtype=self.dtype_policy,
            name="dense",
        )

    def build(self, sequence_output_shape: Any) -> None:
        """Makes the kernel."""
        self.dense.build((sequence_output_shape[0], sequence_output_shape[-1]))
        self.built = True

    def call(self, sequence_output: Any) -> Any:
        """Reads [CLS], which stands first."""
        return self.dense(sequence_output[:, 0])  # (B, H)

    def compute_output_shape(self, sequence_output_shape: Any) -> Any:
        """[B, T, H] -> [B, H]."""
        return (sequence_output_shape[0], self.hidden_size)

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }

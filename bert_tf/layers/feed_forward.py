"""The position-wise feed-forward network."""

from typing import Any

import keras

from bert_tf.layers.activations import ACTIVATIONS
from bert_tf.layers.initialization import truncated_normal


@keras.saving.register_keras_serializable(package="bert_tf")
class FeedForward(keras.layers.Layer):
    """act(x W1 + b1) W2 + b2 at every position (Vaswani et al. 2017, section 3.3).

    Args:
        hidden_size: H, of input and output.
        intermediate_size: I, of the layer between (4 H in the paper).
        hidden_act: a name in `activations.ACTIVATIONS`.
        initializer_range: standard deviation of the kernels' truncated normal start.
        seed: of the start; None draws anew each time.

    Call arguments:
        hidden_states: [B, T, H].

    Returns:
        [B, T, H] in the layer's compute dtype.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str = "gelu",
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.initializer_range = initializer_range
        self.seed = seed
        self.intermediate = keras.layers.Dense(
            intermediate_size,
            activation=ACTIVATIONS[hidden_act],
            kernel_initializer=truncated_normal(initializer_range, seed, "intermediate"),
            dtype=self.dtype_policy,
            name="intermediate",
        )
        self.output_dense = keras.layers.Dense(
            hidden_size,
            kernel_initializer=truncated_normal(initializer_range, seed, "output"),
            dtype=self.dtype_policy,
            name="output",
        )

    def build(self, hidden_states_shape: Any) -> None:
        """Makes the two kernels."""
        self.intermediate.build(hidden_states_shape)
        self.output_dense.build((*hidden_states_shape[:-1], self.intermediate_size))
        self.built = True

    def call(self, hidden_states: Any) -> Any:
        """Widens, bends, narrows."""
        return self.output_dense(self.intermediate(hidden_states))

    def compute_output_shape(self, hidden_states_shape: Any) -> Any:
        """[B, T, H] -> [B, T, H]."""
        return hidden_states_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.hidden_act,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }

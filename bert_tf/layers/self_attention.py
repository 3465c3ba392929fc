"""Multi-head self-attention."""

from typing import Any

import keras
from keras import ops

from bert_tf.layers.initialization import child_seed, truncated_normal

# Added to the scores of padding, as in the original. exp(-10000) is 0 in every float type, and
# the sum stays finite in float16, whose largest number is 65504.
MASKED_SCORE = -10000.0


@keras.saving.register_keras_serializable(package="bert_tf")
class SelfAttention(keras.layers.Layer):
    """softmax(Q K^T / sqrt(D)) V over N heads of width D = H / N, then a dense layer.

    Vaswani et al. 2017, section 3.2; `attention_layer` in the original's modeling.py.

    Args:
        hidden_size: H.
        num_heads: N, a divisor of H.
        dropout: share of the attention probabilities dropped in training.
        initializer_range: standard deviation of the kernels' truncated normal start.
        seed: of the start and of dropout; None draws anew each time.

    Call arguments:
        hidden_states: [B, T, H].
        padding_mask: [B, T], nonzero at tokens and 0 at padding, or None for no padding.

    Returns:
        [B, T, H] in the layer's compute dtype.

    Raises:
        ValueError: if `num_heads` does not divide `hidden_size`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is not a multiple of {num_heads} heads.")
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.dropout_rate = dropout
        self.initializer_range = initializer_range
        self.seed = seed

        def dense(name: str) -> keras.layers.Dense:
            start = truncated_normal(initializer_range, seed, name)
            return keras.layers.Dense(
                hidden_size, kernel_initializer=start, dtype=self.dtype_policy, name=name
            )

        self.query = dense("query")
        self.key = dense("key")
        self.value = dense("value")
        self.output_dense = dense("output")
        self.dropout = keras.layers.Dropout(
            dropout, seed=child_seed(seed, "dropout"), dtype=self.dtype_policy, name="dropout"
        )

    def build(self, hidden_states_shape: Any, padding_mask_shape: Any = None) -> None:
        """Makes the four kernels."""
        for dense in (self.query, self.key, self.value, self.output_dense):
            dense.build(hidden_states_shape)
        self.built = True

    def call(self, hidden_states: Any, padding_mask: Any = None, training: bool = False) -> Any:
        """Lets every token look at every token that is not padding."""
        batch, length = ops.shape(hidden_states)[:2]
        heads, width = self.num_heads, self.hidden_size // self.num_heads

        def split(x: Any, axes: tuple[int, ...]) -> Any:  # (B, T, H) -> (B, T, N, D) -> axes
            return ops.transpose(ops.reshape(x, (batch, length, heads, width)), axes)

        # Scaling the queries costs T times less than scaling the scores.
        query = split(self.query(hidden_states) * width**-0.5, (0, 2, 1, 3))  # (B, N, T, D)
        key = split(self.key(hidden_states), (0, 2, 3, 1))  # (B, N, D, T)
        value = split(self.value(hidden_states), (0, 2, 1, 3))  # (B, N, T, D)

        # The softmax sums T terms: in float32 also where the rest is in half precision.
        scores = ops.cast(ops.matmul(query, key), "float32")  # (B, N, T, T)
        if padding_mask is not None:
            padding = ops.cast(ops.equal(padding_mask, 0), "float32")
            scores = scores + (padding * MASKED_SCORE)[:, None, None, :]
        probabilities = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)
        probabilities = self.dropout(probabilities, training=training)

        context = ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))  # (B, T, N, D)
        return self.output_dense(ops.reshape(context, (batch, length, self.hidden_size)))

    def compute_output_shape(self, hidden_states_shape: Any, padding_mask_shape: Any = None) -> Any:
        """[B, T, H] -> [B, T, H]."""
        return hidden_states_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "num_heads": self.num_heads,
            "dropout": self.dropout_rate,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }

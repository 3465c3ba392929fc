"""One Transformer encoder block."""

from typing import Any

import keras

from bert_tf.layers.feed_forward import FeedForward
from bert_tf.layers.initialization import child_seed
from bert_tf.layers.self_attention import SelfAttention


@keras.saving.register_keras_serializable(package="bert_tf")
class TransformerBlock(keras.layers.Layer):
    """Self-attention, then feed-forward, each followed by dropout, residual and LayerNorm.

    LayerNorm comes after the residual sum (Vaswani et al. 2017, section 3.1; the body of
    `transformer_model` in the original's modeling.py).

    Args:
        hidden_size: H.
        num_heads: N, a divisor of H.
        intermediate_size: I, width of the feed-forward network.
        hidden_act: a name in `activations.ACTIVATIONS`.
        dropout: share of each sublayer's output dropped in training.
        attention_dropout: share of the attention probabilities dropped in training.
        layer_norm_eps: added to the variance.
        initializer_range: standard deviation of the kernels' truncated normal start.
        seed: of the start and of dropout; None draws anew each time.

    Call arguments:
        hidden_states: [B, T, H].
        padding_mask: [B, T], nonzero at tokens and 0 at padding, or None for no padding.

    Returns:
        [B, T, H] in the layer's compute dtype.

    Attributes:
        rematerialize: whether training keeps only the block's input and computes what lies
            between again for the gradient (Chen et al. 2016, "Training Deep Nets with Sublinear
            Memory Cost"): less memory, a third more time, the same numbers. False at first, and
            no part of the config: it is a way to compute the layer, not another layer.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        hidden_act: str = "gelu",
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        layer_norm_eps: float = 1e-12,
        initializer_range: float = 0.02,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.dropout_rate = dropout
        self.attention_dropout = attention_dropout
        self.layer_norm_eps = layer_norm_eps
        self.initializer_range = initializer_range
        self.seed = seed
        self.rematerialize = False

        policy = self.dtype_policy
        self.attention = SelfAttention(
            hidden_size,
            num_heads,
            dropout=attention_dropout,
            initializer_range=initializer_range,
            seed=child_seed(seed, "attention"),
            dtype=policy,
            name="attention",
        )
        self.feed_forward = FeedForward(
            hidden_size,
            intermediate_size,
            hidden_act=hidden_act,
            initializer_range=initializer_range,
            seed=child_seed(seed, "feed_forward"),
            dtype=policy,
            name="feed_forward",
        )

        def dropout_layer(name: str) -> keras.layers.Dropout:
            return keras.layers.Dropout(
                dropout, seed=child_seed(seed, name), dtype=policy, name=name
            )

        def layer_norm(name: str) -> keras.layers.LayerNormalization:
            return keras.layers.LayerNormalization(epsilon=layer_norm_eps, dtype=policy, name=name)

        self.attention_output_dropout = dropout_layer("attention_output_dropout")
        self.attention_layer_norm = layer_norm("attention_layer_norm")
        self.feed_forward_dropout = dropout_layer("feed_forward_dropout")
        self.feed_forward_layer_norm = layer_norm("feed_forward_layer_norm")

    def build(self, hidden_states_shape: Any, padding_mask_shape: Any = None) -> None:
        """Makes the sublayers' weights."""
        self.attention.build(hidden_states_shape, padding_mask_shape)
        self.attention_layer_norm.build(hidden_states_shape)
        self.feed_forward.build(hidden_states_shape)
        self.feed_forward_layer_norm.build(hidden_states_shape)
        self.built = True

    def call(self, hidden_states: Any, padding_mask: Any = None, training: bool = False) -> Any:
        """Mixes across tokens, then transforms each token."""
        if self.rematerialize and training:
            return self._rematerialized(hidden_states, padding_mask)
        return self._transform(hidden_states, padding_mask, training)

    def _rematerialized(self, hidden_states: Any, padding_mask: Any) -> Any:
        """In training; the same numbers, and the same dropout whether computed once or twice."""
        dropouts = (
            self.attention.dropout,
            self.attention_output_dropout,
            self.feed_forward_dropout,
        )
        generators = [dropout.seed_generator for dropout in dropouts if dropout.rate > 0]
        # Each draws once a call. Drawn here, the seeds are not drawn anew in the second pass.
        seeds = [(generator.state, generator.next()) for generator in generators]
        weights = self.trainable_variables

        def transform(hidden_states: Any, *values: Any) -> Any:
            # Weights come as arguments, so that gradients reach them on every backend.
            mapping = [*zip(weights, values, strict=True), *seeds]
            with keras.StatelessScope(state_mapping=mapping):
                return self._transform(hidden_states, padding_mask, training=True)

        return keras.remat(transform)(hidden_states, *(weight.value for weight in weights))

    def _transform(self, hidden_states: Any, padding_mask: Any, training: bool) -> Any:
        x = hidden_states  # (B, T, H)
        attended = self.attention(x, padding_mask, training=training)
        attended = self.attention_output_dropout(attended, training=training)
        x = self.attention_layer_norm(x + attended)
        transformed = self.feed_forward_dropout(self.feed_forward(x), training=training)
        return self.feed_forward_layer_norm(x + transformed)

    def compute_output_shape(self, hidden_states_shape: Any, padding_mask_shape: Any = None) -> Any:
        """[B, T, H] -> [B, T, H]."""
        return hidden_states_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "num_heads": self.num_heads,
            "intermediate_size": self.intermediate_size,
            "hidden_act": self.hidden_act,
            "dropout": self.dropout_rate,
            "attention_dropout": self.attention_dropout,
            "layer_norm_eps": self.layer_norm_eps,
            "initializer_range": self.initializer_range,
            "seed": self.seed,
        }

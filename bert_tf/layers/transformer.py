"""The Transformer encoder block: self-attention, feed-forward network, and what joins them.

B is the batch, T its length, H the width of the hidden states, N the attention heads, D = H / N.
"""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers.bert_layer import BertLayer, child_seed

# Added to the scores of padding, as in the original. exp(-10000) is 0 in every float type, and
# the sum stays finite in float16, whose largest number is 65504.
MASKED_SCORE = -10000.0


def seen_tokens(places: Any, direction: str) -> Any:
    """Which of T tokens each of them may see.

    Args:
        places: [T], ascending numbers.
        direction: "left_to_right" or "right_to_left".

    Returns:
        bool [T, T]: whether the token of the first axis may see that of the second.
    """
    seeing, seen = places[:, None], places[None, :]
    return seen <= seeing if direction == "left_to_right" else seen >= seeing


@keras.saving.register_keras_serializable(package="bert_tf")
class SelfAttention(BertLayer):
    """softmax(Q K^T / sqrt(D)) V over N heads of width D = H / N, then a dense layer.

    Vaswani et al. 2017, section 3.2; `attention_layer` in the original's modeling.py. With another
    `attention_direction` than "both", a token does not see those after it, or those before it.

    Call arguments:
        hidden_states: [B, T, H].
        padding_mask: [B, T], nonzero at tokens and 0 at padding; or [B, T, T], nonzero where the
            token of the second axis may see that of the third; or None for no padding.
        return_probabilities: also return the attention probabilities, before dropout.

    Returns:
        [B, T, H] in the layer's compute dtype; on request also [B, N, T, T], whose last axis
        is the tokens attended to.

    Attributes:
        flash: how calls that neither return nor drop probabilities compute. None, the default:
            by the operations below. False or True: by `keras.ops.dot_product_attention`, with True
            in one fused kernel, which needs the JAX backend on a GPU and half precision. The
            results differ in rounding alone, but where a token may see nothing. Set it before a
            function is traced.
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.flash: bool | None = None
        self.query = self.new_dense("query", config.hidden_size)
        self.key = self.new_dense("key", config.hidden_size)
        self.value = self.new_dense("value", config.hidden_size)
        self.output_dense = self.new_dense("output", config.hidden_size)
        self.dropout = self.new_dropout("dropout", config.attention_probs_dropout_prob)

    def call(
        self,
        hidden_states: Any,
        padding_mask: Any = None,
        training: bool = False,
        return_probabilities: bool = False,
    ) -> Any:
        """Lets every token attend to every token that is not masked."""
        batch, length, width = ops.shape(hidden_states)
        heads = (batch, length, self.config.num_attention_heads, self.config.head_size)

        # Scaling the queries costs T times less than scaling the scores.
        query = self.query(hidden_states) * self.config.head_size**-0.5
        query = ops.reshape(query, heads)  # (B, T, N, D), as are the next two
        key = ops.reshape(self.key(hidden_states), heads)
        value = ops.reshape(self.value(hidden_states), heads)

        seen = self._seen(padding_mask, length)
        drops = training and self.dropout.rate > 0
        if self.flash is not None and not (drops or return_probabilities):
            context = self._flash_attention(query, key, value, seen)
            return self.output_dense(ops.reshape(context, (batch, length, width)))

        # The softmax sums T terms: in float32 even where the rest is in half precision.
        scores = ops.cast(ops.einsum("bqnd,bknd->bnqk", query, key), "float32")  # (B, N, T, T)
        if seen is not None:
            scores = scores + ops.cast(ops.logical_not(seen), "float32") * MASKED_SCORE
        probabilities = ops.cast(ops.softmax(scores, axis=-1), self.compute_dtype)

        dropped = self.dropout(probabilities, training=training)
        context = ops.einsum("bnqk,bknd->bqnd", dropped, value)  # (B, T, N, D)
        attended = self.output_dense(ops.reshape(context, (batch, length, width)))
        return (attended, probabilities) if return_probabilities else attended

    def _seen(self, padding_mask: Any, length: Any) -> Any:
        """What each token may see, bool, to broadcast to [B, N, T, T]; None for all."""
        seen = None
        if padding_mask is not None:
            seen = ops.not_equal(padding_mask, 0)
            seen = ops.expand_dims(seen, (1, 2) if seen.ndim == 2 else 1)
        if self.config.attention_direction != "both":
            of_direction = seen_tokens(ops.arange(length), self.config.attention_direction)
            seen = of_direction[None, None] if seen is None else ops.logical_and(seen, of_direction)
        return seen

    def _flash_attention(self, query: Any, key: Any, value: Any, seen: Any) -> Any:
        """softmax(Q K^T) V, [B, T, N, D]."""
        if seen is not None:
            batch, length = ops.shape(query)[:2]
            # The fused kernel refuses a mask to broadcast over the queries.
            seen = ops.broadcast_to(seen, (batch, 1, length, length))
        return ops.dot_product_attention(
            query, key, value, mask=seen, scale=1.0, flash_attention=self.flash
        )

    def compute_output_spec(
        self,
        hidden_states: Any,
        padding_mask: Any = None,
        training: bool = False,
        return_probabilities: bool = False,
    ) -> Any:
        """[B, T, H] -> [B, T, H], and [B, N, T, T] on request."""
        batch, length, _ = hidden_states.shape
        heads = (batch, self.config.num_attention_heads, length, length)
        states = keras.KerasTensor(hidden_states.shape, self.compute_dtype)
        probabilities = keras.KerasTensor(heads, self.compute_dtype)
        return (states, probabilities) if return_probabilities else states


@keras.saving.register_keras_serializable(package="bert_tf")
class FeedForward(BertLayer):
    """act(x W1 + b1) W2 + b2 at every position (Vaswani et al. 2017, section 3.3).

    Call arguments:
        hidden_states: [B, T, H].

    Returns:
        [B, T, H] in the layer's compute dtype.
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        width = config.intermediate_size
        self.intermediate = self.new_dense("intermediate", width, config.hidden_act)
        self.output_dense = self.new_dense("output", config.hidden_size, inputs=width)

    def call(self, hidden_states: Any) -> Any:
        """Applies both dense layers, with the activation between them."""
        return self.output_dense(self.intermediate(hidden_states))


@keras.saving.register_keras_serializable(package="bert_tf")
class TransformerBlock(BertLayer):
    """Self-attention, then feed-forward, each followed by dropout, residual and LayerNorm.

    LayerNorm comes after the residual sum (Vaswani et al. 2017, section 3.1; the body of
    `transformer_model` in the original's modeling.py).

    Takes and returns the same as `SelfAttention`.

    Attributes:
        rematerialize: whether training keeps only the block's input and computes everything
            in between again for the gradient (Chen et al. 2016, "Training Deep Nets with
            Sublinear Memory Cost"): less memory, a third more time, the same numbers. False at
            first, and not part of the config: it changes how the layer is computed, not its
            result.
    """

    compute_output_spec = SelfAttention.compute_output_spec

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.rematerialize = False
        part = {"config": config, "dtype": self.dtype_policy}
        self.attention = SelfAttention(seed=child_seed(seed, "attention"), name="attention", **part)
        self.feed_forward = FeedForward(
            seed=child_seed(seed, "feed_forward"), name="feed_forward", **part
        )
        rate = config.hidden_dropout_prob
        self.attention_output_dropout = self.new_dropout("attention_output_dropout", rate)
        self.attention_layer_norm = self.new_layer_norm("attention_layer_norm")
        self.feed_forward_dropout = self.new_dropout("feed_forward_dropout", rate)
        self.feed_forward_layer_norm = self.new_layer_norm("feed_forward_layer_norm")

    def call(
        self,
        hidden_states: Any,
        padding_mask: Any = None,
        training: bool = False,
        return_probabilities: bool = False,
    ) -> Any:
        """Mixes across tokens, then transforms each token."""
        if self.rematerialize and training and not return_probabilities:
            return self._rematerialized(hidden_states, padding_mask)
        if return_probabilities:
            attended, probabilities = self.attention(
                hidden_states, padding_mask, training=training, return_probabilities=True
            )
            return self._transform(hidden_states, attended, training), probabilities
        attended = self.attention(hidden_states, padding_mask, training=training)
        return self._transform(hidden_states, attended, training)

    def _transform(self, x: Any, attended: Any, training: bool) -> Any:
        attended = self.attention_output_dropout(attended, training=training)
        x = self.attention_layer_norm(x + attended)  # (B, T, H)
        transformed = self.feed_forward_dropout(self.feed_forward(x), training=training)
        return self.feed_forward_layer_norm(x + transformed)

    def _rematerialized(self, hidden_states: Any, padding_mask: Any) -> Any:
        """In training: the same numbers, and the same dropout whether computed once or twice."""
        after = self.attention_output_dropout, self.feed_forward_dropout
        dropouts = [each for each in (self.attention.dropout, *after) if each.rate > 0]
        # Each draws once a call. Drawn here, the seeds are not drawn anew in the second pass.
        seeds = [(each.seed_generator.state, each.seed_generator.next()) for each in dropouts]
        weights = self.trainable_variables

        def transform(hidden_states: Any, *values: Any) -> Any:
            # Weights come as arguments, so that gradients reach them on every backend.
            mapping = [*zip(weights, values, strict=True), *seeds]
            with keras.StatelessScope(state_mapping=mapping):
                attended = self.attention(hidden_states, padding_mask, training=True)
                return self._transform(hidden_states, attended, training=True)

        return keras.remat(transform)(hidden_states, *(weight.value for weight in weights))

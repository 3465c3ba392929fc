"""The Transformer encoder block: self-attention, feed-forward network, and what joins them.

B is the batch, T its length, H the width of the hidden states, N the attention heads, D = H / N.
"""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.networks.bert_layer import BertLayer, part
from bert_tf.networks.places import Places
from bert_tf.networks.table import Primitives, primitives, recomputed


class AttentionLayer(BertLayer):
    """A layer in which tokens attend to each other; subclasses compute it at `Places`.

    Call arguments:
        hidden_states: [B, T, H]; or [n, H] with `places`.
        padding_mask: [B, T], nonzero at tokens and 0 at padding; or [B, T, T], nonzero where the
            token of the second axis may see that of the third; or None for no padding.
        return_probabilities: also return the attention probabilities before dropout, [B, N, T, T],
            whose last axis is the tokens attended to.
        places: the n places to compute; replaces `padding_mask`.
        summary_only: with `places`, return one token of each row, [B, H]: see `Places.summary`.

    Returns the shape of the hidden states in the layer's compute dtype.
    """

    is_of_encoder = True

    def call(
        self,
        hidden_states: Any,
        padding_mask: Any = None,
        training: bool = False,
        return_probabilities: bool = False,
        places: Places | None = None,
        summary_only: bool = False,
    ) -> Any:
        options = {"return_probabilities": return_probabilities, "summary_only": summary_only}
        if places is not None:
            x, probabilities = self.compute(hidden_states, places, training, **options)
        else:
            if padding_mask is None:
                padding_mask = ops.ones(ops.shape(hidden_states)[:2], "int32")
            places = Places(padding_mask, self.config.attention_direction)
            rows = ops.cast(hidden_states, self.compute_dtype)
            rows = ops.reshape(rows, (-1, hidden_states.shape[-1]))
            x, probabilities = self.compute(rows, places, training, **options)
            x = places.spread(x)
        return (x, probabilities) if return_probabilities else x

    def compute_output_spec(
        self,
        hidden_states: Any,
        padding_mask: Any = None,
        training: bool = False,
        return_probabilities: bool = False,
    ) -> Any:
        batch, length, _ = hidden_states.shape
        heads = (batch, self.config.num_attention_heads, length, length)
        states = keras.KerasTensor(hidden_states.shape, self.compute_dtype)
        probabilities = keras.KerasTensor(heads, self.compute_dtype)
        return (states, probabilities) if return_probabilities else states


@keras.saving.register_keras_serializable(package="bert_tf")
class SelfAttention(AttentionLayer):
    """softmax(Q K^T / sqrt(D)) V over N heads of width D = H / N, then a dense layer.

    Vaswani et al. 2017, section 3.2; `attention_layer` in the original's modeling.py. With another
    `attention_direction` than "both", a token does not see those after it, or those before it.

    Attributes:
        flash: how to compute where probabilities are neither returned nor dropped: by the
            primitives if None, as at first; else by `keras.ops.dot_product_attention`, if True in
            one kernel (JAX on a GPU, half precision). Results differ in rounding, and where a
            token may see nothing. Set it before a function is traced.
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.flash: bool | None = None
        self.query = self.new_dense("query", config.hidden_size)
        self.key = self.new_dense("key", config.hidden_size)
        self.value = self.new_dense("value", config.hidden_size)
        self.output_dense = self.new_dense("output", config.hidden_size)
        self.dropout = self.new_dropout("dropout", config.attention_probs_dropout_prob)

    def compute(
        self, x: Any, places: Places, training: bool, return_probabilities: bool, summary_only: bool
    ) -> tuple[Any, Any]:
        compute = Primitives(True) if training and return_probabilities else primitives(training)
        parts, number = [self.query, self.key, self.value], self.config.num_attention_heads
        drops = training and self.dropout.rate > 0
        if self.flash is None or drops or return_probabilities or summary_only:
            context, probabilities = compute.attend(
                x, parts, places, number, self.dropout,
                return_probabilities=return_probabilities, summary_only=summary_only,
            )  # fmt: skip
        else:
            heads = compute.heads(x, parts, places, number)
            query, key, value = (ops.transpose(each, (0, 2, 1, 3)) for each in heads)
            # The kernel refuses a mask to broadcast over the queries.
            seen = ops.broadcast_to(places.seen, (places.batch, 1, places.length, places.length))
            context = ops.dot_product_attention(
                query, key, value, mask=seen, scale=1.0, flash_attention=self.flash
            )
            context = places.collect(ops.reshape(context, (-1, self.config.hidden_size)))
            probabilities = None
        return compute.dense(context, self.output_dense), probabilities


@keras.saving.register_keras_serializable(package="bert_tf")
class FeedForward(BertLayer):
    """act(x W1 + b1) W2 + b2 of vectors [..., H] (Vaswani et al. 2017, section 3.3)."""

    is_of_encoder = True

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        width = config.intermediate_size
        self.intermediate = self.new_dense("intermediate", width, config.hidden_act)
        self.output_dense = self.new_dense("output", config.hidden_size, inputs=width)

    def call(self, hidden_states: Any, training: bool = False) -> Any:
        if hidden_states.ndim > 2:
            shape = ops.shape(hidden_states)
            rows = ops.reshape(hidden_states, (-1, shape[-1]))
            return ops.reshape(self.call(rows, training), shape)
        return primitives(training).feed_forward(
            hidden_states, self.intermediate, self.output_dense
        )


@keras.saving.register_keras_serializable(package="bert_tf")
class TransformerBlock(AttentionLayer):
    """Self-attention, then feed-forward, each followed by dropout, residual and LayerNorm.

    LayerNorm comes after the residual sum (Vaswani et al. 2017, section 3.1; the body of
    `transformer_model` in the original's modeling.py).

    Attributes:
        rematerialize: whether training keeps only the block's input and recomputes everything in
            between for the gradient (Chen et al. 2016, "Training Deep Nets with Sublinear Memory
            Cost"): less memory, a third more time, the same numbers. False at first.
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.rematerialize = False
        self.attention = SelfAttention(config, **part("attention", seed, self.dtype_policy))
        self.feed_forward = FeedForward(config, **part("feed_forward", seed, self.dtype_policy))
        rate = config.hidden_dropout_prob
        self.attention_output_dropout = self.new_dropout("attention_output_dropout", rate)
        self.attention_layer_norm = self.new_layer_norm("attention_layer_norm")
        self.feed_forward_dropout = self.new_dropout("feed_forward_dropout", rate)
        self.feed_forward_layer_norm = self.new_layer_norm("feed_forward_layer_norm")

    def compute(self, x: Any, places: Places, training: bool, **options: bool) -> tuple[Any, Any]:
        if self.rematerialize and training and not options["return_probabilities"]:
            return self._rematerialized(x, places, options), None
        return self._computed(x, places, training, options)

    def _computed(
        self, x: Any, places: Places, training: bool, options: dict[str, bool]
    ) -> tuple[Any, Any]:
        compute = primitives(training)
        y, x = (x, places.summary(x)) if options["summary_only"] else compute.fork(x)
        found = self.attention(y, training=training, places=places, **options)
        attended, probabilities = found if options["return_probabilities"] else (found, None)
        x = compute.add_and_normalize(
            x, attended, self.attention_layer_norm, self.attention_output_dropout
        )
        y, x = compute.fork(x)
        transformed = self.feed_forward(y, training=training)
        x = compute.add_and_normalize(
            x, transformed, self.feed_forward_layer_norm, self.feed_forward_dropout
        )
        return x, probabilities

    def _rematerialized(self, x: Any, places: Places, options: dict[str, bool]) -> Any:
        """In training: the same numbers, and the same dropout whether computed once or twice."""
        after = self.attention_output_dropout, self.feed_forward_dropout
        dropouts = [each for each in (self.attention.dropout, *after) if each.rate > 0]
        # Each draws once a call. Drawn here, the seeds are not drawn anew in the second pass.
        seeds = [(each.seed_generator.state, each.seed_generator.next()) for each in dropouts]
        weights = self.trainable_variables

        def transform(x: Any, *values: Any) -> Any:
            # Weights come as arguments, so that gradients reach them on every backend.
            mapping = [*zip(weights, values, strict=True), *seeds]
            with keras.StatelessScope(state_mapping=mapping):
                return self._computed(x, places, True, options)[0]

        return recomputed(transform, x, *(weight.value for weight in weights))

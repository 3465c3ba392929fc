"""The Transformer encoder block: self-attention, feed-forward network, and what joins them.

B is the batch, T its length, H the width of the hidden states, N the attention heads, D = H / N.
"""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers.bert_layer import BertLayer, child_seed
from bert_tf.primitives.places import Places
from bert_tf.primitives.table import Primitives, primitives


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
        places: the places that are computed; then the states are [n, H], with n rows for these,
            and so is what is returned. Takes the place of `padding_mask`.
        summary_only: with `places`, return one token of each row, [B, H]: see `Places.summary`.

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
        places: Places | None = None,
        summary_only: bool = False,
    ) -> Any:
        """Lets every token attend to every token that is not masked."""
        if places is None:
            return _of_rows(
                self, hidden_states, padding_mask, training=training,
                return_probabilities=return_probabilities,
            )  # fmt: skip
        compute = Primitives(True) if training and return_probabilities else primitives(training)
        number, width = self.config.num_attention_heads, self.config.hidden_size
        parts = [self.query, self.key, self.value]
        query, key, value = compute.heads(hidden_states, parts, places, number)  # (B, N, T, D)
        query, mask = places.of_summary(query) if summary_only else (query, places.mask)
        # Scaling the queries costs T times less than scaling the scores.
        query = query * self.config.head_size**-0.5

        drops = training and self.dropout.rate > 0
        if self.flash is None or drops or return_probabilities or summary_only:
            context, probabilities = compute.attention(query, key, value, mask, self.dropout)
            context = ops.transpose(context, (0, 2, 1, 3))  # (B, T, N, D)
        else:
            context = self._flash_attention(query, key, value, places)
        context = ops.reshape(context, (-1, width))
        context = context if summary_only else places.collect(context)
        attended = compute.dense(context, self.output_dense)  # (n, H)
        return (attended, probabilities) if return_probabilities else attended

    def _flash_attention(self, *heads: Any) -> Any:
        """softmax(Q K^T) V, [B, T, N, D]."""
        *parts, places = heads
        query, key, value = (ops.transpose(each, (0, 2, 1, 3)) for each in parts)
        # The fused kernel refuses a mask to broadcast over the queries.
        shape = (places.batch, 1, places.length, places.length)
        return ops.dot_product_attention(
            query, key, value, mask=ops.broadcast_to(places.seen, shape), scale=1.0,
            flash_attention=self.flash,
        )  # fmt: skip

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

    def call(self, hidden_states: Any, training: bool = False) -> Any:
        """Applies both dense layers, with the activation between them."""
        if hidden_states.ndim > 2:
            shape = ops.shape(hidden_states)
            rows = ops.reshape(hidden_states, (-1, shape[-1]))
            return ops.reshape(self.call(rows, training), shape)
        compute = primitives(training)
        return compute.dense(compute.dense(hidden_states, self.intermediate), self.output_dense)


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
        places: Places | None = None,
        summary_only: bool = False,
    ) -> Any:
        """Mixes across tokens, then transforms each token."""
        if places is None:
            return _of_rows(
                self, hidden_states, padding_mask, training=training,
                return_probabilities=return_probabilities,
            )  # fmt: skip
        options = {"places": places, "summary_only": summary_only}
        if return_probabilities:
            attended, probabilities = self.attention(
                hidden_states, training=training, return_probabilities=True, **options
            )
            return self._transform(hidden_states, attended, training), probabilities
        if self.rematerialize and training:
            return self._rematerialized(hidden_states, options)
        return self._computed(hidden_states, training, options)

    def _computed(self, x: Any, training: bool, options: dict[str, Any]) -> Any:
        if options["summary_only"]:
            y, x = x, options["places"].summary(x)
        else:
            y, x = primitives(training).fork(x)
        return self._transform(x, self.attention(y, training=training, **options), training)

    def _transform(self, x: Any, attended: Any, training: bool) -> Any:
        """[n, H] each -> [n, H]."""
        compute = primitives(training)
        x = compute.add_and_normalize(
            x, attended, self.attention_layer_norm, self.attention_output_dropout
        )
        y, x = compute.fork(x)
        transformed = self.feed_forward(y, training=training)
        return compute.add_and_normalize(
            x, transformed, self.feed_forward_layer_norm, self.feed_forward_dropout
        )

    def _rematerialized(self, hidden_states: Any, options: dict[str, Any]) -> Any:
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
                return self._computed(hidden_states, True, options)

        return keras.remat(transform)(hidden_states, *(weight.value for weight in weights))


def _of_rows(layer: Any, hidden_states: Any, padding_mask: Any, **options: Any) -> Any:
    """The layer's outputs [B, T, H] for hidden states [B, T, H], at all places."""
    if padding_mask is None:
        padding_mask = ops.ones(ops.shape(hidden_states)[:2], "int32")
    places = Places(padding_mask, layer.config.attention_direction)
    x = ops.reshape(ops.cast(hidden_states, layer.compute_dtype), (-1, hidden_states.shape[-1]))
    found = layer.call(x, places=places, **options)
    if options["return_probabilities"]:
        return places.spread(found[0]), found[1]
    return places.spread(found)

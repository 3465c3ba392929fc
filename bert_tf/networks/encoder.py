"""The encoder of Devlin et al. 2018: embeddings, self-attention, feed-forward network, block.

Layers compute the rows of n positions, [n, H]: those that an encoder gives them with its kernels,
else all of a batch, n = B * T. Kernels drop padding where they find positions
(`TokenPositions` of `networks.tensorflow.kernels`). Letters as in `bert_tf.networks.kernels`.
"""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.networks.bert_layer import BertLayer, part
from bert_tf.networks.kernels import Kernels, Positions, recomputed, values


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEmbeddings(BertLayer):
    """Sum of word, position and segment embeddings, then LayerNorm and dropout.

    Section 3 of the paper, figure 2; `embedding_postprocessor` in the original's modeling.py.

    All ids are int [B, T]; by default `segment_ids` are 0 and `position_ids` 0 to T - 1. Returns
    [B, T, H] in the compute dtype, or [n, H] of `positions`; ValueError if T is too large.
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.word_embeddings = self.new_table("word_embeddings", config.vocab_size)
        self.position_embeddings = self.new_table(
            "position_embeddings", config.max_position_embeddings
        )
        if config.type_vocab_size:  # a DistilBERT has none
            self.segment_embeddings = self.new_table("segment_embeddings", config.type_vocab_size)
        self.layer_norm = self.new_layer_norm("layer_norm")
        self.dropout = self.new_dropout("dropout", config.hidden_dropout_prob)

    def call(
        self,
        token_ids: Any,
        segment_ids: Any = None,
        position_ids: Any = None,
        training: bool = False,
        positions: Positions | None = None,
        kernels: Kernels | None = None,
    ) -> Any:
        kernels = kernels or self.kernels(training)
        if positions is None:
            positions = Positions(ops.ones_like(token_ids))
            rows = self.call(token_ids, segment_ids, position_ids, training, positions, kernels)
            return positions.spread(rows)
        length = positions.length  # a number if it is known already, else a tensor
        if isinstance(length, int) and length > self.config.max_position_embeddings:
            raise ValueError(
                f"The inputs are {length} tokens long, the model takes "
                f"{self.config.max_position_embeddings} (max_position_embeddings): shorten them."
            )

        def collect(ids: Any) -> Any:  # (n,)
            return positions.collect(ops.reshape(ids, (-1,)))

        words = kernels.rows(self.word_embeddings, collect(token_ids))  # (n, H)
        if position_ids is None:  # rows 0 to T of the table: a slice, not a lookup
            others = positions.position_rows(values(self.position_embeddings))
        else:
            others = kernels.rows(self.position_embeddings, collect(position_ids))
        if types := self.config.type_vocab_size:
            table = values(self.segment_embeddings)
            if segment_ids is None:
                others = others + table[0]
            else:
                # A product with one-hot rows, as in the original: the gradient of a lookup in so
                # small a table would add thousands of rows into two.
                one_hot = ops.one_hot(collect(segment_ids), types, dtype=table.dtype)
                others = others + ops.matmul(one_hot, table)
        x = kernels.add_and_normalize(words, others, self.layer_norm)
        return kernels.drop(x, self.dropout)

    def compute_output_shape(self, token_ids_shape: Any, **others: Any) -> Any:
        # JAX cannot tell from an unknown T.
        return (*token_ids_shape, self.config.hidden_size)


class AttentionLayer(BertLayer):
    """A layer in which tokens attend to each other.

    Call arguments:
        hidden_states: [B, T, H].
        padding_mask: [B, T], nonzero at tokens and 0 at padding; or [B, T, T], nonzero where the
            token of the second axis may see the token of the third; or None for no padding.
        return_probabilities: also return the attention probabilities before dropout, [B, N, T, T],
            whose last axis is the tokens attended to.
        positions: the n positions to compute; the hidden states are [n, H], the mask is not read.
        kernels: kernels to compute with; by default the layer's.
        summary_only: with `positions`, return one token of each row, [B, H], see
            `Positions.summary`.

    Returns the shape of the hidden states in the layer's compute dtype.
    """

    def call(
        self,
        hidden_states: Any,
        padding_mask: Any = None,
        training: bool = False,
        return_probabilities: bool = False,
        positions: Positions | None = None,
        kernels: Kernels | None = None,
        summary_only: bool = False,
    ) -> Any:
        kernels = kernels or self.kernels(training)
        options = {"return_probabilities": return_probabilities, "summary_only": summary_only}
        if positions is not None:
            x, probabilities = self.rows(positions, kernels, hidden_states, **options)
        else:
            if padding_mask is None:
                padding_mask = ops.ones(ops.shape(hidden_states)[:2], "int32")
            positions = Positions(padding_mask, self.config.architecture)
            x = ops.cast(hidden_states, self.compute_dtype)
            x = ops.reshape(x, (-1, hidden_states.shape[-1]))
            x, probabilities = self.rows(positions, kernels, x, **options)
            x = positions.spread(x)
        return (x, probabilities) if return_probabilities else x

    def rows(
        self, positions: Positions, kernels: Kernels, x: Any, **options: bool
    ) -> tuple[Any, Any]:
        """States [n, H], and probabilities or None; options as of `Kernels.attend`."""
        raise NotImplementedError

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

    Vaswani et al. 2017, section 3.2; `attention_layer` in the original's modeling.py. The softmax
    is in `Kernels.attention`. Which tokens a token sees is up to the config's `architecture`; in a
    BERT it sees all.
    """

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        self.query = self.new_dense("query", config.hidden_size)
        self.key = self.new_dense("key", config.hidden_size)
        self.value = self.new_dense("value", config.hidden_size)
        self.output_dense = self.new_dense("output", config.hidden_size)
        self.dropout = self.new_dropout("dropout", config.attention_probs_dropout_prob)

    def rows(
        self, positions: Positions, kernels: Kernels, x: Any, **options: bool
    ) -> tuple[Any, Any]:
        context, probabilities = self.contexts(positions, kernels, x, **options)
        return kernels.dense(context, self.output_dense), probabilities

    def contexts(
        self, positions: Positions, kernels: Kernels, x: Any, **options: bool
    ) -> tuple[Any, Any]:
        """What the dense layer reads, [n, H], and probabilities or None."""
        layers = self.query, self.key, self.value
        heads = self.config.num_attention_heads
        return kernels.attend(x, layers, positions, heads, self.dropout, **options)


@keras.saving.register_keras_serializable(package="bert_tf")
class FeedForward(BertLayer):
    """act(x W1 + b1) W2 + b2 of vectors [..., H] (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, config: BertConfig, seed: int | None = None, **kwargs: Any):
        super().__init__(config, seed, **kwargs)
        width = config.intermediate_size
        self.intermediate = self.new_dense("intermediate", width, config.hidden_act)
        self.output_dense = self.new_dense("output", config.hidden_size, inputs=width)

    def call(self, hidden_states: Any, training: bool = False) -> Any:
        kernels = self.kernels(training)
        rows = ops.reshape(hidden_states, (-1, hidden_states.shape[-1]))
        rows = kernels.dense(self.inner(kernels, rows), self.output_dense)
        return ops.reshape(rows, ops.shape(hidden_states))

    def inner(self, kernels: Kernels, x: Any) -> Any:
        """What the second dense layer reads."""
        return kernels.dense(x, self.intermediate, self.output_dense)


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
        parts = [part(name, seed, self.dtype_policy) for name in ("attention", "feed_forward")]
        self.attention = SelfAttention(config, zeros=self._zeros, **parts[0])
        self.feed_forward = FeedForward(config, zeros=self._zeros, **parts[1])
        rate = config.hidden_dropout_prob
        self.attention_output_dropout = self.new_dropout("attention_output_dropout", rate)
        self.attention_layer_norm = self.new_layer_norm("attention_layer_norm")
        self.feed_forward_dropout = self.new_dropout("feed_forward_dropout", rate)
        self.feed_forward_layer_norm = self.new_layer_norm("feed_forward_layer_norm")

    def rows(
        self, positions: Positions, kernels: Kernels, x: Any, **options: bool
    ) -> tuple[Any, Any]:
        if self.rematerialize and kernels.training and not options["return_probabilities"]:
            return self._rematerialized(positions, kernels, x, **options), None
        return self._rows(positions, kernels, x, **options)

    def _rows(
        self, positions: Positions, kernels: Kernels, x: Any, **options: bool
    ) -> tuple[Any, Any]:
        # x = LayerNorm(x + dropout(attention(x))), [n, H]; the last block of a pooled output
        # continues with one token of each row. The kernels apply the dense layer before the sum.
        y, x = (x, positions.summary(x)) if options["summary_only"] else kernels.fork(x)
        context, probabilities = self.attention.contexts(positions, kernels, y, **options)
        x = kernels.add_and_normalize(
            x,
            context,
            self.attention_layer_norm,
            self.attention.output_dense,
            self.attention_output_dropout,
        )
        # x = LayerNorm(x + dropout(feed_forward(x)))
        y, x = kernels.fork(x)
        x = kernels.add_and_normalize(
            x,
            self.feed_forward.inner(kernels, y),
            self.feed_forward_layer_norm,
            self.feed_forward.output_dense,
            self.feed_forward_dropout,
        )
        return x, probabilities

    def _rematerialized(
        self, positions: Positions, kernels: Kernels, x: Any, **options: bool
    ) -> Any:
        """In training: the same numbers, and the same dropout whether computed once or twice."""
        after = self.attention_output_dropout, self.feed_forward_dropout
        dropouts = [layer for layer in (self.attention.dropout, *after) if layer.rate > 0]
        # Each draws once a call. Drawn here, the seeds are not drawn anew in the second pass.
        seeds = [(x.seed_generator.state, x.seed_generator.next()) for x in dropouts]
        weights = self.trainable_variables

        def transform(x: Any, *values: Any) -> Any:
            # Weights come as arguments, so that gradients reach them on every backend.
            mapping = [*zip(weights, values, strict=True), *seeds]
            with keras.StatelessScope(state_mapping=mapping):
                return self._rows(positions, kernels, x, **options)[0]

        return recomputed(transform, x, *(weight.value for weight in weights))


def mask_of(inputs: dict[str, Any]) -> Any:
    """The padding mask [B, T]; of rows of several instances, who sees whom, bool [B, T, T].

    Such rows have `position_ids`, and their padding mask holds the numbers of the instances.
    """
    mask = inputs["padding_mask"]
    if "position_ids" not in inputs:
        return mask
    is_same = ops.equal(mask[:, :, None], mask[:, None, :])
    return ops.logical_and(is_same, ops.not_equal(mask, 0)[:, None, :])

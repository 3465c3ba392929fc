"""A model in training: what its encoder and word head compute, in fewer and larger operations.

Letters as in `bert_tf.fused.inference`. What is done to each token is done on [n, H], which lets
TensorFlow fuse a product with its bias; queries, keys and values are one product; dropout,
residual, LayerNorm, GELU and softmax have gradients of their own.

Batches whose shape is known when the step is traced, as in pre-training, keep their padding: XLA
compiles what lies between the products. In others, as in fine-tuning, only the n tokens without
padding are computed, unless the loss counts padding, too.
"""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.fused.attention import attention
from bert_tf.fused.dropout import Dropout, draw_dropout, drop
from bert_tf.fused.elementwise import add_and_normalize, dense, fork, gelu
from bert_tf.fused.inference import Inference, find_encoders
from bert_tf.fused.passes import known_shape
from bert_tf.fused.places import Places, find_places
from bert_tf.fused.vocabulary_loss import word_logits
from bert_tf.layers import MaskedLanguageModelHead, SelfAttention, TransformerBlock
from bert_tf.layers.activations import ACTIVATIONS

_ACTIVATIONS = {**ACTIVATIONS, "gelu": gelu}


def fuse(model: keras.Model) -> None:
    """From here on the model's encoders and word heads, if any, compute in larger operations.

    Call it before a function of the model is traced. The results differ in rounding alone, but for
    dropout, which draws other numbers at the same rate (see `draw_dropout`).
    """
    is_read = hasattr(getattr(model, "encoder", None), "towers")  # not by LSTMs in between
    summary_only = is_read and getattr(model, "reads", None) == "pooled_output"
    with_padding = getattr(model, "counts_padding", False)
    for encoder in find_encoders(model):
        encoder.fused = Training(encoder, summary_only=summary_only, with_padding=with_padding)
    for layer in model.layers:
        if isinstance(layer, MaskedLanguageModelHead):
            layer.fused = word_logits


class Training(Inference):
    """The function of a `BertEncoder`'s inputs that gives its outputs, for `BertEncoder.fused`.

    Args:
        encoder: the encoder.
        summary_only: whether its pooled output alone is trained: then the last block computes its
            queries and all that follows for one token of each row.
        with_padding: whether outputs at padding are trained. Without it they are 0 in batches whose
            shape is unknown.
    """

    def __init__(self, encoder: Any, *, summary_only: bool, with_padding: bool) -> None:
        super().__init__(encoder, copies=False)
        self.trains = not encoder.attention_probabilities
        self._summary_only = summary_only
        self._with_padding = with_padding

    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> dict[str, Any]:
        """Computes the outputs for inputs [B, T] each."""
        if not training:
            return super().__call__(inputs)
        encoder, mask = self._encoder, inputs["padding_mask"]
        places = find_places(
            mask,
            encoder.config.attention_direction,
            with_padding=self._with_padding or mask.shape.is_fully_defined(),
        )
        states = [self._embedded(inputs, places)]
        for block in encoder.blocks[:-1]:
            states.append(self._trained_block(block, states[-1], places))
        last = encoder.blocks[-1]
        if self._summary_only:
            summary = self._trained_block(last, states[-1], places, summary_only=True)
            states.append(tf.zeros_like(states[-1]))  # nobody reads it
        else:
            states.append(self._trained_block(last, states[-1], places))
            summary = tf.gather(states[-1], places.summary)
        shape = [places.batch, places.length, encoder.config.hidden_size]
        hidden_states = [tf.reshape(places.spread(x), shape) for x in states]
        return {
            "sequence_output": hidden_states[-1],
            "pooled_output": tf.tanh(self._trained_dense(summary, encoder.pooler.dense)),  # (B, H)
            "hidden_states": hidden_states,
        }

    def _embedded(self, inputs: dict[str, tf.Tensor], places: Places) -> tf.Tensor:
        layer, config = self._encoder.embeddings, self._encoder.config
        flat = {name: places.collect(tf.reshape(x, [-1])) for name, x in inputs.items()}
        table, segments, positions = (
            self._variables[id(each.embeddings)]
            for each in (
                layer.word_embeddings, layer.segment_embeddings, layer.position_embeddings
            )
        )  # fmt: skip
        # From its value: rows taken from a variable itself would have all later reads copy it.
        words = tf.gather(tf.convert_to_tensor(table), flat["token_ids"])  # (n, H)
        # A product: the gradient of a lookup would add thousands of rows into two.
        others = tf.matmul(tf.one_hot(flat["segment_ids"], config.type_vocab_size), segments)
        positions = tf.broadcast_to(
            positions[: places.length], [places.batch, places.length, config.hidden_size]
        )
        others += places.collect(tf.reshape(positions, [-1, config.hidden_size]))
        x = add_and_normalize(words, others, None, *self._affine(layer.layer_norm), self._dtype)
        return drop(x, self._dropout(layer.dropout, known_shape(x)))

    def _dropout(self, layer: keras.layers.Dropout, shape: list[Any]) -> Dropout | None:
        """What the layer drops of its next input."""
        if not layer.rate:
            return None
        return draw_dropout(layer.seed_generator.next(), shape, layer.rate)

    def _trained_block(
        self, block: TransformerBlock, x: tf.Tensor, places: Places, summary_only: bool = False
    ) -> tf.Tensor:
        """[n, H] -> [n, H], or [B, H] of `places.summary`."""
        if summary_only:
            attended = self._attended(block.attention, x, places, summary_only)
            x = tf.gather(x, places.summary)
        else:
            y, x = fork(x)
            attended = self._attended(block.attention, y, places, summary_only)
        x = self._joined(x, attended, block.attention_output_dropout, block.attention_layer_norm)
        activation = _ACTIVATIONS[self._encoder.config.hidden_act]
        y, x = fork(x)
        inner = activation(self._trained_dense(y, block.feed_forward.intermediate))
        transformed = self._trained_dense(inner, block.feed_forward.output_dense)
        return self._joined(
            x, transformed, block.feed_forward_dropout, block.feed_forward_layer_norm
        )

    def _joined(
        self, x: tf.Tensor, y: tf.Tensor, dropout: Any, norm: keras.layers.LayerNormalization
    ) -> tf.Tensor:
        """Residual, dropout and LayerNorm."""
        return add_and_normalize(
            x, y, self._dropout(dropout, known_shape(y)), *self._affine(norm), self._dtype
        )

    def _affine(self, layer: keras.layers.LayerNormalization) -> tuple[tf.Tensor, tf.Tensor, float]:
        """Scale, shift and epsilon."""
        gamma, beta = (self._weight("float32", weight) for weight in (layer.gamma, layer.beta))
        return gamma, beta, layer.epsilon

    def _attended(
        self, layer: SelfAttention, x: tf.Tensor, places: Places, summary_only: bool
    ) -> tf.Tensor:
        config, batch, length = self._encoder.config, places.batch, places.length
        projected = self._trained_dense(x, layer.query, layer.key, layer.value)  # (n, 3 H)
        heads = [batch, length, 3, config.num_attention_heads, config.head_size]
        heads = tf.reshape(places.spread(projected), heads)
        query, key, value = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))  # (B, N, T, D)
        query, mask = places.of_summary(query) if summary_only else (query, places.mask)
        query *= config.head_size**-0.5
        drawn = [batch, config.num_attention_heads, 1 if summary_only else length, length]
        dropout = self._dropout(layer.dropout, drawn)
        context = attention(query, key, value, mask, dropout)
        context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, config.hidden_size])
        context = context if summary_only else places.collect(context)
        return self._trained_dense(context, layer.output_dense)

    def _trained_dense(self, x: tf.Tensor, *layers: keras.layers.Dense) -> tf.Tensor:
        """[n, H] -> [n, M], the layers' outputs side by side."""
        kernel = self._weight(self._dtype, *(each.kernel for each in layers))
        bias = self._weight(self._dtype, *(each.bias for each in layers))
        return dense(x, kernel, bias)

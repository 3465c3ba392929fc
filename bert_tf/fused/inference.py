"""The encoder at inference: what its layers compute, in fewer and larger operations.

B is the batch, T its length, n the tokens of all rows without their padding, H the width of the
hidden states, N the attention heads, D = H / N.

The layers of `bert_tf.layers` also train and run on other backends. This is faster because

- what is done to each token is done on [n, H]: padding costs nothing, and TensorFlow fuses a
  product with its bias and activation, which a reshape between them would prevent;
- where one token alone is read, such as [CLS], the last block computes it alone;
- an export has weights of its own, in the compute dtype: nothing to cast, and one product for
  queries, keys and values.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from bert_tf.fused.places import Places, find_places
from bert_tf.layers import SelfAttention, TransformerBlock
from bert_tf.layers.activations import ACTIVATIONS
from bert_tf.models.encoder import BertEncoder

# TensorFlow fuses this form of the exact GELU with the product before it.
_ACTIVATIONS = {**ACTIVATIONS, "gelu": tf.nn.gelu}


@contextmanager
def inference(model: keras.Model, *, copies: bool = False) -> Iterator[None]:
    """Within the context, the model's encoders compute without their layers, unless in training.

    Functions traced there keep it. Not for several threads at once.

    Args:
        model: a `BertEncoder`, or a model on top of one; others compute as ever.
        copies: whether to read copies of the weights, made now in the compute dtype; else the
            model's variables, which may still change.
    """
    before = [(encoder, encoder.fused) for encoder in find_encoders(model)]
    for encoder, _ in before:
        encoder.fused = Inference(encoder, copies=copies)
    try:
        yield
    finally:
        for encoder, fused in before:
            encoder.fused = fused


def find_encoders(model: Any) -> list[BertEncoder]:
    """The `BertEncoder` in a model, or both of `TwoEncoders`; none in a model of another kind."""
    while model is not None and not hasattr(model, "towers"):
        model = getattr(model, "encoder", None)
    towers = [] if model is None else model.towers()
    return [tower for tower in towers if isinstance(tower, BertEncoder)]


class Inference:
    """The function of a `BertEncoder`'s inputs that gives its outputs, for `BertEncoder.fused`.

    In a graph, an output that nobody reads is not computed. Padding gets zeros.

    Attributes:
        trains: whether it can also be called in training.
    """

    trains = False

    def __init__(self, encoder: BertEncoder, *, copies: bool) -> None:
        self._encoder = encoder
        self._dtype = encoder.compute_dtype
        # Taken here: while a model is called, Keras casts what it gives out, tables as a whole.
        self._variables = {id(variable): variable.value for variable in encoder.variables}
        self._copies: dict[tuple[int, ...], tf.Variable] | None = {} if copies else None

    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> dict[str, Any]:
        """Computes the outputs for inputs [B, T] each."""
        assert not training  # `BertEncoder` asks `trains`
        encoder = self._encoder
        tokens, states, probabilities = self._states(inputs)
        summary, _ = self._block(encoder.blocks[-1], states[-2], tokens, summary_only=True)

        def spread(x: tf.Tensor) -> tf.Tensor:
            width = encoder.config.hidden_size
            x = tf.scatter_nd(
                tokens.places[:, tf.newaxis], x, [tokens.batch * tokens.length, width]
            )
            return tf.reshape(x, [tokens.batch, tokens.length, width])

        hidden_states = [spread(x) for x in states]  # (B, T, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            "pooled_output": tf.tanh(self._dense(summary, encoder.pooler.dense)),  # (B, H)
            "hidden_states": hidden_states,
        }
        if encoder.attention_probabilities:
            outputs["attention_probabilities"] = probabilities
        return outputs

    def attend(self, inputs: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        """Attention probabilities of each block, [B, N, T, T]."""
        return self._states(inputs)[2]

    def _states(
        self, inputs: dict[str, tf.Tensor]
    ) -> tuple[Places, list[tf.Tensor], list[tf.Tensor]]:
        """The tokens; their states [n, H] before the first block and after each; probabilities."""
        direction = self._encoder.config.attention_direction
        tokens = find_places(inputs["padding_mask"], direction)
        states, probabilities = [self._embed(inputs, tokens)], []
        for block in self._encoder.blocks:
            x, of_block = self._block(block, states[-1], tokens)
            states.append(x)
            probabilities.append(of_block)
        return tokens, states, probabilities

    def _embed(self, inputs: dict[str, tf.Tensor], tokens: Places) -> tf.Tensor:
        layer = self._encoder.embeddings
        ids, segments = (
            tf.gather(tf.reshape(inputs[name], [-1]), tokens.places)
            for name in ("token_ids", "segment_ids")
        )  # (n,)
        rows = (
            (layer.word_embeddings, ids),
            (layer.segment_embeddings, segments),
            (layer.position_embeddings, tokens.places % tokens.length),
        )
        tables = self._variables
        total = tf.add_n([tf.gather(tables[id(table.embeddings)], row) for table, row in rows])
        return self._normalize(total, layer.layer_norm)

    def _block(
        self, block: TransformerBlock, x: tf.Tensor, tokens: Places, summary_only: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """[n, H] -> [n, H], or [B, H] of `tokens.summary`; and the attention's probabilities."""
        attended, probabilities = self._attend(block.attention, x, tokens, summary_only)
        x = tf.gather(x, tokens.summary) if summary_only else x
        x = self._normalize(x + attended, block.attention_layer_norm)
        activation = _ACTIVATIONS[self._encoder.config.hidden_act]
        inner = self._dense(x, block.feed_forward.intermediate, activation=activation)
        transformed = self._dense(inner, block.feed_forward.output_dense)
        return self._normalize(x + transformed, block.feed_forward_layer_norm), probabilities

    def _attend(
        self, layer: SelfAttention, x: tf.Tensor, tokens: Places, summary_only: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        config = self._encoder.config
        projected = self._dense(x, layer.query, layer.key, layer.value)  # (n, 3 H)
        heads = [tokens.batch, tokens.length, 3, config.num_attention_heads, config.head_size]
        heads = tf.reshape(tf.gather(projected, tokens.tokens), heads)
        query, key, value = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))  # (B, N, T, D)
        query, mask = tokens.of_summary(query) if summary_only else (query, tokens.mask)
        query *= config.head_size**-0.5
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)  # (B, N, T, T)
        probabilities = tf.cast(tf.nn.softmax(scores + mask), self._dtype)
        context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])  # (B, T, N, D)
        context = tf.reshape(context, [-1, config.hidden_size])
        context = context if summary_only else tf.gather(context, tokens.places)
        return self._dense(context, layer.output_dense), probabilities

    def _dense(
        self, x: tf.Tensor, *layers: keras.layers.Dense, activation: Any = None
    ) -> tf.Tensor:
        """Products with the kernels plus biases, the layers' outputs side by side; activated."""
        if self._copies is None and len(layers) > 1:  # joining kernels takes longer
            return tf.concat([self._dense(x, layer) for layer in layers], -1)
        kernels = [layer.kernel for layer in layers]
        bias = self._weight(self._dtype, *(layer.bias for layer in layers))
        if self._copies is not None and self._dtype == "bfloat16" and activation is None:
            # oneDNN's product with a bias rearranges a bfloat16 kernel in every call; its product
            # of batches does not, if the kernel is [out, in]: an eighth less time for a sentence.
            kernel = self._weight(self._dtype, *kernels, transposed=True)
            return tf.matmul(x[tf.newaxis], kernel[tf.newaxis], transpose_b=True)[0] + bias
        y = tf.nn.bias_add(tf.matmul(x, self._weight(self._dtype, *kernels)), bias)
        return activation(y) if activation else y

    def _normalize(self, x: tf.Tensor, layer: keras.layers.LayerNormalization) -> tf.Tensor:
        """LayerNorm over H, in float32."""
        x = tf.cast(x, tf.float32)
        gamma, beta = (self._weight("float32", weight) for weight in (layer.gamma, layer.beta))
        # 19 us for 9 tokens; TensorFlow's fused op takes 150, if a quarter of the time for 700.
        centered = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
        scale = tf.math.rsqrt(variance + layer.epsilon) * gamma
        return tf.cast(beta + centered * scale, self._dtype)

    def _weight(
        self, dtype: str, *variables: keras.Variable, transposed: bool = False
    ) -> tf.Tensor:
        """Weights side by side."""
        key = tuple(map(id, variables))

        def read() -> tf.Tensor:
            joined = tf.concat([tf.cast(self._variables[each], dtype) for each in key], -1)
            return tf.transpose(joined) if transposed else joined

        if self._copies is None:
            return read()
        if key not in self._copies:
            with tf.init_scope():  # outside the graph: one for all functions
                self._copies[key] = tf.Variable(read(), trainable=False)
        return tf.convert_to_tensor(self._copies[key])

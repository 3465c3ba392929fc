"""The kernels of inference for TensorFlow, faster than those in keras.ops because

- operations on each token take [n, H] (`TensorFlowKernels`);
- attention computes groups of rows of like length (`Groups`);
- an export has weights of its own, in the compute dtype: nothing to cast, and one product for
  queries, keys and values.

Letters as in `bert_tf.networks.kernels`.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Any, Self

import tensorflow as tf
from keras.layers import Dense, Dropout, Embedding, LayerNormalization

from bert_tf.extensions import Architecture
from bert_tf.networks.kernels import Positions
from bert_tf.networks.tensorflow.kernels import (
    TensorFlowKernels,
    TokenPositions,
    centre,
    softmax,
)


class InferenceKernels(TensorFlowKernels):
    """In plain operations that TensorFlow fuses, on the positions of tokens."""

    def __init__(self) -> None:
        super().__init__(training=False)

    def find_positions(
        self, padding_mask: tf.Tensor, architecture: Architecture, padding: str
    ) -> Positions:
        if padding_mask.shape.rank != 2 or padding == "states":
            return super().find_positions(padding_mask, architecture, padding)
        return TokenPositions(padding_mask, architecture, training=False)

    def _looked_up(self, table: Embedding, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(table.embeddings.value, ids)

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        if len(layers) > 1:  # joining kernels takes longer
            first, *others = (self.products(x, [layer]) for layer in layers)
            return tf.concat([first * scale, *others], -1)
        (layer,) = layers
        dtype = layer.compute_dtype
        product = tf.matmul(tf.cast(x, dtype), tf.cast(layer.kernel, dtype))
        return tf.nn.bias_add(product, tf.cast(layer.bias, dtype))

    def attend(
        self,
        x: Any,
        layers: Sequence[Dense],
        positions: Positions,
        heads: int,
        dropout: Dropout,
        **options: bool,
    ) -> tuple[Any, Any]:
        is_other = options.get("return_probabilities")
        is_other = is_other or any(layer.quantization_mode for layer in layers)
        if is_other or not isinstance(positions, TokenPositions):
            return super().attend(x, layers, positions, heads, dropout, **options)
        summary_only = options.get("summary_only")
        width = layers[0].units // heads
        product = tf.reshape(self.products(x, layers, width**-0.5), [-1, width])
        grouped = positions.groups(heads)
        contexts = []
        for group in grouped.groups:
            if summary_only:
                query = tf.gather(product, group.summary)
                key, value = tf.unstack(tf.gather(product, group.heads[1:]))
                context, _ = self.attention(query, key, value, group.summary_mask, None)
            else:
                query, key, value = tf.unstack(tf.gather(product, group.heads))
                context, _ = self.attention(query, key, value, group.mask, None)
            contexts.append(tf.reshape(context, [-1, width]))
        context = tf.concat(contexts, 0)
        if summary_only:
            return tf.gather(tf.reshape(context, [-1, layers[0].units]), grouped.rows), None
        return tf.reshape(tf.gather(context, grouped.back), [-1, layers[0].units]), None

    def attention(
        self, query: Any, key: Any, value: Any, mask: Any, dropout: Any, **options: bool
    ) -> tuple[Any, Any]:
        probabilities = softmax(tf.matmul(query, key, transpose_b=True), mask)  # (B, N, Q, T)
        return tf.matmul(probabilities, value), probabilities

    def add_and_normalize(
        self, x: Any, y: Any, norm: Any, dense: Dense | None = None, dropout: Dropout | None = None
    ) -> tf.Tensor:
        if norm.compute_dtype == "float64":
            return super().add_and_normalize(x, y, norm, dense, dropout)
        return self.normalize(x + (y if dense is None else self.dense(y, dense)), norm)

    def normalize(self, x: tf.Tensor, layer: Any) -> tf.Tensor:
        gamma, beta = self.affine(layer)
        centred, inverse = centre(tf.cast(x, tf.float32), layer.epsilon)
        return tf.cast(beta + centred * (inverse * gamma), layer.compute_dtype)

    def drop(self, x: tf.Tensor, dropout: Dropout) -> tf.Tensor:
        return x


class CopiedWeights(InferenceKernels):
    """Inference with copies of the weights in the compute dtype, made when they are first read."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[Any, tf.Variable] = {}
        self._is_packed = True

    def unpacked(self) -> Self:
        """These kernels, the same copies, for a graph in which TensorFlow packs no float weights.

        Packed ones are kept by each signature that has answered: 340 MB of BERT-base in float32.
        """
        changed = copy.copy(self)
        changed._is_packed = False
        return changed

    def _copy(self, key: Any, make: Any) -> tf.Tensor:
        if key not in self._copies:
            with tf.init_scope():  # outside the graph: one for all functions
                self._copies[key] = tf.Variable(make(), trainable=False)
        return tf.convert_to_tensor(self._copies[key])

    def products(self, x: tf.Tensor, layers: Sequence[Dense], scale: float = 1.0) -> tf.Tensor:
        kernel, bias = (
            self._copy((name, *layers), functools.partial(self.joined, name, layers, scale))
            for name in ("kernel", "bias")
        )
        x = tf.cast(x, kernel.dtype)
        # Of a batch of matrices, even of one, TensorFlow packs no weights.
        product = tf.matmul(x, kernel) if self._is_packed else tf.matmul(x[tf.newaxis], kernel)[0]
        return tf.nn.bias_add(product, bias)

    def affine(self, layer: LayerNormalization) -> list[tf.Tensor]:
        cast = super().affine
        return [self._copy((n, layer), lambda n=n: cast(layer)[n]) for n in range(2)]

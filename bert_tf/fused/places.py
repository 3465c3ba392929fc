"""Which places of a padded batch are computed.

B is the batch, T its length, n the places of B * T that are computed.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from bert_tf.fused.passes import known_shape
from bert_tf.layers.heads import last_places
from bert_tf.layers.transformer import MASKED_SCORE, seen_tokens


class Places(NamedTuple):
    """The places that are computed: those of tokens, or all.

    Attributes:
        batch: B, a number if it is known when the graph is traced, else a tensor.
        length: T, likewise.
        places: int32 [n], the place of each token.
        tokens: int32 [B * T], the token at each place; at padding, the last one before it.
        is_computed: bool [B * T], whether the place is one of the n.
        summary: int32 [B], the token of each row that has seen all others: the last one in a
            left-to-right model, the first one in others.
        last: int32 [B], where in its row that token is; None for the first one.
        padding: float32 [B, 1, 1, T], added to the attention scores of these tokens.
        mask: the same, or float32 [B, 1, T, T], added to the attention scores of all.
        with_padding: whether n is B * T: padding counts as tokens.
    """

    batch: Any
    length: Any
    places: tf.Tensor
    tokens: tf.Tensor
    is_computed: tf.Tensor
    summary: tf.Tensor
    last: tf.Tensor | None
    padding: tf.Tensor
    mask: tf.Tensor
    with_padding: bool

    def spread(self, x: tf.Tensor) -> tf.Tensor:
        """[n, ...] -> [B * T, ...], zero at padding; its gradient is a lookup, too."""
        if self.with_padding:
            return x

        @tf.custom_gradient
        def spread(x: tf.Tensor) -> Any:
            rows = tf.gather(x, self.tokens) * tf.cast(self.is_computed[:, tf.newaxis], x.dtype)
            return rows, lambda upstream: tf.gather(upstream, self.places)

        return spread(x)

    def collect(self, x: tf.Tensor) -> tf.Tensor:
        """[B * T, ...] -> [n, ...]."""
        if self.with_padding:
            return x

        @tf.custom_gradient
        def collect(x: tf.Tensor) -> Any:
            return tf.gather(x, self.places), self.spread

        return collect(x)

    def of_summary(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """[B, N, T, D] -> [B, N, 1, D] of the tokens of `summary`, and their mask."""
        if self.last is None:
            return x[:, :, :1], self.padding
        return tf.gather(x, self.last[:, tf.newaxis], axis=2, batch_dims=1), self.padding


def find_places(
    padding_mask: tf.Tensor, direction: str = "both", *, with_padding: bool = False
) -> Places:
    """The places of tokens in a padding mask [B, T], or all of them `with_padding`.

    `direction` is the encoder's `attention_direction`.
    """
    batch, length = known_shape(padding_mask)
    is_token = padding_mask != 0  # (B, T)
    padding = (tf.cast(~is_token, tf.float32) * MASKED_SCORE)[:, tf.newaxis, tf.newaxis]
    mask = padding
    if direction != "both":
        is_hidden = ~seen_tokens(tf.range(length), direction)
        mask += tf.cast(is_hidden, tf.float32) * MASKED_SCORE
    last = last_places(padding_mask) if direction == "left_to_right" else None
    # A row without tokens keeps its first place, so that every row has a first token.
    is_computed = is_token | (tf.range(length) == 0)
    if with_padding:
        is_computed = tf.ones_like(is_token)
    is_computed = tf.reshape(is_computed, [-1])  # (B * T,)
    tokens = tf.cumsum(tf.cast(is_computed, tf.int32)) - 1
    return Places(
        batch,
        length,
        places=tf.cast(tf.where(is_computed)[:, 0], tf.int32),
        tokens=tokens,
        is_computed=is_computed,
        summary=tf.gather(tokens, tf.range(batch) * length + (0 if last is None else last)),
        last=last,
        padding=padding,
        mask=mask,
        with_padding=with_padding,
    )

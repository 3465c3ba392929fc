"""Which places of a padded batch to compute.

B is the batch, T its length, n the computed places of B * T, N the attention heads, D their width.
"""

from typing import Any

from keras import ops


class Places:
    """All places of a batch, n = B * T: every method that moves rows is the identity.

    Args:
        padding_mask: [B, T], nonzero at tokens and 0 at padding; or [B, T, T], nonzero where the
            token of the second axis may see that of the third.
        direction: the encoder's `attention_direction`.

    Attributes:
        batch, length: B and T, numbers if they are known when the graph is traced, else tensors.
        seen: bool [B, 1, 1, T] or [B, 1, T, T], which tokens (last axis) each token may see.
        mask: float32 of the same shape, added to the attention scores.
    """

    def __init__(self, padding_mask: Any, direction: str):
        is_token = ops.not_equal(padding_mask, 0)
        shape = ops.shape(padding_mask)
        self.batch, self.length = shape[0], shape[-1]
        self.seen = ops.expand_dims(is_token, (1, 2) if len(shape) == 2 else 1)
        self._summary_mask = scores_of(self.seen)
        if direction != "both":
            places = ops.arange(self.length)
            seeing, seen = places[:, None], places[None, :]
            of_direction = seen <= seeing if direction == "left_to_right" else seen >= seeing
            self.seen = ops.logical_and(self.seen, of_direction)
        self.mask = scores_of(self.seen)
        is_last = direction == "left_to_right" and len(shape) == 2
        self._last = last_places(padding_mask) if is_last else None  # of each row, [B]

    def collect(self, x: Any) -> Any:
        """[B * T, ...] -> [n, ...]."""
        return x

    def fill(self, x: Any) -> Any:
        """[n, ...] -> [B * T, ...], with anything at padding."""
        return x

    def spread(self, x: Any) -> Any:
        """[n, H] -> [B, T, H], zero at padding that is not computed."""
        return ops.reshape(x, (self.batch, self.length, x.shape[-1]))

    def position_rows(self, table: Any) -> Any:
        """Rows of a table [P, H] by the position of each place, [n, H]."""
        rows = ops.broadcast_to(table[: self.length], (self.batch, self.length, table.shape[-1]))
        return self.collect(ops.reshape(rows, (-1, table.shape[-1])))

    def summary(self, x: Any) -> Any:
        """[B, H], of the tokens that have seen all others: the first, or left to right the last."""
        x = ops.reshape(x, (self.batch, self.length, x.shape[-1]))
        if self._last is None:
            return x[:, 0]
        return ops.take_along_axis(x, self._last[:, None, None], axis=1)[:, 0]

    def of_summary(self, x: Any) -> tuple[Any, Any]:
        """[B, N, T, D] -> [B, N, 1, D] of the tokens of `summary`, and their mask."""
        if self._last is None:
            return x[:, :, :1], self._summary_mask
        return ops.take_along_axis(x, self._last[:, None, None, None], axis=2), self._summary_mask


def scores_of(seen: Any) -> Any:
    """The mask for attention scores: 0 for tokens that may be seen."""
    # -10000 as in the original: its exponential is 0 in every float type, and the sum stays finite
    # in float16, whose largest number is 65504.
    return ops.cast(ops.logical_not(seen), "float32") * -10000.0


def last_places(padding_mask: Any) -> Any:
    """The place of the last token in each row of a padding mask [B, T], int32 [B]."""
    places = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    return ops.max(ops.where(ops.equal(padding_mask, 0), 0, places), axis=1)

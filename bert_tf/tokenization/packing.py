"""Token ids to model inputs: special tokens, truncation, padding, in ops that Serving links."""

from collections.abc import Sequence
from typing import Literal, get_args

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.strings import MANY, on_host
from bert_tf.tokenization.tokenizer import BertTokenizer

Truncation = Literal["longest_first", "first_only", "second_only"]


class Packer:
    """Packs one or two segments as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Args:
        tokenizer: provides the ids of [CLS], [SEP] and [PAD].
        max_length: maximum tokens per row, special tokens included.
        truncation: how to cut segments, at their end. "longest_first" removes one token at a time
            from the longer one, or from B if they are equal, as the original's
            `_truncate_seq_pair`. "first_only" cuts A, "second_only" B; then the other if need be.
        pad_to_max_length: whether to pad to `max_length`, a static shape, or to the longest row.

    Raises:
        InputError: `truncation` is unknown, or `max_length` too small for the special tokens.

    Example:
    >>> tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    >>> packer = Packer(tokenizer, max_length=8)
    >>> inputs = packer(tokenizer.tokenize(["a a a", "b"]), tokenizer.tokenize(["b b", ""]))
    >>> inputs["token_ids"].numpy().tolist()
    [[2, 5, 5, 5, 3, 6, 6, 3], [2, 6, 3, 3, 0, 0, 0, 0]]
    >>> inputs["segment_ids"].numpy().tolist()
    [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0, 0, 0]]
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        max_length: int,
        truncation: Truncation = "longest_first",
        pad_to_max_length: bool = False,
    ):
        if truncation not in (known := get_args(Truncation)):
            raise InputError(f"truncation is {truncation!r}; make it one of {', '.join(known)}")
        _check_room(max_length, special_tokens=2)
        self.max_length = max_length
        self.truncation = truncation
        self.pad_to_max_length = pad_to_max_length
        self._cls_sep = [tokenizer.cls_token_id, tokenizer.sep_token_id]
        self._pad = tokenizer.pad_token_id
        segment = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)]
        self._graphs = {
            number: tf.function(self._pack, input_signature=segment * number, autograph=False)
            for number in (1, 2)
        }

    @on_host
    def __call__(
        self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs a batch of first segments, int32 [batch, (pieces)], and of second ones, if any.

        Returns:
            int32 [batch, length] each: "token_ids"; "segment_ids", 1 for B and its [SEP]; and
            "padding_mask", 0 for padding.
        """
        segments = [ids_a] if ids_b is None else [ids_a, ids_b]
        _check_room(self.max_length, len(segments) + 1)
        parts = []
        for ids in segments:
            parts += [tf.cast(ids.flat_values, tf.int32), tf.cast(ids.row_splits, tf.int64)]
        is_many = tf.executing_eagerly() and len(parts[1]) > MANY
        inputs = (self._graphs[len(segments)] if is_many else self._pack)(*parts)
        if self.pad_to_max_length:
            for tensor in inputs.values():
                tensor.set_shape([None, self.max_length])
        return inputs

    @on_host
    def _pack(self, *parts: tf.Tensor) -> dict[str, tf.Tensor]:
        """Packs values int32 [pieces] and row splits int64 [batch + 1] of one or two segments."""
        values, splits = parts[::2], parts[1::2]
        offsets = [0, tf.size(values[0], tf.int64)]  # in the values of all segments
        starts = [row[:-1] + offset for row, offset in zip(splits, offsets, strict=False)]
        lengths = self.fitting_lengths(*(row[1:] - row[:-1] for row in splits))
        return self.pack_ranges(tf.concat(values, 0), starts, lengths)

    @on_host
    def pack_ranges(
        self, ids: tf.Tensor, starts: Sequence[tf.Tensor], lengths: Sequence[tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """Packs ranges of `ids`, int32 [pieces], that fit: [batch] of one or two segments."""
        specials = len(lengths) + 1
        total = tf.add_n(list(lengths)) + specials  # (B,)
        # Runs of ids to copy, in the order of a row: [CLS], A, [SEP] and, of a pair, B, [SEP].
        cls = tf.fill(tf.shape(total), tf.size(ids, total.dtype))
        single = tf.ones_like(total)
        first = [cls]
        size = [single]
        for start, length in zip(starts, lengths, strict=True):
            first += [start, cls + 1]
            size += [length, single]
        first, size = (tf.reshape(tf.stack(runs, 1), [-1]) for runs in (first, size))
        ids = tf.concat([ids, self._cls_sep], 0)
        ids = tf.gather(ids, tf.ragged.range(first, first + size).flat_values)
        width = self.max_length
        if not self.pad_to_max_length:  # an empty batch is as wide as the special tokens
            width = tf.reduce_max(tf.pad(total, [[0, 1]], constant_values=specials))
        mask = tf.sequence_mask(total, width, tf.int32)  # (B, T)
        segment = tf.zeros_like(mask)
        if len(lengths) > 1:  # 1 after [CLS] A [SEP]
            segment = mask - tf.sequence_mask(lengths[0] + 2, width, tf.int32)
        rows = tf.RaggedTensor.from_row_lengths(ids, total, validate=False)
        return {
            "token_ids": rows.to_tensor(self._pad, shape=tf.shape(mask, rows.row_splits.dtype)),
            "segment_ids": segment,
            "padding_mask": mask,
        }

    @on_host
    def truncated(self, *lengths: tf.Tensor) -> tf.Tensor:
        """Pieces that do not fit, int32 [batch], of segments with these lengths, int [batch]."""
        pieces = tf.add_n([tf.cast(segment, tf.int32) for segment in lengths])
        return tf.maximum(pieces + len(lengths) + 1 - self.max_length, 0)

    def fitting_lengths(self, *lengths: tf.Tensor) -> list[tf.Tensor]:
        """The lengths after truncation of one or two segments, [batch] each."""
        room = self.max_length - len(lengths) - 1
        if len(lengths) == 1:
            return [tf.minimum(lengths[0], room)]
        length_a, length_b = lengths
        # The longest A that is never cut: longest first leaves half of the room to each in the end,
        # and the odd token to A, as B loses ties.
        whole_a = {"longest_first": (room + 1) // 2, "first_only": 0, "second_only": room}
        length_a = tf.minimum(length_a, tf.maximum(room - length_b, whole_a[self.truncation]))
        return [length_a, tf.minimum(length_b, room - length_a)]


def _check_room(max_length: int, special_tokens: int) -> None:
    if max_length < special_tokens:
        raise InputError(
            f"max_length is {max_length}, but {special_tokens} tokens per row are special; "
            f"make it more than {special_tokens}"
        )

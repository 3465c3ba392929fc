"""Token ids to model inputs: special tokens, truncation and padding, in core TensorFlow ops."""

from typing import Literal, get_args

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tokenization.normalizer import on_host
from bert_tf.tokenization.tokenizer import BertTokenizer

Truncation = Literal["longest_first", "first_only", "second_only"]


class Packer:
    """Packs one or two segments as `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

    Uses core ops only, so that every released TensorFlow Serving can run it.

    Args:
        tokenizer: provides the ids of [CLS], [SEP] and [PAD].
        max_length: maximum tokens per row, special tokens included.
        truncation: how to cut long rows, at their end. "longest_first" removes one token at a time
            from the longer segment, or from B if they are equal, as `truncate_seq_pair` in the
            original `create_pretraining_data.py` and `_truncate_seq_pair` in `run_classifier.py`.
            "first_only" cuts A, and "second_only" B, and the other segment if that is not enough.
        pad_to_max_length: whether to pad to `max_length`, a static shape, or to the longest row.

    Raises:
        InputError: `truncation` is unknown, or `max_length` is below 2.

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
        if truncation not in get_args(Truncation):
            raise InputError(
                f"truncation is {truncation!r}; make it one of {', '.join(get_args(Truncation))}"
            )
        _check_room(max_length, special_tokens=2)
        self.max_length = max_length
        self.truncation = truncation
        self.pad_to_max_length = pad_to_max_length
        self._special_ids = [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]

    @on_host
    def __call__(
        self, ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs a batch.

        Args:
            ids_a: int32 [batch, (pieces)], first segments.
            ids_b: int32 [batch, (pieces)], second segments, if any.

        Returns:
            int32 [batch, length] each: "token_ids"; "segment_ids", 1 for B and its [SEP]; and
            "padding_mask", 0 for padding.

        Raises:
            InputError: `max_length` is too small for the three special tokens of a pair.
        """
        specials = 2 if ids_b is None else 3
        _check_room(self.max_length, specials)
        ids_a = ids_a.with_row_splits_dtype(tf.int64)
        length_a = ids_a.row_lengths()
        length_b = tf.zeros_like(length_a)
        if ids_b is not None:
            ids_b = ids_b.with_row_splits_dtype(tf.int64)
            length_b = ids_b.row_lengths()
        length_a, length_b = self._truncate(length_a, length_b, self.max_length - specials)

        total = length_a + length_b + specials  # (B,)
        width = self.max_length
        if not self.pad_to_max_length:  # an empty batch is as wide as the special tokens
            width = tf.reduce_max(tf.pad(total, [[0, 1]], constant_values=specials))
        position = tf.range(tf.cast(width, tf.int64))[tf.newaxis]  # (1, T)
        total, length_a = total[:, tf.newaxis], length_a[:, tf.newaxis]  # (B, 1)

        # Gather every token from one flat list: A's ids, B's ids, special ids.
        flat = [tf.cast(ids_a.flat_values, tf.int32)]
        start_a = ids_a.row_starts()[:, tf.newaxis]
        cls = start_b = tf.size(flat[0], tf.int64)
        if ids_b is not None:
            flat.append(tf.cast(ids_b.flat_values, tf.int32))
            start_b += ids_b.row_starts()[:, tf.newaxis]
            cls += tf.size(flat[1], tf.int64)
        flat.append(tf.constant(self._special_ids, tf.int32))
        sep, pad = cls + 1, cls + 2

        in_b = position - length_a - 2  # B begins after [CLS] A [SEP]
        place = tf.where(position <= length_a, start_a + position - 1, start_b + in_b)
        place = tf.where((in_b == -1) | (position == total - 1), sep, place)
        place = tf.where(position == 0, cls, place)
        is_token = position < total
        place = tf.where(is_token, place, pad)  # (B, T)
        inputs = {
            "token_ids": tf.gather(tf.concat(flat, 0), place),
            "segment_ids": tf.cast((in_b >= 0) & is_token, tf.int32),
            "padding_mask": tf.cast(is_token, tf.int32),
        }
        if self.pad_to_max_length:
            for tensor in inputs.values():
                tensor.set_shape([None, self.max_length])
        return inputs

    @on_host
    def truncated(self, *lengths: tf.Tensor) -> tf.Tensor:
        """The number of pieces that do not fit, int32 [batch].

        `lengths` are those of one or two segments before they are cut, int [batch] each.
        """
        pieces = tf.add_n([tf.cast(each, tf.int32) for each in lengths])
        return tf.maximum(pieces + len(lengths) + 1 - self.max_length, 0)

    def _truncate(
        self, length_a: tf.Tensor, length_b: tf.Tensor, room: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The remaining lengths of A and B, int64 [batch] each, at most `room` in total."""
        if self.truncation == "first_only":
            length_b = tf.minimum(length_b, room)
            return tf.minimum(length_a, room - length_b), length_b
        most_a: tf.Tensor | int = room
        if self.truncation == "longest_first":
            # In the end, the shorter segment is whole and the longer fills the room, or both have
            # half of it. B loses ties, so A has the odd token.
            most_a = tf.maximum(room - length_b, (room + 1) // 2)
        length_a = tf.minimum(length_a, most_a)
        return length_a, tf.minimum(length_b, room - length_a)


def _check_room(max_length: int, special_tokens: int) -> None:
    if max_length < special_tokens:
        raise InputError(
            f"max_length is {max_length}, but {special_tokens} tokens per row are special; "
            f"make it more than {special_tokens}"
        )

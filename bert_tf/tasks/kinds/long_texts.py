"""Texts longer than a row of the model: overlapping windows, whose outputs are pooled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.tasks.kinds.kind import Kind, RowKind
from bert_tf.tasks.signatures import AnswererProtocol, Tensors
from bert_tf.tasks.task_options import LongTextOptions
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows, windows

_POOL: Mapping[str, tuple[Callable, Callable]] = {  # for any order of windows, for theirs
    "mean": (tf.math.unsorted_segment_mean, tf.math.segment_mean),
    "max": (tf.math.unsorted_segment_max, tf.math.segment_max),
}


@dataclass(frozen=True)
class WindowedKind(Kind):
    """A kind that may read texts in windows, in training and in answers alike."""

    long_texts: str | None = None  # "windows", or None to cut
    doc_stride: int | None = None  # pieces between the starts of windows; half a window by default
    window_pooling: str | None = None  # "max", or "mean", the default

    options = LongTextOptions

    @property
    def reads_windows(self) -> bool:
        """Whether long texts are read in windows, so that nothing is cut."""
        return self.long_texts is not None

    def settings(self) -> dict[str, Any]:
        """Those of windows only where there are windows: other tasks refuse such options."""
        settings = super().settings()
        unused = ("doc_stride", "window_pooling") if self.long_texts is None else ()
        return {name: value for name, value in settings.items() if name not in unused}

    def stride(self, max_length: int) -> int:
        """Word pieces between the starts of windows; InputError if they would skip text."""
        size = max_length - 2  # without [CLS] and [SEP]
        stride = self.doc_stride or max(1, size // 2)
        if stride > size:
            raise InputError(
                f"--doc_stride {stride} is above the {size} word pieces of a window of "
                f"--max_length {max_length}, and would skip text: give at most {size}"
            )
        return stride

    def windows(
        self, ids: tf.RaggedTensor, tokenizer: Any, max_length: int
    ) -> tuple[Tensors, tf.Tensor, tf.Tensor]:
        """Rows [R, T] of B texts' pieces, the text of each, int64 [R], and windows a text [B]."""
        lengths = tf.cast(ids.row_lengths(), tf.int64)
        spans = windows(lengths, max_length - 2, self.stride(max_length))
        pieces = tf.gather(ids.flat_values, tf.ragged.range(spans.starts, spans.ends))
        return Packer(tokenizer, max_length)(pieces), spans.text_index, spans.counts

    def pooled(self, outputs: tf.Tensor, text_index: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Pools the outputs of windows [R, ...] to outputs of their texts [B, ...]."""
        return _POOL[self.window_pooling or "mean"][0](outputs, text_index, tf.size(counts))

    def padded_windows(self, ids: tf.RaggedTensor, tokenizer: Any, max_length: int) -> Tensors:
        """Rows [B, N, T], without a token where a text has fewer than N windows."""
        rows, _, counts = self.windows(ids, tokenizer, max_length)
        lists = tf.RaggedTensor.from_row_lengths(rows["token_ids"], counts, validate=False)
        return {name: lists.with_values(x).to_tensor() for name, x in rows.items()}

    def trained(self, model: Any) -> Any:
        """What a `Trainer` calls on the inputs of `batch`: the model, or one that pools windows."""
        if not self.reads_windows:
            return model
        pool = _POOL[self.window_pooling or "mean"][1]
        return _PooledWindows(model, self.row_outputs(model), pool)

    def row_outputs(self, model: Any) -> Callable:
        """The function from rows of windows to the outputs that are pooled."""
        return model


@dataclass(frozen=True)
class LongTextKind(WindowedKind, RowKind):
    """A kind of single texts that may be read in windows."""

    def batch(self, strings: Tensors, arrays: list[Any], tokenizer: Any, max_length: int) -> tuple:
        if self.long_texts is None:
            return super().batch(strings, arrays, tokenizer, max_length)
        (ids,) = self.pieces(strings, tokenizer)
        return (self.padded_windows(ids, tokenizer, max_length), *arrays)

    def respond(self, strings: Tensors, answerer: AnswererProtocol) -> Tensors:
        if self.long_texts is None:
            return super().respond(strings, answerer)
        (ids,) = self.pieces(strings, answerer.tokenizer)
        rows, text_index, counts = self.windows(ids, answerer.tokenizer, answerer.max_length)
        outputs = self.pooled(map_rows(answerer.predict, rows), text_index, counts)
        return {
            **self.answers(outputs, answerer.labels),
            "truncated": tf.zeros_like(counts, tf.int32),
        }


class _PooledWindows:
    """In training, a model of rows as one of texts: [..., N, T] to pooled outputs [..., W]."""

    def __init__(self, model: Any, outputs: Callable, pool: Callable) -> None:
        self._model = model
        self._outputs = outputs
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: Tensors, training: bool = False) -> Any:
        mask = inputs["padding_mask"]
        is_window = tf.reduce_any(mask != 0, -1)  # (..., N)
        rows = {name: tf.boolean_mask(x, is_window) for name, x in inputs.items()}  # (R, T)
        text_index = tf.where(tf.reshape(is_window, [-1, tf.shape(is_window)[-1]]))[:, 0]
        pooled = self._pool(self._outputs(rows, training=training), text_index)
        # A text has a window at least, if only an empty one.
        texts = mask.shape[:-2]
        output_shape = pooled.shape[1:]
        pooled = tf.reshape(pooled, tf.concat([tf.shape(mask)[:-2], output_shape], 0))
        return tf.ensure_shape(pooled, [*texts, *output_shape])

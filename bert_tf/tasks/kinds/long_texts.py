"""Texts longer than a row of the model: overlapping windows, whose outputs are pooled."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.serving.explanations import explain
from bert_tf.serving.signatures import DEFAULT, Parts, Signature, Tensors
from bert_tf.tasks.kinds.kind import RowKind
from bert_tf.tasks.task import Task
from bert_tf.tasks.task_options import LongTextOptions
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.windows import map_rows, windows

_POOL: Mapping[str, tuple[Callable, Callable]] = {  # for any order of windows, for theirs
    "mean": (tf.math.unsorted_segment_mean, tf.math.segment_mean),
    "max": (tf.math.unsorted_segment_max, tf.math.segment_max),
}


@dataclass(frozen=True)
class LongTextKind(RowKind):
    """A kind of single texts that may be read in windows, in training and in answers alike."""

    long_texts: str | None = None  # "windows", or None to cut
    doc_stride: int | None = None  # pieces between the starts of windows; half a window by default
    window_pooling: str | None = None  # "max", or "mean", the default

    options = LongTextOptions

    @property
    def reads_windows(self) -> bool:
        return self.long_texts is not None

    def settings(self) -> dict[str, Any]:
        """Those of windows only where there are windows: other tasks refuse such options."""
        own = super().settings()
        of_windows = ("doc_stride", "window_pooling") if self.long_texts is None else ()
        return {name: value for name, value in own.items() if name not in of_windows}

    def check_training(self, options: Any, batch_size: int, validation: Any) -> None:
        if self.long_texts is None:
            return
        self._stride(options.max_length)
        if "text_pair" in validation.columns:
            raise InputError(
                "--long_texts windows is for single texts, not for pairs: leave it out"
            )
        if options.jit_compile is True or options.strategy == "tpu":
            raise InputError(
                "--long_texts windows makes batches of any number of rows, which neither XLA nor "
                "TPUs can: leave --jit_compile and --strategy tpu out"
            )

    def _stride(self, max_length: int) -> int:
        size = max_length - 2  # without [CLS] and [SEP]
        stride = self.doc_stride or max(1, size // 2)
        if stride > size:
            raise InputError(
                f"--doc_stride {stride} is above the {size} word pieces of a window of "
                f"--max_length {max_length}, and would skip text: give at most {size}"
            )
        return stride

    def _windows(
        self, strings: Tensors, tokenizer: Any, max_length: int
    ) -> tuple[Tensors, tf.Tensor, tf.Tensor]:
        """Rows [R, T] of all texts, the text of each, int64 [R], and windows a text, int64 [B]."""
        (ids,) = self.pieces(strings, tokenizer)
        lengths = tf.cast(ids.row_lengths(), tf.int64)
        found = windows(lengths, max_length - 2, self._stride(max_length))
        pieces = tf.gather(ids.flat_values, tf.ragged.range(found.starts, found.ends))
        return Packer(tokenizer, max_length)(pieces), found.text, found.counts

    def batch(self, strings: Tensors, arrays: list[Any], tokenizer: Any, max_length: int) -> tuple:
        """Inputs are [B, N, T], without a token where a text has fewer than N windows."""
        if self.long_texts is None:
            return super().batch(strings, arrays, tokenizer, max_length)
        rows, _, counts = self._windows(strings, tokenizer, max_length)
        inputs = {
            name: tf.RaggedTensor.from_row_lengths(x, counts, validate=False).to_tensor()
            for name, x in rows.items()
        }
        return (inputs, *arrays)

    def trained(self, model: Any) -> Any:
        if self.long_texts is None:
            return model
        return _OfWindows(model, _POOL[self.window_pooling or "mean"][1])

    def respond(self, strings: Tensors, parts: Parts) -> Tensors:
        if self.long_texts is None:
            return super().respond(strings, parts)
        rows, text, counts = self._windows(strings, parts.tokenizer, parts.max_length)
        pool, _ = _POOL[self.window_pooling or "mean"]
        outputs = pool(map_rows(parts.predict, rows), text, tf.size(counts))
        nothing = tf.zeros_like(counts, tf.int32)
        return {**self.answers(outputs, parts.labels), "truncated": nothing}

    def explanation(self, task: Task) -> Signature | None:
        if not self.has_probabilities or self.long_texts is not None:
            return None
        respond = functools.partial(explain, pieces=self.pieces, answers=self.answers)
        return Signature(self.signatures(task)[DEFAULT].inputs, respond)


class _OfWindows:
    """A model of rows, in training, as one of texts: [B, N, T] to pooled outputs [B, ...]."""

    def __init__(self, model: Any, pool: Callable[[Any, Any], Any]) -> None:
        self._model, self._pool = model, pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: Tensors, training: bool = False) -> Any:
        is_window = tf.reduce_any(inputs["padding_mask"] != 0, -1)  # (B, N)
        rows = {name: tf.boolean_mask(x, is_window) for name, x in inputs.items()}  # (R, T)
        pooled = self._pool(self._model(rows, training=training), tf.where(is_window)[:, 0])
        # A text has a window at least, if only an empty one.
        return tf.ensure_shape(pooled, [inputs["padding_mask"].shape[0], *pooled.shape[1:]])

"""Keras losses and metrics of the tasks, as `compile` takes them.

They are means over all weights of a batch, as those of `bert-tf finetune` are: a word counts as
much in a short sentence as in a long one.
"""

from typing import Any

import keras
from keras import ops

_MEAN = "mean_with_sample_weight"


def classes_loss() -> keras.losses.Loss:
    """Cross-entropy of labels int [...] and logits [..., C]."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=_MEAN)


def classes_metrics() -> list[Any]:
    """The share of right labels."""
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def labels_loss() -> keras.losses.Loss:
    """Binary cross-entropy of labels 0 or 1 [B, C], each on its own, and logits [B, C]."""
    return keras.losses.BinaryCrossentropy(from_logits=True, reduction=_MEAN)


def labels_metrics() -> list[Any]:
    """The share of right decisions, of all labels, where a probability of 0.5 decides."""
    return [LabelAccuracy(name="accuracy")]


def squared_error() -> keras.losses.Loss:
    """Mean squared error of numbers [B]."""
    return keras.losses.MeanSquaredError(reduction=_MEAN)


@keras.saving.register_keras_serializable(package="bert_tf")
class SpanCrossentropy(keras.losses.Loss):
    """Mean cross-entropy of starts and ends, int [B, 2], for logits [B, T, 2] (section 4.2)."""

    def __init__(self, reduction: str = _MEAN, name: str = "span_crossentropy", **kwargs: Any):
        super().__init__(name=name, reduction=reduction, **kwargs)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits = ops.transpose(ops.cast(y_pred, "float32"), (0, 2, 1))  # (B, 2, T)
        losses = ops.sparse_categorical_crossentropy(y_true, logits, from_logits=True)
        return ops.mean(losses, axis=-1)  # (B,)


class _Accuracy(keras.metrics.MeanMetricWrapper):
    """The mean of a share of right answers of each example."""

    def __init__(self, right: Any, name: str, dtype: Any = None):
        super().__init__(right, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


@keras.saving.register_keras_serializable(package="bert_tf")
class SpanAccuracy(_Accuracy):
    """The share of right starts and ends."""

    def __init__(self, name: str = "span_accuracy", dtype: Any = None):
        super().__init__(_right_places, name, dtype)


@keras.saving.register_keras_serializable(package="bert_tf")
class LabelAccuracy(_Accuracy):
    """The share of right decisions, of labels 0 or 1 [B, C] and logits [B, C]."""

    def __init__(self, name: str = "label_accuracy", dtype: Any = None):
        super().__init__(_right_labels, name, dtype)


def _right_labels(y_true: Any, y_pred: Any) -> Any:
    right = ops.equal(ops.greater(y_pred, 0), ops.greater(ops.cast(y_true, y_pred.dtype), 0.5))
    return ops.mean(ops.cast(right, "float32"), axis=-1)


def _right_places(y_true: Any, y_pred: Any) -> Any:
    found = ops.argmax(ops.transpose(y_pred, (0, 2, 1)), axis=-1)  # (B, 2)
    return ops.mean(ops.cast(ops.equal(found, ops.cast(y_true, found.dtype)), "float32"), axis=-1)

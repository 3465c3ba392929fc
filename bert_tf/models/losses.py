"""Keras losses and metrics of the tasks, as `compile` takes them.

Means over all weights of a batch: a word counts as much in a short sentence as in a long one.
"""

from functools import partial
from typing import Any

import keras
from keras import ops

_MEAN = "mean_with_sample_weight"
_OF_LOGITS: Any = {"from_logits": True, "reduction": _MEAN}

# Labels int [...] and logits [..., C]; labels 0 or 1 [B, C] and logits [B, C]; numbers [B].
classes_loss = partial(keras.losses.SparseCategoricalCrossentropy, **_OF_LOGITS)
labels_loss = partial(keras.losses.BinaryCrossentropy, **_OF_LOGITS)
squared_error = partial(keras.losses.MeanSquaredError, reduction=_MEAN)


def classes_metrics() -> list[Any]:
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


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
    """The mean of `right`, the share of right answers of each example."""

    right: Any

    def __init__(self, name: str = "accuracy", dtype: Any = None):
        super().__init__(self.right, name=name, dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


@keras.saving.register_keras_serializable(package="bert_tf")
class SpanAccuracy(_Accuracy):
    """The share of right starts and ends, int [B, 2], for logits [B, T, 2]."""

    @staticmethod
    def right(y_true: Any, y_pred: Any) -> Any:
        found = ops.argmax(ops.transpose(y_pred, (0, 2, 1)), axis=-1)  # (B, 2)
        is_right = ops.equal(found, ops.cast(y_true, found.dtype))
        return ops.mean(ops.cast(is_right, "float32"), axis=-1)


@keras.saving.register_keras_serializable(package="bert_tf")
class LabelAccuracy(_Accuracy):
    """The share of right decisions, at a probability of 0.5, of labels 0 or 1 [B, C]."""

    @staticmethod
    def right(y_true: Any, y_pred: Any) -> Any:
        is_on = ops.greater(ops.cast(y_true, y_pred.dtype), 0.5)
        is_right = ops.equal(ops.greater(y_pred, 0), is_on)
        return ops.mean(ops.cast(is_right, "float32"), axis=-1)

"""Keras losses of the tasks, as `compile` takes them, and metrics of their answers."""

import inspect
from functools import partial
from typing import Any

import keras
from keras import ops

from bert_tf.errors import InputError

_OF_PROBABILITIES = (
    "KLDivergence",
    "CategoricalGeneralizedCrossEntropy",
    "Dice",
    "Tversky",
    "kl_divergence",
    "categorical_generalized_cross_entropy",
    "dice",
    "tversky",
)

# Labels int [B] and logits [B, C]; labels 0 or 1 [B, C] and logits [B, C]; numbers [B].
classes_loss = partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
labels_loss = partial(keras.losses.BinaryCrossentropy, from_logits=True)
squared_error = keras.losses.MeanSquaredError


def of_logits(loss: Any, new_loss: Any) -> Any:
    """A loss, a name or a function of Keras for outputs that are logits; `new_loss` is the task's.

    Names and functions would take the outputs for probabilities; InputError for losses that do.
    """
    if isinstance(loss, dict | list | tuple):
        return keras.tree.map_structure(lambda leaf: of_logits(leaf, new_loss), loss)
    if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):
        return new_loss()
    keras_loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    name = getattr(keras_loss, "__name__", type(keras_loss).__name__)
    is_keras = getattr(keras_loss, "__module__", "").startswith("keras.")
    if is_keras and name in _OF_PROBABILITIES:
        raise InputError(
            f"the loss {name} compares probabilities, and the model's outputs are logits: give a "
            "loss with from_logits=True, such as keras.losses.CategoricalCrossentropy"
        )
    if inspect.isfunction(keras_loss):
        if is_keras and "from_logits" in inspect.signature(keras_loss).parameters:
            return getattr(keras.losses, name.title().replace("_", ""))(from_logits=True)
        return loss
    if getattr(keras_loss, "_fn_kwargs", {}).get("from_logits") is False:
        if isinstance(loss, str):
            return type(keras_loss)(from_logits=True)
        raise InputError(
            f"the loss {name} has from_logits=False, and the model's outputs are logits: give it "
            "from_logits=True"
        )
    return loss


@keras.saving.register_keras_serializable(package="bert_tf")
class WordCrossentropy(keras.losses.Loss):
    """Mean cross-entropy of words, int [B, T], for logits [B, T, C].

    Words of weight 0 are padding: the sum of weighted losses is divided by the number of others.
    """

    def __init__(self, name: str = "word_crossentropy", **kwargs: Any):
        super().__init__(name=name, **{"reduction": "mean_with_sample_weight", **kwargs})

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        loss = super().__call__(y_true, y_pred, sample_weight)  # over the sum of the weights
        if sample_weight is None:
            return loss
        weights = ops.cast(sample_weight, loss.dtype)
        count = ops.sum(ops.cast(ops.not_equal(weights, 0), loss.dtype))
        return loss * ops.divide_no_nan(ops.sum(weights), count)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return ops.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


@keras.saving.register_keras_serializable(package="bert_tf")
class SpanCrossentropy(keras.losses.Loss):
    """Mean cross-entropy of starts and ends, int [B, 2], for logits [B, T, 2] (section 4.2)."""

    def __init__(self, name: str = "span_crossentropy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

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
    """The share of right starts and ends, int [B, 2], for logits [B, T, 2]; of older files."""

    @staticmethod
    def right(y_true: Any, y_pred: Any) -> Any:
        spans = ops.argmax(ops.transpose(y_pred, (0, 2, 1)), axis=-1)  # (B, 2)
        is_right = ops.equal(spans, ops.cast(y_true, spans.dtype))
        return ops.mean(ops.cast(is_right, "float32"), axis=-1)


@keras.saving.register_keras_serializable(package="bert_tf")
class LabelAccuracy(_Accuracy):
    """The share of right decisions, at a probability of 0.5, of labels 0 or 1 [B, C]."""

    @staticmethod
    def right(y_true: Any, y_pred: Any) -> Any:
        is_on = ops.greater(ops.cast(y_true, y_pred.dtype), 0.5)
        is_right = ops.equal(ops.greater(y_pred, 0), is_on)
        return ops.mean(ops.cast(is_right, "float32"), axis=-1)

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


def logits_loss(loss: Any, new_loss: Any) -> Any:
    """A loss, a name or a function of Keras for outputs that are logits; `new_loss` is the task's.

    Names and functions would take the outputs for probabilities; InputError for losses that do.
    """
    if isinstance(loss, dict | list | tuple):
        return keras.tree.map_structure(lambda leaf: logits_loss(leaf, new_loss), loss)
    if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):
        return new_loss()
    keras_loss = keras.losses.get(loss) if isinstance(loss, str) else loss
    function = keras_loss.func if isinstance(keras_loss, partial) else keras_loss
    name = getattr(function, "__name__", type(function).__name__)
    is_keras = _is_keras(keras_loss)
    if is_keras and name in _OF_PROBABILITIES:
        raise InputError(
            f"the loss {name} compares probabilities, and the model's outputs are logits: give a "
            "loss with from_logits=True, such as keras.losses.CategoricalCrossentropy"
        )
    settings = getattr(keras_loss, "_fn_kwargs", {})
    if inspect.isfunction(function):
        if not is_keras or "from_logits" not in inspect.signature(function).parameters:
            return loss
        if function is keras_loss:
            return getattr(keras.losses, name.title().replace("_", ""))(from_logits=True)
        settings = {"from_logits": False, **keras_loss.keywords}
    if settings.get("from_logits") is False:
        if isinstance(loss, str):
            return type(keras_loss)(from_logits=True)
        raise InputError(
            f"the loss {name} has from_logits=False, and the model's outputs are logits: give it "
            "from_logits=True"
        )
    return loss


def labelled(y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Labels and weights, float32 [B, T], of words, for logits [B, T, C].

    A word whose label is -100 has none, as in Hugging Face: it gets the weight 0.
    """
    y_true = ops.convert_to_tensor(y_true)
    shape = ops.shape(y_pred)[:-1]
    weights = ops.cast(1.0 if sample_weight is None else sample_weight, "float32")
    missing = (1,) * (len(shape) - len(weights.shape))
    weights = ops.reshape(weights, (*ops.shape(weights)[: len(shape)], *missing))
    weights = ops.broadcast_to(weights, shape)
    if len(y_true.shape) != len(shape):  # one-hot
        return y_true, weights
    has_label = ops.not_equal(y_true, -100)
    return ops.where(has_label, y_true, 0), ops.where(has_label, weights, 0.0)


class _OtherLoss(keras.losses.Loss):
    """Another loss, an object or a function, of what `adapt` makes of labels and outputs."""

    def __init__(self, loss: Any):
        self.loss = keras.losses.get(loss)
        reduction = getattr(self.loss, "reduction", "sum_over_batch_size")
        super().__init__(getattr(self.loss, "name", None), reduction)

    def adapt(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        raise NotImplementedError

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        arguments = self.adapt(y_true, y_pred, sample_weight)
        is_object = isinstance(self.loss, keras.losses.Loss)
        return self.loss(*arguments) if is_object else super().__call__(*arguments)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.loss(y_true, y_pred)


class WordLoss(_OtherLoss):
    """A loss of words, as of `labelled`, in whose mean words of weight 0, or padding, do not count.

    The mean is the sum of the weighted losses over the number of the other words.
    """

    def adapt(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        y_true, weights = labelled(y_true, y_pred, sample_weight)
        if self.reduction in ("sum_over_batch_size", "mean"):  # Keras divides by all words
            share = ops.mean(ops.cast(ops.not_equal(weights, 0), "float32"))
            weights = ops.divide_no_nan(weights, share)
        return y_true, y_pred, weights


class NumberLoss(_OtherLoss):
    """A loss of numbers [B]; Keras' losses take the mean over the last axis, of columns [B, 1]."""

    def adapt(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        return ops.reshape(y_true, (-1, 1)), ops.reshape(y_pred, (-1, 1)), sample_weight


def adapted(loss: Any, kind: str | None) -> Any:
    """A loss as the outputs of a kind need it (`bert_tf.models.compiled_model`)."""
    if kind == "words" and loss is not None:
        return WordLoss(loss)
    return NumberLoss(loss) if kind == "numbers" and _is_keras(loss) else loss


def _is_keras(loss: Any) -> bool:
    """Whether a loss, a name or a function is Keras' own."""
    function = loss.func if isinstance(loss, partial) else keras.losses.get(loss)
    return getattr(function, "__module__", "").startswith("keras.")


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

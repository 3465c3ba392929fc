"""Keras' metrics for models whose outputs are logits, as `compile` takes them.

The scores of tasks are in `bert_tf.tasks.scoring.metrics`.

An output has a kind, which says how metrics read it:
    "classes": labels int [...], logits [..., C].
    "words": the same, for tokens; tokens of weight 0 are padding and never count.
    "labels": labels 0 or 1 [B, C], a logit for each.
    "spans": starts and ends, int [B, 2], logits [B, T, 2].
    "numbers": numbers [B], as columns [B, 1] to metrics without an axis.
"""

import functools
from typing import Any

import keras
from keras import ops

from bert_tf.networks.losses import LabelAccuracy, labelled


def adapt_metrics(model: Any, metrics: Any, weighted: Any) -> tuple[Any, Any]:
    """A model's metrics and weighted metrics, as `compile` takes them, adapted to its outputs."""
    kinds = model.output_kind
    if kinds is None:
        return metrics, weighted
    if isinstance(kinds, str):
        return _of_output(kinds, metrics, weighted)
    by_name: list[Any] = []
    for value in (metrics, weighted):
        if isinstance(value, list | tuple):
            if len(value) != len(kinds):
                return metrics, weighted  # Keras says what it expects
            value = dict(zip(sorted(kinds), value, strict=True))  # the order of Keras
        by_name.append(value or {})
    adapted = {n: _of_output(kind, *(x.get(n) for x in by_name)) for n, kind in kinds.items()}
    plain, extra = ({n: pair[i] for n, pair in adapted.items() if pair[i]} for i in (0, 1))
    return plain or None, extra or None


def _of_output(kind: str, metrics: Any, weighted: Any) -> tuple[Any, Any]:
    """An output's metrics; metrics of words are weighted ones to Keras, to leave padding out."""

    def adapted(metrics: Any, is_weighted: bool) -> list[Any]:
        flat = [metric for metric in keras.tree.flatten(metrics) if metric is not None]
        return [adapt(metric, kind, is_weighted=is_weighted) for metric in flat]

    plain = adapted(metrics, False)
    extra = adapted(weighted, True)
    if kind != "words":
        return plain or None, extra or None
    for metric in extra:
        if metric.name in {other.name for other in plain}:
            metric.name = f"weighted_{metric.name}"  # as Keras names it beside the other
    return None, [*plain, *extra] or None


def adapt(metric: Any, kind: str, *, is_weighted: bool) -> Any:
    """A metric, from one of Keras, a name or a function, for outputs of a kind.

    "accuracy" is the task's. Keras' own metrics get probabilities, and one-hot labels unless they
    are sparse ones. Metrics of true and false positives, such as `AUC`, count label number 1 where
    there are two. Others get labels and logits.
    """
    name = metric if isinstance(metric, str) else ""
    if name.lower() in ("accuracy", "acc") and kind != "numbers":
        accuracy = LabelAccuracy if kind == "labels" else keras.metrics.SparseCategoricalAccuracy
        metric = accuracy(name=name)
    else:
        metric = keras.metrics.get(metric)
        name = name or getattr(metric, "name", None) or metric.__name__
    is_users = not getattr(metric, "__module__", "").startswith("keras.")
    if not isinstance(metric, keras.metrics.Metric):
        metric = keras.metrics.MeanMetricWrapper(metric)
    metric.name = name
    update = functools.partial(type(metric).update_state, metric)

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true = ops.convert_to_tensor(y_true)
        y_pred = ops.cast(y_pred, "float32")
        if kind == "words":
            y_true, sample_weight = labelled(y_true, y_pred, sample_weight)
            if not is_weighted:
                sample_weight = ops.not_equal(sample_weight, 0)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
        if not is_users and kind == "numbers":
            if metric.get_config().get("axis") is None:  # else of all examples, on either axis
                y_true = ops.reshape(y_true, (-1, 1))
                y_pred = ops.reshape(y_pred, (-1, 1))
        elif not is_users:
            if kind in ("words", "spans"):
                y_true, y_pred, sample_weight = _in_one_row(kind, y_true, y_pred, sample_weight)
            y_true, y_pred = _compared(metric, kind, y_true, y_pred)
        return update(y_true, y_pred, sample_weight=sample_weight)

    metric.update_state = update_state
    return metric


def _in_one_row(kind: str, y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Labels [N], logits [N, C] and weights [N] of all words, or of starts and ends."""
    if kind == "spans":
        y_pred = ops.transpose(y_pred, (0, 2, 1))  # (B, 2, T)
    if sample_weight is not None:
        missing = (1,) * (len(y_true.shape) - len(sample_weight.shape))
        sample_weight = ops.reshape(sample_weight, (*ops.shape(sample_weight), *missing))
        sample_weight = ops.reshape(ops.broadcast_to(sample_weight, ops.shape(y_true)), (-1,))
    logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))
    return ops.reshape(y_true, (-1,)), logits, sample_weight


def _compared(metric: Any, kind: str, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Labels and outputs as one of Keras' metrics compares them."""
    takes_logits = getattr(metric, "from_logits", getattr(metric, "_from_logits", False))
    if kind == "labels":
        return y_true, y_pred if takes_logits else ops.sigmoid(y_pred)
    logits = y_pred
    count = ops.shape(logits)[-1]
    y_pred = logits if takes_logits else ops.softmax(logits)
    is_one_hot = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] != 1
    if len(y_true.shape) == len(y_pred.shape) and not is_one_hot:  # a column
        y_true = ops.squeeze(y_true, -1)
    if type(metric).__name__.startswith("Sparse"):
        return ops.argmax(y_true, -1) if is_one_hot else y_true, y_pred
    if not is_one_hot:
        y_true = ops.equal(ops.cast(y_true, "int32")[..., None], ops.arange(count, dtype="int32"))
    y_true = ops.cast(y_true, "float32")
    modules = {base.__module__.rpartition(".")[2] for base in type(metric).__mro__}
    chooses = getattr(metric, "class_id", None) is not None
    chooses |= bool(getattr(metric, "multi_label", False))
    if "confusion_metrics" in modules and count == 2 and not chooses:
        y_pred = logits[..., 1] - logits[..., 0] if takes_logits else y_pred[..., 1]
        return y_true[..., 1], y_pred
    return y_true, y_pred

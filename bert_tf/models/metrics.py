"""Keras' metrics for models whose outputs are logits, as `compile` takes them.

An output has a kind, which says how metrics read it:
    "classes": labels int [...], logits [..., C].
    "words": the same, for tokens; those of weight 0 are padding and never count.
    "labels": labels 0 or 1 [B, C], a logit for each.
    "spans": starts and ends, int [B, 2], logits [B, T, 2].
"""

import functools
from typing import Any

import keras
from keras import ops

from bert_tf.networks.losses import LabelAccuracy


def of_model(model: Any, metrics: Any, weighted: Any) -> tuple[Any, Any]:
    """A model's metrics and weighted metrics, as of `compile`, adapted to its outputs' kinds."""
    kinds = model.output_kind
    if kinds is None:
        return metrics, weighted
    if isinstance(kinds, str):
        return _of_one(kinds, metrics, weighted)
    given: list[Any] = []
    for each in (metrics, weighted):
        if isinstance(each, list | tuple):
            if len(each) != len(kinds):
                return metrics, weighted  # Keras says what it expects
            each = dict(zip(sorted(kinds), each, strict=True))  # the order of Keras
        given.append(each or {})
    adapted = {n: _of_one(kind, *(each.get(n) for each in given)) for n, kind in kinds.items()}
    plain, more = ({n: own[i] for n, own in adapted.items() if own[i]} for i in (0, 1))
    return plain or None, more or None


def _of_one(kind: str, metrics: Any, weighted: Any) -> tuple[Any, Any]:
    """Those of an output; metrics of words are weighted ones to Keras, to leave padding out."""
    plain, more = (
        [
            of_outputs(each, kind, is_weighted=is_weighted)
            for each in keras.tree.flatten(given)
            if each is not None
        ]
        for given, is_weighted in ((metrics, False), (weighted, True))
    )
    if kind != "words":
        return plain or None, more or None
    for each in more:
        if each.name in {other.name for other in plain}:
            each.name = f"weighted_{each.name}"  # as Keras names it beside the other
    return None, [*plain, *more] or None


def of_outputs(given: Any, kind: str, *, is_weighted: bool) -> Any:
    """A metric, a name or a function for outputs of a kind; "accuracy" is that of the task.

    Keras' own metrics get probabilities, and one-hot labels unless they are sparse ones. Those of
    true and false positives, such as `AUC`, are of label number 1 where there are two. Others get
    labels and logits.
    """
    if isinstance(given, str) and given.lower() in ("accuracy", "acc"):
        is_many = kind == "labels"
        found = (LabelAccuracy if is_many else keras.metrics.SparseCategoricalAccuracy)(name=given)
    else:
        found = keras.metrics.get(given)
    is_own = not getattr(found, "__module__", "").startswith("keras.")
    name = given if isinstance(given, str) else getattr(found, "name", None) or found.__name__
    if not isinstance(found, keras.metrics.Metric):
        found = keras.metrics.MeanMetricWrapper(found)
    metric: Any = found
    metric.name = name
    update = functools.partial(type(metric).update_state, metric)

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.cast(y_pred, "float32")
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, "float32")
            if kind == "words" and not is_weighted:
                sample_weight = ops.cast(ops.not_equal(sample_weight, 0), "float32")
        if not is_own:
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
    return (
        ops.reshape(y_true, (-1,)),
        ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1])),
        sample_weight,
    )


def _compared(metric: Any, kind: str, y_true: Any, y_pred: Any) -> tuple[Any, Any]:
    """Labels and outputs as one of Keras' metrics compares them."""
    of_logits = getattr(metric, "from_logits", getattr(metric, "_from_logits", False))
    if kind == "labels":
        return y_true, y_pred if of_logits else ops.sigmoid(y_pred)
    logits, count = y_pred, ops.shape(y_pred)[-1]
    y_pred = logits if of_logits else ops.softmax(logits)
    is_one_hot = len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] != 1
    if len(y_true.shape) == len(y_pred.shape) and not is_one_hot:  # a column
        y_true = ops.squeeze(y_true, -1)
    if type(metric).__name__.startswith("Sparse"):
        return ops.argmax(y_true, -1) if is_one_hot else y_true, y_pred
    if not is_one_hot:
        y_true = ops.equal(ops.cast(y_true, "int32")[..., None], ops.arange(count, dtype="int32"))
    y_true = ops.cast(y_true, "float32")
    homes = {base.__module__.rpartition(".")[2] for base in type(metric).__mro__}
    is_chosen = getattr(metric, "class_id", None) is not None
    is_chosen |= bool(getattr(metric, "multi_label", False))
    if "confusion_metrics" in homes and count == 2 and not is_chosen:
        return y_true[..., 1], logits[..., 1] - logits[..., 0] if of_logits else y_pred[..., 1]
    return y_true, y_pred

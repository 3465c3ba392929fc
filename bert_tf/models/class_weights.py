"""Weights of classes and examples, as `fit` takes them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.errors import InputError


def weights_by_number(class_weight: Mapping[Any, float], labels: Sequence[str]) -> list[float]:
    """The weight of each label, by its name or number; 1 for those without, as in Keras."""
    weights = [1.0] * len(labels)
    for label, weight in class_weight.items():
        number = labels.index(label) if label in labels else label
        if not isinstance(number, int | np.integer) or not 0 <= number < len(labels):
            raise InputError(
                f"a label of class_weight is {label!r}, none of the model's "
                f"({', '.join(labels)}): correct it, or open the model with these labels"
            )
        weights[number] = checked_weight(weight, f"class_weight of {label!r}")
    return weights


def checked_weight(value: Any, name: str) -> float:
    """A weight, a number of at least 0; InputError for others."""
    try:
        weight = float(value)
    except (TypeError, ValueError):
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise InputError(f"{name} is {value!r:.40}: give a number of at least 0")
    return weight


def check_weights(sample_weight: Any) -> None:
    """Refuses arrays of weights that have a negative or non-finite one."""
    for array in keras.tree.flatten(sample_weight):
        weights = np.asarray(0.0 if array is None else array).reshape(-1)
        if weights.dtype.kind in "iuf":
            for index in np.flatnonzero(~((weights >= 0) & (weights < np.inf))):
                checked_weight(weights[index].item(), f"sample_weight {index}")


def weights_of_labels(y: Any, sample_weight: Any, weights: Sequence[float], kind: str) -> Any:
    """Weights of an array of labels, int [...] or one-hot [B, C], times those of the examples."""
    ids = np.asarray(y)
    if kind == "classes" and ids.ndim > 1:
        ids = ids[:, 0] if ids.shape[1] == 1 else ids.argmax(-1)
    label_weights = np.asarray(weights, "float32")[ids.astype("int32")]
    if sample_weight is None:
        return label_weights
    own = np.asarray(sample_weight, "float32")
    return label_weights * own.reshape(own.shape + (1,) * (label_weights.ndim - own.ndim))

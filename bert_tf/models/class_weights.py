"""Classes by name or number, and weights of classes and examples, as `fit` takes them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from bert_tf.errors import InputError

BALANCED = "balanced"


def class_of(
    value: Any,
    labels: Sequence[str],
    name: str,
    aliases: Mapping[str, str] | None = None,
    *,
    by_place: bool = True,
) -> str:
    """A label's name, by its name, or by the number that is its value or else its place.

    A number is a place only where no label has a value, and a boolean never.
    """
    known = ", ".join(labels)
    if isinstance(value, bool | int | float | np.number | np.bool_):
        values = values_of(labels)
        equal = [label for label, x in zip(labels, values, strict=True) if x == float(value)]
        if equal:  # of labels of one value, such as 1 and 1.0, that which is written in this way
            return str(value) if str(value) in equal else equal[0]
        is_flag = isinstance(value, bool | np.bool_)
        if is_flag or not np.isnan(values).all():
            raise InputError(
                f"{name} is {value}, the value of none of the model's labels ({known}): give one "
                "of their names"
            )
        if isinstance(value, int | np.integer):
            if not by_place:
                raise InputError(
                    f"{name} is {value}, and the labels have names ({known}), which other data "
                    "number otherwise: give their names"
                )
            if 0 <= value < len(labels):
                return labels[int(value)]
            raise InputError(
                f"{name} is {value}: the model's {len(labels)} labels ({known}) have the numbers "
                f"0 to {len(labels) - 1}"
            )
    if not isinstance(value, str):
        cure = "labels.astype(int)"
        if isinstance(value, list | tuple | np.ndarray):
            cure = "labels.argmax(-1), or compile the model with a loss of such targets"
        raise InputError(
            f"{name} is {value!r:.40}: give a label's name or its number as an integer, such as "
            f"{cure}"
        )
    value = (aliases or {}).get(value, value)
    if value not in labels:
        raise InputError(
            f"{name} is {value!r}, none of the model's ({known}): correct it, or open the model "
            "with these labels"
        )
    return value


def values_of(labels: Sequence[str]) -> np.ndarray:
    """The numbers that labels are names of, such as 1.0 or +1, True being 1: float64 [C] with NaN.

    A number in place of a label means the label of this value.
    """
    flags = {"true": 1.0, "false": 0.0}
    names = [label.strip().lower() for label in labels]
    number = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?")
    values = [float(x) if number.fullmatch(x) else flags.get(x, math.nan) for x in names]
    return np.array(values, np.float64)


def class_weights(targets: np.ndarray) -> np.ndarray:
    """Weights, float32, that give each class the same total weight.

    For class ids [R], weights [R] whose mean is 1. For marks 0 and 1 [R, C], weights [R, C] with
    which the examples that have a label count as much as those that lack it.
    """
    if targets.ndim == 1 and targets.dtype.kind == "i":
        _, numbers, counts = np.unique(targets, return_inverse=True, return_counts=True)
        return (len(targets) / (len(counts) * counts[numbers])).astype(np.float32)
    if targets.ndim == 1 or targets.dtype.kind != "f":
        raise InputError("--class_weights is for tasks with classes: leave it out")
    has = targets.astype(bool)
    share = has.mean(axis=0)
    weights = np.where(has, share, 1 - share)
    # A label that all examples have, or none, has nothing to balance.
    return (0.5 / np.where((share == 0) | (share == 1), 0.5, weights)).astype(np.float32)


def weights_by_class(
    class_weight: Any, labels: Sequence[str], aliases: Mapping[str, str] | None = None
) -> np.ndarray:
    """Weights of the labels, float32 [C], by name or number; 1 for those without, as in Keras."""
    if not labels:
        raise InputError("class_weight is for models with labels: leave it out")
    if class_weight == BALANCED:
        raise InputError(
            'class_weight="balanced" counts the labels of texts that have one each: give them as '
            f"a list or an array, or give weights as a dict, such as {{{labels[0]!r}: 2.0}}"
        )
    if not isinstance(class_weight, Mapping):
        raise InputError(
            f"class_weight is {class_weight!r:.40}: give a dict, such as {{{labels[0]!r}: 2.0}}"
        )
    weights = np.ones(len(labels), np.float32)
    for label, weight in class_weight.items():
        name = class_of(label, labels, "a label of class_weight", aliases)
        weights[list(labels).index(name)] = checked_weight(weight, f"class_weight of {name!r}")
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


def weights_of_labels(
    y: Any, sample_weight: Any, weights: Sequence[float] | None, kind: str
) -> Any:
    """Weights of an array of labels, int [...] or one-hot [B, C], times the examples' weights.

    `weights` are the classes' [C]; None for weights that balance the classes.
    """
    ids = np.asarray(y)
    if kind == "classes" and ids.ndim > 1:
        ids = ids[:, 0] if ids.shape[1] == 1 else ids.argmax(-1)
    ids = np.where(ids == -100, 0, ids).astype("int32")  # no label: the loss gives it no weight
    label_weights = class_weights(ids) if weights is None else np.asarray(weights, "float32")[ids]
    if sample_weight is None:
        return label_weights
    example_weights = np.asarray(sample_weight, "float32")
    missing = (1,) * (label_weights.ndim - example_weights.ndim)
    return label_weights * example_weights.reshape(example_weights.shape + missing)

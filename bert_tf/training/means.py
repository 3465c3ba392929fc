"""Losses and metrics: weighted means over the labels of all replicas."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.fused.vocabulary_loss import argmax
from bert_tf.fused.vocabulary_loss import cross_entropy as cross_entropy

# (labels, outputs) -> float values of the labels' shape.
Values = Callable[[Any, Any], Any]


def smoothed_cross_entropy(share: float) -> Values:
    """`cross_entropy` with a share of each target spread over all classes."""

    def smoothed(labels: Any, logits: Any) -> Any:
        spread = -tf.reduce_mean(tf.nn.log_softmax(tf.cast(logits, tf.float32)), -1)
        return (1 - share) * cross_entropy(labels, logits) + share * spread

    return smoothed


def accuracy(labels: Any, logits: Any) -> Any:
    """1.0 where the largest logit [..., classes] is the label's [...], else 0.0."""
    return tf.cast(tf.equal(argmax(logits), tf.cast(labels, tf.int32)), tf.float32)


class WeightedMean(keras.metrics.Metric):
    """A sum of weighted values over the sum of their weights; NaN before the first one.

    Updated with sums over all replicas, every replica's copy holds the same value: reading it takes
    no communication.
    """

    def __init__(self, name: str):
        super().__init__(name=name, dtype="float32")
        settings = {"initializer": "zeros", "aggregation": "only_first_replica"}
        self.total = self.add_variable((), name="total", **settings)
        self.weight = self.add_variable((), name="weight", **settings)

    def update_state(self, total: Any, weight: Any) -> None:
        """Adds a sum of weighted values and the sum of their weights, float32 []."""
        self.total.assign(self.total + total)
        self.weight.assign(self.weight + weight)

    def result(self) -> Any:
        """The mean, float32 []."""
        return self.total / self.weight


class OutputMeans:
    """The loss and the metrics of one output of a model, as means.

    Its name is None in a model with one output.
    """

    def __init__(self, name: str | None, loss: Values, metrics: Mapping[str, Values]):
        self.name = name
        self.functions = [loss, *metrics.values()]
        prefix = f"{name}_" if name else ""
        self.means = [WeightedMean(prefix + key) for key in ("loss", *metrics)]

    def of(self, values: Any) -> Any:
        """The part of labels, weights or outputs that belongs to this output."""
        return values[self.name] if isinstance(values, Mapping) else values

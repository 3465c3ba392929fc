"""Losses and metrics: functions of the labels and outputs that give one value per label."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bert_tf.networks.tensorflow.vocabulary_loss import argmax
from bert_tf.networks.tensorflow.vocabulary_loss import cross_entropy as cross_entropy

Values = Callable[[Any, Any], Any]  # (labels, outputs) -> float values of the labels' shape


def smoothed_cross_entropy(share: float) -> Values:
    """`cross_entropy` with a share of each target spread over all classes."""

    def smoothed(labels: Any, logits: Any) -> Any:
        spread = -tf.reduce_mean(tf.nn.log_softmax(tf.cast(logits, tf.float32)), -1)
        return (1 - share) * cross_entropy(labels, logits) + share * spread

    return smoothed


def accuracy(labels: Any, logits: Any) -> Any:
    """1.0 where the largest logit [..., classes] is the label's [...], else 0.0."""
    return tf.cast(tf.equal(argmax(logits), tf.cast(labels, tf.int32)), tf.float32)

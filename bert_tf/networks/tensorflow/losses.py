"""Losses and accuracies of training: functions of labels and outputs, one value per label."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from bert_tf.networks.tensorflow.vocabulary_loss import argmax
from bert_tf.networks.tensorflow.vocabulary_loss import cross_entropy as cross_entropy

Values = Callable[[Any, Any], Any]  # (labels, outputs) -> float values of the labels' shape
_ABSENT = -1e30  # logit of padding


def smoothed_cross_entropy(share: float) -> Values:
    """`cross_entropy` with a share of each target spread over all classes."""

    def smoothed(labels: Any, logits: Any) -> Any:
        spread = -tf.reduce_mean(tf.nn.log_softmax(tf.cast(logits, tf.float32)), -1)
        return (1 - share) * cross_entropy(labels, logits) + share * spread

    return smoothed


def accuracy(labels: Any, logits: Any) -> Any:
    """1.0 where the largest logit [..., classes] is the label's [...], else 0.0."""
    return tf.cast(tf.equal(argmax(logits), tf.cast(labels, tf.int32)), tf.float32)


def soft_cross_entropy(temperature: float) -> Values:
    """T^2 KL(teacher, student), float32 [...], of logits [..., C] / T; T^2 keeps gradient sizes."""

    def loss(teacher: Any, student: Any) -> Any:
        teacher, student = (tf.cast(x, tf.float32) / temperature for x in (teacher, student))
        difference = tf.nn.log_softmax(teacher) - tf.nn.log_softmax(student)
        return temperature**2 * tf.reduce_sum(tf.nn.softmax(teacher) * difference, -1)

    return loss


def squared_error(labels: Any, outputs: Any) -> Any:
    """Squared errors, float32 [B], for labels [B] and outputs [B]."""
    return tf.square(tf.cast(outputs, tf.float32) - labels)


def binary_cross_entropy(labels: Any, outputs: Any) -> Any:
    """Cross-entropies, float32 [B, C], of labels 0 or 1 [B, C] for logits [B, C]."""
    outputs = tf.cast(outputs, tf.float32)
    return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(labels, tf.float32), outputs)


def binary_accuracy(labels: Any, outputs: Any) -> Any:
    """1.0 where a probability of 0.5 decides on the label 0 or 1 [B, C], else 0.0."""
    return tf.cast((tf.cast(labels, tf.float32) > 0.5) == (outputs > 0), tf.float32)


def soft_binary_cross_entropy(temperature: float) -> Values:
    """`soft_cross_entropy` for logits of independent labels: float32 [B, C]."""

    def loss(teacher: Any, student: Any) -> Any:
        teacher, student = (tf.cast(x, tf.float32) / temperature for x in (teacher, student))
        shares = tf.sigmoid(teacher)
        entropies = binary_cross_entropy(shares, student) - binary_cross_entropy(shares, teacher)
        return temperature**2 * entropies

    return loss


def span_cross_entropy(targets: Any, logits: Any) -> Any:
    """Cross-entropies [B, 2] of starts and ends [B, 2] for logits [B, T, 2]."""
    return cross_entropy(targets, tf.transpose(logits, [0, 2, 1]))


def span_accuracy(targets: Any, logits: Any) -> Any:
    """1.0 for each right start and end, [B, 2]."""
    return accuracy(targets, tf.transpose(logits, [0, 2, 1]))


def soft_span_cross_entropy(temperature: float) -> Values:
    """`soft_cross_entropy` of starts and ends: float32 [B, 2]."""
    soft = soft_cross_entropy(temperature)
    return lambda *logits: soft(*(tf.transpose(x, [0, 2, 1]) for x in logits))


def without_padding(logits: Any, inputs: Mapping[str, Any]) -> Any:
    """Logits [B, T, 2] with no probability for padding, where a teacher computes none."""
    is_token = inputs["padding_mask"][:, :, tf.newaxis] != 0
    return tf.where(is_token, tf.cast(logits, tf.float32), _ABSENT)


@dataclass(frozen=True)
class Losses:
    """What a model learns from: by default classes, by their cross-entropy."""

    loss: Values = cross_entropy
    metrics: Mapping[str, Values] = field(default_factory=lambda: {"accuracy": accuracy})
    # (temperature) -> the loss of outputs beside a teacher's; None if there is none.
    soft: Callable[[float], Values] | None = None
    # (a teacher's outputs, inputs) -> outputs as `soft` compares them.
    teacher_outputs: Callable[[Any, Any], Any] = lambda outputs, inputs: outputs
    # A mean over "rows"; over "words", those of short rows would count more among similar lengths;
    # or of a "batch" whose rows are compared with each other, which cannot be cut.
    mean_over: Literal["rows", "words", "batch"] = "rows"
    needs_labels: bool = True  # each example has a label

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs are logits of classes or labels, which a temperature calibrates."""
        return self.loss in (cross_entropy, binary_cross_entropy)


CLASSES = Losses(soft=soft_cross_entropy)
WORDS = Losses(soft=soft_cross_entropy, mean_over="words")
LABELS = Losses(binary_cross_entropy, {"accuracy": binary_accuracy}, soft_binary_cross_entropy)
NUMBERS = Losses(squared_error, {}, lambda temperature: squared_error)
SPANS = Losses(
    span_cross_entropy,
    {"accuracy": span_accuracy},
    soft_span_cross_entropy,
    without_padding,
)

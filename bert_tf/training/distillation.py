"""Distillation: a student learns from labels and from a teacher's outputs (Hinton et al. 2015)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.networks.tensorflow.losses import Values


class Taught:
    """A student and its teacher, in place of the model that a `Trainer` trains.

    In training a call returns pairs (student's output, output of the frozen teacher). Everything
    else is the student's. `matched` maps the teacher's outputs and the inputs to the outputs as the
    student's loss compares them. With `layers` (`LayerLoss`) the first output has a third part, the
    loss of the layers in each row, float32 [R], and what that learns is trained, too.
    """

    def __init__(
        self,
        student: Any,
        teacher: Any,
        matched: Callable[[Any, Any], Any] = lambda x, _: x,
        layers: Any = None,
    ) -> None:
        teacher.trainable = False
        self._student, self._teacher, self._matched = student, teacher, matched
        self._layers = layers

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._student, name)
        if self._layers and name in ("weights", "variables", "trainable_variables"):
            return [*found, *self._layers.variables]
        return found

    def _flatten_layers(self) -> list[Any]:
        """Keras', of both models: see `bert_tf.networks.bert_layer.kernels_of`."""
        return [*self._student._flatten_layers(), *self._teacher._flatten_layers()]

    def __call__(self, inputs: Any, training: bool = False) -> Any:
        student = functools.partial(self._student, inputs, training=training)
        teacher = functools.partial(self._teacher, inputs, training=False)
        if not training:
            return student()
        if self._layers is None:
            outputs, soft, *more = student(), teacher()
        else:
            outputs, soft, *more = self._layers(student, teacher, inputs["padding_mask"])
        soft = keras.tree.map_structure(tf.stop_gradient, self._matched(soft, inputs))
        if not isinstance(outputs, Mapping):
            return outputs, soft, *more
        pairs = {name: (x, soft[name]) for name, x in outputs.items()}
        first = next(iter(pairs))
        return {**pairs, first: (*pairs[first], *more)}


def distilled(loss: Values, soft: Values, weight: float) -> Values:
    """`loss` and, with `weight` of 1, `soft`, (teacher's outputs, outputs) -> like `loss`.

    A loss of layers is added with a weight of 1, as in TinyBERT.
    """

    def values(labels: Any, outputs: Any) -> Any:
        if not isinstance(outputs, tuple):
            return loss(labels, outputs)
        own, taught, *layers = outputs
        found = (1 - weight) * loss(labels, own) + weight * soft(taught, own)
        for of_rows in layers:  # one or several rows an example
            of_examples = tf.reduce_mean(tf.reshape(of_rows, [tf.shape(found)[0], -1]), 1)
            found += tf.reshape(of_examples, [-1, *[1] * (found.shape.rank - 1)])
        return found

    return values


def of_student(function: Values) -> Values:
    """A metric of the student's part of outputs."""
    return lambda labels, outputs: function(
        labels, outputs[0] if isinstance(outputs, tuple) else outputs
    )

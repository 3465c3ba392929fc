"""Distillation: a student learns from labels and from a teacher's outputs (Hinton et al. 2015)."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import Values
from bert_tf.training.training_options import TEMPERATURE, WEIGHT, TeacherOptions


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
        self._student = student
        self._teacher = teacher
        self._matched = matched
        self._layers = layers

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._student, name)
        if self._layers and name in ("weights", "variables", "trainable_variables"):
            return [*attribute, *self._layers.variables]
        return attribute

    def _flatten_layers(self) -> list[Any]:
        """Keras', of both models: see `bert_tf.networks.bert_layer.kernels_of`."""
        return [*self._student._flatten_layers(), *self._teacher._flatten_layers()]

    def __call__(self, inputs: Any, training: bool = False) -> Any:
        student = functools.partial(self._student, inputs, training=training)
        teacher = functools.partial(self._teacher, inputs, training=False)
        if not training:
            return student()
        if self._layers is None:
            results: tuple = student(), teacher()
        else:
            results = self._layers(student, teacher, inputs["padding_mask"])
        outputs, soft, *more = results
        soft = keras.tree.map_structure(tf.stop_gradient, self._matched(soft, inputs))
        if not isinstance(outputs, Mapping):
            return outputs, soft, *more
        pairs = {name: (x, soft[name]) for name, x in outputs.items()}
        first = next(iter(pairs))
        return {**pairs, first: (*pairs[first], *more)}


def check_teacher_tokenizer(teacher: str, tokenizer: Any, student: Any) -> None:
    """Raises InputError if the teacher in a directory reads other tokens than the student."""
    switches = tokenizer.other_switches(student.settings)
    if switches or tokenizer.vocabulary_hash != student.vocabulary_hash:
        differs = f"tokenizes in another way ({switches})" if switches else "has another vocabulary"
        raise InputError(
            f"the teacher {teacher} {differs} than the student, so its outputs are of other "
            "tokens: give one with the student's vocab.txt and tokenizer_config.json"
        )


def taught_by(
    options: TeacherOptions,
    student: Any,
    teacher: Any,
    loss: Values,
    soft: Callable[[float], Values],
    **how: Any,
) -> tuple[Taught, Values]:
    """The student with its teacher, and the loss of both; `how` are arguments of `Taught`."""
    targets = soft(options.teacher_temperature or TEMPERATURE)
    weight = options.teacher_weight or WEIGHT
    return Taught(student, teacher, **how), distilled(loss, targets, weight)


def distilled(loss: Values, soft: Values, weight: float) -> Values:
    """`loss` and, with `weight` of 1, `soft`, (teacher's outputs, outputs) -> like `loss`.

    A loss of layers is added with a weight of 1, as in TinyBERT.
    """

    def values(labels: Any, outputs: Any) -> Any:
        if not isinstance(outputs, tuple):
            return loss(labels, outputs)
        logits, targets, *layers = outputs
        total = (1 - weight) * loss(labels, logits) + weight * soft(targets, logits)
        for row_losses in layers:  # one or several rows an example
            losses = tf.reduce_mean(tf.reshape(row_losses, [tf.shape(total)[0], -1]), 1)
            total += tf.reshape(losses, [-1, *[1] * (total.shape.rank - 1)])
        return total

    return values


def student_metric(function: Values) -> Values:
    """A metric of the student's part of outputs."""
    return lambda labels, outputs: function(
        labels, outputs[0] if isinstance(outputs, tuple) else outputs
    )

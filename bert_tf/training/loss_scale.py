"""The scale of the loss in float16."""

import keras
import tensorflow as tf

from bert_tf.training.strategy import add_counter

# As in Keras' LossScaleOptimizer.
_FIRST_SCALE = 2.0**15
_GROWTH_STEPS = 2000


def computes_in_float16(layer: keras.layers.Layer) -> bool:
    """Whether a layer or one inside it computes in float16."""
    inner = getattr(layer, "layers", [])  # a functional model's own policy says nothing of them
    return layer.compute_dtype == "float16" or any(
        computes_in_float16(sublayer) for sublayer in inner
    )


class LossScale:
    """The factor on the loss in float16, without which small gradients would become 0."""

    def __init__(self) -> None:
        self.scale = add_counter("loss_scale/scale", "float32", first=_FIRST_SCALE)
        self.steps = add_counter("loss_scale/steps")  # since the scale changed
        self.variables = [self.scale, self.steps]

    def update(self, overflow: tf.Tensor) -> None:
        """Counts a step; `overflow`, bool [], says whether its gradient has overflowed."""
        scale = tf.convert_to_tensor(self.scale)
        steps = self.steps + 1
        is_due = tf.equal(steps, _GROWTH_STEPS)
        self.scale.assign(tf.where(overflow, scale / 2, tf.where(is_due, scale * 2, scale)))
        self.steps.assign(tf.where(tf.logical_or(overflow, is_due), tf.zeros_like(steps), steps))

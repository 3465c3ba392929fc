"""LAMB: Adam for large batches."""

from typing import Any

import keras
import tensorflow as tf

from bert_tf.training.optimizer import AdamWeightDecay


@keras.saving.register_keras_serializable(package="bert_tf")
class Lamb(AdamWeightDecay):
    """Adam with steps in proportion to the norm of each parameter.

    Algorithm 2 of You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in
    76 minutes" (arXiv 1904.00962), with the identity for phi. At step t, with the means m and v
    of Adam,

        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon) + weight_decay_rate p
        p = p - learning_rate (|p| / |r|) r

    where |p| / |r|, the trust ratio, is 1 if either norm is 0. What is excluded from weight decay
    (LayerNorm and biases) has a trust ratio of 1, too, as in the authors' code. Gradients are
    clipped by their global norm first, as there.

    Arguments are those of `AdamWeightDecay`.
    """

    def __init__(self, learning_rate: Any = 1e-3, name: str = "lamb", **kwargs: Any):
        super().__init__(learning_rate, name=name, **{"bias_correction": True, **kwargs})

    def _step(self, index: int, gradient: Any, factor: Any, variable: Any, rate: Any) -> None:
        gradient = gradient if factor is None else gradient * factor
        mean, square = self._means[index], self._squares[index]
        self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
        self.assign_add(square, (tf.square(gradient) - square) * (1 - self.beta_2))
        update = self._update(mean, square)
        if self._decays[index]:
            update += self.weight_decay_rate * variable
            length, update_length = tf.norm(variable), tf.norm(update)
            known = tf.logical_and(length > 0, update_length > 0)
            update *= tf.where(known, tf.math.divide_no_nan(length, update_length), 1.0)
        self.assign_sub(variable, rate * update)

    def _update(self, mean: Any, square: Any) -> Any:
        power1, power2 = self._powers(mean.dtype)
        return mean / (1 - power1) / (tf.sqrt(square / (1 - power2)) + self.epsilon)

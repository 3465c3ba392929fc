"""Adam as BERT was trained with."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from bert_tf.training.adam_pass import adam

# Keras' weight decay and clipping, which every optimizer takes, would come on top: they stay off.
_KERAS_OWN = ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay")

# Arguments that are attributes of the same name.
_SETTINGS = (
    "weight_decay_rate", "beta_1", "beta_2", "epsilon", "clip_norm", "bias_correction",
    "learning_rate_factors",
)  # fmt: skip


@keras.saving.register_keras_serializable(package="bert_tf")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, by default without bias correction.

    `AdamWeightDecayOptimizer` and `create_optimizer` in the original's optimization.py: the
    gradients are clipped by their global norm, then for each parameter p with gradient g

        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        p = p - learning_rate (m / (sqrt(v) + epsilon) + weight_decay_rate p)

    without the last term for LayerNorm and biases. With bias correction, step t has
    m / (1 - beta_1^t) and v / (1 - beta_2^t) for m and v (Kingma and Ba 2015); without it the first
    thousand steps are up to 3 times as long. Under a tf.distribute strategy the gradients are
    summed over the replicas before their norm is taken: two replicas step as one does.

    Args:
        learning_rate: a float or a schedule.
        weight_decay_rate: decoupled weight decay.
        beta_1, beta_2, epsilon: as above.
        clip_norm: largest global norm; None for no clipping.
        bias_correction: whether to correct the means for their start at 0; the original does not.
        exclude_from_weight_decay: patterns; a parameter whose path contains one is not decayed.
        learning_rate_factors: pattern -> factor on the learning rate of the parameters whose path
            contains it; the first that matches counts.
        name: name of the optimizer.
        kwargs: other arguments of `keras.optimizers.Optimizer`, such as `use_ema`.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-4,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        clip_norm: float | None = 1.0,
        bias_correction: bool = False,
        exclude_from_weight_decay: Sequence[str] = ("LayerNorm", "layer_norm", "bias"),
        learning_rate_factors: Mapping[str, float] | None = None,
        name: str = "adam_weight_decay",
        **kwargs: Any,
    ):
        others = [name for name in _KERAS_OWN if kwargs.get(name) is not None]
        if others:
            raise ValueError(f"AdamWeightDecay takes weight_decay_rate and clip_norm, not {others}")
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.clip_norm = clip_norm
        self.bias_correction = bias_correction
        self.excluded_patterns = tuple(exclude_from_weight_decay)
        self.learning_rate_factors = dict(learning_rate_factors or {})

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Makes the two means of each parameter; finds its decay and learning rate factor.

        Makes the counter of steps that left the means unchanged, if they are corrected by steps.
        """
        if self.built:
            return
        super().build(variables)
        self._means = self.add_optimizer_variables(variables, "mean")
        self._squares = self.add_optimizer_variables(variables, "square")
        self._decays = [
            self._use_weight_decay(variable)  # asks Keras' `exclude_from_weight_decay`
            and not any(re.search(pattern, variable.path) for pattern in self.excluded_patterns)
            for variable in variables
        ]
        factors = self.learning_rate_factors.items()
        self._factors = [
            next((f for pattern, f in factors if re.search(pattern, variable.path)), 1.0)
            for variable in variables
        ]
        if self.bias_correction:
            self.skipped = self.add_variable((), initializer="zeros", dtype="int64", name="skipped")

    def clip_factor(self, norm: Any) -> Any:
        """What scales gradients of this finite norm, float32 [], to `clip_norm`; None for all."""
        if self.clip_norm is None:
            return None
        return self.clip_norm * tf.minimum(1 / norm, 1 / self.clip_norm)

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        # Keras clips each replica's gradients before it sums them; the norm is the sum's.
        sums, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
        # The means decay for every row of a table, looked up or not: rows alone do not do.
        gradients = [tf.convert_to_tensor(gradient) for gradient in sums]
        if self.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm)
        return list(zip(gradients, variables, strict=True))

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any, factor: Any = None
    ) -> None:
        """Updates one parameter and its means; a `factor` multiplies the gradient first."""
        index = self._get_variable_index(variable)
        rate = tf.cast(learning_rate, variable.dtype)
        if self._factors[index] != 1:
            rate *= self._factors[index]
        self._step(index, tf.cast(gradient, variable.dtype), factor, variable, rate)

    def _step(self, index: int, gradient: Any, factor: Any, variable: Any, rate: Any) -> None:
        decay = rate * self.weight_decay_rate if self._decays[index] else None
        epsilon = tf.constant(self.epsilon, variable.dtype)
        if self.bias_correction:
            # The root is corrected after epsilon was added to it, so epsilon comes corrected.
            power1, power2 = self._powers(variable.dtype)
            epsilon *= tf.sqrt(1 - power2)
            rate *= tf.sqrt(1 - power2) / (1 - power1)
        handles = [
            (each.value if isinstance(each, keras.Variable) else each).handle
            for each in (variable, self._means[index], self._squares[index])
        ]
        adam(handles, gradient, factor, rate, decay, self.beta_1, self.beta_2, epsilon)

    def _powers(self, dtype: str) -> tuple[Any, Any]:
        """beta_1^t and beta_2^t at update t of the means; zeros without bias correction."""
        if not self.bias_correction:
            return tf.zeros((), dtype), tf.zeros((), dtype)
        step = tf.cast(self.iterations + 1 - self.skipped, dtype)
        return tf.pow(tf.cast(self.beta_1, dtype), step), tf.pow(tf.cast(self.beta_2, dtype), step)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config().items()
        return {
            **{name: value for name, value in config if name not in _KERAS_OWN},
            **{name: getattr(self, name) for name in _SETTINGS},
            "exclude_from_weight_decay": list(self.excluded_patterns),
        }

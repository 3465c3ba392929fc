"""Adam as BERT was trained with, and LAMB, for every backend of Keras."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from bert_tf.training.adam import adam

# Keras' own weight decay and clipping would be applied in addition to these: they stay off.
_KERAS_OWN = ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay")
_SETTINGS = (  # arguments that are attributes of the same name
    "weight_decay_rate",
    "beta_1",
    "beta_2",
    "epsilon",
    "clip_norm",
    "bias_correction",
    "learning_rate_factors",
)


@keras.saving.register_keras_serializable(package="bert_tf")
class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, by default without bias correction.

    As in the original's optimization.py, the gradients are clipped by their global norm, then for
    each parameter p with gradient g

        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        p = p - learning_rate (m / (sqrt(v) + epsilon) + weight_decay_rate p)

    without the last term for LayerNorm and biases. With bias correction, step t has
    m / (1 - beta_1^t) and v / (1 - beta_2^t) for m and v (Kingma and Ba 2015); without it the first
    thousand updates are up to 3 times larger. Gradients are summed over the replicas first.

    TensorFlow computes the rule in fewer operations (`updates_on_tensorflow`).

    Args:
        learning_rate: a float or a schedule.
        weight_decay_rate, beta_1, beta_2, epsilon: as above.
        clip_norm: largest global norm; None for no clipping.
        exclude_from_weight_decay: patterns; a parameter whose path contains one is not decayed.
        learning_rate_factors: pattern -> factor on the learning rate of the parameters whose path
            contains it; the first that matches counts.
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
        self.clip_norm = clip_norm
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.excluded_patterns = tuple(exclude_from_weight_decay)
        self.learning_rate_factors = dict(learning_rate_factors or {})

    def build(self, variables: Sequence[keras.Variable]) -> None:
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
        if self.bias_correction:  # the means are corrected by the steps that changed them
            self.skipped = self.add_variable((), initializer="zeros", dtype="int", name="skipped")

    def clip_factor(self, norm: Any) -> Any:
        """The factor that clips gradients of a finite global norm, float32 []; None for none."""
        if self.clip_norm is None:
            return None
        return self.clip_norm * ops.minimum(1 / norm, 1 / self.clip_norm)

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        # On TensorFlow these are the gradients of one replica: `_all_reduce_sum_gradients` clips.
        if self.clip_norm is None or keras.backend.backend() == "tensorflow":
            return grads
        factor = self.clip_factor(
            ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in grads))
        )
        return [gradient * factor for gradient in grads]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        from bert_tf.training.updates_on_tensorflow import clipped

        # Keras clips each replica's gradients before it sums them; the norm is the sum's.
        sums, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
        return list(zip(clipped(sums, self.clip_norm), variables, strict=True))

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any, factor: Any = None
    ) -> None:
        """Updates one parameter and its means; a `factor` multiplies the gradient first."""
        index = self._get_variable_index(variable)
        rate = ops.cast(learning_rate, variable.dtype)
        if self._factors[index] != 1:
            rate *= self._factors[index]
        self._step(index, ops.cast(gradient, variable.dtype), factor, variable, rate)

    def _step(self, index: int, gradient: Any, factor: Any, variable: Any, rate: Any) -> None:
        dtype = keras.backend.standardize_dtype(gradient.dtype)
        decay = rate * self.weight_decay_rate if self._decays[index] else None
        epsilon = ops.cast(self.epsilon, dtype)
        if self.bias_correction:
            # The root is corrected after epsilon was added to it, so epsilon comes corrected.
            power1, power2 = self._powers(dtype)
            epsilon *= ops.sqrt(1 - power2)
            rate *= ops.sqrt(1 - power2) / (1 - power1)
        variables = variable, self._means[index], self._squares[index]
        settings = gradient, factor, rate, decay, self.beta_1, self.beta_2, epsilon
        if keras.backend.backend() == "tensorflow":
            from bert_tf.training.updates_on_tensorflow import update_parameter

            update_parameter(variables, *settings)
            return
        values = adam([ops.convert_to_tensor(x) for x in variables], *settings)
        for variable, value in zip(variables, values, strict=True):
            self.assign(variable, value)

    def _powers(self, dtype: str) -> tuple[Any, Any]:
        """beta_1^t and beta_2^t at update t of the means; zeros without bias correction."""
        if not self.bias_correction:
            return ops.zeros((), dtype), ops.zeros((), dtype)
        step = ops.cast(self.iterations + 1 - self.skipped, dtype)
        beta_1, beta_2 = (ops.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        return ops.power(beta_1, step), ops.power(beta_2, step)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config().items()
        return {
            **{name: value for name, value in config if name not in _KERAS_OWN},
            **{name: getattr(self, name) for name in _SETTINGS},
            "exclude_from_weight_decay": list(self.excluded_patterns),
        }


@keras.saving.register_keras_serializable(package="bert_tf")
class Lamb(AdamWeightDecay):
    """`AdamWeightDecay` with steps in proportion to the norm of each parameter.

    Algorithm 2 of You et al. 2020 (arXiv 1904.00962), with the identity for phi. At step t, with
    the means m and v of Adam,

        r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon) + weight_decay_rate p
        p = p - learning_rate (|p| / |r|) r

    where |p| / |r|, the trust ratio, is 1 if either norm is 0, and for what is excluded from weight
    decay. Gradients are clipped by their global norm first. Both as in the authors' code.
    """

    def __init__(self, learning_rate: Any = 1e-3, name: str = "lamb", **kwargs: Any):
        super().__init__(learning_rate, name=name, **{"bias_correction": True, **kwargs})

    def _step(self, index: int, gradient: Any, factor: Any, variable: Any, rate: Any) -> None:
        gradient = gradient if factor is None else gradient * factor
        mean = self._means[index]
        square = self._squares[index]
        self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        update = self._update(mean, square)
        if self._decays[index]:
            update += self.weight_decay_rate * variable
            length, update_length = (ops.norm(x) for x in (variable, update))
            known = ops.logical_and(length > 0, update_length > 0)
            update *= ops.where(known, ops.divide_no_nan(length, update_length), 1.0)
        self.assign_sub(variable, rate * update)

    def _update(self, mean: Any, square: Any) -> Any:
        power1, power2 = self._powers(mean.dtype)
        return mean / (1 - power1) / (ops.sqrt(square / (1 - power2)) + self.epsilon)

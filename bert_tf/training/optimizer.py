"""Adam as BERT was trained with, LAMB, and a step with gradients summed over the replicas."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.networks.tensorflow.passes import pays

# Keras' weight decay and clipping, which every optimizer takes, would come on top: they stay off.
_KERAS_OWN = ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay")
# Options that `Optimizer.apply` handles, which a step with summed gradients bypasses.
_HANDLED_BY_APPLY = (*_KERAS_OWN, "use_ema", "gradient_accumulation_steps", "loss_scale_factor")
_SETTINGS = (  # arguments that are attributes of the same name
    "weight_decay_rate", "beta_1", "beta_2", "epsilon", "clip_norm", "bias_correction",
    "learning_rate_factors",
)  # fmt: skip


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
        self.weight_decay_rate, self.clip_norm = weight_decay_rate, clip_norm
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
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
            self.skipped = self.add_variable((), initializer="zeros", dtype="int64", name="skipped")

    def clip_factor(self, norm: Any) -> Any:
        """The factor that clips gradients of a finite global norm, float32 []; None for none."""
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
        dtype = gradient.dtype
        decay = rate * self.weight_decay_rate if self._decays[index] else None
        epsilon = tf.constant(self.epsilon, dtype)
        if self.bias_correction:
            # The root is corrected after epsilon was added to it, so epsilon comes corrected.
            power1, power2 = self._powers(dtype)
            epsilon *= tf.sqrt(1 - power2)
            rate *= tf.sqrt(1 - power2) / (1 - power1)
        p, m, v = handles = [
            (each.value if isinstance(each, keras.Variable) else each).handle
            for each in (variable, self._means[index], self._squares[index])
        ]
        if pays(gradient.shape.num_elements()):
            _in_one_pass(handles, gradient, factor, rate, decay, self.beta_1, self.beta_2, epsilon)
            return
        if decay is not None:
            step = decay * tf.raw_ops.ReadVariableOp(resource=p, dtype=dtype)
            tf.raw_ops.AssignSubVariableOp(resource=p, value=step)
        # The op's 1 - beta_2 is float32's, 1e-5 too small for 0.999: the mean of squares is too
        # small by that factor, and its root takes it back.
        rate *= math.sqrt(float(1 - np.float32(self.beta_2)) / (1 - self.beta_2))
        none = tf.zeros((), dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=p, m=m, v=v, beta1_power=none, beta2_power=none, lr=rate,
            beta1=tf.constant(self.beta_1, dtype), beta2=tf.constant(self.beta_2, dtype),
            epsilon=epsilon, grad=gradient if factor is None else gradient * factor,
        )  # fmt: skip

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


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _in_one_pass(
    handles: Sequence[tf.Tensor], gradient: tf.Tensor, factor: tf.Tensor | None, rate: tf.Tensor,
    decay: tf.Tensor | None, beta_1: float, beta_2: float, epsilon: tf.Tensor,
) -> None:  # fmt: skip
    """Adam's step in one pass over a parameter and its means, whose resources `handles` are."""
    p, m, v = (tf.raw_ops.ReadVariableOp(resource=x, dtype=gradient.dtype) for x in handles)
    gradient = gradient if factor is None else gradient * factor
    m += (gradient - m) * (1 - beta_1)
    v += (gradient * gradient - v) * (1 - beta_2)
    p = p if decay is None else p - decay * p
    p -= rate * m / (tf.sqrt(v) + epsilon)
    for handle, value in zip(handles, (p, m, v), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)


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


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError on optimizers that do more than update each variable by its gradient."""
    name = type(optimizer).__name__
    base = keras.optimizers.Optimizer
    for method in ("apply", "_backend_update_step"):
        if getattr(type(optimizer), method) is not getattr(base, method):
            raise ValueError(f"Trainer cannot use {name}, which changes `{method}`: use Adam")
    for option in _HANDLED_BY_APPLY:
        if getattr(optimizer, option, None):
            raise ValueError(
                f"Trainer does not apply {option} of {name}: leave it out, or use AdamWeightDecay, "
                "which has weight_decay_rate and clip_norm; Trainer accumulates gradients itself"
            )


def apply_summed(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence[Any],
    variables: Sequence[keras.Variable], *, norm: Any, finite: Any,
) -> None:  # fmt: skip
    """One step of a built optimizer, called in a replica, on gradients of the global norm `norm`.

    Without `finite`, bool [], only `iterations`, and `skipped` if the optimizer has it, change.
    """
    values = [variable.value for variable in variables]
    factors = [optimizer.clip_factor(norm)] if hasattr(optimizer, "clip_factor") else []

    def step(value: Any, gradient: Any, rate: Any, *factors: Any) -> None:
        optimizer.update_step(gradient, value, rate, *factors)

    def update(strategy: Any, gradients: Any, finite: Any, *scalars: Any) -> None:
        def all_parameters() -> None:
            for gradient, value in zip(gradients, values, strict=True):
                strategy.extended.update(value, step, args=(gradient, *scalars), group=False)

        # The replicas' sums, and so their answers, are the same: the first one decides.
        decides = strategy.experimental_local_results(finite)[0]
        tf.cond(decides, all_parameters, lambda: None)

    # A condition around updates of mirrored variables must stand outside the replicas.
    tf.distribute.get_replica_context().merge_call(
        update, args=(gradients, finite, optimizer.learning_rate, *factors)
    )
    optimizer.iterations.assign_add(1)
    if hasattr(optimizer, "skipped"):
        optimizer.skipped.assign_add(tf.cast(tf.logical_not(finite), optimizer.skipped.dtype))

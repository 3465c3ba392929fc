"""Weights of one training step in the compute dtype: kernels and word tables.

Without them each half of a batch and each micro-batch would cast the variables, and its gradients
back. The step's graph makes them from the variables, so they are never older than these.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record

from bert_tf.networks.tensorflow.graphs import in_few_passes
from bert_tf.networks.tensorflow.kernels import side_by_side


class _CastWeight(NamedTuple):
    variables: list[keras.Variable]
    scale: float  # of the first variable
    value: tf.Tensor  # the variables side by side, along the last axis


class CastWeights:
    """The weights of the step whose graph is being traced, made when a layer first reads them."""

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._made: dict[Any, _CastWeight] = {}
        self._tape: tf.GradientTape | None = None

    def under(self, tape: tf.GradientTape) -> Callable[..., tf.Tensor]:
        """A function as `side_by_side`, of these weights until the tape gives their `gradients`."""
        self._tape = tape
        return self._read

    def _read(self, variables: Sequence[Any], dtype: str, scale: float = 1.0) -> tf.Tensor:
        are_variables = all(isinstance(variable, keras.Variable) for variable in variables)
        tape = self._tape
        # Without the tape's record, as in both passes of `recomputed`, gradients would be lost.
        if tape is None or not (are_variables and could_possibly_record()):
            return side_by_side(variables, dtype, scale)
        key = dtype, scale, *(id(variable) for variable in variables)
        if key not in self._made:
            # In the step's own graph, where all halves and micro-batches find it.
            with tape.stop_recording(), self._graph.as_default():
                value = side_by_side(variables, dtype, scale)
            self._made[key] = _CastWeight(list(variables), scale, value)
        value = self._made[key].value
        if any(variable.trainable for variable in variables):
            tape.watch(value)
        return value

    def gradients(
        self, tape: tf.GradientTape, loss: tf.Tensor, variables: Sequence[keras.Variable]
    ) -> tuple[list[Any], list[Any]]:
        """Gradients of variables, where they are read themselves, and of cast weights, or None."""
        self._tape = None
        return tape.gradient(
            loss, (list(variables), [weight.value for weight in self._made.values()])
        )

    def summed(
        self, gradients: Sequence[tuple[list[Any], list[Any]]], variables: Sequence[keras.Variable]
    ) -> list[tf.Tensor | None]:
        """The sum of several `gradients` for each variable, in its dtype; None without any."""
        of_variables = list(zip(*(part for part, _ in gradients), strict=True))
        of_kernels = zip(*(part for _, part in gradients), strict=True)
        # Gradients of looked-up rows of tables, each followed by its indices.
        rows = {
            id(variable): [x for half in halves for x in (half.values, half.indices)]
            for variable, halves in zip(variables, of_variables, strict=True)
            if isinstance(halves[0], tf.IndexedSlices)
        }
        totals: dict[int, tf.Tensor] = {}

        def add(variable: keras.Variable, gradient: tf.Tensor) -> None:
            before = totals.get(id(variable))
            totals[id(variable)] = gradient if before is None else before + gradient

        for kernel, halves in zip(self._made.values(), of_kernels, strict=True):
            if halves[0] is None:
                continue
            first, *others = kernel.variables
            more = [] if others else rows.pop(id(first), [])
            widths = tuple(variable.shape[-1] for variable in kernel.variables)
            sums = _summed(first.dtype, widths, len(halves), *halves, *more)
            if kernel.scale != 1.0:
                sums = [sums[0] * kernel.scale, *sums[1:]]
            for variable, gradient in zip(kernel.variables, sums, strict=True):
                add(variable, gradient)
        for variable, halves in zip(variables, of_variables, strict=True):
            if looked_up := rows.get(id(variable)):
                values = tf.concat(looked_up[::2], 0)
                positions = tf.concat(looked_up[1::2], 0)
                add(variable, tf.math.unsorted_segment_sum(values, positions, variable.shape[0]))
            elif isinstance(halves[0], tf.Tensor):
                add(variable, tf.add_n(halves))
        return [totals.get(id(variable)) for variable in variables]


@in_few_passes
def _summed(dtype: str, widths: tuple[int, ...], number: int, *parts: tf.Tensor) -> list[tf.Tensor]:
    """The sum of a number of tensors [..., M], cut into the widths of its last axis.

    After them come rows to add, each tensor [n, M] followed by its positions [n].
    """
    total = tf.add_n([tf.cast(part, dtype) for part in parts[:number]])
    rows = parts[number:]
    for values, positions in zip(rows[::2], rows[1::2], strict=True):
        total = tf.tensor_scatter_nd_add(total, positions[:, tf.newaxis], values)
    return tf.split(total, widths, -1) if len(widths) > 1 else [total]

"""Micro-batches: the parts of a replica's batch that a step computes one after the other.

Each may be computed in two halves concurrently (see `bert_tf.startup.share_cores`).
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from bert_tf.errors import InputError

Data = tuple[Any, Any, Any]  # inputs, labels and weights: structures of tensors [B, ...]
States = list[tf.Tensor]  # the states of the dropout generators
# (inputs, labels, weights, states) -> a result for these rows, and the states after them
RunRows = Callable[..., tuple[Any, States]]
# the results of different rows -> sums, None where no result has a value
Add = Callable[[list], list]

# Between the dropout seeds of halves: odd, far from layers' seeds and `trainer._REPLICA_SEEDS`.
_HALF_SEEDS = 0x85EBCA77


def sum_micro_batches(
    run_rows: RunRows,
    add: Add,
    data: Data,
    states: States,
    *,
    number: int,
    halves: bool,
    zeros: list[tf.Tensor],
) -> tuple[list[tf.Tensor | None], States]:
    """The sums of the results of a number of micro-batches, like `zeros`, and the last states.

    Only one micro-batch's activations are in memory at a time. With `halves`, each half of a
    micro-batch has its own dropout. Raises InputError if the rows, where their number is known, do
    not divide into the micro-batches.
    """
    run = _in_halves(run_rows, add) if halves else _whole(run_rows, add)
    if number == 1:
        return run(data, states)
    rows = keras.tree.flatten(data)[0].shape[0]
    if rows is not None and rows % number:
        raise InputError(
            f"a batch of {rows} per device does not divide into {number} micro-batches: give "
            "--gradient_accumulation_steps a divisor of it"
        )
    has_value = [True] * len(zeros)

    def body(index: tf.Tensor, totals: list[tf.Tensor], states: States) -> tuple:
        sums, states = run(_micro_batch(data, index, number), states)
        has_value[:] = [x is not None for x in sums]
        # Totals are negative. TensorFlow would join `total + (first half + second half)` into
        # one `AddN`, whose order, and so whose rounding, follows from which of its inputs
        # happen to share memory with another tensor at that moment.
        after = [t if x is None else t - x for t, x in zip(totals, sums, strict=True)]
        return index + 1, after, states

    _, totals, states = tf.while_loop(
        lambda index, *_: index < number,
        body,
        (tf.constant(0), zeros, states),
        parallel_iterations=1,
    )
    return [-t if has else None for t, has in zip(totals, has_value, strict=True)], states


def _micro_batch(data: Data, index: tf.Tensor, number: int) -> Data:
    """The micro-batch at an index: tensors [B, ...] -> [B / number, ...]."""
    first = keras.tree.flatten(data)[0]
    rows = first.shape[0]
    # A number of rows known only at run time, as a last batch's, may divide unevenly.
    count = tf.shape(first)[0] if rows is None else rows
    start = index * count // number
    size = (index + 1) * count // number - start if rows is None else rows // number

    def cut(x: tf.Tensor) -> tf.Tensor:
        others = x.shape.rank - 1
        return tf.slice(x, [start] + [0] * others, [size] + [-1] * others)

    return keras.tree.map_structure(cut, data)


def _whole(run_rows: RunRows, add: Add) -> Callable[[Data, States], tuple[list, States]]:
    """A function that runs all rows of a micro-batch together."""

    def run(data: Data, states: States) -> tuple[list, States]:
        result, states = run_rows(*data, states)
        return add([result]), states

    return run


def _in_halves(run_rows: RunRows, add: Add) -> Callable[[Data, States], tuple[list, States]]:
    """A function that runs both halves of a micro-batch concurrently."""
    run_half = tf.function(run_rows, autograph=False)  # traced once for halves of one shape

    def run(data: Data, states: States) -> tuple[list, States]:
        offset = tf.constant([_HALF_SEEDS, 0], tf.int64)
        other_states = [state + tf.cast(offset, state.dtype) for state in states]
        first = keras.tree.flatten(data)[0]
        rows = tf.shape(first)[0] if first.shape[0] is None else first.shape[0]
        middle = (rows + 1) // 2
        one, after = run_half(*keras.tree.map_structure(lambda x: x[:middle], data), states)
        other, _ = run_half(*keras.tree.map_structure(lambda x: x[middle:], data), other_states)
        return add([one, other]), after

    return run

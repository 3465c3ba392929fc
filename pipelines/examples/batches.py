"""Examples to batches: features are made in graph, epochs are shuffled, workers share batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.pipelines.datasets import dataset_options

# Batches among whose examples those of like length are sought, at most: 64 leave 1 to 3% padding on
# GLUE's tasks at a batch size of 32 (8 leave 9 to 28%, and chance 50 to 170%).
_WINDOW = 64
# Windows of an epoch, at least: in a single one the same examples would share a batch in each
# epoch. 8 leave 5 to 9% padding on GLUE's tasks with fewer than 512 batches.
_WINDOWS = 8
# Batches of a window, at least. Shorter epochs have random batches: there is little time to save,
# and with so few steps, batches of similar length hurt the score.
_SHORTEST_WINDOW = 8


def example_batches(
    strings: Mapping[str, Sequence[Any]],
    batch: Callable[[dict[str, tf.Tensor], list[tf.Tensor]], tuple],
    batch_size: int,
    *,
    targets: Sequence[np.ndarray] = (),
    lengths: np.ndarray | None = None,
    seed: int | None = None,
    start_step: int = 0,
    worker: int = 0,
    num_workers: int = 1,
) -> tf.data.Dataset:
    """Makes batches for a model: a dataset of (inputs, *targets), or of inputs without targets.

    Without `seed` the examples come once, in their order. With it they repeat forever, reshuffled
    each epoch, and batch number `step` is a function of (seed, step). The last batch of an epoch
    may be smaller. Of `num_workers * batch_size` examples, worker 0 takes the first `batch_size`.

    `strings` maps an input's name to a string, or a number, for each of the E examples; `targets`
    are arrays [E, ...]. `batch` turns a batch of both into (inputs, *targets), in graph, of any
    number of rows. With `lengths`, the examples' tokens, batches have similar lengths.
    """
    columns = {name: tf.convert_to_tensor(values) for name, values in strings.items()}
    arrays = [tf.constant(values) for values in targets]
    count = len(next(iter(strings.values())))
    shared_size = num_workers * batch_size
    first_epoch, skipped = divmod(start_step, -(-count // shared_size))

    @tf.autograph.experimental.do_not_convert  # slow, and nothing branches on tensors
    def epoch(index: tf.Tensor) -> tf.data.Dataset:
        order = tf.range(count)
        if seed is not None:
            key = tf.stack([tf.constant(seed, tf.int64), index])
            order = tf.random.experimental.stateless_shuffle(order, key)
            if lengths is not None:
                order = _of_like_length(order, lengths, shared_size, key)
        batches = tf.data.Dataset.from_tensor_slices(order).batch(shared_size)
        return batches.skip(tf.where(index == first_epoch, tf.constant(skipped, tf.int64), 0))

    @tf.autograph.experimental.do_not_convert
    def inputs(chosen: tf.Tensor) -> Any:
        chosen = chosen[worker * batch_size : (worker + 1) * batch_size]
        strings = {name: tf.gather(values, chosen) for name, values in columns.items()}
        tensors = batch(strings, [tf.gather(values, chosen) for values in arrays])
        return tensors if arrays else tensors[0]

    if seed is None and num_workers == 1 and not start_step and 0 < count <= batch_size:
        # Tracing and starting a pipeline takes many times as long as its only batch.
        with tf.device("CPU"):
            only = tf.data.Dataset.from_tensors(inputs(tf.range(count)))
        return only.with_options(dataset_options())
    epochs = tf.data.Dataset.range(first_epoch, 1 if seed is None else tf.int64.max)
    batches = epochs.flat_map(epoch).map(inputs, num_parallel_calls=2)
    remaining = tf.data.INFINITE_CARDINALITY
    if seed is None:
        remaining = max(0, -(-count // shared_size) - start_step)
    batches = batches.apply(tf.data.experimental.assert_cardinality(remaining))
    return batches.prefetch(2).with_options(dataset_options())


def _of_like_length(order: tf.Tensor, lengths: np.ndarray, size: int, key: tf.Tensor) -> tf.Tensor:
    """Reorders shuffled examples, int32 [E], into batches of similar lengths.

    A window's examples are sorted by length and cut into batches, and all batches are shuffled. The
    longest comes first: if memory does not suffice, the first step shows it. Within a batch, which
    all workers share, the order is random: parts of workers and devices have similar lengths, too.
    """
    batches = len(lengths) // size
    window_size = min(_WINDOW, batches // _WINDOWS)
    if window_size < _SHORTEST_WINDOW:
        return order
    whole, rest = tf.split(order, [batches * size, -1])
    window = tf.range(batches * size) // (window_size * size)
    whole_lengths = tf.gather(tf.constant(lengths, tf.int32), whole)
    rank = window * (max(lengths) + 1) + whole_lengths
    positions = tf.reshape(tf.argsort(rank, stable=True), [batches, size])
    positions = tf.random.experimental.stateless_shuffle(tf.sort(positions), tf.bitwise.invert(key))
    longest = tf.argmax(
        tf.reduce_max(tf.gather(whole_lengths, positions), axis=1), output_type=tf.int32
    )
    positions = tf.roll(positions, -longest, axis=0)
    return tf.concat([tf.gather(whole, tf.reshape(positions, [-1])), rest], 0)

"""What lies between the matrix products of a step, compiled into few passes over the memory.

TensorFlow makes a pass for each operation. Where shapes are static XLA compiles them into few. The
products stay outside: on a CPU TensorFlow's are faster than XLA's.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from bert_tf.networks.tensorflow.devices import device_type

_WORTH_COMPILING = 2**18  # elements of a tensor: compiling takes a tenth of a second a kernel


def known_shape(x: tf.Tensor) -> list[Any]:
    """The shape in numbers if all are known when the graph is traced, else in tensors."""
    return x.shape.as_list() if x.shape.is_fully_defined() else tf.unstack(tf.shape(x))


def pays(*sizes: Any) -> bool:
    """Whether to compile what has tensors of these sizes, None if unknown when it is traced.

    On CPUs, for a large one. TPUs cannot compile a part of what they compile whole.
    """
    is_known = all(isinstance(size, int) for size in sizes)
    return is_known and max(sizes, default=0) >= _WORTH_COMPILING and device_type() == "CPU"


def sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """[n, M] -> [M], as a product, which is faster than a sum."""
    return tf.matmul(tf.ones_like(x[:, :1]), x, transpose_a=True)[0]


def in_few_passes(function: Callable) -> Callable:
    """Compiles a function where that pays: in graphs, whose shapes come again."""
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        sizes = [x.shape.num_elements() for x in arguments if isinstance(x, tf.Tensor)]
        is_compiled = not tf.executing_eagerly() and pays(*sizes)
        return (compiled if is_compiled else function)(*arguments)

    return call

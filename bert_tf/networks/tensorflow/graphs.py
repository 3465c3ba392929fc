"""Tools for graphs: their device, few passes between products, gradients that end with a graph.

TensorFlow makes a pass over the memory for each operation. Where shapes are static XLA compiles
what lies between the products of a step into few. The products stay outside: on a CPU TensorFlow's
are faster than XLA's.
"""

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import stop_recording
from tensorflow.python.framework.ops import gradient_registry  # it has no public name

from bert_tf.startup import avoid_ynn_fusions

_WORTH_COMPILING = 2**18  # elements of a tensor: compiling takes a tenth of a second a kernel
_TYPE = "_gradient_op_type"  # the attribute that names the gradient of an operation


def device_type(strategy: tf.distribute.Strategy | None = None) -> str:
    """The kind of a strategy's devices, "CPU", "GPU" or "TPU"; by default of the present strategy.

    Other devices of the machine do not matter: the step of a TPU does not run on its host's CPU.
    """
    strategy = strategy or tf.distribute.get_strategy()
    try:
        device, *_ = strategy.extended.worker_devices
    except RuntimeError:  # TensorFlow's default strategy: the first GPU, or the CPU
        return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    return str(tf.DeviceSpec.from_string(device).device_type)


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


def compiled_by_xla(function: Callable) -> Callable:
    """A `tf.function` that XLA compiles, without the fusions that `avoid_ynn_fusions` avoids."""
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        avoid_ynn_fusions()
        return compiled(*arguments)

    return call


def in_few_passes(function: Callable) -> Callable:
    """Compiles a function where that pays: in graphs, whose shapes come again."""
    compiled = compiled_by_xla(function)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        sizes = [x.shape.num_elements() for x in arguments if isinstance(x, tf.Tensor)]
        is_compiled = not tf.executing_eagerly() and pays(*sizes)
        return (compiled if is_compiled else function)(*arguments)

    return call


def kept_by_graph(result: Any) -> Any:
    """Hands the gradient of a `tf.custom_gradient` over to the graph of its result.

    In a graph TensorFlow registers each call's gradient for good, and with it all of the graph:
    tens of megabytes for each training step that is traced. Returns the result.
    """
    operation = getattr(result[0] if isinstance(result, tuple) else result, "op", None)
    if operation is None:  # eager
        return result
    name = operation.get_attr(_TYPE).decode()
    graph = operation.graph
    entry = gradient_registry._registry[name]
    if not hasattr(graph, "own_gradients"):
        graph.own_gradients = {}
    graph.own_gradients[name] = entry["type"]
    reference = weakref.ref(graph)
    entry["type"] = functools.partial(_gradient, reference, name)
    weakref.finalize(graph, gradient_registry._registry.pop, name, None).atexit = False
    return result


def _gradient(graph: Callable[[], Any], name: str, *arguments: Any) -> Any:
    return graph().own_gradients[name](*arguments)


def custom_gradient(function: Callable) -> Callable:
    """`tf.custom_gradient` for a function of tensors, `kept_by_graph`."""
    call = tf.custom_gradient(function)

    @functools.wraps(function)
    def in_graph(*tensors: Any) -> Any:
        return kept_by_graph(call(*tensors))

    return in_graph


def recomputed(function: Callable) -> Callable:
    """`tf.recompute_grad` of a function of tensors with one result, `kept_by_graph`."""

    @custom_gradient
    def call(*tensors: Any) -> Any:
        with stop_recording():
            result = function(*tensors)

        def gradient(upstream: Any, variables: Any = None) -> Any:
            again = [tf.identity(x) for x in tensors]
            if not tf.executing_eagerly():
                # Nothing is added, after the upstream gradient is there: not at once. As
                # TensorFlow does it, XLA heeds no control dependency.
                is_there = tf.cast(tf.reduce_max(tf.reshape(upstream, [-1])[:1]), tf.bool)
                nothing = tf.where(is_there == is_there, 0.0, math.nan)
                again = [x + tf.cast(nothing, x.dtype) for x in again]
            with tf.GradientTape() as tape:
                tape.watch(again)
                second = function(*again)
            result = tape.gradient(second, again, upstream, unconnected_gradients="zero")
            return (result, [None] * len(variables)) if variables else result  # frozen ones

        return result, gradient

    return call

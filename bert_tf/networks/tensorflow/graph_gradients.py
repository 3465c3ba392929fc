"""Custom gradients that end with the graph they are made in."""

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import stop_recording
from tensorflow.python.framework.ops import gradient_registry  # it has no public name

_TYPE = "_gradient_op_type"  # the attribute that names the gradient of an operation


def kept_by_graph(result: Any) -> Any:
    """Hands the gradient of a `tf.custom_gradient` over to the graph of its result.

    In a graph TensorFlow registers each call's gradient for good, and with it all of the graph:
    tens of megabytes for each training step that is traced. Returns the result.
    """
    operation = getattr(result[0] if isinstance(result, tuple) else result, "op", None)
    if operation is None:  # eager
        return result
    name, graph, table = operation.get_attr(_TYPE).decode(), operation.graph, gradient_registry
    entry = table._registry[name]
    if not hasattr(graph, "own_gradients"):
        graph.own_gradients = {}
    graph.own_gradients[name] = entry["type"]
    reference = weakref.ref(graph)
    entry["type"] = functools.partial(_gradient, reference, name)
    weakref.finalize(graph, table._registry.pop, name, None).atexit = False
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

"""Checks that TensorFlow Serving can load an export, before it is deployed."""

from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from bert_tf.errors import InputError

# The TF Text ops of our tokenizer. Released servers link both, but not others such as
# TFText>RoundRobinTrim (tensorflow/serving issue 2267).
SERVED_TEXT_OPS = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
# Ops that call Python of the exporting process.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Marks a function of `tf.function(jit_compile=True)`, and each call of it.
_COMPILED = "_XlaMustCompile"


def read_saved_model(directory: str | Path) -> SavedModel:
    proto = SavedModel()
    proto.ParseFromString((Path(directory) / "saved_model.pb").read_bytes())
    return proto


def ops_of(saved_model: str | Path) -> set[str]:
    """Names of all ops in a SavedModel's graphs and functions."""
    return {node.op for node in _nodes(read_saved_model(saved_model))}


def _nodes(proto: SavedModel) -> Iterator:
    for meta_graph in proto.meta_graphs:
        yield from meta_graph.graph_def.node
        for function in meta_graph.graph_def.library.function:
            yield from function.node_def


def refuse_unservable(saved_model: str | Path) -> None:
    """Raises InputError for a graph that released servers cannot load or run.

    They lack some ops, and switch XLA off: the first request to a function that asks for it fails.
    """
    proto = read_saved_model(saved_model)
    nodes = list(_nodes(proto))
    # tf.raw_ops holds TensorFlow's own ops and none of other libraries.
    unserved = {
        node.op
        for node in nodes
        if node.op in _PYTHON_OPS
        or not (hasattr(tf.raw_ops, node.op) or node.op in SERVED_TEXT_OPS)
    }
    if unserved:
        raise InputError(
            f"TensorFlow Serving cannot run {', '.join(sorted(unserved))}: replace these with core "
            "TensorFlow ops"
        )
    compiled = {node.name for node in nodes if node.attr[_COMPILED].b}
    for meta_graph in proto.meta_graphs:
        functions = meta_graph.graph_def.library.function
        compiled |= {each.signature.name for each in functions if each.attr[_COMPILED].b}
    if compiled:
        raise InputError(
            f"TensorFlow Serving does not compile with XLA, which {', '.join(sorted(compiled))} "
            "asks for: leave jit_compile=True out"
        )

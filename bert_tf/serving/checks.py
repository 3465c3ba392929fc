"""Checks that TensorFlow Serving can load an export, before it is deployed."""

from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from bert_tf.errors import InputError

# The TF Text ops of our tokenizer. Released servers link both, but not others such as
# TFText>RoundRobinTrim (tensorflow/serving issue 2267).
SERVED_TEXT_OPS = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}
# Ops that call Python of the exporting process.
_PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def ops_of(saved_model: str | Path) -> set[str]:
    """Names of all ops in a SavedModel's graphs and functions."""
    proto = SavedModel()
    proto.ParseFromString((Path(saved_model) / "saved_model.pb").read_bytes())
    ops: set[str] = set()
    for meta_graph in proto.meta_graphs:
        graph: GraphDef = meta_graph.graph_def
        ops.update(node.op for node in graph.node)
        for function in graph.library.function:
            ops.update(node.op for node in function.node_def)
    return ops


def refuse_unservable_ops(saved_model: str | Path) -> None:
    """Raises InputError, naming them, if the graph holds ops that released servers lack."""
    # tf.raw_ops holds TensorFlow's own ops and none of other libraries.
    unserved = {
        op
        for op in ops_of(saved_model)
        if op in _PYTHON_OPS or not (hasattr(tf.raw_ops, op) or op in SERVED_TEXT_OPS)
    }
    if unserved:
        raise InputError(
            f"TensorFlow Serving cannot run {', '.join(sorted(unserved))}: replace these with core "
            "TensorFlow ops"
        )

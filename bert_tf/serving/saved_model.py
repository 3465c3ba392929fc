"""One loaded SavedModel, run in a session of its own as TensorFlow Serving does.

A session frees its variables when it is closed, and loading holds Python's lock for little of the
time; neither is true of `tf.saved_model.load`.
"""

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import AssetFileDef, MetaGraphDef, SignatureDef
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from bert_tf.startup import has_tf_text, return_freed_memory, text_operations

if has_tf_text():
    text_operations()

_INIT_OP = "__saved_model_init_op"


class LoadedModel:
    """The signatures of a SavedModel by name; safe to run from several threads.

    Raises OSError, tf.errors.OpError, ValueError or DecodeError if it cannot be loaded.
    """

    def __init__(self, directory: str | Path) -> None:
        directory = Path(directory)
        graph, meta_graph = _imported(directory)
        self.signatures: dict[str, SignatureDef] = dict(meta_graph.signature_def)
        self.signatures.pop(_INIT_OP, None)
        self._session = tf.compat.v1.Session(graph=graph, config=_optimized_once())
        variables = directory / "variables" / "variables"
        saver = meta_graph.saver_def
        if saver.restore_op_name and variables.with_suffix(".index").exists():
            feed = {saver.filename_tensor_name: str(variables)}
            self._session.run(saver.restore_op_name, feed)
        if _INIT_OP in meta_graph.signature_def:
            (output,) = meta_graph.signature_def[_INIT_OP].outputs.values()
            assets = {}
            for packed in meta_graph.collection_def["saved_model_assets"].any_list.value:
                asset = AssetFileDef()
                packed.Unpack(asset)
                assets[asset.tensor_info.name] = str(directory / "assets" / asset.filename)
            self._session.run(graph.get_operation_by_name(output.name), assets)
        for name in [*graph._functions]:  # the session has copies; these take 60 MB in BERT-base
            graph._remove_function(name)
        graph.finalize()
        self._functions = {
            name: self._session.make_callable(
                {output: info.name for output, info in signature.outputs.items()},
                [signature.inputs[key].name for key in sorted(signature.inputs)],
            )
            for name, signature in self.signatures.items()
        }
        self._optimized: set[str] = set()  # the signatures that have answered
        return_freed_memory()

    def run(
        self, signature_name: str, inputs: Mapping[str, np.ndarray], deadline: float = math.inf
    ) -> dict[str, np.ndarray]:
        """Returns all outputs of a signature, by name; strings are bytes in arrays of objects.

        From the deadline, a moment of `time.monotonic()`, the graph stops at the next iteration of
        a loop. Raises tf.errors.OpError if it refuses the values or runs out of time.
        """
        options = None
        if deadline < math.inf:
            milliseconds = max(1, round(1000 * (deadline - time.monotonic())))
            options = tf.compat.v1.RunOptions(timeout_in_ms=milliseconds)
        arrays = (inputs[name] for name in sorted(inputs))
        outputs = self._functions[signature_name](*arrays, options=options)
        if signature_name not in self._optimized:
            self._optimized.add(signature_name)
            return_freed_memory()  # what optimizing its graph took: 70 MB for BERT-base
        return outputs

    def close(self) -> None:
        """Frees the variables now, and the graph when Python collects garbage next."""
        self._session.close()
        del self._session, self._functions


def _optimized_once() -> tf.compat.v1.ConfigProto:
    """Makes a session optimize each signature's graph once, without MLIR.

    A model would be ready after two thirds more of the time, and no faster: a second round finds
    two nodes of a thousand, and MLIR's passes read the functions of all signatures for each.
    """
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = RewriterConfig.ONE
    options.disable_tfg_optimizer = True
    config.experimental.disable_output_partition_graphs = True  # a copy that nobody reads
    return config


def _imported(directory: Path) -> tuple[tf.Graph, MetaGraphDef]:
    """The graph of a SavedModel, and what else the file says."""
    proto = read_saved_model(directory)
    for node in nodes_of(proto):
        if "_output_shapes" in node.attr:  # TensorFlow infers them anew, and would keep copies
            del node.attr["_output_shapes"]
    for meta_graph in proto.meta_graphs:
        if "serve" in meta_graph.meta_info_def.tags:
            with tf.Graph().as_default() as graph:
                tf.import_graph_def(meta_graph.graph_def, name="")
            # Not the graph, whose constants may be large: a message is freed only as a whole.
            names = ("signature_def", "saver_def", "collection_def")
            return graph, MetaGraphDef(**{name: getattr(meta_graph, name) for name in names})
    raise ValueError(f"{directory / 'saved_model.pb'} has no graph with the tag serve")


def read_saved_model(directory: str | Path) -> SavedModel:
    return SavedModel.FromString((Path(directory) / "saved_model.pb").read_bytes())


def nodes_of(proto: SavedModel) -> Iterator:
    for meta_graph in proto.meta_graphs:
        yield from meta_graph.graph_def.node
        for function in meta_graph.graph_def.library.function:
            yield from function.node_def

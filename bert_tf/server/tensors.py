"""TensorProto to and from arrays, for values that anyone may send."""

import math

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo
from tensorflow_serving.apis.predict_pb2 import PredictRequest

from bert_tf.server.errors import invalid

# A few bytes of a TensorProto can stand for any number of equal values; more are sent one by one.
_MOST_REPEATED = 2**16
_BLOCK = 2**14  # values of an output that are Python's objects at a time

_FIELDS = {
    tf.float32: "float_val",
    tf.float64: "double_val",
    tf.bool: "bool_val",
    tf.int8: "int_val",
    tf.uint8: "int_val",
    tf.int16: "int_val",
    tf.int32: "int_val",
    tf.int64: "int64_val",
    tf.uint32: "uint32_val",
    tf.uint64: "uint64_val",
    tf.string: "string_val",
}


def sizes_of(info: TensorInfo | TensorProto) -> list[int]:
    """The dimensions of an input or output; -1 for those that differ by request."""
    return [dimension.size for dimension in info.tensor_shape.dim]


def predict_inputs(request: PredictRequest) -> dict[str, np.ndarray]:
    return {key: to_array(key, proto) for key, proto in request.inputs.items()}


def to_array(name: str, proto: TensorProto) -> np.ndarray:
    """Returns the values of an input; strings are bytes in arrays of objects."""
    sizes = sizes_of(proto)
    if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        raise invalid(f'input "{name}" has a shape of unknown size: give every dimension')
    # Without zeros, so that an empty tensor has no huge dimension either.
    if math.prod(size or 1 for size in sizes) > max(_MOST_REPEATED, proto.ByteSize()):
        raise invalid(f'input "{name}" has fewer values than its shape: send every value')
    if len(sizes) > 32:
        raise invalid(f'input "{name}" has {len(sizes)} dimensions: send at most 32')
    try:
        if proto.dtype == tf.string.as_datatype_enum and proto.tensor_content:
            return tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy()
        return tf.make_ndarray(proto)
    except (KeyError, TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise invalid(f'input "{name}" does not fit its shape {sizes}') from error


def to_proto(array: np.ndarray) -> TensorProto:
    """Returns an output, its values in the field of their type, as TensorFlow Serving sends it."""
    dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
    if dtype not in _FIELDS:
        return tf.make_tensor_proto(array)
    proto = TensorProto(dtype=dtype.as_datatype_enum)
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    field = getattr(proto, _FIELDS[dtype])
    values = array.ravel()
    for start in range(0, len(values), _BLOCK):
        field.extend(values[start : start + _BLOCK].tolist())
    return proto

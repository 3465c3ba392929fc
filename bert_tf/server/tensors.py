"""TensorProto to and from arrays, for values that anyone may send."""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from grpc import StatusCode
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo
from tensorflow_serving.apis.predict_pb2 import PredictRequest

from bert_tf.server.errors import ServingError, invalid

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


def check_inputs(signature: SignatureDef, inputs: Mapping[str, np.ndarray]) -> None:
    """Refuses inputs of other names, types or shapes than the signature's, or unequal batches."""
    check_names(signature, inputs)
    for name, array in inputs.items():
        info = signature.inputs[name]
        given = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        if given.as_datatype_enum != info.dtype:
            wanted = tf.as_dtype(info.dtype).name
            raise invalid(f'input "{name}" has the type {given.name}: the signature takes {wanted}')
        if not tf.TensorShape(info.tensor_shape).is_compatible_with(array.shape):
            shape, sizes = list(array.shape), sizes_of(info)
            raise invalid(f'input "{name}" has the shape {shape}: the signature takes {sizes}')
    if len({array.shape[:1] for array in inputs.values()}) > 1 and _joins_rows(signature):
        raise invalid("input tensors must have equal 0th-dimension size")


def check_names(signature: SignatureDef, inputs: Mapping[str, object]) -> None:
    """Refuses missing and unknown inputs, in TensorFlow Serving's words."""
    given, wanted = set(inputs), set(signature.inputs)
    if given != wanted:
        sent, takes, extra, missing = (
            f"{{{','.join(sorted(names))}}}"
            for names in (given, wanted, given - wanted, wanted - given)
        )
        raise invalid(
            f"input size does not match signature: {len(given)}!={len(wanted)} "
            f"len({sent}) != len({takes}). Sent extra: {extra}. Missing but required: {missing}."
        )


def predict_inputs(
    signatures: Mapping[str, SignatureDef], request: PredictRequest
) -> tuple[str, dict[str, np.ndarray]]:
    name = request.model_spec.signature_name or "serving_default"
    if name not in signatures:
        missing = f'Serving signature key "{name}" not found.'
        raise ServingError(StatusCode.FAILED_PRECONDITION, missing)
    inputs = signatures[name].inputs
    check_names(signatures[name], request.inputs)
    return name, {key: to_array(key, x, inputs[key].dtype) for key, x in request.inputs.items()}


def _joins_rows(signature: SignatureDef) -> bool:
    """Whether every input and output has the batch first, so that requests can be joined."""

    def has_batch(info: TensorInfo) -> bool:
        return info.tensor_shape.unknown_rank or sizes_of(info)[:1] == [-1]

    return all(map(has_batch, (*signature.inputs.values(), *signature.outputs.values())))


def can_join(signature: SignatureDef) -> bool:
    """Whether requests that are joined get the answers that they get alone."""
    # Of outputs padded to the widest of a batch, only lists with a `<list>_count` can be cut again.
    prefixes = tuple(x.removesuffix("count") for x in signature.outputs if x.endswith("_count"))

    def is_cut(name: str, info: TensorInfo) -> bool:
        sizes = sizes_of(info)
        is_list = name.startswith(prefixes) and -1 not in sizes[2:]
        return not info.tensor_shape.unknown_rank and (-1 not in sizes[1:] or is_list)

    # Only requests of equal shapes are joined.
    is_fixed = any(-1 in sizes_of(info)[1:] for info in signature.inputs.values())
    return _joins_rows(signature) and (
        is_fixed or all(is_cut(name, info) for name, info in signature.outputs.items())
    )


def to_array(name: str, proto: TensorProto, dtype: int) -> np.ndarray:
    """Returns the values of an input of the DataType `dtype`; strings are bytes."""
    if proto.dtype != dtype:
        given = DataType.Name(proto.dtype) if proto.dtype in DataType.values() else proto.dtype
        expected = DataType.Name(dtype)
        raise invalid(f'input "{name}" has the type {given}: the signature takes {expected}')
    sizes = sizes_of(proto)
    if proto.tensor_shape.unknown_rank or min(sizes, default=0) < 0:
        raise invalid(f'input "{name}" has a shape of unknown size: give every dimension')
    # Without zeros, so that an empty tensor has no huge dimension either.
    if math.prod(size or 1 for size in sizes) > max(_MOST_REPEATED, proto.ByteSize()):
        raise invalid(f'input "{name}" stands for more values than it holds: send each of them')
    if len(sizes) > 32:
        raise invalid(f'input "{name}" has {len(sizes)} dimensions: send at most 32')
    try:
        if dtype == tf.string.as_datatype_enum and proto.tensor_content:
            return tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy()
        if dtype == tf.string.as_datatype_enum:  # in a quarter of the time of `make_ndarray`
            values = [*proto.string_val]
            # As TensorFlow does: the last value stands for those that are left out.
            values += [values[-1] if values else b""] * (math.prod(sizes) - len(values))
            array = np.empty(len(values), object)
            array[:] = values
            return array.reshape(sizes)
        return tf.make_ndarray(proto)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise invalid(f'input "{name}" is no tensor of the shape {sizes}') from error


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

import numpy as np
import tensorflow as tf
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tensorflow.core.framework.tensor_pb2 import TensorProto

from bert_tf.server.tensors import to_array, to_proto

DTYPES = [np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8, np.bool_, np.float16]


@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    )
)
def test_numbers_survive_the_way_there_and_back(array):
    proto = to_proto(array)
    assert proto.dtype == tf.as_dtype(array.dtype).as_datatype_enum
    np.testing.assert_array_equal(tf.make_ndarray(proto), array)
    np.testing.assert_array_equal(to_array("x", proto), array)


@given(st.lists(st.binary(max_size=5), max_size=6))
def test_strings_survive_the_way_there_and_back(values):
    array = np.empty(len(values), object)
    array[:] = values
    proto = to_proto(array)
    assert to_array("x", proto).tolist() == values
    assert tf.make_ndarray(proto).tolist() == values


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_strings_are_read_from_the_content_that_tensorflow_writes(values):
    lengths = b"".join(map(_VarintBytes, map(len, values)))
    proto = TensorProto(dtype=tf.string.as_datatype_enum, tensor_content=lengths + b"".join(values))
    proto.tensor_shape.dim.add(size=len(values))
    parsed = tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy().tolist()
    assert to_array("x", proto).tolist() == parsed == values

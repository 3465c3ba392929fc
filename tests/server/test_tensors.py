import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.internal.encoder import _VarintBytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.server.servable import without_padding
from bert_tf.server.tensors import can_join, to_array, to_proto


def signature(inputs: dict[str, list[int]], outputs: dict[str, list[int]]) -> SignatureDef:
    made = SignatureDef()
    for infos, shapes in ((made.inputs, inputs), (made.outputs, outputs)):
        for name, sizes in shapes.items():
            infos[name].tensor_shape.SetInParent()
            for size in sizes:
                infos[name].tensor_shape.dim.add(size=size)
    return made


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ({"text": [-1]}, {"label": [-1], "labels": [-1, 3]}, True),
        ({"text": [-1]}, {"words_count": [-1], "words_text": [-1, -1]}, True),
        ({"text": [-1]}, {"masks_count": [-1], "masks_words": [-1, -1, 5]}, True),
        # Nothing tells how wide these would be alone.
        ({"text": [-1]}, {"pieces_count": [-1], "probabilities": [-1, 2, 2, -1, -1]}, False),
        ({"text": [-1]}, {"words_count": [-1], "words_pairs": [-1, -1, -1]}, False),
        # As wide as the inputs.
        ({"context": [-1], "choices": [-1, -1]}, {"probabilities": [-1, -1]}, True),
        ({"x": [-1]}, {"total": []}, False),
        ({"x": [4]}, {"y": [-1]}, False),
    ],
)
def test_requests_are_joined_where_their_answers_stay_the_same(inputs, outputs, expected):
    assert can_join(signature(inputs, outputs)) == expected


DTYPES = [np.float32, np.float64, np.int32, np.int64, np.int8, np.uint8, np.bool_, np.float16]


@settings(deadline=None)
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    )
)
def test_numbers_survive_the_way_there_and_back(array):
    proto = to_proto(array)
    assert proto.dtype == tf.as_dtype(array.dtype).as_datatype_enum
    np.testing.assert_array_equal(tf.make_ndarray(proto), array)
    np.testing.assert_array_equal(to_array("x", proto, proto.dtype), array)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=6))
def test_strings_survive_the_way_there_and_back(values):
    array = np.empty(len(values), object)
    array[:] = values
    proto = to_proto(array)
    assert to_array("x", proto, tf.string.as_datatype_enum).tolist() == values
    assert tf.make_ndarray(proto).tolist() == values


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=6))
def test_strings_are_read_from_the_content_that_tensorflow_writes(values):
    lengths = b"".join(map(_VarintBytes, map(len, values)))
    proto = TensorProto(dtype=tf.string.as_datatype_enum, tensor_content=lengths + b"".join(values))
    proto.tensor_shape.dim.add(size=len(values))
    own = tf.io.parse_tensor(proto.SerializeToString(), tf.string).numpy().tolist()
    assert to_array("x", proto, proto.dtype).tolist() == own == values


def test_lists_lose_their_padding_alone():
    """A name that looks like a list's may have another meaning in another's model."""
    sizes = {"tags_count": [-1], "tags_text": [-1, -1], "tags_score": [-1, -1], "tags_of": [-1, 4]}
    score, padded = np.array([[1, 2, 3, 0], [4, 0, 0, 0]]), np.array([[1, 2, 0, 0], [3, 0, 0, 0]])
    outputs = {"tags_text": padded, "tags_score": score, "tags_of": padded}
    outputs["tags_count"] = np.array([2, 1])
    found = without_padding(signature({}, sizes), outputs)
    outputs["tags_text"] = padded[:, :2]
    assert {name: x.tolist() for name, x in found.items()} == {
        name: x.tolist() for name, x in outputs.items()
    }

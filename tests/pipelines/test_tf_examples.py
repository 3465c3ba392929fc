import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pipelines.instances.schemas import serialize_examples


def test_records_parse_to_the_examples_python_would_make():
    rng = np.random.default_rng(1)
    features = {
        "input_ids": rng.integers(-5, 2**40, [7, 12]),
        "masked_lm_weights": rng.random([7, 3], np.float32),
        "next_sentence_labels": rng.integers(0, 2, [7, 1]),
    }
    records = tf.function(serialize_examples)({k: tf.constant(v) for k, v in features.items()})
    for index, record in enumerate(records.numpy()):
        expected = tf.train.Example()
        for name, values in features.items():
            kind = "float_list" if values.dtype == np.float32 else "int64_list"
            feature = expected.features.feature[name]
            getattr(feature, kind).value.extend(values[index].tolist())
        assert tf.train.Example.FromString(record) == expected


def test_an_empty_batch_gives_no_records():
    assert serialize_examples({"ids": tf.zeros([0, 4], tf.int64)}).shape == [0]


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="ids is int32"):
        serialize_examples({"ids": tf.zeros([1, 1], tf.int32)})

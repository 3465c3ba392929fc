import time

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.predictor import Predictor
from bert_tf.serving.saved_model import LoadedModel

TEXTS = np.array([b"the seas", b"", b"farm " * 50, "été".encode()], object)


def test_a_session_answers_as_python_does(page_models):
    """The restore op of the export gave values to copies of the variables: servers had none."""
    version = page_models / "classifier" / "1"
    model = LoadedModel(version)
    outputs = model.run("serving_default", {"text": TEXTS})
    signature = tf.saved_model.load(str(version)).signatures["serving_default"]
    predicted = Predictor(version.parent).signature()(text=TEXTS.tolist())
    for name, value in signature(text=tf.constant(TEXTS)).items():
        np.testing.assert_array_equal(outputs[name], value.numpy())
        np.testing.assert_array_equal(outputs[name], predicted[name])
    model.close()


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(OSError):
        LoadedModel(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match="no graph with the tag serve"):
        LoadedModel(tmp_path)


def test_a_graph_stops_when_its_time_is_over(tmp_path):
    class Endless(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([], tf.int32, "x")])
        def __call__(self, x):
            return {"y": tf.while_loop(lambda y: y < 10**9, lambda y: (y + 1,), [x])[0]}

    tf.saved_model.save(Endless(), str(tmp_path))
    model = LoadedModel(tmp_path)
    with pytest.raises(tf.errors.DeadlineExceededError):
        model.run("serving_default", {"x": np.int32(0)}, time.monotonic() + 0.05)
    at_once = model.run("serving_default", {"x": np.int32(10**9)}, time.monotonic() + 30)
    assert at_once["y"] == 10**9
    model.close()

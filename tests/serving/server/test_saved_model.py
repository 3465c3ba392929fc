import numpy as np
import pytest
import tensorflow as tf

from bert_tf.serving.predictor import Predictor
from bert_tf.serving.saved_model import LoadedModel

TEXTS = np.array([b"the seas", b"", b"farm " * 50, "été".encode()], object)


def test_a_session_answers_as_python_does(saved_models):
    """The restore op of the export gave values to copies of the variables: servers had none."""
    model = LoadedModel(saved_models / "where" / "1")
    found = model.run("serving_default", {"text": TEXTS})
    signature = tf.saved_model.load(str(saved_models / "where" / "1")).signatures["serving_default"]
    for name, value in signature(text=tf.constant(TEXTS)).items():
        np.testing.assert_array_equal(found[name], value.numpy())
    own = Predictor(saved_models / "where").signature()(text=TEXTS.tolist())
    for name, value in own.items():
        np.testing.assert_array_equal(found[name], value)
    model.close()


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(OSError):
        LoadedModel(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match="no graph with the tag serve"):
        LoadedModel(tmp_path)

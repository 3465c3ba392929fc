import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf import BertTokenizer
from bert_tf.serving.export import ASSETS
from bert_tf.serving.saved_model import read_saved_model
from bert_tf.serving.warmup_requests import (
    WARMUP_FILE,
    Request,
    example_texts,
    prediction_log,
    requests,
)
from bert_tf.tasks.signatures import CLASSIFY, REGRESS


@pytest.mark.slow
def test_every_signature_has_warm_up_requests(export_of):
    """That they run is seen wherever a server loads an export."""
    exported, asked = export_of("classification"), []
    for record in tf.data.TFRecordDataset(str(exported / ASSETS / WARMUP_FILE)):
        log = PredictionLog.FromString(record.numpy())
        which = log.WhichOneof("log_type")
        request = getattr(log, which).request
        assert request.model_spec.name == "classification"
        if which == "predict_log":
            rows = {tensor.tensor_shape.dim[0].size for tensor in request.inputs.values()}
        else:
            rows = {len(request.input.example_list.examples)}
        asked.append((request.model_spec.signature_name, *rows))
    names = {*read_saved_model(exported).meta_graphs[0].signature_def} - {"__saved_model_init_op"}
    further = [("serving_default", 1)] * 6  # of 4 to 48 words
    assert sorted(asked) == sorted([*((name, n) for name in names for n in (1, 1, 4)), *further])


def test_an_example_fits_what_a_signature_answers():
    assert "[MASK]" in str(example_texts(["text"], ["masks_count"])["text"])
    for name in ("text", "words"):
        (text,) = example_texts([name], ["words_count", "words_label"]).values()
        assert "Lovelace" in text and "Lisbon" in text  # a tagger finds names


TEXTS = st.text(st.characters(codec="utf-8"), max_size=400)


@settings(max_examples=30, deadline=None)
@given(
    name=TEXTS,
    texts=st.dictionaries(TEXTS, st.lists(TEXTS, min_size=2, max_size=2), min_size=1, max_size=3),
    method_name=st.sampled_from(["tensorflow/serving/predict", CLASSIFY, REGRESS]),
)
def test_requests_are_the_official_messages(name, texts, method_name):
    if method_name in (CLASSIFY, REGRESS):
        example = tf.train.Example()
        for key, values in texts.items():
            example.features.feature[key].bytes_list.value.extend(map(str.encode, values))
        inputs = {"inputs": np.array([example.SerializeToString()] * 200, object)}
    else:
        inputs = {k: np.array([x.encode() for x in v], object) for k, v in texts.items()}
        inputs["token_ids"] = np.arange(300, dtype=np.int32).reshape(2, 150)
    record = prediction_log(name, Request(name, method_name, "short", inputs))
    log = PredictionLog.FromString(record)
    which = {CLASSIFY: "classify_log", REGRESS: "regress_log"}.get(method_name, "predict_log")
    assert log.WhichOneof("log_type") == which
    request = getattr(log, which).request
    assert (request.model_spec.name, request.model_spec.signature_name) == (name, name)
    if which == "predict_log":
        inputs_read = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        assert inputs_read.keys() == inputs.keys()
        for key, values in inputs.items():
            np.testing.assert_array_equal(inputs_read[key], values)
    else:
        examples = request.input.example_list.examples
        assert list(examples) == [example] * 200


def signature(method_name="tensorflow/serving/predict", outputs=(), **inputs) -> SignatureDef:
    made = SignatureDef(method_name=method_name)
    for name, (dtype, rank) in inputs.items():
        made.inputs[name].dtype = dtype.as_datatype_enum
        for _ in range(rank):
            made.inputs[name].tensor_shape.dim.add(size=-1)
    for name in outputs:
        made.outputs[name].dtype = tf.string.as_datatype_enum
    return made


def test_inputs_of_every_sort_have_requests():
    signatures = {
        "serving_default": signature(text=(tf.string, 1), text_pair=(tf.string, 1)),
        "choice": signature(context=(tf.string, 1), choices=(tf.string, 2)),
        "tokens": signature(token_ids=(tf.int32, 3), padding_mask=(tf.int32, 3)),
        "regress": signature(REGRESS, inputs=(tf.string, 1)),
        "masks": signature(outputs=["masks_count"], text=(tf.string, 1)),
    }
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ship"])
    made = {(x.signature_name, x.size): x.inputs for x in requests(signatures, tokenizer, 16)}
    assert len(made["serving_default", "long"]["text"][0].split()) == 16
    assert made["choice", "batch"]["choices"].shape == (4, 2)
    assert len(made["choice", "long"]["context"][0].split()) == 16
    ids = made["tokens", "long"]["token_ids"]
    assert ids.shape == (1, 2, 16) and ids.dtype == np.int32
    assert made["tokens", "short"]["padding_mask"].min() == 1
    assert b"[MASK]" in made["masks", "short"]["text"][0]
    example = tf.train.Example.FromString(made["regress", "short"]["inputs"][0])
    assert set(example.features.feature) == {"text", "text_pair"}

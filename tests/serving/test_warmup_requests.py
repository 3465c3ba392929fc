"""What an export gives to servers beside the graph, read with the official protos."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from bert_tf import BertConfig, BertTokenizer
from bert_tf.cli import main
from bert_tf.models.answerer import Answerer
from bert_tf.models.task_models import BertClassifier
from bert_tf.server.configuration import BatchingParameters, read_batching_parameters
from bert_tf.serving.export import (
    ASSETS,
    BATCHING_FILE,
    _set_method_names,
    batching_parameters,
    list_model,
    pinned_versions,
    set_labels,
)
from bert_tf.serving.saved_model import LoadedModel, nodes_of, read_saved_model
from bert_tf.serving.warmup_requests import (
    WARMUP_FILE,
    Request,
    prediction_log,
    requests,
)
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.signatures import CLASSIFY, REGRESS
from bert_tf.tasks.task import Task

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ship", "##s", "dawn", "море", "海", "."]
_INIT_OP = "__saved_model_init_op"


@pytest.fixture(scope="module")
def tuned() -> Answerer:
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=1.0,
    )
    task = Task(name="classification", kind=Classification(), max_length=16)
    model = BertClassifier(config, labels=["bad", "good"], seed=0)
    return Answerer(task, model, BertTokenizer(PIECES), ["bad", "good"])


@pytest.fixture(scope="module")
def exported(tuned, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("run")
    (run / "best").mkdir()
    (run / "best" / "metrics.json").write_text('{"examples": 40, "accuracy": 0.925, "f1": null}')
    (run / "config.yaml").write_text("# a comment\ndata: reviews\nepochs: 3\n")
    return tuned.export("sentiment", root=run / "served", directory=run / "best")


def logs_of(exported: Path) -> list[PredictionLog]:
    records = tf.data.TFRecordDataset(str(exported / ASSETS / WARMUP_FILE))
    return [PredictionLog.FromString(record) for record in records.as_numpy_iterator()]


@pytest.mark.slow
def test_every_signature_has_warm_up_requests(exported):
    """That they run is seen wherever a server loads an export."""
    asked = []
    for log in logs_of(exported):
        which = log.WhichOneof("log_type")
        request = getattr(log, which).request
        assert request.model_spec.name == "sentiment"
        if which == "predict_log":
            rows = {tensor.tensor_shape.dim[0].size for tensor in request.inputs.values()}
        else:
            rows = {len(request.input.example_list.examples)}
        asked.append((request.model_spec.signature_name, *rows))
    names = read_saved_model(exported).meta_graphs[0].signature_def.keys() - {_INIT_OP}
    further = [("serving_default", 1)] * 2  # of 4 and 12 words
    assert sorted(asked) == sorted([*((name, n) for name in names for n in (1, 1, 4)), *further])


def test_a_long_request_fills_the_model(exported):
    logs = [log.predict_log.request for log in logs_of(exported)]
    texts = [
        request.inputs["text"].string_val[0].decode()
        for request in logs
        if request.model_spec.signature_name == "serving_default"
    ]
    assert max(len(text.split()) for text in texts) == 16


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
        found = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
        assert found.keys() == inputs.keys()
        for key, values in inputs.items():
            np.testing.assert_array_equal(found[key], values)
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


def test_inputs_of_every_sort_have_requests(tuned):
    signatures = {
        "serving_default": signature(text=(tf.string, 1), text_pair=(tf.string, 1)),
        "choice": signature(context=(tf.string, 1), choices=(tf.string, 2)),
        "tokens": signature(token_ids=(tf.int32, 3), padding_mask=(tf.int32, 3)),
        "regress": signature(REGRESS, inputs=(tf.string, 1)),
        "masks": signature(outputs=["masks_count"], text=(tf.string, 1)),
    }
    made = {(x.signature_name, x.size): x.inputs for x in requests(signatures, tuned.tokenizer, 16)}
    assert made["choice", "batch"]["choices"].shape == (4, 2)
    assert len(made["choice", "long"]["context"][0].split()) == 16
    ids = made["tokens", "long"]["token_ids"]
    assert ids.shape == (1, 2, 16) and ids.dtype == np.int32
    assert made["tokens", "short"]["padding_mask"].min() == 1
    assert b"[MASK]" in made["masks", "short"]["text"][0]
    example = tf.train.Example.FromString(made["regress", "short"]["inputs"][0])
    assert set(example.features.feature) == {"text", "text_pair"}


def test_method_names_are_written(exported, tmp_path):
    shutil.copy(exported / "saved_model.pb", tmp_path)
    _set_method_names(tmp_path, {"serving_default": CLASSIFY})
    signatures = read_saved_model(tmp_path).meta_graphs[0].signature_def
    assert signatures["serving_default"].method_name == CLASSIFY


def test_the_model_card_says_what_is_known(exported):
    card = (exported / "README.md").read_text(encoding="utf-8")
    facts = dict(re.findall(r"^\| (\w+) \| (.*) \|$", card, re.MULTILINE))
    assert facts["task"] == "classification"
    assert facts["labels"] == "bad, good"
    assert facts["data"] == "data reviews"
    assert facts["scores"] == "accuracy 0.925 (40 validation examples, in float32)"
    assert facts["text"] == "lower-cased; at most 16 tokens a row"
    assert "Latin 60%, Cyrillic 20%, Chinese characters 20%" in facts["vocabulary"]
    assert "`probabilities` float32 [B, 2]" in card


@pytest.mark.slow
def test_the_request_of_the_model_card_works(exported):
    card = (exported / "README.md").read_text(encoding="utf-8")
    body, name = re.search(r"curl -d '(.*)' \\\n.*/v1/models/(\w+):predict", card).groups()
    inputs = {key: np.array(x, object) for key, x in json.loads(body)["inputs"].items()}
    model = LoadedModel(exported)
    assert model.run("serving_default", inputs)["label"][0] in (b"bad", b"good")
    model.close()
    assert name == "sentiment"


@pytest.mark.slow
def test_a_model_in_bfloat16(tuned, exported, tmp_path, capsys, warm_up_is_checked, exports_of):
    tuned.save(tmp_path / "model")
    command = ["export", "--model", tmp_path / "model", "--name", "half", "--output", tmp_path]
    with exports_of("serving_default"):
        assert main([*map(str, command), "--precision", "bfloat16"]) == 0
    assert "bert-tf serve" in capsys.readouterr().err
    assert "computed in bfloat16" in (tmp_path / "half" / "1" / "README.md").read_text()
    proto = read_saved_model(tmp_path / "half" / "1")
    assert "Cast" in {node.op for node in nodes_of(proto)}
    texts = {"text": np.array([b"ship dawn", b""], object)}
    found = []
    for directory in (exported, tmp_path / "half" / "1"):
        model = LoadedModel(directory)
        answer = model.run("serving_default", texts)
        found.append(
            [
                sorted(dict(zip(*each, strict=True)).items())
                for each in zip(answer["labels"], answer["probabilities"], strict=True)
            ]
        )
        model.close()
    full, half = ([[value for _, value in row] for row in rows] for rows in found)
    assert half != full
    np.testing.assert_allclose(half, full, atol=0.1)


def test_batching_parameters(exported):
    given = read_batching_parameters(exported / BATCHING_FILE)
    # The number of threads is the server's: one per core.
    assert given == BatchingParameters(64, 0, 16, num_batch_threads=0)
    assert given == read_batching_parameters(exported.parents[1] / "batching.config")


def test_lists_of_any_length_are_not_batched():
    lists = signature(context=(tf.string, 1), choices=(tf.string, 2))
    assert batching_parameters({"serving_default": lists}) is None


def models_in(path: Path) -> dict[str, str]:
    config = text_format.Parse(path.read_text(encoding="utf-8"), ModelServerConfig())
    return {each.name: each.base_path for each in config.model_config_list.config}


def test_an_export_is_listed_in_models_config(exported):
    assert models_in(exported.parents[1] / "models.config") == {"sentiment": "/models/sentiment"}


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("model_config_list {}", {}),
        ('# one } two\nmodel_config_list: {\n}  # name: "a"\n# end }\n', {}),
        ('model_config_list {\n  config { name: "b" base_path: "/b" } }\n', {"b": "/b"}),
        ("model_config_list { config { name: 'b' base_path: '/b' } }", {"b": "/b"}),
    ],
)
def test_a_model_is_added_once_and_the_rest_stays(tmp_path, text, before):
    path = tmp_path / "models.config"
    path.write_text(text)
    assert list_model(tmp_path, "a") and list_model(tmp_path, "a.b")
    once = path.read_text()
    assert models_in(path) == {**before, "a": "/models/a", "a.b": "/models/a.b"}
    assert list_model(tmp_path, "a")
    assert path.read_text() == once
    assert re.findall("#.*", once) == re.findall("#.*", text)


def test_labels_follow_the_newest_versions_unless_a_user_set_them(tmp_path):
    path = tmp_path / "models.config"
    assert list_model(tmp_path, "a") and list_model(tmp_path, "b")
    assert pinned_versions(tmp_path, "a") == set()
    assert set_labels(tmp_path, "a", {"float32": 1, "int8": 2})
    assert set_labels(tmp_path, "a", {"float32": 3, "bfloat16": 4, "int8": 5})
    assert (pinned_versions(tmp_path, "a"), pinned_versions(tmp_path, "b")) == ({3, 4, 5}, set())
    config = text_format.Parse(path.read_text(), ModelServerConfig())
    model, other = config.model_config_list.config
    assert dict(model.version_labels) == {"float32": 3, "bfloat16": 4, "int8": 5}
    assert list(model.model_version_policy.specific.versions) == [3, 4, 5]
    assert other.name == "b" and not other.version_labels
    labelled = path.read_text()
    for own, more in (
        ("versions: 5", "versions: 5 versions: 6"),
        ('"int8" value: 5 }', '"int8" value: 5 }\n    version_labels { key: "stable" value: 5 }'),
    ):
        path.write_text(labelled.replace(own, more))
        assert not set_labels(tmp_path, "a", {"int8": 9})
    mine = 'config { name: "a" model_version_policy: { specific: { versions: [7, 8] } } }'
    path.write_text(f"model_config_list {{ {mine} }}")
    assert not set_labels(tmp_path, "a", {"int8": 9})
    assert pinned_versions(tmp_path, "a") == {7, 8}


def test_another_configuration_is_left_alone(tmp_path):
    (tmp_path / "models.config").write_text("custom_model_config {}")
    assert not list_model(tmp_path, "a")
    assert (tmp_path / "models.config").read_text() == "custom_model_config {}"


# From monitoring_config.proto, which tensorflow-serving-api lacks.
_MONITORING = """
name: "monitoring.proto" syntax: "proto3"
message_type {
  name: "PrometheusConfig"
  field { name: "enable" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "path" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
}
message_type {
  name: "MonitoringConfig"
  field {
    name: "prometheus_config" number: 1 label: LABEL_OPTIONAL
    type: TYPE_MESSAGE type_name: ".PrometheusConfig"
  }
}
"""


def test_what_servers_are_started_with_stands_beside_the_models(exported):
    folder = exported.parents[1]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_MONITORING, descriptor_pb2.FileDescriptorProto()))
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("MonitoringConfig"))()
    text_format.Parse((folder / "monitoring.config").read_text(), message)
    assert message.prometheus_config.enable
    assert message.prometheus_config.path == "/monitoring/prometheus/metrics"

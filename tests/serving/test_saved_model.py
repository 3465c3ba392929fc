"""Exports load where users run them: without TensorFlow's Python, in its tools, in its server."""

import base64
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml
from cluster import free_ports
from command_line import finished, words
from peer_programs import find_peer
from preloaded import run_code

from bert_tf import BertTokenizer
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.saved_model import LoadedModel
from bert_tf.serving.warmup_requests import requests
from bert_tf.tasks.signatures import DEFAULT

REPOSITORY = Path(__file__).parents[2]
# A score is an output of the head, as are those behind probabilities; tags are read as entities
# are; windows are read by every op that single rows are.
KINDS = words("classification classification-int8 choice squad2 tagging masked_words vectors")
KINDS += words("classification-core multi_label-windows embedding-windows")


def in_base64(values: np.ndarray) -> dict:
    """Values as c_api.py reads and writes them."""
    coded = base64.b64encode(values.tobytes()).decode()
    if values.dtype == object:
        coded = [base64.b64encode(text).decode() for text in values.reshape(-1).tolist()]
    return {"shape": [*values.shape], "values": coded}


def tensors_of(request, signature) -> dict:
    """A request as c_api.py reads it."""
    infos = [(signature.inputs[name], values) for name, values in request.inputs.items()]
    inputs = [{"name": x.name, "dtype": x.dtype, **in_base64(values)} for x, values in infos]
    return {"inputs": inputs, "outputs": [info.name for info in signature.outputs.values()]}


# A process of its own, as others have imported TF Text.
_BESIDE_TF_TEXT = """
import sys
from pathlib import Path
import bert_tf.server.models
from bert_tf import BertTokenizer, Predictor
from bert_tf.serving.predictor import answer_rows

export = Path(sys.argv[1])

def ours():
    assert answer_rows(Predictor(export).signature(), {"text": ["the ship"]}, 1)
    tokenizer = BertTokenizer.from_directory(export / "assets.extra")
    assert tokenizer.detokenize(tokenizer.tokenize(["The ship"])).numpy().tolist() == [b"the ship"]

def theirs():
    import tensorflow_text
    normalizer = tensorflow_text.FastBertNormalizer(lower_case_nfd_strip_accents=True)
    assert normalizer.normalize(["Ab"]).numpy().tolist() == [b"ab"]
    splitter = tensorflow_text.FastWordpieceTokenizer(["[UNK]", "a", "##b"])
    assert splitter.tokenize(["ab"]).to_list() == [[1, 2]]

if sys.argv[2] == "ours first":
    ours()
    assert "tensorflow_text" not in sys.modules
theirs()
ours()
"""


@pytest.mark.tf_text
@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_serving_loads_two_operations_of_tf_text_alone(export_of, order):
    """TF Text imported whole takes 100 MB; imported by a user, before or later, it works."""
    run_code(_BESIDE_TF_TEXT, [export_of("classification"), order], check=True)


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("classification", [DEFAULT]),
        *(pytest.param(task, None, marks=pytest.mark.slow) for task in KINDS),
    ],
)
def test_the_c_api_answers_to_the_bit(export_of, tmp_path, task, names):
    """All signatures of every kind; of one kind those of the encoder, too.

    With core operations from a folder that has TensorFlow's libraries alone.
    """
    directory = export_of(task)
    model = LoadedModel(directory)
    tokenizer = BertTokenizer.from_directory(directory / "assets.extra")
    made = [
        request
        for request in requests(model.signatures, tokenizer, 64)
        if request.signature_name in (names or model.signatures)
        and (request.size == "batch" or request.signature_name == DEFAULT)
        and not request.size.endswith("words")  # further lengths
    ]
    asked = [tensors_of(request, model.signatures[request.signature_name]) for request in made]
    libraries = Path(tf.__file__).parents[1]
    if task.endswith("-core"):
        (tmp_path / "tensorflow").symlink_to(libraries / "tensorflow")
        libraries = tmp_path
    script = Path(__file__).with_name("c_api.py")
    command = [sys.executable, "-I", script, libraries, directory]
    done = finished(*command, input=json.dumps(asked), env={"TF_CPP_MIN_LOG_LEVEL": "3"})
    for request, answer in zip(made, json.loads(done.stdout), strict=True):
        outputs = model.signatures[request.signature_name].outputs
        expected = model.run(request.signature_name, request.inputs)
        for name, tensor in zip(outputs, answer, strict=True):
            assert tensor == in_base64(expected[name]), (request.signature_name, request.size, name)
    model.close()


@pytest.fixture(scope="module")
def model_server(export_of, tmp_path_factory):
    """TensorFlow Serving with an export; gives the ports of gRPC and REST."""
    root = export_of("classification").parents[1]
    config = tmp_path_factory.mktemp("config") / "models.config"
    text = (root / "models.config").read_text(encoding="utf-8")
    config.write_text(text.replace('"/models/', f'"{root}/'), encoding="utf-8")
    ports = free_ports(2)
    options = f"--port={ports[0]} --rest_api_port={ports[1]} --model_config_file={config}"
    options += f" --monitoring_config_file={root}/monitoring.config --enable_batching"
    options += f" --batching_parameters_file={root}/batching.config"
    options += " --enable_per_model_batching_parameters"
    process = subprocess.Popen([find_peer("tensorflow_model_server"), *options.split()])
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                rest(ports, "/v1/models/classification")
                break
            time.sleep(0.2)
        yield ports
    finally:
        process.terminate()
        process.wait(30)


def rest(ports, path: str, body: str | None = None) -> str:
    data = None if body is None else body.encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[1]}{path}", data, 30) as answer:
        return answer.read().decode()


@pytest.mark.slow
@pytest.mark.peer("tensorflow_model_server")
def test_tensorflow_serving_answers_the_request_of_the_model_card(model_server, export_of):
    directory = export_of("classification")
    card = (directory / "README.md").read_text(encoding="utf-8")
    body, path = re.search(r"curl -d '(.*)' \\\n\s+http://localhost:8501(\S+)", card).groups()
    answer = json.loads(rest(model_server, path, body))["outputs"]
    text = json.loads(body)["inputs"]["text"]
    expected = Predictor(directory).signatures["serving_default"](text=text)
    assert answer["label"] == [label.decode() for label in expected["label"]]
    np.testing.assert_allclose(answer["probability"], expected["probability"], rtol=1e-5)
    assert 'state": "AVAILABLE"' in rest(model_server, "/v1/models/classification")
    assert "request_count" in rest(model_server, "/monitoring/prometheus/metrics")


@pytest.mark.slow
@pytest.mark.peer("tensorflow_model_server")
def test_tensorflow_serving_answers_the_grpc_client_of_the_docs(model_server):
    """So does our server: tests/server/test_clients.py."""
    docs = (REPOSITORY / "docs" / "serving.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(import grpc.*?)```", docs, re.DOTALL)
    variables: dict = {}
    changed = code.replace("localhost:8500", f"127.0.0.1:{model_server[0]}")
    exec(changed.replace('"classifier"', '"classification"'), variables)
    assert len(variables["labels"]) == 2


def test_the_files_that_compose_names_are_there(export_of):
    folder = export_of("classification").parents[1]
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = compose["services"].values()
    assert service["volumes"] == [".:/models:ro"]
    named = re.findall(r"=/models/(\S+)", " ".join(service["command"]))
    assert named and all((folder / name).is_file() for name in named)
    image = service["image"]
    for page in (REPOSITORY / "saved_models" / "README.md", REPOSITORY / "docs" / "serving.md"):
        images = re.findall(r"tensorflow/serving:[\d.]+\d", page.read_text(encoding="utf-8"))
        assert set(images) <= {image}


TEXTS = np.array([b"the ship left", b"", b"sea " * 50, "été".encode()], object)


def test_a_session_answers_as_python_does(export_of):
    """The restore op of the export gave values to copies of the variables: servers had none."""
    version = export_of("classification")
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

"""OpenAI's API of embeddings, `:tokenize`, and what openapi.json allows."""

import base64
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from credential_files import tokens_of
from rest_client import loaded
from starlette.testclient import TestClient
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from bert_tf.server import openai
from bert_tf.server.app import make_app
from bert_tf.server.models import Models
from bert_tf.server.openai import PATH

pytestmark = pytest.mark.slow  # exports are made

TEXTS = ["the seas", "farm", "é 。 the farm"]
TOO_LONG = "sea " * 40


@pytest.fixture(scope="module")
def exports(made_once, page_models, toys) -> Path:
    """A folder with the models `encoder` and `classifier`, and `toy`, which makes no vectors."""

    def make(folder: Path) -> None:
        for source in (page_models / "encoder", page_models / "classifier", toys / "toy"):
            shutil.copytree(source, folder / source.name)

    return made_once("embeddings", make)


@pytest.fixture(scope="module")
def client(exports):
    with loaded(Models(exports)) as client:
        yield client


def ask(client, path: str, **body):
    return client.post(path, json=body)


def test_embeddings_in_openais_form(client, check_vectors):
    answer = ask(client, PATH, input=TEXTS, model="encoder").json()
    assert (answer["object"], answer["model"]) == ("list", "encoder")
    # seas is two pieces; each text has [CLS] and [SEP].
    assert answer["usage"] == {"prompt_tokens": 8 + 6, "total_tokens": 8 + 6}
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    check_vectors(TEXTS, [item["embedding"] for item in answer["data"]])
    body = {"model": "text-embedding-3-small", "encoding_format": "base64", "dimensions": 8}
    packed = ask(client, PATH, input=TEXTS[1], **body).json()
    (item,) = packed["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    check_vectors(TEXTS[1:2], [vector])
    assert packed["model"] == "encoder"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "encoder"}, 400, "'input' is missing"),
        ({"input": [], "model": "encoder"}, 400, "'input' is empty"),
        ({"input": ["a"] * 2049, "model": "encoder"}, 400, "2049 texts: send at most 2048"),
        ({"input": [1, 2], "model": "encoder"}, 400, "token ids"),
        ({"input": [[1, 2]], "model": "encoder"}, 400, "check_embedding_ctx_length=False"),
        ({"input": [None], "model": "encoder"}, 400, "has at 0 a value that is no text"),
        ({"input": {"a": 1}, "model": "encoder"}, 400, "must be a text or a list"),
        ({"input": "a"}, 400, "'model' is missing"),
        ({"input": "a", "model": "gone"}, 404, "There is no model gone: the server has"),
        ({"input": "a", "model": "toy"}, 400, "toy cannot make vectors"),
        ({"input": "a", "model": "encoder", "dimensions": 4}, 400, "'dimensions' is 4"),
        ({"input": "a", "model": "encoder", "encoding_format": "int8"}, 400, "float or base64"),
        ({"input": TOO_LONG, "model": "encoder"}, 400, "Row 0 is 26 word pieces longer"),
        ({"input": "a", "model": "encoder", "truncate": 1}, 400, "must be true or false"),
    ],
)
def test_bad_requests_in_openais_form(client, body, status, message):
    answer = ask(client, PATH, **body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert message in error["message"] and error["type"] == "invalid_request_error"


def test_a_signature_embed_of_another_model_has_no_vectors():
    signature = SignatureDef()
    for tensors, name in ((signature.inputs, "text"), (signature.outputs, "embeddings")):
        tensors[name].name = name
    assert openai._fit(SimpleNamespace(signatures={"embed": signature})) == 0


def test_refusals_before_a_model_is_asked_are_in_openais_form(exports, tmp_path):
    app = make_app(Models(exports), hosts={"here"}, tokens=tokens_of(tmp_path, "secret"))
    for host, status, message in (
        ("there", 403, "there is no name of this server"),
        ("here", 401, "Missing or wrong token"),
    ):
        refused = TestClient(app, base_url=f"http://{host}").post(PATH)
        assert refused.status_code == status
        assert refused.json()["error"]["message"].startswith(message)


def test_many_texts_are_answered_in_parts_and_in_their_order(client, check_vectors):
    texts = [TEXTS[number % 3] for number in range(2048)]
    items = ask(client, PATH, input=texts, model="encoder").json()["data"]
    vectors = [item["embedding"] for item in items]
    check_vectors(texts, vectors)
    body = {"input": [*TEXTS, TOO_LONG, *TEXTS], "model": "encoder"}
    assert "Row 3 is" in ask(client, PATH, **body).json()["error"]["message"]
    assert ask(client, PATH, **body, truncate=True).status_code == 200


def test_seconds_by_stage_count_embeddings(client):
    def counts() -> list[int]:
        text = client.get("/monitoring/prometheus/metrics").text
        name = "bert_tf_stage_seconds_count"
        return [
            int(float(text.split(f'{name}{{stage="{stage}"}} ')[1].split()[0]))
            for stage in ("read", "parse", "write")
        ]

    before = counts()
    ask(client, PATH, input="a", model="encoder")
    assert counts() == [count + 1 for count in before]


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        (":predict", [{}, {"inputs": ["a"], "instances": ["a"]}, {"instances": []}]),
        (":tokenize", [{}, {"inputs": 1}, {"inputs": [["a"]]}, {"instances": []}]),
        ("/v1/embeddings", [{"input": "a", "model": ""}, {"input": [], "model": "encoder"}]),
    ],
)
def test_openapi_allows_nothing_that_is_refused(client, path, bodies):
    jsonschema = pytest.importorskip("jsonschema")
    document = client.get("/openapi.json").json()
    url, model = path, "classifier" if "predict" in path else "encoder"
    if path.startswith(":"):
        path, url = f"/v1/models/{{model}}{path}", f"/v1/models/{model}{path}"
    described = document["paths"][path]["post"]["requestBody"]
    schema = {**described["content"]["application/json"]["schema"], **document}
    for body in bodies:
        assert ask(client, url, **body).status_code == 400
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(body, schema)


def test_tokenize(client):
    path = "/v1/models/encoder:tokenize"
    seas = {
        "pieces": [
            {"id": 8, "text": "the", "start": 0, "end": 3},
            {"id": 5, "text": "sea", "start": 4, "end": 7},
            {"id": 6, "text": "##s", "start": 7, "end": 8},
        ]
    }
    assert ask(client, path, inputs="the seas").json() == {"outputs": seas}
    assert ask(client, path, instances=["the seas", ""]).json() == {
        "predictions": [seas, {"pieces": []}]
    }
    assert ask(client, path, inputs=[["a"]]).status_code == 400
    missing = ask(client, "/v1/models/toy:tokenize", inputs="a")
    assert "toy has no vocab.txt" in missing.json()["error"]


def test_texts_that_are_truncated_can_be_refused_for_all(exports):
    with loaded(Models(exports, refuses_truncated=True)) as client:
        path = "/v1/models/encoder:predict"
        answer = ask(client, path, inputs=["a", TOO_LONG], signature_name="embed")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("Row 1 is 26 word pieces longer than the model")
        body = {"input": TOO_LONG, "model": "encoder", "truncate": True}
        assert ask(client, PATH, **body).status_code == 400

import base64
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import for_each
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


def stage_counts(client) -> list[float]:
    text = client.get("/monitoring/prometheus/metrics").text
    names = [f'bert_tf_stage_seconds_count{{stage="{x}"}} ' for x in ("read", "parse", "write")]
    return [float(text.split(name)[1].split()[0]) for name in names]


def test_embeddings_in_openais_form(client, check_vectors):
    before = stage_counts(client)
    answer = ask(client, PATH, input=TEXTS, model="encoder").json()
    assert stage_counts(client) == [count + 1 for count in before]
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


def test_shortened_embeddings(client):
    """The first dimensions, normalized as OpenAI's are.

    The same request gives the same vectors; of three squares, their sum and root, and the quotient,
    float32 rounds off at most 3.5 * 2**-24.
    """
    found = []
    for more in ({}, {"dimensions": 3}):
        data = ask(client, PATH, input=TEXTS, model="encoder", **more).json()["data"]
        found.append(np.array([item["embedding"] for item in data], np.float32))
    whole, short = found
    assert short.shape == (3, 3) and whole.shape == (3, 8)
    expected = whole[:, :3].astype(np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, rtol=4 * 2.0**-24)
    assert openai._shortened(np.zeros((1, 8), np.float32), 4).tolist() == [[0, 0, 0, 0]]


@for_each(
    "body status message",
    ({"model": "encoder"}, 400, "'input' is missing"),
    ({"input": [], "model": "encoder"}, 400, "'input' is empty"),
    ({"input": ["a"] * 2049, "model": "encoder"}, 400, "2049 texts: send at most 2048"),
    ({"input": [1, 2], "model": "encoder"}, 400, "token ids"),
    ({"input": [[1, 2]], "model": "encoder"}, 400, "check_embedding_ctx_length=False"),
    ({"input": [None], "model": "encoder"}, 400, "'input' item 0 is not a string"),
    ({"input": {"a": 1}, "model": "encoder"}, 400, "must be a text or a list"),
    ({"input": "a"}, 400, "'model' is missing"),
    ({"input": "a", "model": "gone"}, 404, "There is no model gone: the server has"),
    ({"input": "a", "model": "toy"}, 400, "toy does not return embeddings"),
    *(
        ({"input": "a", "model": "encoder", "dimensions": x}, 400, f"'dimensions' is {shown}")
        for x, shown in ((9, "9: encoder returns 8"), (0, "0"), (4.0, "4.0"), (True, "true"))
    ),
    ({"input": "a", "model": "encoder", "encoding_format": "int8"}, 400, "float or base64"),
    ({"input": TOO_LONG, "model": "encoder"}, 400, "Row 0 is 26 word pieces longer"),
    ({"input": "a", "model": "encoder", "truncate": 1}, 400, "must be true or false"),
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
    foreign = ("there", 403, "there is no name of this server")
    for host, status, message in (foreign, ("here", 401, "Missing or wrong token")):
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


@for_each(
    "path bodies",
    (":predict", [{}, {"inputs": ["a"], "instances": ["a"]}, {"instances": []}]),
    (":tokenize", [{}, {"inputs": 1}, {"inputs": [["a"]]}, {"instances": []}]),
    ("/v1/embeddings", [{"input": "a", "model": ""}, {"input": [], "model": "encoder"}]),
    ("/v1/rerank", [{"model": "encoder", "query": "a", "documents": []}]),
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
    found = ask(client, path, instances=["the seas", ""]).json()
    assert found == {"predictions": [seas, {"pieces": []}]}
    assert ask(client, path, inputs=[["a"]]).status_code == 400
    missing = ask(client, "/v1/models/toy:tokenize", inputs="a")
    assert "toy has no vocab.txt" in missing.json()["error"]


def test_documents_are_reranked_in_coheres_and_jinas_form(client):
    documents = ["farm", {"text": "the seas"}, *["the farm"] * 40]  # two parts
    body = {"model": "encoder", "query": "the seas", "documents": documents}
    answer = ask(client, "/v1/rerank", **body, top_n=3, return_documents=True).json()
    assert answer["model"] == "encoder" and answer["usage"]["total_tokens"] == 3 + 1 + 3 + 80
    first, *others = answer["results"]
    assert (first["index"], first["document"]) == (1, {"text": "the seas"})
    rows = {"query": "the seas", "texts": ["farm", "the seas", "the farm"]}
    asked = {"signature_name": "rerank", "instances": [rows]}
    served = ask(client, "/v1/models/encoder:predict", **asked).json()
    scores = served["predictions"][0]["scores"]
    asked = ask(client, "/v1/rerank", **body).json()["results"]
    ranked = {item["index"]: item["relevance_score"] for item in asked}
    # Other rows of a batch change the order of its sums.
    np.testing.assert_allclose([ranked[i] for i in range(3)], scores, rtol=1e-5, atol=1e-6)
    assert [*ranked] == sorted(ranked, key=lambda index: (-ranked[index], index))
    assert len(others) == 2 and len(asked) == 42 and "document" not in asked[0]


@for_each(
    "body message",
    ({"query": None}, "'query' is missing"),
    ({"documents": []}, "'documents' is empty"),
    ({"documents": [{"title": "a"}]}, "'documents' item 0 is not a string"),
    ({"top_n": 0}, "'top_n' must be a number of at least 1"),
    ({"model": "toy"}, "The model toy does not rerank"),
    ({"model": ""}, "'model' is missing"),
    ({"documents": ["a", TOO_LONG]}, "Row 1 is 26 word pieces longer"),
    ({"return_documents": 1}, "'return_documents' must be true or false"),
)
def test_bad_requests_for_ranks(client, body, message):
    valid = {"model": "encoder", "query": "a", "documents": ["a"]}
    answer = ask(client, "/v1/rerank", **valid | body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]


def test_texts_that_are_truncated_can_be_refused_for_all(exports):
    with loaded(Models(exports, refuses_truncated=True)) as client:
        path = "/v1/models/encoder:predict"
        answer = ask(client, path, inputs=["a", TOO_LONG], signature_name="embed")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("Row 1 is 26 word pieces longer than the model")
        body = {"input": TOO_LONG, "model": "encoder", "truncate": True}
        assert ask(client, PATH, **body).status_code == 400

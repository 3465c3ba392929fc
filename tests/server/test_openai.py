"""OpenAI's API of embeddings, asked by its own clients, and what openapi.json allows."""

import base64
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import uvicorn
from credential_files import tokens_of
from rounding import assert_equal_but_for_rounding
from starlette.testclient import TestClient

from bert_tf import Predictor
from bert_tf.server.app import make_app
from bert_tf.server.models import Models
from bert_tf.server.openai import PATH

pytestmark = pytest.mark.slow  # an export is made, and other servers' clients are imported

TEXTS = ["the seas", "farm", "é 。 the farm"]
TOO_LONG = "sea " * 40


class Toys(tf.Module):
    """Models that embed nothing, and tell what they truncate."""

    def __init__(self) -> None:
        super().__init__()
        self.one = tf.Variable(1.0)

    def save(self, folder: Path) -> None:
        text, pair = (tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair"))
        query = tf.TensorSpec([None], tf.string, "query")
        texts = tf.TensorSpec([None, None], tf.string, "texts")

        @tf.function(input_signature=[text, pair])
        def score(text, text_pair):
            length = tf.strings.length(text_pair)
            return {
                "score": self.one * tf.cast(length, tf.float32),
                "truncated": tf.maximum(length - 20, 0),
            }

        @tf.function(input_signature=[query, texts])
        def rerank(query, texts):
            length = tf.strings.length(texts)
            return {
                "scores": self.one * tf.cast(length, tf.float32),
                "truncated": tf.maximum(length - 20, 0),
            }

        @tf.function(input_signature=[text])
        def other_vectors(text):
            return {"embeddings": tf.ones([tf.size(text), 2]) * self.one}

        lists = {"serving_default": other_vectors, "embed": other_vectors, "rerank": rerank}
        for name, functions in (("pairs", score), ("lists", lists)):
            tf.saved_model.save(self, str(folder / name / "1"), signatures=functions)


def assert_close(vectors, expected) -> None:
    """Equal but for a block and a pooling in batches of other shapes."""
    assert_equal_but_for_rounding(vectors, expected, 30, 16)


@pytest.fixture(scope="module")
def exports(made_once, page_models) -> Path:
    """A folder with the models `encoder`, `classifier`, `pairs` and `lists`."""

    def make(folder: Path) -> None:
        for name in ("encoder", "classifier"):
            shutil.copytree(page_models / name, folder / name)
        Toys().save(folder)

    return made_once("embeddings", make)


@pytest.fixture(scope="module")
def client(exports):
    models = Models(exports)
    with TestClient(make_app(models)) as client:
        client.portal.call(models.start)
        yield client
        client.portal.call(models.close)


@pytest.fixture(scope="module")
def expected(exports) -> np.ndarray:
    """The vectors of TEXTS."""
    return np.asarray(Predictor(exports / "encoder").signature("embed")(text=TEXTS)["vector"])


def ask(client, path: str, **body):
    return client.post(path, json=body)


def test_embeddings_in_openais_form(client, expected):
    answer = ask(client, PATH, input=TEXTS, model="encoder").json()
    assert (answer["object"], answer["model"]) == ("list", "encoder")
    # seas is two pieces; each text has [CLS] and [SEP].
    assert answer["usage"] == {"prompt_tokens": 8 + 6, "total_tokens": 8 + 6}
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert_close([item["embedding"] for item in answer["data"]], expected)
    packed = ask(
        client,
        PATH,
        input=TEXTS[1],
        model="text-embedding-3-small",
        encoding_format="base64",
        dimensions=8,
    ).json()
    (item,) = packed["data"]
    vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    assert_close(vector, expected[1])
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
        ({"input": "a", "model": "gone"}, 404, "Servable not found"),
        ({"input": "a", "model": "pairs"}, 400, "pairs cannot make vectors"),
        ({"input": "a", "model": "lists"}, 400, "lists cannot make vectors"),
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


def test_refusals_before_a_model_is_asked_are_in_openais_form(exports, tmp_path):
    app = make_app(Models(exports), hosts={"here"}, tokens=tokens_of(tmp_path, "secret"))
    for host, status, message in (
        ("there", 403, "there is no name of this server"),
        ("here", 401, "Missing or wrong token"),
    ):
        refused = TestClient(app, base_url=f"http://{host}").post(PATH)
        assert refused.status_code == status
        assert refused.json()["error"]["message"].startswith(message)


def test_many_texts_are_answered_in_parts_and_in_their_order(client, expected):
    texts = [TEXTS[number % 3] for number in range(2048)]
    items = ask(client, PATH, input=texts, model="encoder").json()["data"]
    vectors = [item["embedding"] for item in items]
    assert_close(vectors, np.tile(expected, (683, 1))[:2048])
    refused = ask(client, PATH, input=[*TEXTS, TOO_LONG, *TEXTS], model="encoder")
    assert "Row 3 is" in refused.json()["error"]["message"]


def test_texts_are_truncated_where_a_request_says_so(client):
    body = {"input": TOO_LONG, "model": "encoder", "truncate": True}
    assert ask(client, PATH, **body).status_code == 200


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
    missing = ask(client, "/v1/models/pairs:tokenize", inputs="a")
    assert "pairs has no vocab.txt" in missing.json()["error"]


@pytest.mark.slow
def test_texts_that_are_truncated_can_be_refused_for_all(exports):
    models = Models(exports, refuses_truncated=True)
    with TestClient(make_app(models)) as client:
        client.portal.call(models.start)
        inputs = {"text": ["a", "a"], "text_pair": ["a", "b" * 23]}
        answer = ask(client, "/v1/models/pairs:predict", inputs=inputs)
        assert (answer.status_code, answer.json()["error"]) == (
            400,
            "Row 1 is 3 word pieces longer than the model reads: shorten or split it",
        )
        body = {"input": TOO_LONG, "model": "encoder", "truncate": True}
        assert ask(client, PATH, **body).status_code == 400
        lists = {"query": ["a", "a"], "texts": [["a", "b"], ["a", "b" * 23]]}
        answer = ask(
            client, "/v1/models/lists:predict", inputs=lists, signature_name="rerank"
        ).json()
        assert answer["error"].startswith("Row 1, text 1, is 3 word pieces longer")
        client.portal.call(models.close)


@pytest.fixture(scope="module")
def address(client) -> str:
    """The same models over a real socket."""
    config = uvicorn.Config(client.app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    # The loop that the models belong to.
    thread = threading.Thread(target=client.portal.call, args=(server.serve,), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    (listening,) = server.servers
    yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_the_openai_client(address, expected):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
    answer = client.embeddings.create(input=TEXTS, model="encoder")  # asks for base64
    assert_close([x.embedding for x in answer.data], expected)
    with pytest.raises(openai.NotFoundError, match="Servable not found"):
        client.embeddings.create(input=TEXTS, model="gone")
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(input=TEXTS, model="encoder", dimensions=4)
    assert [model.id for model in client.models.list()] == [
        "classifier",
        "encoder",
        "lists",
        "pairs",
    ]


@pytest.mark.slow
def test_langchain(address, expected):
    from langchain_openai import OpenAIEmbeddings

    chain = OpenAIEmbeddings(
        base_url=f"{address}/v1", api_key="any", check_embedding_ctx_length=False
    )
    assert_close(chain.embed_documents(TEXTS), expected)


@pytest.mark.slow
def test_a_generated_client(address, client, expected, tmp_path, monkeypatch):
    (tmp_path / "openapi.json").write_text(client.get("/openapi.json").text)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "openapi_python_client",
            "generate",
            "--meta",
            "none",
            "--path",
            tmp_path / "openapi.json",
            "--output-path",
            tmp_path / "made_client",
        ],
        check=True,
        capture_output=True,
    )
    # The generator leaves out what it cannot read.
    paths = client.get("/openapi.json").json()["paths"].values()
    operations = {x["operationId"] for path in paths for x in path.values() if "operationId" in x}
    modules = (tmp_path / "made_client" / "api" / "default").glob("[a-z]*.py")
    assert {path.stem for path in modules} == operations
    monkeypatch.syspath_prepend(tmp_path)
    from made_client import Client
    from made_client.api.default import create_embeddings, is_ready, model_status
    from made_client.models import Embeddings

    generated = Client(base_url=address)
    assert is_ready.sync_detailed(client=generated).status_code == 200
    (version,) = model_status.sync("encoder", client=generated).model_version_status
    assert version.state == "AVAILABLE"
    answer = create_embeddings.sync(
        client=generated, body=Embeddings(input_=TEXTS, model="encoder")
    )
    assert_close([x.embedding for x in answer.data], expected)
    refused = create_embeddings.sync(client=generated, body=Embeddings(input_=TEXTS, model="gone"))
    assert "Servable not found" in refused.error["message"]

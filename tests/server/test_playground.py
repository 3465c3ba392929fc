"""The playground's routes and files, without a browser."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tensorflow.core.framework.types_pb2 import DT_INT32, DT_STRING
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse

from bert_tf.server import playground
from bert_tf.server.errors import ServingError

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "bert_tf/server/playground"
FILES = sorted((PACKAGE / "static").iterdir())


class SomeModels:
    """Version 2 of "a" is loaded and version 3 is loading; version 1 goes; "b" has failed."""

    names = ("a", "b")

    def status(self, name: str) -> GetModelStatusResponse:
        if name == "b":
            raise ServingError(grpc.StatusCode.NOT_FOUND, "none")
        response = GetModelStatusResponse()
        for version, state in ((3, "LOADING"), (2, "AVAILABLE"), (1, "AVAILABLE")):
            response.model_version_status.add(version=version, state=state)
        return response

    @contextlib.contextmanager
    def servable(self, name: str, version: int) -> Iterator[SimpleNamespace]:
        if version != 2:
            raise ServingError(grpc.StatusCode.NOT_FOUND, "none")
        signature = SignatureDef(method_name="tensorflow/serving/predict")
        signature.inputs["text"].dtype = DT_STRING
        signature.inputs["text"].tensor_shape.dim.add(size=-1)
        signature.outputs["any"].dtype = DT_INT32
        signature.outputs["any"].tensor_shape.unknown_rank = True
        yield SimpleNamespace(signatures={"serving_default": signature})


CLIENT = TestClient(Starlette(routes=playground.routes(SomeModels())))  # type: ignore[arg-type]


def test_the_list_has_what_can_be_asked():
    answer = CLIENT.get("/playground/models")
    described = {
        "method": "tensorflow/serving/predict",
        "inputs": {"text": {"dtype": "DT_STRING", "shape": [-1]}},
        "outputs": {"any": {"dtype": "DT_INT32", "shape": None}},
    }
    versions = [{"version": 2, "signatures": {"serving_default": described}}]
    models = [{"name": "a", "versions": versions}]
    assert answer.json() == {"models": models, "token": False}
    assert CLIENT.get("/playground/models", auth=("", "secret")).json()["token"] is True


@pytest.mark.parametrize("path", ["/", "/playground/models"])
def test_the_policy_allows_nothing_from_elsewhere_and_no_inline_script(path):
    headers = CLIENT.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy and "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_names_only_files_that_are_served():
    page = CLIENT.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    named = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert set(named) == {f"playground/{file.name}" for file in FILES if file.suffix != ".html"}
    types = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for name in named:
        served = CLIENT.get(f"/{name}")
        assert served.status_code == 200
        assert served.headers["content-type"].startswith(types[Path(name).suffix])
    assert CLIENT.get("/playground/..%2f__init__.py").status_code == 404
    assert CLIENT.post("/playground/").status_code == 404
    assert CLIENT.post("/").status_code == 405


def test_the_files_are_small_and_fetch_nothing_from_elsewhere():
    assert sum(len(file.read_bytes()) for file in FILES) < 60_000
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        elsewhere = set(
            re.findall(r"""(?:https?:)?//[\w.]+""", re.sub(r"^\s*//.*", "", text, flags=re.M))
        )
        assert elsewhere <= {"http://www.w3.org"}, file  # the name space of SVG
    scripts = "".join(file.read_text() for file in FILES if file.suffix == ".js")
    parses_markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\("
    assert not re.search(parses_markup, scripts)
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=|<style", CLIENT.get("/").text)

import re
from pathlib import Path

from canned_models import CannedModels
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tensorflow.core.framework.types_pb2 import DT_INT32
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

from bert_tf.server import playground

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "bert_tf/server/playground"
FILES = sorted((PACKAGE / "static").iterdir())


CLIENT = TestClient(Starlette(routes=playground.routes(CannedModels())))  # type: ignore[arg-type]


def test_the_list_has_what_can_be_asked(models):
    client = TestClient(Starlette(routes=playground.routes(models)))
    (model,) = client.get("/playground/models").json()["models"]
    (version,) = model["versions"]
    assert (model["name"], version["version"]) == ("half_plus_three", 123)
    assert version["signatures"]["pairs"] == {
        "method": "tensorflow/serving/predict",
        "inputs": {name: {"dtype": "DT_STRING", "shape": [-1]} for name in ("text", "text_pair")},
        "outputs": {"joined": {"dtype": "DT_STRING", "shape": [-1]}},
    }
    any_shape = TensorInfo(dtype=DT_INT32, tensor_shape={"unknown_rank": True})
    assert playground._tensors({"x": any_shape}) == {"x": {"dtype": "DT_INT32", "shape": None}}

    for auth, has_token in ((None, False), (("", "secret"), True)):
        assert CLIENT.get("/playground/models", auth=auth).json()["token"] is has_token


def test_the_policy_allows_nothing_from_elsewhere_and_no_inline_script():
    for path in ("/", "/playground/models"):
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

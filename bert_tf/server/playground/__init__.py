"""The playground: a page at `/` for trying models in a browser.

It draws in `static/`: `answers.js` has a view for each sort of output, `attention.js` one of the
attention.
"""

from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef, TensorInfo

from bert_tf.server.models import Models
from bert_tf.server.tensors import sizes_of

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def routes(models: Models) -> list[Route]:
    """The page, its files, and JSON with the models and whether the browser had to show a token."""

    async def list_models(request: Request) -> Response:
        answer = {"models": describe(models), "token": "authorization" in request.headers}
        return JSONResponse(answer, headers=HEADERS)

    def file_route(file: Traversable) -> Route:
        content = file.read_bytes()
        media_type = _TYPES[file.name.rpartition(".")[2]]

        async def answer(request: Request) -> Response:
            return Response(content, headers=HEADERS, media_type=media_type)

        return Route("/" if file.name == "index.html" else f"/playground/{file.name}", answer)

    static = resources.files(__package__) / "static"
    return [Route("/playground/models", list_models), *map(file_route, static.iterdir())]


def describe(models: Models) -> list[dict[str, Any]]:
    """The models that can be asked, each with its versions, newest first, and their signatures."""
    described = []
    for name in models.names:
        versions = []
        for version, servable in sorted(models.available(name).items(), reverse=True):
            signatures = {key: _described(value) for key, value in servable.signatures.items()}
            versions.append({"version": version, "signatures": signatures})
        described.append({"name": name, "versions": versions})
    return described


def _described(signature: SignatureDef) -> dict[str, Any]:
    inputs, outputs = _tensors(signature.inputs), _tensors(signature.outputs)
    return {"method": signature.method_name, "inputs": inputs, "outputs": outputs}


def _tensors(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    described = {}
    for name, info in sorted(tensors.items()):
        shape = None if info.tensor_shape.unknown_rank else sizes_of(info)
        described[name] = {"dtype": DataType.Name(info.dtype), "shape": shape}
    return described

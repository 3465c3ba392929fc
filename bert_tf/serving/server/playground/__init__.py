"""The playground: a page at `/` for trying the server's models in a browser.

The page is in `static/`, as it is served: no build step, no framework, no request to elsewhere.
"""

import contextlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tensorflow.core.framework.types_pb2 import DataType
from tensorflow.core.protobuf.meta_graph_pb2 import TensorInfo

from bert_tf.serving.server.errors import ServingError
from bert_tf.serving.server.models import Models

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
    """Makes the routes of the page.

    `/` is the page, which asks `/v1/models/...`; `/playground/NAME` are its files;
    `/playground/models` is JSON with `models` (see `describe`) and whether the browser had to show
    a `token`.
    """

    async def list_models(request: Request) -> Response:
        found = {"models": describe(models), "token": "authorization" in request.headers}
        return JSONResponse(found, headers=HEADERS)

    def file_route(file: Traversable) -> Route:
        content, media_type = file.read_bytes(), _TYPES[file.name.rpartition(".")[2]]

        async def answer(request: Request) -> Response:
            return Response(content, headers=HEADERS, media_type=media_type)

        return Route("/" if file.name == "index.html" else f"/playground/{file.name}", answer)

    static = resources.files(__package__) / "static"
    return [Route("/playground/models", list_models), *map(file_route, static.iterdir())]


def describe(models: Models) -> list[dict[str, Any]]:
    """The models that can be asked, in alphabetical order, each with its versions, newest first.

    Each version has its signatures with `method`, `inputs` and `outputs`; a tensor has a `dtype`
    such as "DT_STRING" and a `shape`, in which -1 is an unknown size; null is an unknown rank.
    """
    return [
        {"name": name, "versions": versions}
        for name in models.names
        if (versions := _versions(models, name))
    ]


def _versions(models: Models, name: str) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(ServingError):  # no version has been loaded yet
        for status in models.status(name).model_version_status:
            # One that is retired meanwhile is none to ask.
            with contextlib.suppress(ServingError), models.servable(name, status.version) as held:
                described = {
                    key: {
                        "method": each.method_name,
                        "inputs": _tensors(each.inputs),
                        "outputs": _tensors(each.outputs),
                    }
                    for key, each in held.signatures.items()
                }
                found.append({"version": status.version, "signatures": described})
    return found


def _tensors(tensors: Mapping[str, TensorInfo]) -> dict[str, Any]:
    found = {}
    for name, info in sorted(tensors.items()):
        shape = [dimension.size for dimension in info.tensor_shape.dim]
        known = None if info.tensor_shape.unknown_rank else shape
        found[name] = {"dtype": DataType.Name(info.dtype), "shape": known}
    return found

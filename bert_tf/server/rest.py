"""TensorFlow Serving's REST API, for the paths within /v1/."""

import functools
import json
import re
import time
from typing import Any
from urllib.parse import unquote

import orjson
import tensorflow as tf
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from grpc import StatusCode
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from tensorflow_serving.apis.get_model_metadata_pb2 import SignatureDefMap
from tensorflow_serving.apis.model_pb2 import ModelSpec

from bert_tf.server import json_answers, json_requests, openai
from bert_tf.server.batching import row_count
from bert_tf.server.conversion import LARGE_BODY, in_thread_if, written
from bert_tf.server.errors import ServingError, invalid, not_allowed
from bert_tf.server.http import LONGEST_NAME, Api, Bodies, learned, malformed, raw_path
from bert_tf.server.models import Models

# From tensorflow_serving/model_servers/http_rest_api_util.cc, which has no :tokenize. A name may
# hold a percent-encoded line break.
_SERVABLE = "/v1/models/([^/:]+)(?:/versions/([0-9]+)|/labels/([^/:]+))?"
_INFERENCE = re.compile(f"{_SERVABLE}:(predict|tokenize|classify|regress)", re.IGNORECASE)
_STATUS = re.compile(f"{_SERVABLE}(/metadata)?", re.IGNORECASE)
_NO_MODEL = re.compile("/v1/models(?:/versions/[0-9]+)?", re.IGNORECASE)

# The name of a model, and the version or label that a path names, without both for the newest.
_Target = tuple[str, int | None, str | None]


def _target(found: re.Match) -> _Target:
    version = found[2]
    if version and (len(version.lstrip("0")) > 19 or int(version[-19:]) >= 2**63):
        raise invalid(f"Failed to convert version: {version} to numeric.")
    label = found[3] and unquote(found[3])
    return unquote(found[1]), version and int(version[-19:]), label


class RestApi(Api):
    """The ASGI application; paths outside /v1/ are answered with a plain 404."""

    def __init__(self, models: Models, bodies: Bodies) -> None:
        super().__init__(self._answer_path, models.metrics)
        self._models, self._bodies = models, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_inside = raw_path(scope).lower().startswith("/v1/")
        answer = super().__call__ if is_inside else PlainTextResponse("Not Found", 404)
        await answer(scope, receive, send)

    async def _answer_path(self, request: Request) -> str | bytes:
        path, method = raw_path(request.scope), request.method
        if found := _INFERENCE.fullmatch(path):
            if method != "POST":
                raise not_allowed(method, "POST")
            target, verb = _target(found), found[4].lower()
            access = learned(request.scope)
            access["model"] = target[0][:LONGEST_NAME]
            if verb in ("classify", "regress"):
                instead = "ask :predict, or TensorFlow Serving, which has the export's"
                raise ServingError(
                    StatusCode.UNIMPLEMENTED, f"This server has no :{verb}: {instead} :{verb}"
                )
            answer = self._tokens if verb == "tokenize" else self._predictions
            call = functools.partial(answer, target=target, access=access)
            return await self._bodies.answered(request, verb.capitalize(), call)
        found = _STATUS.fullmatch(path)
        is_list = _NO_MODEL.fullmatch(path)
        if not (found or is_list):
            raise malformed(request)
        if method not in ("GET", "HEAD"):
            raise not_allowed(method, "GET")
        if found:
            target = _target(found)
            learned(request.scope)["model"] = target[0][:LONGEST_NAME]
            fields = self._metadata(target) if found[4] else _fields(self._models.status(*target))
            return json.dumps(fields, indent=1, ensure_ascii=False)
        # TensorFlow Serving has no such list: its clients get its message.
        if request.headers.get("user-agent", "").startswith("OpenAI/"):
            return openai.listed(self._models)
        raise invalid("Missing model name in request.")

    def _metadata(self, target: _Target) -> dict[str, Any]:
        with self._models.servable(*target) as servable:
            signatures = SignatureDefMap(signature_def=servable.signatures)
            spec = ModelSpec(name=servable.name, version={"value": servable.version})
        # The name stands twice: once for the map of metadata, once for the message's field.
        return {"model_spec": _fields(spec), "metadata": {"signature_def": _fields(signatures)}}

    async def _predictions(
        self, body: bytes, deadline: float, *, target: _Target, access: dict[str, Any]
    ) -> bytes:
        start, is_large = time.monotonic(), len(body) > LARGE_BODY
        document = await in_thread_if(is_large, json_requests.parse, body)
        name = json_requests.signature_name(document)
        with self._models.servable(*target) as servable:
            access["version"] = servable.version
            if (signature_name := name or "serving_default") in servable.signatures:
                access["signature"] = signature_name
            listed = document.get("instances")
            # Refused before it costs the time of a conversion.
            servable.check_rows(len(listed) if isinstance(listed, list) else 0)
            infos = servable.signature(name).inputs
            if not infos:
                raise invalid(f"Failed to get input map for signature: {name or 'DEFAULT'}")
            inputs = {key: tf.as_dtype(info.dtype) for key, info in infos.items()}
            tensors = await in_thread_if(is_large, json_requests.tensors, document, inputs)
            access["rows"] = row_count(tensors) if any(x.ndim for x in tensors.values()) else 1
            write = json_answers.outputs if "inputs" in document else json_answers.predictions
            del document  # several times the size of its body
            self.metrics.stages.labels("parse").observe(time.monotonic() - start)
            answer = await servable.predict(name, tensors, deadline)
            outputs = dict(sorted(answer.items()))
            values = sum(output.size for output in outputs.values())
            return await written(self.metrics, values, write, outputs, deadline)

    async def _tokens(
        self, body: bytes, deadline: float, *, target: _Target, access: dict[str, Any]
    ) -> bytes:
        is_large, inputs = len(body) > LARGE_BODY, {"text": tf.string}
        document = await in_thread_if(is_large, json_requests.parse, body)
        texts = (await in_thread_if(is_large, json_requests.tensors, document, inputs))["text"]
        with self._models.servable(*target) as servable:
            access["version"] = servable.version
            if texts.ndim > 1:
                raise invalid("Send a text, or a list of texts")
            rows = await servable.tokenize(texts.reshape(-1), deadline)
        access["rows"] = len(rows)
        key = "outputs" if "inputs" in document else "predictions"
        pieces = sum(len(row["pieces"]) for row in rows)
        answer = {key: rows if texts.ndim else rows[0]}
        return await written(self.metrics, pieces, orjson.dumps, answer)


def _fields(message: Message) -> dict[str, Any]:
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

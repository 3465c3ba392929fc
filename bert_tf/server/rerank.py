"""Cohere's and Jina's API of reranking, `/v1/rerank`, by the signature `rerank`."""

import asyncio
from typing import Any, NamedTuple

import numpy as np
import orjson

from bert_tf.server import json_tensors
from bert_tf.server.batching import LARGE_BODY, in_thread_if
from bert_tf.server.errors import invalid
from bert_tf.server.models import Models
from bert_tf.server.openai import in_parts, strings_in, switch_in
from bert_tf.server.servable import Servable, refuse_truncated

PATH = "/v1/rerank"


class _Body(NamedTuple):
    """The body of a request."""

    model: str
    query: bytes
    documents: list[bytes]
    top_n: int
    return_documents: bool
    truncate: bool


async def rerank(models: Models, state: Any, content: bytes, deadline: float) -> bytes:
    """The answer to the body of a request; tells its `state` the model, for metrics.

    Raises ServingError: INVALID_ARGUMENT for a model without the signature, and for texts that it
    cannot read whole, unless they may be truncated.
    """
    with models.metrics.stages.labels("parse").time():
        is_large = len(content) > LARGE_BODY
        body = _read(await in_thread_if(is_large, json_tensors.parse, content))
    models.check_started()
    with models.servable(body.model) as servable:
        signature = servable.signatures.get("rerank")
        if signature is None or {*signature.inputs} != {"query", "texts"}:
            raise invalid(f"The model {body.model} does not rerank")
        state.model = body.model
        documents = np.array(body.documents, object)
        scores, pieces = await asyncio.gather(
            _scores(servable, body, documents, deadline),
            servable.count_pieces(np.array([body.query, *body.documents], object), deadline),
        )
    with models.metrics.stages.labels("write").time():
        return _answer(servable.name, body, scores, int(pieces.sum()))


def _read(document: dict[str, Any]) -> _Body:
    name = document.get("model")
    if not isinstance(name, str) or not name:
        raise invalid("'model' is missing: give the name of a model")
    query = document.get("query")
    if not isinstance(query, str):
        raise invalid("'query' is missing: give a text")
    listed = document.get("documents")
    if isinstance(listed, list):
        listed = [x.get("text") if isinstance(x, dict) else x for x in listed]
    documents = strings_in(listed, "documents")
    top_n = document.get("top_n")
    if top_n is None:
        top_n = len(documents)
    if not isinstance(top_n, int) or isinstance(top_n, bool) or top_n < 1:
        raise invalid("'top_n' must be a number of at least 1")
    shows = switch_in(document, "return_documents")
    return _Body(name, query.encode(), documents, top_n, shows, switch_in(document, "truncate"))


async def _scores(
    servable: Servable, body: _Body, documents: np.ndarray, deadline: float
) -> np.ndarray:
    """How well each document goes with the query, float32 [n]."""

    async def ask(rows: np.ndarray) -> dict[str, np.ndarray]:
        inputs = {"query": np.array([body.query], object), "texts": documents[rows][np.newaxis]}
        answer = await servable.predict("rerank", inputs, deadline, may_truncate=True)
        return {name: answer[name][0] for name in ("scores", "truncated") if name in answer}

    outputs = await in_parts(servable, documents, ask)
    if servable.refuses_truncated or not body.truncate:
        refuse_truncated(outputs)
    return outputs["scores"]


def _answer(model: str, body: _Body, scores: np.ndarray, tokens: int) -> bytes:
    """The best documents first; of equal scores the earlier one."""
    results = []
    for index in np.argsort(-scores, kind="stable")[: body.top_n].tolist():
        result: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        if body.return_documents:
            result["document"] = {"text": body.documents[index].decode()}
        results.append(result)
    return orjson.dumps({"model": model, "usage": {"total_tokens": tokens}, "results": results})

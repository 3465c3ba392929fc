"""OpenAI's API of embeddings, `/v1/embeddings`, and the list of models that its clients read."""

import asyncio
import base64
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import orjson
from grpc import StatusCode

from bert_tf.server import json_tensors
from bert_tf.server.batching import LARGE_ANSWER, LARGE_BODY, in_thread_if
from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.models import Models
from bert_tf.server.servable import Servable, refuse_truncated

PATH = "/v1/embeddings"
# OpenAI's own models, which its clients ask for by default. Any other name must be a model's.
_OPENAI_MODELS = "text-embedding-"
_SPECIALS = 2  # tokens of a text besides its pieces
_MOST_TEXTS = 2048  # of a request, as in OpenAI's API
_BATCH_ROWS = 32  # texts of a request that are answered at once: other requests come between them
_BATCHES_AT_ONCE = 2
# Outputs of the signature `embed`: of a sentence encoder; of any other model, the mean over tokens.
_VECTORS = ("vector", "mean")


class _Body(NamedTuple):
    """The body of a request."""

    texts: list[bytes]
    model: str
    in_base64: bool
    dimensions: Any
    truncate: bool


async def embeddings(
    models: Models, fields: dict[str, Any], content: bytes, deadline: float
) -> bytes:
    """The answer to the body of a request; adds the access log's fields."""
    with models.metrics.stages.labels("parse").time():
        is_large = len(content) > LARGE_BODY
        body = _read(await in_thread_if(is_large, json_tensors.parse, content))
    with _servable(models, body, fields) as servable:
        texts = np.array(body.texts, object)
        vectors, pieces = await asyncio.gather(
            _vectors(servable, texts, body.truncate, deadline),
            servable.count_pieces(texts, deadline),
        )
    tokens, is_large = int(pieces.sum()) + _SPECIALS * len(texts), vectors.size > LARGE_ANSWER
    with models.metrics.stages.labels("write").time():
        answer = servable.name, tokens, vectors, body.in_base64
        return await in_thread_if(is_large, _answer, *answer)


def listed(models: Models) -> bytes:
    """The models that answer, as OpenAI's API lists them."""
    fields = {"object": "model", "created": 0, "owned_by": "bert-tf"}
    return orjson.dumps({"object": "list", "data": [{"id": x, **fields} for x in models.names]})


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an error: OpenAI's clients show no message of another shape."""
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _read(document: dict[str, Any]) -> _Body:
    texts, name = _texts(document.get("input")), document.get("model")
    if not isinstance(name, str) or not name:
        raise invalid("'model' is missing: give the name of a model")
    encoding = document.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise invalid("'encoding_format' must be float or base64")
    truncate = document.get("truncate") or False
    if not isinstance(truncate, bool):
        raise invalid("'truncate' must be true or false")
    return _Body(texts, name, encoding == "base64", document.get("dimensions"), truncate)


def _texts(value: Any) -> list[bytes]:
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        raise invalid("'input' is missing: give a text or a list of texts")
    if texts == []:
        raise invalid("'input' is empty: give at least one text", "empty")
    if not isinstance(texts, list):
        raise invalid("'input' must be a text or a list of texts")
    if len(texts) > _MOST_TEXTS:
        message = f"'input' has {len(texts)} texts: send at most {_MOST_TEXTS}"
        raise invalid(message, "too_many_rows")
    for number, text in enumerate(texts):
        if isinstance(text, int | list) and not isinstance(text, bool):
            raise invalid(
                "'input' holds token ids, which are those of another vocabulary: send texts "
                "(LangChain's OpenAIEmbeddings does with check_embedding_ctx_length=False)"
            )
        if not isinstance(text, str):
            raise invalid(f"'input' has at {number} a value that is no text")
    return [text.encode() for text in texts]


@contextlib.contextmanager
def _servable(models: Models, body: _Body, fields: dict[str, Any]) -> Iterator[Servable]:
    """The model that a request names, or for a name of OpenAI's the one that embeds best.

    Raises ServingError: NOT_FOUND without such a model, INVALID_ARGUMENT if it makes no vectors of
    the wanted size, or if several models embed.
    """
    name = body.model
    if name.startswith(_OPENAI_MODELS) and name not in models.names:
        newest = {name: max(models.available(name).items())[1] for name in models.names}
        fits = {candidate: _fit(servable) for candidate, servable in newest.items()}
        best = max(fits.values(), default=0)
        if not best:
            raise ServingError(StatusCode.NOT_FOUND, "No model can make vectors")
        name, *others = (candidate for candidate in fits if fits[candidate] == best)
        if others:
            names = ", ".join([name, *others])
            raise invalid(f"Several models can make vectors: {names}. Name one as 'model'")
    with models.servable(name) as servable:
        if not _fit(servable):
            raise invalid(f"The model {name} cannot make vectors")
        width = _vector(servable)[1]
        if body.dimensions not in (None, width):
            raise invalid(
                f"'dimensions' is {json_tensors.shown(body.dimensions)}: the vectors of "
                f"{servable.name} have {width}, which cannot be shortened"
            )
        fields |= {"model": name, "version": servable.version, "rows": len(body.texts)}
        yield servable


def _fit(servable: Servable) -> int:
    """How well a model embeds: 2 for an encoder, which answers with nothing else; 0 for none."""
    fits = [
        name
        for name in ("embed", "serving_default")
        if (signature := servable.signatures.get(name))
        and {*signature.inputs} == {"text"}
        and {*signature.outputs}.intersection(_VECTORS)
    ]
    return len(fits) if "embed" in fits else 0


def _vector(servable: Servable) -> tuple[str, int]:
    """The output of the signature `embed` that is a text's vector, and its width H."""
    outputs = servable.signatures["embed"].outputs
    name = next(name for name in _VECTORS if name in outputs)
    return name, outputs[name].tensor_shape.dim[1].size


async def _vectors(
    servable: Servable, texts: np.ndarray, truncate: bool, deadline: float
) -> np.ndarray:
    """Vectors of texts [B], float32 [B, H]; texts of like length are computed together.

    Raises ServingError: INVALID_ARGUMENT for a text that the model cannot read whole, unless texts
    may be truncated.
    """
    order = np.argsort([len(text) for text in texts], kind="stable")
    size = min(_BATCH_ROWS, servable.most_rows)
    free = asyncio.Semaphore(_BATCHES_AT_ONCE)

    async def answer(rows: np.ndarray) -> dict[str, np.ndarray]:
        async with free:
            inputs = {"text": texts[rows]}
            return await servable.predict("embed", inputs, deadline, may_truncate=True)

    parts = [order[start : start + size] for start in range(0, len(order), size)]
    tasks = [asyncio.ensure_future(answer(rows)) for rows in parts]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    back = np.argsort(order)
    outputs = {
        name: np.concatenate([part[name] for part in answers])[back]
        for name in ({_vector(servable)[0], "truncated"} & answers[0].keys())
    }
    if servable.refuses_truncated or not truncate:
        refuse_truncated(outputs)
    return outputs[_vector(servable)[0]]


def _answer(model: str, tokens: int, vectors: np.ndarray, in_base64: bool) -> bytes:
    """The answer, written a row at a time: orjson holds Python's lock."""

    def row(number: int) -> bytes:
        vector: Any = vectors[number]
        if in_base64:
            vector = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        item = {"object": "embedding", "index": number, "embedding": vector}
        return orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)

    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    head = {"object": "list", "model": model, "usage": usage}
    return b'%b,"data":[%b]}' % (orjson.dumps(head)[:-1], b",".join(map(row, range(len(vectors)))))

"""OpenAI's API of embeddings, `/v1/embeddings`, and the list of models that its clients read."""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterator
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
    dimensions: Any  # None for all that the model has
    truncate: bool


async def embeddings(models: Models, state: Any, content: bytes, deadline: float) -> bytes:
    """The answer to the body of a request; tells its `state` the model, for metrics."""
    with models.metrics.stages.labels("parse").time():
        is_large = len(content) > LARGE_BODY
        body = _read(await in_thread_if(is_large, json_tensors.parse, content))
    with _servable(models, body, state) as servable:
        texts = np.array(body.texts, object)
        vectors, pieces = await asyncio.gather(
            _vectors(servable, texts, body.truncate, deadline),
            servable.count_pieces(texts, deadline),
        )
    vectors = _shortened(vectors, body.dimensions)
    tokens = int(pieces.sum()) + _SPECIALS * len(texts)
    is_large = vectors.size > LARGE_ANSWER
    with models.metrics.stages.labels("write").time():
        answer = servable.name, tokens, vectors, body.in_base64
        return await in_thread_if(is_large, _answer, *answer)


def listed(models: Models) -> bytes:
    """The models that answer, as OpenAI's API lists them."""
    models.check_started()
    fields = {"object": "model", "created": 0, "owned_by": "bert-tf"}
    return orjson.dumps({"object": "list", "data": [{"id": x, **fields} for x in models.names]})


def error(status: int, message: str) -> dict[str, Any]:
    """The body of an error: OpenAI's clients show no message of another shape."""
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _read(document: dict[str, Any]) -> _Body:
    texts = strings_in(document.get("input"), "input")
    name = document.get("model")
    if not isinstance(name, str) or not name:
        raise invalid("'model' is missing: give the name of a model")
    encoding = document.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise invalid("'encoding_format' must be float or base64")
    truncate = switch_in(document, "truncate")
    return _Body(texts, name, encoding == "base64", document.get("dimensions"), truncate)


def switch_in(document: dict[str, Any], name: str) -> bool:
    """A field of a request that is true or false, which it is without the field."""
    value = document.get(name) or False
    if not isinstance(value, bool):
        raise invalid(f"'{name}' must be true or false")
    return value


def strings_in(value: Any, name: str) -> list[bytes]:
    """The field `name` of a request, a text or a list of texts; refuses others, and too many."""
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        raise invalid(f"'{name}' is missing: give a text or a list of texts")
    if texts == []:
        raise invalid(f"'{name}' is empty: give at least one text", "empty")
    if not isinstance(texts, list):
        raise invalid(f"'{name}' must be a text or a list of texts")
    if len(texts) > _MOST_TEXTS:
        message = f"'{name}' has {len(texts)} texts: send at most {_MOST_TEXTS}"
        raise invalid(message, "too_many_rows")
    for number, text in enumerate(texts):
        if isinstance(text, int | list) and not isinstance(text, bool):
            raise invalid(
                f"'{name}' contains token ids of another vocabulary: send texts (in LangChain, "
                "with OpenAIEmbeddings(check_embedding_ctx_length=False))"
            )
        if not isinstance(text, str):
            raise invalid(f"'{name}' item {number} is not a string")
    return [text.encode() for text in texts]


@contextlib.contextmanager
def _servable(models: Models, body: _Body, state: Any) -> Iterator[Servable]:
    """The model that a request names, or for a name of OpenAI's the one that embeds best.

    Raises ServingError: UNAVAILABLE while models load, NOT_FOUND without such a model,
    INVALID_ARGUMENT if it makes no vectors of the wanted size, or if several models embed.
    """
    models.check_started()
    name = body.model
    if name.startswith(_OPENAI_MODELS) and name not in models.names:
        newest = {name: max(models.available(name).items())[1] for name in models.names}
        fits = {candidate: _fit(servable) for candidate, servable in newest.items()}
        best = max(fits.values(), default=0)
        if not best:
            raise ServingError(StatusCode.NOT_FOUND, "No model returns embeddings")
        name, *others = (candidate for candidate in fits if fits[candidate] == best)
        if others:
            names = ", ".join([name, *others])
            raise invalid(f"Several models return embeddings: {names}. Set 'model' to one of them")
    with models.servable(name) as servable:
        if not _fit(servable):
            raise invalid(f"The model {name} does not return embeddings")
        width = _vector(servable)[1]
        wanted = width if body.dimensions is None else body.dimensions
        if type(wanted) is not int or not 1 <= wanted <= width:
            raise invalid(
                f"'dimensions' is {json_tensors.shown(wanted)}: {servable.name} returns {width} "
                f"dimensions; give a whole number from 1 to {width}"
            )
        state.model = name
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
    """Vectors of texts [B], float32 [B, H].

    Raises ServingError: INVALID_ARGUMENT for a text that the model cannot read whole, unless texts
    may be truncated.
    """
    name = _vector(servable)[0]

    async def ask(rows: np.ndarray) -> dict[str, np.ndarray]:
        inputs = {"text": texts[rows]}
        answer = await servable.predict("embed", inputs, deadline, may_truncate=True)
        return {output: answer[output] for output in {name, "truncated"} & answer.keys()}

    outputs = await in_parts(servable, texts, ask)
    if servable.refuses_truncated or not truncate:
        refuse_truncated(outputs)
    return outputs[name]


def _shortened(vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first `dimensions` of vectors [B, H], normalized to length 1; all of them unchanged."""
    if dimensions in (None, vectors.shape[1]):
        return vectors
    vectors = vectors[:, :dimensions]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


async def in_parts(
    servable: Servable,
    texts: np.ndarray,
    ask: Callable[[np.ndarray], Awaitable[dict[str, np.ndarray]]],
) -> dict[str, np.ndarray]:
    """The outputs [B, ...] that `ask` gives for rows of texts [B], of like length at once."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    size = min(_BATCH_ROWS, servable.most_rows)
    free = asyncio.Semaphore(_BATCHES_AT_ONCE)

    async def answer(rows: np.ndarray) -> dict[str, np.ndarray]:
        async with free:
            return await ask(rows)

    parts = [order[start : start + size] for start in range(0, len(order), size)]
    tasks = [asyncio.ensure_future(answer(rows)) for rows in parts]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    back = np.argsort(order)
    return {name: np.concatenate([part[name] for part in answers])[back] for name in answers[0]}


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

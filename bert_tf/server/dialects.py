"""Other servers' APIs: OpenAI's embeddings; embed, rerank, predict of text-embeddings-inference."""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson
from grpc import StatusCode
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from bert_tf.server import http, json_requests
from bert_tf.server.conversion import LARGE_BODY, in_thread_if, written
from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.models import Models
from bert_tf.server.servable import Servable, refuse_truncated

_OPENAI_PATH = "/v1/embeddings"
# OpenAI's own models, which its clients ask for by default. Any other name must be a model's.
_OPENAI_MODELS = "text-embedding-"
_SPECIALS = 2  # tokens of a text besides its pieces
_MOST_TEXTS = 2048  # of a request, as in OpenAI's API
# Of the parts of a request: others' requests come between them. A part of more bytes has one row: a
# query stands in each row, however long it is.
_ROWS = 32
_BYTES = 2**22
_AT_ONCE = 2
_PAIR = {"text", "text_pair"}
# Outputs of `embed`: of a sentence encoder, and of any other model the mean over the tokens.
_VECTORS = ("vector", "mean")

_Columns = Mapping[str, Sequence[bytes | list[bytes]]]  # texts, or lists of one, by input
# How well a model fits a request: 0 if it cannot answer it, 2 if it is made for it, otherwise 1.
_Fit = Callable[[Servable], int]


class _Asked(NamedTuple):
    models: Models
    document: dict[str, Any]
    deadline: float
    model: str | None  # in the path
    access: dict[str, Any]  # fields of the log

    def flag(self, name: str) -> bool:
        value = self.document.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(f"'{name}' must be true or false")
        return bool(value)

    @property
    def truncate(self) -> bool:
        """Whether texts may be truncated, which exports do at their end."""
        if self.document.get("truncation_direction") not in (None, "right", "Right"):
            raise invalid("'truncation_direction': exports cut the end of a text; leave it out")
        return self.flag("truncate")

    @contextlib.contextmanager
    def servable(self, fit: _Fit, doing: str, rows: list[Any]) -> Iterator[Servable]:
        """The model that is asked, which the access log names; without a name the one that fits.

        Raises ServingError: NOT_FOUND, INVALID_ARGUMENT if it cannot do it or if several fit best.
        """
        name = self.model
        if name is None:
            fits = {}
            for each in self.models.names:
                with contextlib.suppress(ServingError), self.models.servable(each) as servable:
                    fits[each] = fit(servable)
            best = max(fits.values(), default=0)
            if not best:
                raise ServingError(StatusCode.NOT_FOUND, f"No model can {doing}")
            name, *others = (each for each in fits if fits[each] == best)
            if others:
                raise invalid(
                    f"Several models can {doing}: {', '.join([name, *others])}. Name one before "
                    f"the path, as in /v1/models/{name}/..., or as OpenAI's 'model'"
                )
        with self.models.servable(name) as servable:
            if not fit(servable):
                raise invalid(f"The model {name} cannot {doing}")
            name = servable.name[: http.LONGEST_NAME]
            self.access.update(model=name, version=servable.version, rows=len(rows))
            yield servable


_Answer = Callable[[_Asked], Coroutine[Any, Any, bytes]]


def routes(models: Models, bodies: http.Bodies) -> list[BaseRoute]:
    """The paths, those of text-embeddings-inference also below `/v1/models/NAME`."""

    def app(verb: str, answer: _Answer, write_error: Callable[[int, str], str]) -> http.Api:
        async def respond(request: Request) -> bytes:
            if request.method != "POST":
                raise http.malformed(request)
            access, name = http.learned(request.scope), request.path_params.get("model")

            async def from_body(body: bytes, deadline: float) -> bytes:
                with models.metrics.stages.labels("parse").time():
                    document = await in_thread_if(len(body) > LARGE_BODY, json_requests.parse, body)
                return await answer(_Asked(models, document, deadline, name, access))

            return await bodies.answered(request, verb.capitalize(), from_body)

        return http.Api(respond, models.metrics, write_error)

    found: list[BaseRoute] = [Route(_OPENAI_PATH, app("embeddings", _embeddings, _openai_error))]
    for verb, answer in (("embed", _embed), ("rerank", _rerank), ("predict", _predict)):
        for path in (f"/{verb}", f"/v1/models/{{model}}/{verb}"):
            found.append(Route(path, app(verb, answer, _inference_error)))
    return found


def listed(models: Models) -> bytes:
    """The models that answer, as OpenAI's API lists them."""
    fields = {"object": "model", "created": 0, "owned_by": "bert-tf"}
    return orjson.dumps({"object": "list", "data": [{"id": x, **fields} for x in models.names]})


def refusal(scope: Scope, status: int, message: str) -> Response:
    """An error before a route is found: OpenAI's clients show no message of another shape."""
    write = _openai_error if scope["path"] == _OPENAI_PATH else http.error_text
    return http.json_response(write(status, message), status)


def _openai_error(status: int, message: str) -> str:
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": None}
    return json.dumps({"error": error})


def _inference_error(status: int, message: str) -> str:
    kind = "Overloaded" if status in (429, 503) else "Validation" if status < 500 else "Backend"
    return json.dumps({"error": message, "error_type": kind})


async def _embeddings(asked: _Asked) -> bytes:
    document = asked.document
    texts, name = _texts(document, "input"), document.get("model")
    if not isinstance(name, str) or not name:
        raise invalid("'model' is missing: give the name of a model")
    is_openai = name.startswith(_OPENAI_MODELS) and name not in asked.models.names
    asked = asked._replace(model=None if is_openai else name)
    encoding = document.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise invalid("'encoding_format' must be float or base64")
    with asked.servable(_has_vectors, "make vectors", texts) as servable:
        counting = servable.count_pieces(np.array(texts, object), asked.deadline)
        found, pieces = await asyncio.gather(_vectors(servable, texts, asked), counting)
        answer = servable.name, int(pieces.sum()), found, encoding == "base64"
        return await written(asked.models.metrics, found.size, _embeddings_text, *answer)


async def _embed(asked: _Asked) -> bytes:
    texts = _texts(asked.document, "inputs")
    if asked.document.get("prompt_name") is not None:
        raise invalid("'prompt_name': exports have no prompts; write it into the text")
    with asked.servable(_has_vectors, "make vectors", texts) as servable:
        found = await _vectors(servable, texts, asked)
    return await written(asked.models.metrics, found.size, _rows, found)


async def _vectors(servable: Servable, texts: list[bytes], asked: _Asked) -> np.ndarray:
    """Vectors of texts, float32 [B, H]: the model's own, or normalized."""
    normalize, size = asked.flag("normalize"), asked.document.get("dimensions")
    made = servable.signatures["embed"].outputs
    name = next(name for name in _VECTORS if name in made)
    width = made[name].tensor_shape.dim[1].size
    if size not in (None, width):
        raise invalid(
            f"'dimensions' is {json_requests.shown(size)}: the vectors of {servable.name} "
            f"have {width}, which cannot be shortened"
        )
    found = (await _run(servable, "embed", {"text": texts}, [name], asked))[name]
    if normalize:
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return found


async def _rerank(asked: _Asked) -> bytes:
    query = asked.document.get("query")
    texts = _texts(asked.document, "texts", alone=False)
    if not isinstance(query, str):
        raise invalid("'query' is missing: give a text")
    with asked.servable(_can_rank, "score pairs of texts", texts) as servable:
        scores = await _pair_scores(servable, [query.encode()] * len(texts), texts, asked)
    answer = scores, texts, asked.flag("return_text")
    return await written(asked.models.metrics, len(texts), _ranks, *answer)


async def _predict(asked: _Asked) -> bytes:
    sequences, is_alone = _sequences(asked.document)
    with asked.servable(_can_classify, "classify texts", sequences) as servable:
        takes = len(servable.signature("").inputs)
        for place, sequence in enumerate(sequences):
            if len(sequence) != takes:
                wanted = "pairs of texts" if takes == 2 else "single texts"
                raise invalid(f"{servable.name} takes {wanted}: input {place} is none")
        texts = map(list, zip(*sequences, strict=True))
        columns = dict(zip(("text", "text_pair"), texts, strict=False))
        if "score" in servable.signature("").outputs:
            scores = await _scores(servable, columns, asked)
            rows = [[{"score": float(score), "label": "LABEL_0"}] for score in scores]
        else:
            if asked.flag("raw_scores"):
                raise invalid("'raw_scores': exports answer with probabilities; leave it out")
            names = ["labels", "probabilities"]
            outputs = await _run(servable, "", columns, names, asked)
            rows = [
                [
                    {"score": float(score), "label": label.decode(errors="replace")}
                    for label, score in zip(*row, strict=True)
                ]
                for row in zip(*(outputs[name] for name in names), strict=True)
            ]
    values = sum(map(len, rows))
    answer = rows[0] if is_alone else rows
    return await written(asked.models.metrics, values, orjson.dumps, answer)


async def _run(
    servable: Servable, signature: str, columns: _Columns, outputs: Collection[str], asked: _Asked
) -> dict[str, np.ndarray]:
    """Some outputs of a signature for any number of rows, those of like length together.

    Raises ServingError: INVALID_ARGUMENT for a text that is too long and must not be truncated.
    """
    truncate = asked.truncate  # refused before the work
    inputs = {name: np.array(texts, object) for name, texts in columns.items()}
    lengths = np.sum([[*map(len, array.flat)] for array in inputs.values()], axis=0)
    order = np.argsort(lengths, kind="stable")
    parts, rest, size = [], order, min(_ROWS, servable.most_rows)
    while len(rest):
        rows = size if lengths[rest[:size]].sum() <= _BYTES else 1
        parts.append(rest[:rows])
        rest = rest[rows:]
    places = asyncio.Semaphore(_AT_ONCE)

    async def answer(part: np.ndarray) -> dict[str, np.ndarray]:
        async with places:
            rows = {name: array[part] for name, array in inputs.items()}
            return await servable.predict(signature, rows, asked.deadline, may_truncate=True)

    tasks = [asyncio.ensure_future(answer(part)) for part in parts]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    names = [*outputs, *({"truncated"} & answers[0].keys())]
    back = np.argsort(order)
    found = {name: np.concatenate([each[name] for each in answers])[back] for name in names}
    if not truncate or servable.refuses_truncated:
        refuse_truncated(found)
    return found


def _has_vectors(servable: Servable) -> int:
    """Every export has vectors; an encoder answers with nothing else."""
    if not _has(servable, "embed", {"text"}, _VECTORS):
        return 0
    return 2 if _has(servable, "serving_default", {"text"}, _VECTORS) else 1


def _can_rank(servable: Servable) -> int:
    """A regression of pairs is made for it; classifiers of pairs and sentence encoders can."""
    if _has(servable, "serving_default", _PAIR, ["score"]):
        return 2
    return int(_has(servable, "rerank", {"query", "texts"}, ["scores"]))


def _can_classify(servable: Servable) -> int:
    default = servable.signatures.get("serving_default")
    if default is None or "text" not in default.inputs or not set(default.inputs) <= _PAIR:
        return 0
    return int({"labels", "probabilities"} <= default.outputs.keys() or "score" in default.outputs)


def _has(servable: Servable, name: str, inputs: set[str], outputs: Iterable[str]) -> bool:
    """Whether a signature takes these inputs and has one of the outputs."""
    found = servable.signatures.get(name)
    return bool(found and {*found.inputs} == inputs and {*found.outputs}.intersection(outputs))


async def _scores(servable: Servable, columns: _Columns, asked: _Asked) -> np.ndarray:
    """Scores of a regression, by default between 0 and 1 as a logistic function makes them."""
    raw = asked.flag("raw_scores")
    scores = (await _run(servable, "", columns, ["score"], asked))["score"].astype(np.float64)
    return scores if raw else 1 / (1 + np.exp(-scores))


async def _pair_scores(
    servable: Servable, queries: list[bytes], texts: list[bytes], asked: _Asked
) -> np.ndarray:
    """Scores of a regression, or of the signature `rerank` as it makes them."""
    if _can_rank(servable) == 2:
        return await _scores(servable, {"text": queries, "text_pair": texts}, asked)
    if asked.flag("raw_scores"):
        raise invalid(f"'raw_scores': {servable.name} has one form of scores; leave it out")
    columns: dict[str, list] = {"query": queries, "texts": [[text] for text in texts]}
    outputs = await _run(servable, "rerank", columns, ["scores"], asked)
    return outputs["scores"][:, 0].astype(np.float64)


def _texts(document: dict[str, Any], name: str, *, alone: bool = True) -> list[bytes]:
    """A list of texts, or one that is `alone`."""
    given = document.get(name)
    texts = [given] if alone and isinstance(given, str) else given
    if texts is None:
        raise invalid(f"'{name}' is missing: give {'a text or ' if alone else ''}a list of texts")
    if texts == []:
        raise invalid(f"'{name}' is empty: give at least one text", "empty")
    if not isinstance(texts, list):
        raise invalid(f"'{name}' must be {'a text or ' if alone else ''}a list of texts")
    if len(texts) > _MOST_TEXTS:
        most = _MOST_TEXTS
        raise invalid(f"'{name}' has {len(texts)} texts: send at most {most}", "too_many_rows")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            if isinstance(text, int | list) and not isinstance(text, bool):
                raise invalid(
                    f"'{name}' holds token ids, which are those of another vocabulary: send texts "
                    "(LangChain's OpenAIEmbeddings does with check_embedding_ctx_length=False)"
                )
            raise invalid(f"'{name}' holds at {place} what is no text")
    return [text.encode() for text in texts]


def _sequences(document: dict[str, Any]) -> tuple[list[list[bytes]], bool]:
    """Inputs of /predict, each a text or a pair of texts, and whether there is one alone.

    "a" or ["a", "b"] is one, [["a"], ["b", "c"]] are several.
    """
    given = document.get("inputs")
    given = [given] if isinstance(given, str) else given
    is_alone = isinstance(given, list) and all(isinstance(text, str) for text in given)
    sequences = [given] if is_alone else given
    if not isinstance(sequences, list) or not sequences or sequences == [[]]:
        raise invalid("'inputs' is empty or missing: give a text, a pair of texts, or several")
    if len(sequences) > _MOST_TEXTS:
        text = f"'inputs' has {len(sequences)} inputs: send at most {_MOST_TEXTS}"
        raise invalid(text, "too_many_rows")
    for place, sequence in enumerate(sequences):
        is_sequence = isinstance(sequence, list) and len(sequence) in (1, 2)
        if not is_sequence or not all(isinstance(text, str) for text in sequence):
            raise invalid(f"'inputs' holds at {place} what is no list of a text or of two")
    return [[text.encode() for text in sequence] for sequence in sequences], is_alone


def _ranks(scores: np.ndarray, texts: list[bytes], with_text: bool) -> bytes:
    ranks = [
        {"index": int(place), "score": float(scores[place])}
        | ({"text": texts[place].decode()} if with_text else {})
        for place in np.argsort(-scores, kind="stable")
    ]
    return orjson.dumps(ranks)


def _rows(found: np.ndarray) -> bytes:
    """JSON, a row at a time: orjson holds Python's lock."""
    rows = (orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in found)
    return b"[%b]" % b",".join(rows)


def _embeddings_text(name: str, pieces: int, found: np.ndarray, in_base64: bool) -> bytes:
    def row(place: int) -> bytes:
        vector: Any = found[place]
        if in_base64:
            vector = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        item = {"object": "embedding", "index": place, "embedding": vector}
        return orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)

    tokens = pieces + _SPECIALS * len(found)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    head = {"object": "list", "model": name, "usage": usage}
    data = b",".join(map(row, range(len(found))))
    return b'%b,"data":[%b]}' % (orjson.dumps(head)[:-1], data)

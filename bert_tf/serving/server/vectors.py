"""Vectors and answers for any number of texts, by the signatures of one model."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from grpc import StatusCode

from bert_tf.serving.server.errors import ServingError, invalid
from bert_tf.serving.server.models import Models
from bert_tf.serving.server.servable import Servable, refuse_truncated

MOST_TEXTS = 2048  # of a request, as in OpenAI's API
# Of the parts of a request: others' requests come between them.
_ROWS = 32
_AT_ONCE = 2
_PAIR = {"text", "text_pair"}
# Whether a model can do something, and whether it is made for it.
Fit = Callable[[Servable], tuple[bool, bool]]


# Outputs of the signature `embed`: that of a sentence encoder, pooled as its files say, and the
# mean over the tokens of any other model.
VECTORS = ("vector", "mean")


def has_vectors(servable: Servable) -> tuple[bool, bool]:
    """Every export has vectors; an encoder answers with nothing else."""
    found, is_encoder = (
        _has(servable, name, {"text"}, VECTORS) for name in ("embed", "serving_default")
    )
    return found, is_encoder


def scores_pairs(servable: Servable) -> bool:
    return _has(servable, "serving_default", _PAIR, ["score"])


def ranks(servable: Servable) -> tuple[bool, bool]:
    """A regression of pairs is made for it; classifiers of pairs and sentence encoders can."""
    found = scores_pairs(servable)
    return found or _has(servable, "rerank", {"query", "texts"}, ["scores"]), found


def classifies(servable: Servable) -> tuple[bool, bool]:
    default = servable.signatures.get("serving_default")
    if default is None or "text" not in default.inputs or not set(default.inputs) <= _PAIR:
        return False, False
    found = {"labels", "probabilities"} <= default.outputs.keys() or "score" in default.outputs
    return found, found


def _has(servable: Servable, name: str, inputs: set[str], outputs: Iterable[str]) -> bool:
    """Whether a signature takes these inputs and has one of the outputs."""
    signature = servable.signatures.get(name)
    return (
        signature is not None
        and set(signature.inputs) == inputs
        and any(each in signature.outputs for each in outputs)
    )


@contextlib.contextmanager
def servable_for(models: Models, name: str | None, fit: Fit, doing: str) -> Iterator[Servable]:
    """The model of this name or, without one, the only one that fits, by preference made for it.

    Raises ServingError: NOT_FOUND, INVALID_ARGUMENT if it cannot do it or if several can.
    """
    if name is None:
        fits: dict[bool, list[str]] = {True: [], False: []}
        for each in models.names:
            with contextlib.suppress(ServingError), models.servable(each) as servable:
                can, is_made_for = fit(servable)
                if can:
                    fits[is_made_for].append(each)
        found = fits[True] or fits[False]
        if len(found) > 1:
            raise invalid(
                f"Several models can {doing}: {', '.join(found)}. Name one before the path, as in "
                f"/v1/models/{found[0]}/..., or as OpenAI's 'model'"
            )
        if not found:
            raise ServingError(StatusCode.NOT_FOUND, f"No model can {doing}")
        (name,) = found
    with models.servable(name) as servable:
        if not fit(servable)[0]:
            raise invalid(f"The model {name} cannot {doing}")
        yield servable


async def run(
    servable: Servable,
    signature_name: str,
    columns: Mapping[str, Sequence[bytes | list[bytes]]],
    outputs: Collection[str],
    deadline: float,
    truncate: bool,
) -> dict[str, np.ndarray]:
    """Some outputs of a signature for any number of rows, those of like length together.

    A row of a column is a text, or a list of one. Raises ServingError: INVALID_ARGUMENT for a text
    that is too long, unless it may be truncated.
    """
    inputs = {name: np.array(texts, object) for name, texts in columns.items()}
    lengths = sum(np.fromiter(map(len, array.flat), int) for array in inputs.values())
    order = np.argsort(lengths, kind="stable")
    size = servable.most_rows(_ROWS)
    parts = [order[start : start + size] for start in range(0, len(order), size)]
    places = asyncio.Semaphore(_AT_ONCE)

    async def answer(part: np.ndarray) -> dict[str, np.ndarray]:
        async with places:
            rows = {name: array[part] for name, array in inputs.items()}
            return await servable.predict(signature_name, rows, deadline, may_truncate=True)

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

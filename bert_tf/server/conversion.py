"""Conversion of large bodies and answers in threads: other requests need not wait for it."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from bert_tf.server.metrics import Metrics

LARGE_BODY = 2**14  # bytes
LARGE_ANSWER = 2**12  # values

_T = TypeVar("_T")


async def in_thread_if(is_large: bool, function: Callable[..., _T], *arguments: object) -> _T:
    """Calls a function, in a thread if its arguments are large: a cancelled caller waits for it."""
    if not is_large:
        return function(*arguments)
    is_wanted = True

    def run() -> _T:
        if not is_wanted:
            raise RuntimeError("the caller has gone")
        return function(*arguments)

    running = asyncio.ensure_future(asyncio.to_thread(run))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        is_wanted = False
        await asyncio.gather(running, return_exceptions=True)
        raise


async def written(metrics: Metrics, values: int, write: Callable[..., bytes], *given: Any) -> bytes:
    """An answer of so many values as `write` makes it, in a thread if they are many."""
    with metrics.stages.labels("write").time():
        return await in_thread_if(values > LARGE_ANSWER, write, *given)

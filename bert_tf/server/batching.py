"""Threads: dynamic batching, and conversion of large bodies and answers outside the event loop.

Requests that wait for the same graph run as one, and are split again. The answers to a request are
those that it gets alone, but for the rounding of floats, whose sums depend on the shape of a batch.
Everything here but `_execute` runs in the event loop's thread.
"""

import asyncio
import dataclasses
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf
from grpc import StatusCode

from bert_tf.server.configuration import BatchingParameters
from bert_tf.server.errors import ServingError, from_tensorflow
from bert_tf.startup import available_cores

LARGE_BODY = 2**14  # bytes
LARGE_ANSWER = 2**12  # values

_T = TypeVar("_T")
Arrays = Mapping[str, np.ndarray]
# Makes outputs from inputs, row by row, until a moment of `time.monotonic()`.
Function = Callable[[Arrays, float], dict[str, np.ndarray]]

# Texts of like length are joined, as the shorter are padded to the longest. Processor time per
# request of an encoder of 6 layers, 384 wide, 16 clients: short texts 8.3 ms alone, 2.9 ms joined;
# long ones 20 and 16 ms; half of each 13.9 ms alone, 16.2 ms joined at any length, 9.7 ms at like
# length. Beyond some thousand word pieces a batch gains nothing and delays its first request.
_BATCH_BYTES = 2**14
_SHORT_BYTES = 2**6
# Long texts and lists leave one thread to short ones, as long as these keep arriving, and to
# requests far smaller than those that run. The 99th percentile of short texts beside long ones, in
# ms, with 8, 64 and 256 clients on 2 cores of an AMD EPYC: 139, 740 and 4,180 without this rule,
# 58, 253 and 228 with it.
_LONG_BYTES = 2**8
_MANY_ROWS = 16
_SHORT_SECONDS = 1.0
_FAR_SMALLER = 2**6
# Far larger than joined requests, and seconds of work: never runs on the last thread.
_HUGE_BYTES = 2**17

_LOG = logging.getLogger(__name__)


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


@dataclasses.dataclass(eq=False)
class _Request:
    function: Function
    inputs: Arrays
    joins: bool
    rows: int
    deadline: float
    future: asyncio.Future[dict[str, np.ndarray]]
    arrived: float = dataclasses.field(default_factory=time.monotonic)

    def is_wanted(self) -> bool:
        return not self.future.done() and time.monotonic() < self.deadline


class Workers:
    """The threads that run the batches of all models; by default one per core."""

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads or available_cores()
        self._idle = self.threads
        self._long: list[int] = []  # the bytes of the batches of long requests that run
        self._last_short = -math.inf
        self._executor = ThreadPoolExecutor(self.threads, "batch")
        self._queues: set[BatchQueue] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, queue: "BatchQueue") -> None:
        """Runs this queue's batches as soon as they are ready and a thread is free."""
        self._queues.add(queue)
        self._start_batches()

    def _start_batches(self) -> None:
        if self._timer:
            self._timer.cancel()
        while self._idle:
            now = time.monotonic()
            # Until then the last thread waits for requests that are short or far smaller.
            is_last = len(self._long) >= self.threads - 1 > 0
            until = self._last_short + _SHORT_SECONDS if is_last else -math.inf
            most = min(self._long, default=0) // _FAR_SMALLER
            self._queues = {queue for queue in self._queues if queue.rows}
            heads = [
                head._replace(ready_at=max(head.ready_at, until))
                if head.group.is_long and head.bytes > most
                else head
                for queue in self._queues
                for head in queue.heads()
                if not is_last or head.bytes < _HUGE_BYTES
            ]
            ready = [head for head in heads if head.ready_at <= now]
            if ready:
                oldest = min(ready, key=lambda head: head.arrived)
                if batch := oldest.queue.take(oldest.group):  # else all had expired
                    self._start(oldest, batch)
                continue
            if heads:
                delay = min(head.ready_at for head in heads) - now
                self._timer = asyncio.get_running_loop().call_later(delay, self._start_batches)
            return

    def _start(self, head: "_Head", batch: list[_Request]) -> None:
        queue = head.queue
        started = time.monotonic()
        self._idle -= 1
        queue.running += 1
        if head.group.is_long:
            self._long.append(head.bytes)
        else:
            self._last_short = started
        rows = sum(row_count(request.inputs) for request in batch)
        queue.observe(rows, [started - request.arrived for request in batch])
        sizes = queue.parameters.allowed_batch_sizes if batch[0].joins else ()
        run = asyncio.get_running_loop().run_in_executor(self._executor, _execute, batch, sizes)

        def finish(run: asyncio.Future) -> None:
            self._idle += 1
            queue.running -= 1
            if head.group.is_long:
                self._long.remove(head.bytes)
            for request, answer in zip(batch, run.result(), strict=True):
                if request.future.done():  # cancelled or late
                    continue
                if isinstance(answer, ServingError):
                    request.future.set_exception(answer)
                else:
                    request.future.set_result(answer)
            self._start_batches()

        run.add_done_callback(finish)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._executor.shutdown(wait=False)


class _Group(NamedTuple):
    """The common properties of requests that can be joined."""

    key: Any
    size: int  # the exponent of `_bytes`
    is_long: bool


class _Head(NamedTuple):
    """The oldest request of a group."""

    queue: "BatchQueue"
    group: _Group
    bytes: int  # of the next batch, about
    arrived: float
    ready_at: float


@dataclasses.dataclass(eq=False)
class BatchQueue:
    """The requests that wait for one version of a model: `rows` wait, `running` batches run.

    `observe` is called for each batch, with its rows and the seconds that each request waited.
    """

    workers: Workers
    parameters: BatchingParameters
    observe: Callable[[int, list[float]], object] = lambda rows, waits: None
    rows: int = 0
    running: int = 0
    _waiting: dict[_Group, deque[_Request]] = dataclasses.field(default_factory=dict)

    async def run(
        self, function: Function, inputs: Arrays, key: Any = None, deadline: float = math.inf
    ) -> dict[str, np.ndarray]:
        """Calls `function` in a thread, for several requests at once where that pays.

        Requests with equal keys, types and row shapes may be joined; the key None prevents it.
        Raises ServingError: UNAVAILABLE for too many rows, DEADLINE_EXCEEDED, or the function's.
        """
        # A request without rows counts as one.
        rows = max(1, row_count(inputs)) if key is not None else 1
        batches = self.parameters.max_enqueued_batches
        if self.rows and self.rows + rows > batches * self.parameters.max_batch_size:
            message = f"The queue is full: {batches} batches wait (max_enqueued_batches)"
            raise ServingError(StatusCode.UNAVAILABLE, message, "queue_full")
        future = asyncio.get_running_loop().create_future()
        request = _Request(function, inputs, key is not None, rows, deadline, future)
        if not request.is_wanted():
            raise _expired()
        shapes = ((name, x.dtype.str, x.shape[1:]) for name, x in sorted(inputs.items()))
        group = _Group(
            object() if key is None else (key, *shapes),
            size := _bytes(inputs),
            rows > _MANY_ROWS or 2**size > _LONG_BYTES,
        )
        self._waiting.setdefault(group, deque()).append(request)
        self.rows += rows
        self.workers.watch(self)
        seconds = deadline - time.monotonic() if deadline < math.inf else None
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise _expired() from None
        finally:
            waiting = self._waiting.get(group)
            if waiting and request in waiting:  # its caller has gone
                waiting.remove(request)
                self.rows -= rows
                if not waiting:
                    del self._waiting[group]

    def heads(self) -> Iterator[_Head]:
        if self.running < (self.parameters.num_batch_threads or self.workers.threads):
            for group, waiting in self._waiting.items():
                arrived = waiting[0].arrived
                timeout = self.parameters.batch_timeout_micros / 1e6
                rows = sum(request.rows for request in waiting)
                most = self._size(group)
                ready_at = arrived + (0 if rows >= most else timeout)
                size = max(waiting[0].rows, min(rows, most)) << group.size
                yield _Head(self, group, size, arrived, ready_at)

    def _size(self, group: _Group) -> int:
        return max(1, min(self.parameters.max_batch_size, _BATCH_BYTES >> group.size))

    def take(self, group: _Group) -> list[_Request]:
        """Removes and returns the next batch of a group, without requests that expired."""
        batch: list[_Request] = []
        waiting = self._waiting[group]
        rows = 0
        while waiting and (not batch or rows + waiting[0].rows <= self._size(group)):
            request = waiting.popleft()
            self.rows -= request.rows
            if request.is_wanted():
                batch.append(request)
                rows += request.rows
        if not waiting:
            del self._waiting[group]
        return batch


def _expired() -> ServingError:
    return ServingError(StatusCode.DEADLINE_EXCEEDED, "Deadline exceeded")


def row_count(inputs: Arrays) -> int:
    """The rows of a request: the largest first dimension."""
    return max((array.shape[0] for array in inputs.values() if array.ndim), default=0)


def _bytes(inputs: Arrays) -> int:
    """The length of the longest texts, as the exponent of a power of two."""
    texts = [array for array in inputs.values() if array.dtype == object]
    longest = sum(max(map(len, array.flat), default=0) for array in texts)
    return max(longest, _SHORT_BYTES).bit_length()


def _execute(
    batch: Sequence[_Request], allowed_sizes: Sequence[int]
) -> list[dict[str, np.ndarray] | ServingError]:
    """Runs a batch; one that fails is run again request by request, to spare the others."""
    rows = [row_count(request.inputs) for request in batch]
    total = sum(rows)
    size = next((size for size in allowed_sizes if size >= total), total)
    if len(batch) > 1 or 0 < total < size:
        last = max(request.deadline for request in batch)
        try:
            outputs = batch[0].function(_join(batch, size - total), last)
            if any(array.shape[:1] != (size,) for array in outputs.values()):
                raise ValueError("the outputs have other rows than the inputs")
            ends = np.cumsum(rows)
            return [
                {name: array[start:end] for name, array in outputs.items()}
                for start, end in zip(ends - rows, ends, strict=True)
            ]
        except Exception as error:  # each is run again, and reports its own
            _LOG.debug("a batch of %d requests failed: %s", len(batch), error)
    return [_alone(request) for request in batch]


def _alone(request: _Request) -> dict[str, np.ndarray] | ServingError:
    if not request.is_wanted():  # the batch that it was in took too long
        return _expired()
    try:
        return request.function(request.inputs, request.deadline)
    except tf.errors.OpError as error:
        return from_tensorflow(error)
    except ServingError as error:
        return error
    except Exception:  # a defect, which must not end the thread
        _LOG.exception("a request failed")
        return ServingError(StatusCode.INTERNAL, "Internal error: see the server's log")


def _join(batch: Sequence[_Request], surplus: int) -> dict[str, np.ndarray]:
    """Concatenates the rows of requests, and repeats the first one `surplus` times."""
    joined = {}
    for name in batch[0].inputs:
        rows = np.concatenate([request.inputs[name] for request in batch])
        joined[name] = np.concatenate([rows, np.repeat(rows[:1], surplus, axis=0)])
    return joined

import asyncio
import math
import threading
import time
from contextlib import asynccontextmanager

import grpc
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.server.batching import BatchQueue, Workers, row_count
from bert_tf.server.configuration import BatchingParameters
from bert_tf.server.errors import ServingError


class Echo:
    """A function of rows that waits until it may run, and notes the batches it was given."""

    def __init__(self, is_open: bool = True) -> None:
        self.batches: list[list[bytes]] = []
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def __call__(self, inputs, deadline):
        self.gate.wait(30)
        self.batches.append(list(inputs["text"]))
        if b"bad" in inputs["text"]:
            raise ServingError(grpc.StatusCode.INVALID_ARGUMENT, "bad row")
        return {"text": inputs["text"], "length": np.array([len(x) for x in inputs["text"]], int)}


def texts(*values) -> dict[str, np.ndarray]:
    array = np.empty(len(values), object)
    array[:] = [value if isinstance(value, bytes) else str(value).encode() for value in values]
    return {"text": array}


@asynccontextmanager
async def queue_of(threads=1, **parameters):
    workers = Workers(threads)
    try:
        yield BatchQueue(workers, BatchingParameters(**parameters))
    finally:
        workers.close()


@asynccontextmanager
async def occupied(queue):
    """Occupies the only thread; requests that are started in the block run after it."""
    gate = Echo(is_open=False)
    (first,) = start(queue, gate, ["first"])
    while not queue.running:
        await asyncio.sleep(0)
    yield
    await asyncio.sleep(0)
    gate.gate.set()
    await first


def start(queue, function, *requests, **arguments) -> list[asyncio.Task]:
    runs = [queue.run(function, texts(*rows), "key", **arguments) for rows in requests]
    return [asyncio.create_task(run) for run in runs]


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.binary(max_size=300), max_size=5), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_mix_of_requests_gets_its_own_rows(requests, size, threads, is_padded):
    async def test():
        sizes = (size,) if is_padded else ()
        observed = []
        async with queue_of(threads, max_batch_size=size, allowed_batch_sizes=sizes) as queue:
            queue.observe = lambda *batch: observed.append(batch)
            answers = await asyncio.gather(*start(queue, Echo(), *requests))
            for rows, answer in zip(requests, answers, strict=True):
                assert list(answer["text"]) == rows
                assert list(answer["length"]) == [len(row) for row in rows]
            assert queue.rows == queue.running == 0 and not list(queue.heads())
            assert all(0 <= wait < 60 for _, waits in observed for wait in waits)

    asyncio.run(test())


async def test_requests_that_wait_are_joined_up_to_the_batch_size():
    async with queue_of(max_batch_size=4) as queue:
        async with occupied(queue):
            waiting = start(queue, echo := Echo(), "ab", "c", "def", "ghijk", "l")
        await asyncio.gather(*waiting)
        assert [b"".join(batch) for batch in echo.batches] == [b"abc", b"def", b"ghijk", b"l"]
    async with queue_of() as queue:
        async with occupied(queue):
            waiting = start(queue, echo := Echo(), *[[b"x" * 3000]] * 9)
        await asyncio.gather(*waiting)
        assert [len(batch) for batch in echo.batches] == [4, 4, 1]


async def test_rows_that_wait_are_counted_and_many_or_long_ones_leave_a_thread_free():
    async with queue_of() as queue:
        async with occupied(queue):
            waiting = start(queue, echo := Echo(), ["short"] * 17, ["long" * 100], ["one"])
            waiting.append(asyncio.create_task(queue.run(echo, texts(*"alone"))))
            await asyncio.sleep(0)
            assert queue.rows == 17 + 1 + 1 + 1
            assert [group.is_long for group in queue._waiting] == [True, True, False, False]
        await asyncio.gather(*waiting)
    assert row_count({}) == row_count({"text": np.array("a scalar")}) == 0


async def test_requests_of_other_length_shape_or_key_are_not_joined():
    async with queue_of() as queue:
        echo, lists = Echo(), {"text": np.full((1, 2), b"x", object)}
        async with occupied(queue):
            waiting = [
                *start(queue, echo, ["short"], ["long" * 100], ["brief"]),
                asyncio.create_task(queue.run(echo, texts("other"), "other")),
                asyncio.create_task(queue.run(echo, texts("alone"), None)),
                asyncio.create_task(queue.run(lambda inputs, deadline: inputs, lists, "key")),
            ]
        await asyncio.gather(*waiting)
        assert echo.batches == [[b"short", b"brief"], [b"long" * 100], [b"other"], [b"alone"]]


@for_each("long", [[b"x" * 3000]] * 8, [[b"x" * 30] * 64] * 2, ids=["long texts", "many texts"])
async def test_a_short_text_never_waits_for_batches_of_long_ones(long):
    async with queue_of(threads=2) as queue:
        slow, quick = Echo(is_open=False), Echo()
        await asyncio.gather(*start(queue, quick, ["short"]))
        waiting = start(queue, slow, *long)
        await asyncio.sleep(0)
        assert queue.running == 1
        for _ in range(3):
            await asyncio.gather(*start(queue, quick, ["short"]))
        assert quick.batches == [[b"short"]] * 4 and not slow.batches
        while queue.running < 2:  # once nothing short has come for a second
            await asyncio.sleep(0.01)
        slow.gate.set()
        await asyncio.gather(*waiting)


@for_each(
    "first long shorter",
    (["short"], [[b"x" * 30_000] * 64, [b"x" * 25_000] * 4], [b"x" * 600] * 4),
    ([], [[b"x" * 30_000] * 64] * 3, [b"x" * 3000] * 4),
    ids=["far longer", "huge"],
)
async def test_long_requests_leave_a_thread_to_far_shorter_ones(first, long, shorter):
    async with queue_of(threads=2) as queue:
        slow, quick = Echo(is_open=False), Echo()
        await asyncio.gather(*start(queue, Echo(), first))
        waiting = start(queue, slow, *long)
        await asyncio.sleep(0)
        await asyncio.gather(*start(queue, quick, shorter))
        assert queue.running == 1 and len(quick.batches) == 1 and not slow.batches
        slow.gate.set()
        await asyncio.gather(*waiting)


async def test_long_texts_take_all_threads_where_no_short_ones_come():
    async with queue_of(threads=2) as queue:
        slow = Echo(is_open=False)
        waiting = start(queue, slow, *[[b"x" * 3000]] * 8)
        await asyncio.sleep(0)
        assert queue.running == 2
        slow.gate.set()
        await asyncio.gather(*waiting)


async def test_a_batch_waits_for_more_until_its_timeout_or_until_it_is_full():
    async with queue_of(batch_timeout_micros=100_000, max_batch_size=4) as queue:
        started = time.monotonic()
        tasks = start(queue, echo := Echo(), "a")
        await asyncio.sleep(0.02)
        tasks += start(queue, echo, "b")
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert time.monotonic() - started >= 0.1
        assert echo.batches == [[b"a", b"b"]]
    async with queue_of(batch_timeout_micros=10**9, max_batch_size=4) as queue:
        await asyncio.wait_for(asyncio.gather(*start(queue, echo := Echo(), "ab", "cd")), 30)
        assert echo.batches == [[b"a", b"b", b"c", b"d"]]


async def test_a_full_queue_refuses_and_recovers():
    async with queue_of(max_batch_size=2, max_enqueued_batches=2) as queue:
        async with occupied(queue):
            waiting = start(queue, echo := Echo(), "ab", "cd")
            await asyncio.sleep(0)
            with pytest.raises(ServingError, match="The queue is full") as refused:
                await queue.run(echo, texts("e"), "key")
            assert refused.value.code == grpc.StatusCode.UNAVAILABLE
        await asyncio.gather(*waiting)
        await queue.run(echo, texts(*"more than all that fits"), "key")


async def test_expired_and_cancelled_requests_never_run():
    async with queue_of() as queue:
        echo = Echo()
        async with occupied(queue):
            (soon,) = start(queue, echo, ["soon"], deadline=time.monotonic() + 0.05)
            kept, gone = start(queue, echo, ["kept"], ["gone"])
            await asyncio.sleep(0)
            assert queue.rows == 3
            gone.cancel()
            with pytest.raises(ServingError) as late:
                await soon
            assert late.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
            assert queue.rows == 1
            with pytest.raises(ServingError, match="Deadline"):
                await queue.run(echo, texts("past"), "key", deadline=time.monotonic())
        await kept
        assert echo.batches == [[b"kept"]]
    async with queue_of() as queue:
        slow = Echo(is_open=False)
        async with occupied(queue):
            gone, kept = start(queue, slow, ["gone"], ["kept"])
        while queue.rows:  # until they run
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        slow.gate.set()
        assert list((await asyncio.wait_for(kept, 30))["text"]) == [b"kept"]
        assert slow.batches == [[b"gone", b"kept"]]


async def test_requests_that_may_be_joined_have_the_allowed_sizes():
    async with queue_of(max_batch_size=4, allowed_batch_sizes=(4,)) as queue:
        echo = Echo()
        for key in ("key", None):
            assert list((await queue.run(echo, texts("a"), key))["text"]) == [b"a"]
        await queue.run(echo, texts(), "key")  # nothing to fill up
        assert echo.batches == [[b"a"] * 4, [b"a"], []]

    def count(inputs, deadline):
        return {"rows": np.array(len(inputs["text"]))}

    async with queue_of() as queue:
        async with occupied(queue):
            waiting = start(queue, count, "ab", "cde")
        assert [int((await task)["rows"]) for task in waiting] == [2, 3]


async def test_a_deadline_ends_a_request_and_its_batch_is_not_run_again():
    async with queue_of() as queue:
        echo = Echo(is_open=False)
        with pytest.raises(ServingError, match="Deadline"):
            await queue.run(echo, texts("a"), "key", deadline=time.monotonic() + 0.05)
        assert queue.running == 1
        echo.gate.set()
        await queue.run(echo, texts("b"), "key")
    limits = []

    def run_out(inputs, deadline):
        limits.append(deadline)
        if deadline < math.inf:
            time.sleep(max(deadline - time.monotonic(), 0))
            raise tf.errors.DeadlineExceededError(None, None, "Timed out")
        return inputs

    async with queue_of() as queue:
        now = time.monotonic()
        async with occupied(queue):
            tasks = start(queue, run_out, "a", deadline=now + 0.1)
            tasks += start(queue, run_out, "b", deadline=now + 0.2)
        for task in tasks:
            with pytest.raises(ServingError, match="Deadline"):
                await task
        while queue.running:
            await asyncio.sleep(0.01)
        await queue.run(run_out, texts("c"), "key")
        assert limits == [now + 0.2, math.inf]


async def test_one_bad_request_fails_alone_and_defects_are_internal_errors():
    async with queue_of() as queue:
        async with occupied(queue):
            good, bad, fine = start(queue, echo := Echo(), ["good"], ["bad"], ["fine"])
        assert list((await good)["text"]) == [b"good"]
        assert list((await fine)["text"]) == [b"fine"]
        with pytest.raises(ServingError, match="bad row"):
            await bad
        assert echo.batches == [[b"good", b"bad", b"fine"], [b"good"], [b"bad"], [b"fine"]]

    def fail(inputs, deadline):
        raise RuntimeError("secret")

    async with queue_of() as queue:
        with pytest.raises(ServingError) as failed:
            await queue.run(fail, texts("a"), "key")
        assert failed.value.code == grpc.StatusCode.INTERNAL
        assert "secret" not in failed.value.message
        await queue.run(Echo(), texts("a"), "key")

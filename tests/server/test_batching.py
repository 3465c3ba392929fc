import asyncio
import math
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.errors import InputError
from bert_tf.server.batching import BatchQueue, Workers
from bert_tf.server.configuration import BatchingParameters, read_batching_parameters
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


def running(test, threads=1, **parameters):
    """Runs `await test(queue)` with a queue of its own."""

    async def run():
        workers = Workers(threads)
        try:
            await test(BatchQueue(workers, BatchingParameters(**parameters)))
        finally:
            workers.close()

    asyncio.run(run())


async def blocked(queue, echo) -> asyncio.Task:
    """Occupies the only thread until the gate of `echo` opens."""
    task = asyncio.create_task(queue.run(echo, texts("first"), "key"))
    while not queue.running:
        await asyncio.sleep(0)
    return task


def start(queue, function, *requests, **arguments) -> list[asyncio.Task]:
    return [
        asyncio.create_task(queue.run(function, texts(*rows), "key", **arguments))
        for rows in requests
    ]


rows_of_requests = st.lists(st.lists(st.binary(max_size=300), max_size=5), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(rows_of_requests, st.integers(1, 9), st.integers(1, 3), st.booleans())
def test_any_mix_of_requests_gets_its_own_rows(requests, size, threads, is_padded):
    async def test(queue):
        answers = await asyncio.gather(*start(queue, Echo(), *requests))
        for rows, answer in zip(requests, answers, strict=True):
            assert list(answer["text"]) == rows
            assert list(answer["length"]) == [len(row) for row in rows]
        assert queue.rows == queue.running == 0 and not list(queue.heads())

    sizes = (size,) if is_padded else ()
    running(test, threads, max_batch_size=size, allowed_batch_sizes=sizes)


def test_requests_that_wait_are_joined_up_to_the_batch_size():
    async def test(queue):
        echo = Echo(is_open=False)
        first = await blocked(queue, echo)
        waiting = start(queue, echo, "ab", "c", "def", "ghijk", "l")
        await asyncio.sleep(0)
        echo.gate.set()
        await asyncio.gather(first, *waiting)
        assert echo.batches == [
            [b"first"],
            [b"a", b"b", b"c"],
            [b"d", b"e", b"f"],
            [b"g", b"h", b"i", b"j", b"k"],
            [b"l"],
        ]

    running(test, max_batch_size=4)


def test_requests_of_other_length_shape_or_key_are_not_joined():
    async def test(queue):
        echo = Echo(is_open=False)
        first = await blocked(queue, echo)
        lists = {"text": np.full((1, 2), b"x", object)}
        waiting = [
            *start(queue, echo, ["short"], ["long" * 100], ["brief"]),
            asyncio.create_task(queue.run(echo, texts("other"), "other")),
            asyncio.create_task(queue.run(echo, texts("alone"), None)),
            asyncio.create_task(queue.run(lambda inputs, deadline: inputs, lists, "key")),
        ]
        await asyncio.sleep(0)
        echo.gate.set()
        await asyncio.gather(first, *waiting)
        assert echo.batches[1:] == [[b"short", b"brief"], [b"long" * 100], [b"other"], [b"alone"]]

    running(test)


def test_long_texts_make_small_batches():
    async def test(queue):
        echo = Echo(is_open=False)
        first = await blocked(queue, echo)
        waiting = start(queue, echo, *[[b"x" * 3000]] * 9)
        await asyncio.sleep(0)
        echo.gate.set()
        await asyncio.gather(first, *waiting)
        assert [len(batch) for batch in echo.batches] == [1, 4, 4, 1]

    running(test)


@pytest.mark.parametrize(
    "long", [[[b"x" * 3000]] * 8, [[b"x" * 30] * 64] * 2], ids=["long texts", "many texts"]
)
def test_a_short_text_never_waits_for_batches_of_long_ones(long):
    async def test(queue):
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

    running(test, threads=2)


def test_a_long_text_does_not_wait_for_one_that_is_far_longer():
    async def test(queue):
        slow, quick = Echo(is_open=False), Echo()
        await asyncio.gather(*start(queue, quick, ["short"]))
        waiting = start(queue, slow, [b"x" * 30_000] * 64, [b"x" * 25_000] * 4)
        await asyncio.sleep(0)
        await asyncio.gather(*start(queue, quick, [b"x" * 600] * 4))
        assert queue.running == 1 and len(quick.batches) == 2 and not slow.batches
        slow.gate.set()
        await asyncio.gather(*waiting)

    running(test, threads=2)


def test_huge_requests_never_have_all_threads():
    async def test(queue):
        slow, quick = Echo(is_open=False), Echo()
        waiting = start(queue, slow, *[[b"x" * 30_000] * 64] * 3)
        await asyncio.sleep(0)
        await asyncio.gather(*start(queue, quick, [b"x" * 3000] * 4))
        assert queue.running == 1 and len(quick.batches) == 1 and not slow.batches
        slow.gate.set()
        await asyncio.gather(*waiting)
        assert len(slow.batches) == 3

    running(test, threads=2)


def test_long_texts_take_all_threads_where_no_short_ones_come():
    async def test(queue):
        slow = Echo(is_open=False)
        waiting = start(queue, slow, *[[b"x" * 3000]] * 8)
        await asyncio.sleep(0)
        assert queue.running == 2
        slow.gate.set()
        await asyncio.gather(*waiting)

    running(test, threads=2)


def test_a_batch_waits_for_more_no_longer_than_its_timeout():
    async def test(queue):
        echo = Echo()
        started = time.monotonic()
        tasks = start(queue, echo, "a")
        await asyncio.sleep(0.02)
        tasks += start(queue, echo, "b")
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert time.monotonic() - started >= 0.1
        assert echo.batches == [[b"a", b"b"]]

    running(test, batch_timeout_micros=100_000, max_batch_size=4)


def test_a_full_batch_waits_for_nothing():
    async def test(queue):
        async with asyncio.timeout(30):
            await asyncio.gather(*start(queue, echo := Echo(), "ab", "cd"))
        assert echo.batches == [[b"a", b"b", b"c", b"d"]]

    running(test, batch_timeout_micros=1_000_000_000, max_batch_size=4)


def test_a_full_queue_refuses_and_recovers():
    async def test(queue):
        echo = Echo(is_open=False)
        first = await blocked(queue, echo)
        waiting = start(queue, echo, "ab", "cd")
        await asyncio.sleep(0)
        with pytest.raises(ServingError, match=r"queue .* is full") as refused:
            await queue.run(echo, texts("e"), "key")
        assert refused.value.code == grpc.StatusCode.UNAVAILABLE
        echo.gate.set()
        await asyncio.gather(first, *waiting)
        await queue.run(echo, texts(*"more than all that fits"), "key")

    running(test, max_batch_size=2, max_enqueued_batches=2)


def test_expired_and_cancelled_requests_never_run():
    async def test(queue):
        echo = Echo(is_open=False)
        first = await blocked(queue, echo)
        soon, kept, gone = start(queue, echo, ["soon"], deadline=time.monotonic() + 0.05) + start(
            queue, echo, ["kept"], ["gone"]
        )
        await asyncio.sleep(0)
        assert queue.rows == 3
        gone.cancel()
        with pytest.raises(ServingError) as late:
            await soon
        assert late.value.code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert queue.rows == 1
        with pytest.raises(ServingError, match="Deadline"):
            await queue.run(echo, texts("past"), "key", deadline=time.monotonic())
        echo.gate.set()
        await asyncio.gather(first, kept)
        assert echo.batches == [[b"first"], [b"kept"]]

    running(test)


def test_one_that_goes_while_its_batch_runs_takes_no_answers_along():
    async def test(queue):
        first = await blocked(queue, echo := Echo(is_open=False))
        slow = Echo(is_open=False)
        gone, kept = start(queue, slow, ["gone"], ["kept"])
        await asyncio.sleep(0)
        echo.gate.set()
        await first
        while queue.rows:  # until they run
            await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        slow.gate.set()
        async with asyncio.timeout(30):
            assert list((await kept)["text"]) == [b"kept"]
        assert slow.batches == [[b"gone", b"kept"]]

    running(test)


def test_requests_that_may_be_joined_have_the_allowed_sizes():
    async def test(queue):
        echo = Echo()
        for key in ("key", None):
            assert list((await queue.run(echo, texts("a"), key))["text"]) == [b"a"]
        await queue.run(echo, texts(), "key")  # nothing to fill up
        assert echo.batches == [[b"a"] * 4, [b"a"], []]

    running(test, max_batch_size=4, allowed_batch_sizes=(4,))


def test_a_deadline_ends_a_request_that_runs():
    async def test(queue):
        echo = Echo(is_open=False)
        with pytest.raises(ServingError, match="Deadline"):
            await queue.run(echo, texts("a"), "key", deadline=time.monotonic() + 0.05)
        assert queue.running == 1
        echo.gate.set()
        await queue.run(echo, texts("b"), "key")

    running(test)


def test_a_batch_stops_at_its_last_deadline_and_is_not_run_again():
    async def test(queue):
        first = await blocked(queue, echo := Echo(is_open=False))
        limits = []

        def runs_out(inputs, deadline):
            limits.append(deadline)
            time.sleep(max(deadline - time.monotonic(), 0))
            raise tf.errors.DeadlineExceededError(None, None, "Timed out")

        now = time.monotonic()
        early, late = start(queue, runs_out, "a", deadline=now + 0.1) + start(
            queue, runs_out, "b", deadline=now + 0.2
        )
        await asyncio.sleep(0)
        echo.gate.set()
        await first
        for task in (early, late):
            with pytest.raises(ServingError, match="Deadline"):
                await task
        while queue.running:
            await asyncio.sleep(0.01)
        (limit,) = limits
        assert limit == now + 0.2
        endless = start(
            queue, lambda inputs, deadline: {"none": np.array([deadline == math.inf])}, "c"
        )
        assert (await endless[0])["none"]

    running(test)


def test_one_bad_request_fails_alone():
    async def test(queue):
        echo = Echo(is_open=False)
        first = await blocked(queue, echo)
        good, bad, fine = start(queue, echo, ["good"], ["bad"], ["fine"])
        await asyncio.sleep(0)
        echo.gate.set()
        await first
        assert list((await good)["text"]) == [b"good"]
        assert list((await fine)["text"]) == [b"fine"]
        with pytest.raises(ServingError, match="bad row"):
            await bad
        assert echo.batches[1:] == [[b"good", b"bad", b"fine"], [b"good"], [b"bad"], [b"fine"]]

    running(test)


def test_outputs_without_rows_are_made_one_request_at_a_time():
    async def test(queue):
        first = await blocked(queue, echo := Echo(is_open=False))

        def count(inputs, deadline):
            return {"rows": np.array(len(inputs["text"]))}

        waiting = start(queue, count, "ab", "cde")
        await asyncio.sleep(0)
        echo.gate.set()
        await first
        assert [int((await each)["rows"]) for each in waiting] == [2, 3]

    running(test)


def test_a_defect_is_an_internal_error_and_the_thread_lives_on():
    async def test(queue):
        def fails(inputs, deadline):
            raise RuntimeError("secret")

        with pytest.raises(ServingError) as failed:
            await queue.run(fails, texts("a"), "key")
        assert failed.value.code == grpc.StatusCode.INTERNAL
        assert "secret" not in failed.value.message
        await queue.run(Echo(), texts("a"), "key")

    running(test)


def test_batching_parameters_are_read_from_the_official_format(tmp_path):
    file = tmp_path / "batching.config"
    file.write_text(
        "max_batch_size { value: 8 } batch_timeout_micros { value: 0 }\n"
        "num_batch_threads { value: 2 } pad_variable_length_inputs: true # a comment\n"
        'allowed_batch_sizes: 4 allowed_batch_sizes: 8 thread_pool_name { value: "t" }'
    )
    assert read_batching_parameters(file, BatchingParameters(max_enqueued_batches=5)) == (
        BatchingParameters(8, 0, 5, 2, (4, 8))
    )


@pytest.mark.parametrize(
    "text",
    [
        "max_batch_size: 8",
        "max_batch_size { value: 0 }",
        "unknown { value: 1 }",
        "batch_timeout_micros { value: -1 }",
        "max_batch_size { value: 8 } allowed_batch_sizes: 4",
        "\0",
    ],
)
def test_bad_batching_parameters_are_refused(text, tmp_path):
    (tmp_path / "f").write_text(text)
    with pytest.raises(InputError, match="batching parameters"):
        read_batching_parameters(tmp_path / "f")

"""Bodies of requests: limits of size and time, gzip, slow and vanishing clients."""

import asyncio
import gzip
import json
import re
import threading

import pytest
from rest_client import MODEL, Stub, ask, error, rest, run, serving

from bert_tf.server import json_tensors
from bert_tf.server.app import Limits

WHOLE = {"type": "http.request", "body": b'{"inputs": [1]}', "more_body": False}
GONE = {"type": "http.disconnect", "after": 0.01}


def test_bodies_that_are_too_large(models):
    with serving(models, limits=Limits(body_bytes=100)) as small:
        assert ask(small, '{"inputs": [1]}'.ljust(100)).status_code == 200
        for size in (101, 401, 10**6):
            assert error(ask(small, "x" * size), 413) == "Request body is larger than 100 bytes"
        assert ask(small, (b"x" * 50 for _ in range(50))).status_code == 413
    with serving(models, limits=Limits(held_bytes=70_000)) as small:
        assert "70000 bytes of request bodies" in error(ask(small, "x" * 70_001), 429)
        assert ask(small, '{"inputs": [1]}').status_code == 200


def test_bodies_in_gzip(models, client):
    def ask_packed(client, body: bytes, encoding="gzip"):
        headers = {"Content-Encoding": encoding}
        return client.post(f"{MODEL}:predict", content=body, headers=headers)

    whole = gzip.compress(b'{"inputs": [1]}')
    for encoding in ("gzip", "x-gzip", "GZIP"):
        assert ask_packed(client, whole, encoding).json() == {"outputs": [3.5]}
    assert ask_packed(client, b'{"inputs": [1]}', "identity").status_code == 200
    for damaged in (b'{"inputs": [1]}', whole[:-1], whole + whole, whole[:-8] + bytes(8), b""):
        assert "gzip" in error(ask_packed(client, damaged), 400)
    for coding in ("br", "gzip, br", "gzip, gzip", "deflate", "gzip;q=1"):
        message = f"Content-Encoding {coding} is not supported: send gzip, or none"
        assert error(ask_packed(client, whole, coding), 415) == message
    with serving(models, limits=Limits(body_bytes=1000)) as small:
        assert ask_packed(small, gzip.compress(b'{"inputs": [1]}'.ljust(1000))).status_code == 200
        bomb = gzip.compress(bytes(10**6))
        assert error(ask_packed(small, bomb), 413) == "Request body is larger than 1000 bytes"
    with serving(models, limits=Limits(held_bytes=70_000)) as small:
        error(ask_packed(small, gzip.compress(bytes(70_001))), 429)


def test_large_bodies_are_converted_in_a_thread_and_small_ones_are_not(models, monkeypatch):
    threads = []

    def recorded(function):
        def record(*arguments):
            threads.append(threading.current_thread())
            return function(*arguments)

        return record

    for name in ("parse", "tensors"):
        monkeypatch.setattr(json_tensors, name, recorded(getattr(json_tensors, name)))
    for size, is_here in ((1000, True), (100_000, False)):
        threads.clear()
        sent = asyncio.run(run(rest(models)[0], [dict(WHOLE, body=WHOLE["body"].ljust(size))]))
        assert sent[0]["status"] == 200
        assert [thread is threading.current_thread() for thread in threads] == [is_here] * 2


def test_a_body_that_does_not_arrive_in_time(models):
    app, bodies = rest(models, body_seconds=0.05)
    part = {"type": "http.request", "body": b"{", "more_body": True}
    start, body = asyncio.run(run(app, [part, dict(part, after=10)]))
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert json.loads(body["body"]) == {"error": "Request body did not arrive within 0.05 s"}
    assert bodies._held == 0


def test_slow_uploads_leave_room_for_others(models, client):
    app, bodies = rest(models, held_bytes=300_000)
    part = {"type": "http.request", "body": b" " * 99_000, "more_body": True}
    never = {"type": "http.request", "body": b"", "after": 100}
    large = dict(WHOLE, body=WHOLE["body"].ljust(70_000))

    async def test():
        slow = [asyncio.create_task(run(app, [dict(part), dict(never)])) for _ in range(3)]
        async with asyncio.timeout(60):
            while bodies._held < 297_000:
                await asyncio.sleep(0)
        for body in (WHOLE, large, WHOLE):
            start, _ = await run(app, [dict(body)])
            assert start["status"] == 200
        ended, _ = await asyncio.wait(slow, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result()[0]["status"] for task in ended] == [429]
        assert bodies._held == 198_000
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow)
        assert bodies._held == 0

    def unavailable():
        text = client.get("/monitoring/prometheus/metrics").text
        return sum(map(float, re.findall(r'request_count{.*status="UNAVAILABLE"} (\S+)', text)))

    before = unavailable()
    asyncio.run(test())
    assert unavailable() == before + 2  # those that were cancelled, as when the server stops


def test_200_slow_uploads_hold_up_nobody(models):
    app, bodies = rest(models, body_seconds=2.0)
    parts = [{"type": "http.request", "body": b"{", "more_body": True, "after": 0.1}] * 100

    async def test():
        slow = [asyncio.create_task(run(app, list(map(dict, parts)))) for _ in range(200)]
        while bodies._held < 400:  # each is at its second part or later
            await asyncio.sleep(0)
        start, _ = await run(app, [dict(WHOLE)])
        assert start["status"] == 200
        assert not any(task.done() for task in slow)
        assert {sent[0]["status"] for sent in await asyncio.gather(*slow)} == {408}
        assert bodies._held == 0

    asyncio.run(test())


def test_a_body_counts_until_no_thread_holds_it(models, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def parse(body):
        begun.set()
        go_on.wait(60)
        return {}

    monkeypatch.setattr(json_tensors, "parse", parse)
    app, bodies = rest(models)

    async def test():
        asked = asyncio.create_task(run(app, [dict(WHOLE, body=b" " * 100_000), dict(GONE)]))
        await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(0.05)
        assert bodies._held == 100_000
        go_on.set()
        assert await asked == []
        assert bodies._held == 0

    asyncio.run(test())


@pytest.mark.parametrize("more_body", [False, True])
def test_a_client_that_goes_ends_its_request(models, more_body):
    ended = []

    async def wait(deadline):
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    app, bodies = rest(Stub(models, wait))
    assert asyncio.run(run(app, [dict(WHOLE, more_body=more_body), dict(GONE)])) == []
    assert ended == [True] * (not more_body)
    assert bodies._held == 0

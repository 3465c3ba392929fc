"""The REST API's documentation and tables, field by field, against the application in process."""

import asyncio
import contextlib
import errno
import functools
import gzip
import io
import json
import os
import re
import shutil
import threading
import time

import grpc
import pytest
from credential_files import tokens_of
from starlette.testclient import TestClient

from bert_tf import BertTokenizer
from bert_tf.server import json_requests, openai, records, servable
from bert_tf.server import rest as rest_module
from bert_tf.server.app import make_app
from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.http import HTTP_STATUS, Bodies, Limits
from bert_tf.server.models import Models
from bert_tf.server.records import AccessLog
from bert_tf.server.rest import RestApi

MODEL = "/v1/models/half_plus_three"


@contextlib.contextmanager
def serving(models: Models, **options):
    with TestClient(make_app(models, **options)) as client:
        yield client


@pytest.fixture(scope="module")
def served(toy_models):
    """Loaded models, and a client of theirs."""
    models = Models(toy_models)
    with serving(models) as client:
        client.portal.call(models.start)
        yield models, client
        client.portal.call(models.close)


@pytest.fixture(scope="module")
def models(served):
    return served[0]


@pytest.fixture(scope="module")
def client(served):
    return served[1]


def ask(client, body: str | bytes, verb="predict", place=MODEL):
    return client.post(f"{place}:{verb}", content=body)


def rest(models, **limits):
    """The application of the REST API alone, and what it holds."""
    bodies = Bodies(Limits(**limits), models.metrics)
    return RestApi(models, bodies), bodies


def error(response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (message,) = response.json().values()
    assert response.json() == {"error": message}
    return message


def test_the_documented_requests_are_answered_as_documented(client):
    """Those of g3doc/api_rest.md, in its order."""
    assert client.get(MODEL).json() == {
        "model_version_status": [
            {
                "version": "123",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    answer = ask(client, '{"instances": [1.0,2.0,5.0]}')
    assert (answer.status_code, answer.json()) == (200, {"predictions": [3.5, 4.0, 5.5]})
    assert answer.headers["content-type"] == "application/json"
    missing = ask(client, '{"instances": [1.0,5.0]}', place="/v1/models/half")
    assert error(missing, 404) == "Servable not found for request: Latest(half)"


SENSORS = {
    "tag": ["foo", "bar"],
    "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
    "sensor": [[[1, 2], [3, 4]], [[4, 5], [6, 8]]],
}


def test_row_and_column_format_of_several_inputs(client):
    rows = [dict(zip(SENSORS, row, strict=True)) for row in zip(*SENSORS.values(), strict=True)]
    answer = ask(client, json.dumps({"signature_name": "sensors", "instances": rows}))
    assert answer.json() == {"predictions": rows}
    answer = ask(client, json.dumps({"signature_name": "sensors", "inputs": SENSORS}))
    assert answer.json() == {"outputs": SENSORS}


def test_values_of_every_type(client):
    answer = ask(client, '{"signature_name": "types", "inputs": [7, 0, -9007199254740993]}')
    assert '"infinite":[Infinity,NaN,-Infinity]' in answer.text
    found = answer.json()["outputs"]
    assert found["int64"] == [7, 0, -9007199254740993]
    assert found["bool"] == [True, False, False]
    assert found["raw_bytes"][0] == {"b64": "Nw=="}
    assert found["float64"][:2] == [1.75, 0.0]
    assert found["nested"][0] == [7, 7]
    answer = ask(client, '{"signature_name": "lengths", "inputs": [{"b64": "gA=="}, "é"]}')
    assert answer.json()["outputs"]["length"] == [1, 2]
    assert ask(client, '{"signature_name": "no", "instances": [true]}').json() == {
        "predictions": [False]
    }


def test_what_this_server_leaves_to_tensorflow_serving_is_refused_by_name(client):
    for verb in ("classify", "regress"):
        answer = ask(client, '{"examples": [{"x": 1.0}]}', verb)
        message = f"This server has no :{verb}: ask :predict, or TensorFlow Serving"
        assert error(answer, 501).startswith(message)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", f"{MODEL}:predict", "POST"),
        ("PUT", f"{MODEL}:tokenize", "POST"),
        ("OPTIONS", f"{MODEL}:predict", "POST"),
        ("DELETE", MODEL, "GET"),
        ("POST", f"{MODEL}/metadata", "GET"),
        ("GET", "/v1/embeddings", "POST"),
    ],
)
def test_a_method_that_a_path_lacks_is_405(client, method, path, allow):
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert f"The method {method} is not allowed here: use {allow}" in answer.text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "JSON Parse error: The document is empty"),
        ("{}", "Missing 'inputs' or 'instances' key"),
        (
            '{"signature_name": "x", "instances": [1]}',
            'Serving signature name: "x" not found in signature def',
        ),
        (
            '{"signature_name": "pairs", "instances": [{"text": "a"}]}',
            "Failed to process element: 0 of 'instances' list. JSON object: "
            '{\n    "text": "a"\n} keys must be equal to: text,text_pair',
        ),
        (
            '{"signature_name": "pairs", "inputs": {"text_pair": ["a"]}}',
            "Missing named input: text in 'inputs' object.",
        ),
        (
            '{"signature_name": "lengths", "inputs": [1]}',
            "JSON Value: 1 Type: Number is not of expected type: string",
        ),
        (
            '{"signature_name": "types", "inputs": [1.0]}',
            "JSON Value: 1.0 Type: Number is not of expected type: int64",
        ),
        (
            '{"signature_name": "total", "instances": [1]}',
            "Tensor name: y has no shape information ",
        ),
    ],
)
def test_messages_that_clients_match_on(client, body, message):
    assert error(ask(client, body), 400) == message


def test_a_scalar_output_is_right_in_column_format_and_uneven_ones_too(client):
    assert ask(client, '{"signature_name": "total", "inputs": [1, 2]}').json() == {"outputs": 3.0}
    answer = ask(client, '{"signature_name": "uneven", "inputs": [1, 2]}')
    assert answer.json() == {"outputs": {"y": [1.0, 2.0], "z": [1.0]}}
    rows = error(ask(client, '{"signature_name": "uneven", "instances": [1, 2]}'), 400)
    assert "has inconsistent batch size: " in rows


def test_models_and_versions_that_are_not_there(client):
    for path, status, message in (
        ("/v1/models/foo:predict", 404, "Servable not found for request: Latest(foo)"),
        (
            f"{MODEL}/versions/50:predict",
            404,
            "Servable not found for request: Specific(half_plus_three, 50)",
        ),
        (f"{MODEL}/labels/x:predict", 400, "Unrecognized servable version label: x"),
        (
            f"{MODEL}/versions/{2**63}:predict",
            400,
            f"Failed to convert version: {2**63} to numeric.",
        ),
        (
            f"{MODEL}/versions/{'9' * 5000}:predict",
            400,
            f"Failed to convert version: {'9' * 5000} to numeric.",
        ),
    ):
        assert error(client.post(path, content='{"instances": [1]}'), status) == message
    for path, status, message in (
        ("/v1/models", 400, "Missing model name in request."),
        ("/v1/models/foo", 404, "Could not find any versions of model foo"),
        (f"{MODEL}/versions/9", 404, "Could not find version 9 of model half_plus_three"),
        ("/v1/models/foo/metadata", 404, "Servable not found for request: Latest(foo)"),
        (f"{MODEL}/labels/x", 400, "Unrecognized servable version label: x"),
    ):
        assert error(client.get(path), status) == message


def test_paths_are_found_in_any_case_and_names_are_percent_decoded(client):
    for place in (
        "/V1/MODELS/half_plus_three",
        f"{MODEL}/Versions/123",
        "/v1/models/%68alf%5Fplus_three",
    ):
        assert ask(client, '{"inputs": [1]}', "PREDICT", place).json() == {"outputs": [3.5]}
        assert client.get(place).status_code == client.get(f"{place}/Metadata").status_code == 200
    missing = ask(client, '{"inputs": [1]}', place="/v1/models/a%2Fb%3A%C3%A9")
    assert error(missing, 404) == "Servable not found for request: Latest(a/b:é)"


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", f"{MODEL}:explain"),
        ("GET", f"{MODEL}/"),
        ("GET", f"{MODEL}/versions/x"),
        ("GET", "/v1/"),
        ("POST", "/v1/models/%3A/a:predict"),
    ],
)
def test_any_other_path_is_malformed(client, verb, path):
    answer = client.request(verb, f"{path}?with=query")
    assert error(answer, 400) == f"Malformed request: {verb} {path}"
    assert "access-control-allow-origin" not in answer.headers


def test_a_name_may_hold_any_character(client):
    message = "Servable not found for request: Latest(a\nb)"
    missing = client.post("/v1/models/a%0Ab:predict", content='{"instances": [1]}')
    assert error(missing, 404) == message
    assert error(client.get("/v1/models/a%0Ab/metadata"), 404) == message


def test_openais_clients_get_a_list_of_the_models(client):
    found = client.get("/v1/models", headers={"User-Agent": "OpenAI/JS 5.0"}).json()
    (model,) = found["data"]
    assert (found["object"], model["id"], model["object"]) == ("list", "half_plus_three", "model")


def test_outside_v1_a_404_is_not_json(client):
    for path in ("/", "/v1", "/v2/models/x", "/%00"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/plain")


def test_metadata(client):
    found = client.get(f"{MODEL}/versions/123/metadata").json()
    assert found["model_spec"] == {
        "name": "half_plus_three",
        "signature_name": "",
        "version": "123",
    }
    signatures = found["metadata"]["signature_def"]["signature_def"]
    assert signatures["pairs"]["inputs"]["text"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "pairs_text:0",
    }
    assert signatures["pairs"].keys() == {"inputs", "outputs", "method_name", "defaults"}
    assert signatures["pairs"]["method_name"] == "tensorflow/serving/predict"
    assert signatures["classify"]["method_name"] == "tensorflow/serving/classify"


class Stub:
    """Models of which one answers as a test wants."""

    version = 1

    def __init__(self, models, answer):
        self._models = models
        self._answer = answer
        self.metrics = models.metrics

    @contextlib.contextmanager
    def servable(self, *which):
        with self._models.servable(*which) as found:
            self.signature, self.signatures = found.signature, found.signatures
            yield self

    def check_rows(self, count):
        if count > 3:
            raise invalid("too many rows")

    async def predict(self, signature_name, inputs, deadline):
        return await self._answer(deadline)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("INVALID_ARGUMENT", 400),
        ("FAILED_PRECONDITION", 400),
        ("OUT_OF_RANGE", 400),
        ("UNAUTHENTICATED", 401),
        ("PERMISSION_DENIED", 403),
        ("NOT_FOUND", 404),
        ("ALREADY_EXISTS", 409),
        ("ABORTED", 409),
        ("RESOURCE_EXHAUSTED", 429),
        ("CANCELLED", 499),
        ("UNKNOWN", 500),
        ("INTERNAL", 500),
        ("DATA_LOSS", 500),
        ("UNIMPLEMENTED", 501),
        ("UNAVAILABLE", 503),
        ("DEADLINE_EXCEEDED", 504),
    ],
)
def test_each_code_has_its_http_status(client, models, code, status):
    async def fail(deadline):
        assert 29 < deadline - time.monotonic() <= 30
        raise ServingError(grpc.StatusCode[code], 'a "message"')

    with serving(Stub(models, fail)) as failing:
        assert error(ask(failing, '{"inputs": [1]}'), status) == 'a "message"'
    assert HTTP_STATUS.keys() == set(grpc.StatusCode)


def test_too_many_rows_are_refused_before_they_are_converted(client, models, monkeypatch):
    monkeypatch.delattr(json_requests, "tensors")
    with serving(Stub(models, None)) as stub:
        assert error(ask(stub, '{"instances": [1,2,3,4]}'), 400) == "too many rows"


def test_a_defect_is_a_500_without_its_cause(client, models, caplog):
    async def fail(deadline):
        raise RuntimeError("secret")

    with serving(Stub(models, fail)) as failing:
        answer = ask(failing, '{"inputs": [1]}')
    assert error(answer, 500) == "Internal error; the server's log has its cause"
    assert "secret" in caplog.text


def test_metrics_are_at_their_path(client):
    ask(client, '{"instances": [1]}')
    answer = client.get("/monitoring/prometheus/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    count = ':tensorflow:serving:request_count{model_name="half_plus_three",status="OK"}'
    assert count in answer.text
    assert 'API="Predict",entrypoint="REST",le=' in answer.text
    assert 'model_name="foo"' not in answer.text  # clients make up names


def test_bodies_that_are_too_large(models, client):
    with serving(models, limits=Limits(body_bytes=100)) as small:
        assert ask(small, '{"inputs": [1]}'.ljust(100)).status_code == 200
        for size in (101, 401, 10**6):
            assert error(ask(small, "x" * size), 413) == "Request body is larger than 100 bytes"

        def chunks():
            for _ in range(50):
                yield b"x" * 50

        assert ask(small, chunks()).status_code == 413
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
    for damaged in (b'{"inputs": [1]}', whole[:-1], whole + whole, whole[:-8] + bytes(8), b""):
        assert "gzip" in error(ask_packed(client, damaged), 400)
    with serving(models, limits=Limits(body_bytes=1000)) as small:
        assert ask_packed(small, gzip.compress(b'{"inputs": [1]}'.ljust(1000))).status_code == 200
        bomb = gzip.compress(bytes(10**6))
        assert len(bomb) < 1000 * 4
        assert error(ask_packed(small, bomb), 413) == "Request body is larger than 1000 bytes"
    with serving(models, limits=Limits(held_bytes=70_000)) as small:
        error(ask_packed(small, gzip.compress(bytes(70_001))), 429)


@pytest.mark.parametrize("coding", ["br", "gzip, br", "gzip, gzip", "deflate", "GZIP;q=1"])
def test_a_body_in_another_coding_is_refused_by_name(client, coding):
    def ask_coded(coding):
        headers, body = {"Content-Encoding": coding}, b'{"inputs": [1]}'
        return client.post(f"{MODEL}:predict", content=body, headers=headers)

    message = f"Content-Encoding {coding.lower()} is not supported: send gzip, or none"
    assert error(ask_coded(coding), 415) == message
    assert ask_coded("identity").status_code == 200


def test_large_bodies_are_converted_in_a_thread_and_small_ones_are_not(models, client, monkeypatch):
    threads = []

    def recorded(function):
        def record(*arguments):
            threads.append(threading.current_thread())
            return function(*arguments)

        return record

    for name in ("parse", "tensors"):
        monkeypatch.setattr(json_requests, name, recorded(getattr(json_requests, name)))
    for size, is_here in ((1000, True), (100_000, False)):
        threads.clear()
        body = b'{"inputs": [1]}'.ljust(size)
        message = {"type": "http.request", "body": body, "more_body": False}
        sent = asyncio.run(_run(rest(models)[0], [message]))
        assert sent[0]["status"] == 200
        assert [each is threading.current_thread() for each in threads] == [is_here] * 2


async def _run(app, messages, method="POST", path=f"{MODEL}:predict"):
    """Runs one request as a server would, with what the client sends and when."""
    sent = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "client": ("10.0.0.7", 5),
        "http_version": "1.1",
    }

    async def receive():
        if not messages:
            await asyncio.sleep(1000)
        message = messages.pop(0)
        await asyncio.sleep(message.pop("after", 0))
        return message

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent


def test_tokenize_has_the_limits_of_predict(toy_models, tmp_path, monkeypatch):
    """Of rows, of the answer's size, and of time, wherever it is spent."""
    monkeypatch.setattr(servable, "_MOST_PIECES", 4)
    folder = shutil.copytree(toy_models, tmp_path / "models")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "##s"]
    BertTokenizer(pieces).save(folder / "half_plus_three" / "123" / "assets.extra")
    models = Models(folder, overrides={"max_batch_size": 2})
    with serving(models) as client, serving(models, limits=Limits(seconds=-1)) as late:
        client.portal.call(models.start)
        asked = functools.partial(ask, verb="tokenize")
        pieces = asked(client, '{"inputs": "the ships!"}').json()["outputs"]["pieces"]
        assert [each["text"] for each in pieces] == ["the", "ship", "##s", "[UNK]"]
        message = "The texts have 5 word pieces, more than 4: send fewer or shorter texts"
        assert error(asked(client, '{"instances": ["the ships", "ships"]}'), 400) == message
        message = "Task size 3 is larger than maximum input batch size 2"
        assert error(asked(client, '{"instances": ["", "", ""]}'), 400) == message
        assert error(asked(late, '{"inputs": "a"}'), 504) == "Deadline exceeded"
        client.portal.call(models.close)


def test_the_deadline_holds_for_whatever_a_route_does(models, client, monkeypatch):
    async def waits(*_):
        await asyncio.sleep(100)

    monkeypatch.setattr(rest_module, "in_thread_if", waits)
    monkeypatch.setattr(openai, "in_thread_if", waits)
    with serving(models, limits=Limits(seconds=0.02)) as late:
        for path in (f"{MODEL}:predict", f"{MODEL}:tokenize", openai.PATH):
            answer = late.post(path, content="{}")
            assert answer.status_code == 504 and "Deadline exceeded" in answer.text, path


def test_an_answer_that_is_late(models, client):
    with serving(models, limits=Limits(seconds=-1)) as late:
        assert error(ask(late, '{"inputs": [1]}'), 504)


def test_a_body_that_does_not_arrive_in_time(models):
    app, bodies = rest(models, body_seconds=0.05)
    part = {"type": "http.request", "body": b"{", "more_body": True}
    start, body = asyncio.run(_run(app, [part, dict(part, after=10)]))
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert json.loads(body["body"]) == {"error": "Request body did not arrive within 0.05 s"}
    assert bodies._held == 0


def test_slow_uploads_leave_room_for_others(models, client):
    app, bodies = rest(models, held_bytes=300_000)
    part = {"type": "http.request", "body": b" " * 99_000, "more_body": True}
    never = {"type": "http.request", "body": b"", "after": 100}
    whole = {"type": "http.request", "body": b'{"inputs": [1]}', "more_body": False}
    large = {**whole, "body": whole["body"].ljust(70_000)}

    async def test():
        slow = [asyncio.create_task(_run(app, [dict(part), dict(never)])) for _ in range(3)]
        async with asyncio.timeout(60):
            while bodies._held < 297_000:
                await asyncio.sleep(0)
        for body in (whole, large, whole):
            start, _ = await _run(app, [dict(body)])
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
    whole = {"type": "http.request", "body": b'{"inputs": [1]}', "more_body": False}

    async def test():
        slow = [asyncio.create_task(_run(app, list(map(dict, parts)))) for _ in range(200)]
        while bodies._held < 400:  # each is at its second part or later
            await asyncio.sleep(0)
        for _ in range(3):
            start, _ = await _run(app, [dict(whole)])
            assert start["status"] == 200
        assert not any(task.done() for task in slow)
        assert {sent[0]["status"] for sent in await asyncio.gather(*slow)} == {408}
        assert bodies._held == 0

    asyncio.run(test())


def test_a_body_counts_until_no_thread_holds_it(client, models, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def parse(body):
        begun.set()
        go_on.wait(60)
        return {}

    monkeypatch.setattr(json_requests, "parse", parse)
    app, bodies = rest(models)
    whole = {"type": "http.request", "body": b" " * 100_000, "more_body": False}

    async def test():
        asked = asyncio.create_task(_run(app, [whole, {"type": "http.disconnect", "after": 0.01}]))
        await asyncio.to_thread(begun.wait, 60)
        await asyncio.sleep(0.05)
        assert bodies._held == 100_000
        go_on.set()
        assert await asked == []
        assert bodies._held == 0

    asyncio.run(test())


def test_a_client_that_goes_ends_its_request(client, models):
    ended = []

    async def wait(deadline):
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)

    whole = {"type": "http.request", "body": b'{"inputs": [1]}', "more_body": False}
    gone = {"type": "http.disconnect", "after": 0.01}
    app, bodies = rest(Stub(models, wait))
    assert asyncio.run(_run(app, [whole, dict(gone)])) == []
    assert ended == [True]
    part = dict(whole, more_body=True)
    assert asyncio.run(_run(app, [part, dict(gone)])) == []
    assert bodies._held == 0


def test_the_access_log_has_who_what_and_how_long_but_no_text(models, client, tmp_path):
    file = tmp_path / "access.jsonl"
    log = AccessLog(file)
    secret = "my secret"
    with serving(models, access_log=log) as logged:
        body = json.dumps({"signature_name": "lengths", "instances": [secret, "b"]})
        ask(logged, body, place=f"{MODEL}/versions/123")
        ask(logged, json.dumps({"instances": [secret], "signature_name": secret}))
        logged.get(f"/v1/models/{'x' * 1000}?{secret}")
        wait_for(lambda: len(file.read_text().splitlines()) == 3)
        file.rename(tmp_path / "rotated.jsonl")
        logged.get("/")
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "rotated.jsonl").read_text().splitlines()]
    first, second, third = lines
    assert first.pop("time").endswith("+00:00")
    assert 0 < first.pop("milliseconds") < 60_000
    assert first.pop("response_bytes") > 50
    assert len(first.pop("request_id")) == 32
    assert first == {
        "client": "testclient",
        "protocol": "REST",
        "method": "POST",
        "path": f"{MODEL}/versions/123:predict",
        "model": "half_plus_three",
        "version": 123,
        "signature": "lengths",
        "rows": 2,
        "status": 200,
        "request_bytes": len(body),
    }
    assert second["status"] == 400
    assert len(third["path"]) == 256
    assert secret not in (tmp_path / "rotated.jsonl").read_text()
    assert json.loads(file.read_text())["status"] == 404


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_line_of_the_access_log_is_printable_ascii(tmp_path):
    controls = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E, 0xFEFF]
    name = "".join(map(chr, controls)) + "é"
    log = AccessLog(tmp_path / "access.jsonl")
    log.write({"model": name})
    log.close()
    line, end = (tmp_path / "access.jsonl").read_text().split("\n")
    assert line.isascii() and line.isprintable() and end == ""
    assert json.loads(line)["model"] == name


def test_an_access_log_whose_folder_vanishes_fails_no_answer(tmp_path, caplog):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = AccessLog(folder / "access.jsonl")
    log.write({"number": 0})
    wait_for((folder / "access.jsonl").read_text)
    folder.rename(tmp_path / "old")
    for number in (1, 2):
        log.write({"number": number})
    wait_for(lambda: caplog.messages)
    time.sleep(0.01)
    folder.mkdir()
    log.write({"number": 3})
    log.close()
    assert json.loads((folder / "access.jsonl").read_text())["number"] == 3
    (message,) = caplog.messages
    assert message.startswith("the access log drops lines: ")


def test_a_line_after_one_that_a_full_disk_cut_is_whole(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            if len(data) < 9:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:9])

    log = AccessLog(file := tmp_path / "access.jsonl")
    monkeypatch.setattr(records, "open", lambda path, *_, **__: Full(path, "a"), raising=False)
    log.write({"number": 1})
    wait_for(lambda: log._is_losing)
    monkeypatch.undo()
    log.write({"number": 2})
    log.close()
    cut, whole = file.read_text().splitlines()
    assert json.loads(whole)["number"] == 2 and cut.startswith('{"time": ')


def test_an_access_log_that_is_slow_blocks_nobody(tmp_path, caplog, monkeypatch):
    """A pipe that nobody reads takes 64 KiB."""
    monkeypatch.setattr(records, "_CLOSE_SECONDS", 0.1)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(pipe)
    start = time.monotonic()
    for _ in range(20_000):
        log.write({"path": "x" * 100})
    assert time.monotonic() - start < 10
    assert caplog.messages == ["the access log drops lines: it is too slow"]
    os.close(reader)
    log.close()


def test_the_token(models, client, tmp_path):
    tokens = tokens_of(tmp_path, "# who may ask\n\nweb s3cret\n")
    with serving(models, tokens=tokens) as guarded:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer "},
            {"Authorization": "s3cret"},
            {"Authorization": "Basic ???"},
            {"Authorization": "Bearer \xff"},
        ):
            answer = guarded.get(
                MODEL, headers={k: v.encode("latin-1") for k, v in headers.items()}
            )
            assert error(answer, 401) == "Missing or wrong token"
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert guarded.get(MODEL, headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert guarded.get(MODEL, auth=("anybody", "s3cret")).status_code == 200
    assert tokens.name_of("bearer  s3cret ") == "web"


def test_a_page_whose_name_resolves_to_this_machine_gets_no_answer(models):
    """DNS rebinding: to the browser the page and the server are of one origin."""
    with serving(models, hosts={"localhost", "::1", "models.example.org"}) as own:
        for named in ("localhost", "LOCALHOST:8501", "[::1]:8501", "models.example.org:80"):
            assert own.get(MODEL, headers={"Host": named}).status_code == 200
        for named in ("evil.example:8501", "localhost.evil.example", "[::1", "127.0.0.1@evil"):
            refused = own.get(MODEL, headers={"Host": named})
            assert "is no name of this server: add it with --allowed_hosts" in error(refused, 403)


def test_other_pages_may_read_answers_only_if_asked_for(models, client, tmp_path):
    origin, tokens = {"Origin": "https://example.org"}, tokens_of(tmp_path, "t")
    assert "access-control-allow-origin" not in client.get(MODEL, headers=origin).headers
    with serving(models, cors_origins=["https://example.org"], tokens=tokens) as shared:
        asking = {**origin, "Access-Control-Request-Method": "POST"}
        assert shared.options(f"{MODEL}:predict", headers=asking).status_code == 200
        answer = shared.get(MODEL, headers={**origin, "Authorization": "Bearer t"})
        assert answer.headers["access-control-allow-origin"] == "https://example.org"

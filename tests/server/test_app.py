import asyncio
import gzip
import json
import re
import shutil
import threading
import time
import tracemalloc

import grpc
import pytest
from cases import for_each
from credential_files import tokens_of
from prometheus_client.parser import text_string_to_metric_families
from rest_client import MODEL, Stub, ask, error, loaded, rest, run, serving
from running_models import running, until
from starlette.testclient import TestClient

from bert_tf import BertTokenizer
from bert_tf.server import app as app_module
from bert_tf.server import json_tensors, openai, word_pieces
from bert_tf.server.app import Limits, make_app
from bert_tf.server.errors import HTTP_STATUS, ServingError
from bert_tf.server.models import Models

WHOLE = {"type": "http.request", "body": b'{"inputs": [1]}', "more_body": False}
GONE = {"type": "http.disconnect", "after": 0.01}
SENSORS = {"tag": ["foo", "bar"], "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]]}
SENSORS["sensor"] = [[[1, 2], [3, 4]], [[4, 5], [6, 8]]]


def test_the_documented_requests_are_answered_as_documented(client):
    """Those of g3doc/api_rest.md, in its order."""
    status = {"error_code": "OK", "error_message": ""}
    version = {"version": "123", "state": "AVAILABLE", "status": status}
    assert client.get(MODEL).json() == {"model_version_status": [version]}
    answer = ask(client, '{"instances": [1.0,2.0,5.0]}')
    assert (answer.status_code, answer.json()) == (200, {"predictions": [3.5, 4.0, 5.5]})
    assert answer.headers["content-type"] == "application/json"
    rows = [dict(zip(SENSORS, row, strict=True)) for row in zip(*SENSORS.values(), strict=True)]
    answer = ask(client, json.dumps({"signature_name": "sensors", "instances": rows}))
    assert answer.json() == {"predictions": rows}
    answer = ask(client, json.dumps({"signature_name": "sensors", "inputs": SENSORS}))
    assert answer.json() == {"outputs": SENSORS}


@for_each(
    "method path status message",
    ("GET", f"{MODEL}:predict", 405, "The method GET is not allowed here: use POST"),
    ("PUT", f"{MODEL}:tokenize", 405, "The method PUT is not allowed here: use POST"),
    ("OPTIONS", f"{MODEL}:predict", 405, "The method OPTIONS is not allowed here: use POST"),
    ("DELETE", MODEL, 405, "The method DELETE is not allowed here: use GET"),
    ("POST", f"{MODEL}/metadata", 405, "The method POST is not allowed here: use GET"),
    ("GET", "/v1/embeddings", 405, "The method GET is not allowed here: use POST"),
    ("POST", f"{MODEL}:classify", 501, "This server has no :classify: ask :predict, or"),
    ("POST", "/v1/models/foo:predict", 404, "There is no model foo: the server has half_plus"),
    ("POST", f"{MODEL}/versions/50:predict", 404, "no version 50 of the model half_plus_"),
    ("POST", f"{MODEL}/labels/x:predict", 400, "no version with the label x"),
    ("POST", f"{MODEL}/versions/{'9' * 5000}:predict", 400, "Malformed request: POST /v1/"),
    ("GET", "/v1/models", 400, "The path does not name a model"),
    ("GET", "/v1/models/foo", 404, "There is no model foo: the server has half_plus"),
    ("GET", f"{MODEL}/versions/{2**63}", 404, "There is no version 9223372036854775808"),
    ("GET", "/v1/models/a%0Ab/metadata", 404, "no model a\nb"),
    ("POST", "/v1/models/a%2Fb%3A%C3%A9:predict", 404, "no model a/b:é"),
    ("POST", f"{MODEL}:explain", 400, f"Malformed request: POST {MODEL}:explain"),
    ("GET", f"{MODEL}/?with=query", 400, f"Malformed request: GET {MODEL}/"),
    ("GET", "/v1/", 400, "Malformed request"),
    ("POST", "/v1/models/%3A/a:predict", 400, "Malformed request"),
)
def test_paths_and_methods_that_are_refused(client, method, path, status, message):
    body = {"content": '{"instances": [1]}'} if method == "POST" else {}
    answer = client.request(method, path, **body)
    assert answer.status_code == status
    assert message in str(answer.json()["error"])
    assert answer.headers.get("allow") == (message.split()[-1] if status == 405 else None)


def test_paths(client):
    paths = "/V1/MODELS/half_plus_three", f"{MODEL}/Versions/123", "/v1/models/%68alf%5Fplus_three"
    for model in paths:
        assert ask(client, '{"inputs": [1]}', "PREDICT", model).json() == {"outputs": [3.5]}
        assert client.get(model).status_code == client.get(f"{model}/Metadata").status_code == 200
    listed = client.get("/v1/models", headers={"User-Agent": "OpenAI/JS 5.0"}).json()
    (model,) = listed["data"]
    assert (listed["object"], model["id"], model["object"]) == ("list", "half_plus_three", "model")
    for path in ("/", "/v1", "/v2/models/x", "/%00"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"].startswith("text/plain")


def test_metadata(client):
    metadata = client.get(f"{MODEL}/versions/123/metadata").json()
    spec = {"name": "half_plus_three", "signature_name": "", "version": "123"}
    assert metadata["model_spec"] == spec
    signature = metadata["metadata"]["signature_def"]["signature_def"]["pairs"]
    assert signature["inputs"]["text"] == {
        "dtype": "DT_STRING",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False},
        "name": "pairs_text:0",
    }
    assert signature.keys() == {"inputs", "outputs", "method_name", "defaults"}
    assert signature["method_name"] == "tensorflow/serving/predict"


def test_each_code_has_its_http_status_and_a_defect_is_a_500_without_its_cause(models, caplog):
    for cause, status, message in (
        (ServingError(grpc.StatusCode.FAILED_PRECONDITION, 'a "message"'), 400, 'a "message"'),
        (ServingError(grpc.StatusCode.ABORTED, "é"), 409, "é"),
        (ServingError(grpc.StatusCode.UNAVAILABLE, "c"), 503, "c"),
        (RuntimeError("secret"), 500, "Internal error; the server's log has its cause"),
    ):

        async def fail(deadline, cause=cause):
            assert 29 < deadline - time.monotonic() <= 30
            raise cause

        with serving(Stub(models, fail)) as failing:
            assert error(ask(failing, '{"inputs": [1]}'), status) == message
    assert "secret" in caplog.text
    assert HTTP_STATUS.keys() == set(grpc.StatusCode)


def test_limits_of_rows_of_answers_and_of_time(toy_models, tmp_path, monkeypatch):
    monkeypatch.setattr(word_pieces, "_MOST_PIECES", 4)
    folder = shutil.copytree(toy_models, tmp_path / "models")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "##s"]
    BertTokenizer(pieces).save(folder / "half_plus_three" / "123" / "assets.extra")
    models = Models(folder, overrides={"max_batch_size": 2})
    with loaded(models) as client, serving(models, limits=Limits(seconds=-1)) as late:
        pieces = ask(client, '{"inputs": "the ships!"}', "tokenize").json()["outputs"]["pieces"]
        assert [piece["text"] for piece in pieces] == ["the", "ship", "##s", "[UNK]"]
        message = "The texts have 5 word pieces, more than 4: send fewer or shorter texts"
        answer = ask(client, '{"instances": ["the ships", "ships"]}', "tokenize")
        assert error(answer, 400) == message
        message = "The request has 3 rows: send at most 2"
        assert error(ask(client, '{"instances": ["", "", ""]}', "tokenize"), 400) == message
        assert error(ask(late, '{"inputs": "a"}', "tokenize"), 504) == "Deadline exceeded"
        assert error(ask(late, '{"inputs": [1]}'), 504) == "Deadline exceeded"
        monkeypatch.delattr(json_tensors, "tensors")  # rows are counted before the conversion
        assert error(ask(client, '{"instances": [1,2,3]}'), 400) == message


def test_the_deadline_holds_for_whatever_a_route_does(models, monkeypatch):
    async def wait(*_):
        await asyncio.sleep(100)

    monkeypatch.setattr(app_module, "in_thread_if", wait)
    monkeypatch.setattr(openai, "in_thread_if", wait)
    with serving(models, limits=Limits(seconds=0.02)) as late:
        for path in (f"{MODEL}:predict", f"{MODEL}:tokenize", openai.PATH):
            answer = late.post(path, content="{}")
            assert answer.status_code == 504 and "Deadline exceeded" in answer.text, path


def test_the_token(models, tmp_path):
    tokens = tokens_of(tmp_path, "# who may ask\n\ns3cret\n")
    with serving(models, tokens=tokens) as guarded:
        for header in ("", "Bearer wrong", "Bearer ", "s3cret", "Basic ???", "Bearer \xff"):
            answer = guarded.get(MODEL, headers={"Authorization": header.encode("latin-1")})
            assert error(answer, 401) == "Missing or wrong token"
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert guarded.get(MODEL).status_code == 401
        assert guarded.get(MODEL, headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert guarded.get(MODEL, auth=("anybody", "s3cret")).status_code == 200


def test_a_page_whose_name_resolves_to_this_machine_gets_no_answer(models):
    """DNS rebinding: to the browser the page and the server are of one origin."""
    with serving(models, hosts={"localhost", "::1", "models.example.org"}) as guarded:
        for host in ("localhost", "LOCALHOST:8501", "[::1]:8501", "models.example.org:80"):
            assert guarded.get(MODEL, headers={"Host": host}).status_code == 200
        for host in ("evil.example:8501", "localhost.evil.example", "[::1", "127.0.0.1@evil"):
            refused = guarded.get(MODEL, headers={"Host": host})
            assert "is no name of this server: add it with --allowed_hosts" in error(refused, 403)


def test_other_pages_may_read_answers_only_if_asked_for(models, client, tmp_path):
    origin, tokens = {"Origin": "https://example.org"}, tokens_of(tmp_path, "t")
    assert "access-control-allow-origin" not in client.get(MODEL, headers=origin).headers
    with serving(models, cors_origins=["https://example.org"], tokens=tokens) as shared:
        asking = {**origin, "Access-Control-Request-Method": "POST"}
        assert shared.options(f"{MODEL}:predict", headers=asking).status_code == 200
        answer = shared.get(MODEL, headers={**origin, "Authorization": "Bearer t"})
        assert answer.headers["access-control-allow-origin"] == "https://example.org"


async def test_probes_need_no_token_and_tell_what_is_ready(toys, tmp_path):
    folder = shutil.copytree(toys, tmp_path / "models")
    models = Models(folder, poll_seconds=0.02)
    app = make_app(models, hosts={"localhost"}, tokens=tokens_of(tmp_path, "secret"))
    client = TestClient(app)

    def ready() -> tuple[int, str]:
        answer = client.get("/readyz", headers={"Host": "10.1.2.3:8501"})
        return answer.status_code, answer.text

    assert (client.get("/healthz").text, ready()[0]) == ("ok\n", 503)
    headers = {"Authorization": "Bearer secret", "Host": "localhost"}
    loading = client.post("/v1/models/toy:predict", json={"inputs": ["ab"]}, headers=headers)
    assert error(loading, 503) == "The server is loading its models"
    body = {"model": "text-embedding-3-small", "input": "a"}  # OpenAI's clients repeat a 503
    assert client.post("/v1/embeddings", json=body, headers=headers).status_code == 503
    listed = client.get("/v1/models", headers=headers | {"User-Agent": "OpenAI/Python 2.0"})
    assert listed.status_code == 503
    async with running(models):
        assert ready() == (200, "1 of 1 models are ready\n")
        (folder / "toy" / "2").mkdir()  # which cannot be loaded: version 1 still answers
        (folder / "broken" / "1").mkdir(parents=True)
        await until(lambda: ready() == (503, "1 of 2 models are ready\n"))
        shutil.copytree(toys / "toy" / "1", folder / "broken" / "1", dirs_exist_ok=True)
        await until(lambda: ready() == (200, "2 of 2 models are ready\n"))
    assert ready()[0] == 503  # it is stopping
    assert client.head("/readyz").text == ""
    assert client.post("/readyz").status_code == 405


def test_metrics(toy_models):
    models = Models(toy_models)
    with loaded(models) as client:
        ask(client, '{"instances": [1, 2]}')
        ask(client, "{")
        ask(client, '{"instances": [1]}', model="/v1/models/foo")
        answer = client.get("/monitoring/prometheus/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples]

    def metric(name: str, **labels: str) -> float:
        return next(s.value for s in samples if s.name == name and s.labels == labels)

    model = {"model_name": "half_plus_three"}
    count = ':tensorflow:serving:request_count{model_name="half_plus_three",status="OK"} 1.0'
    assert count in answer.text
    assert 'API="Predict",entrypoint="REST",le=' in answer.text
    assert metric("bert_tf_batch_rows_sum", **model) == 2
    assert metric("bert_tf_refusals_total", reason="invalid_argument") == 1
    assert metric("bert_tf_refusals_total", reason="not_found") == 1
    assert metric("bert_tf_rows_waiting", **model) == 0
    assert metric("bert_tf_model_ready", **model) == 1
    assert metric("bert_tf_requests_in_flight", entrypoint="REST") == 0
    assert metric("process_resident_memory_bytes") > 10e6
    for stage, least in (("read", 3), ("parse", 1), ("wait", 1), ("compute", 1), ("write", 1)):
        assert metric("bert_tf_stage_seconds_count", stage=stage) >= least
    assert 'model_name="foo"' not in answer.text  # clients make up names
    for path in ("/metrics", None):
        other = TestClient(make_app(models, metrics_path=path))
        assert other.get("/metrics").status_code == (200 if path else 404)
        assert other.get("/monitoring/prometheus/metrics").status_code == 404


def test_large_answers_are_packed_for_clients_that_ask(client):
    body = {"signature_name": "sensors", "inputs": {key: x * 500 for key, x in SENSORS.items()}}
    headers = ({"Accept-Encoding": coding} for coding in ("gzip", "identity"))
    packed, plain = (client.post(f"{MODEL}:predict", json=body, headers=x) for x in headers)
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers and packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < len(plain.content)


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
        bomb = gzip.compress(bytes(10**5))  # 132 bytes
        assert error(ask_packed(small, bomb), 413) == "Request body is larger than 1000 bytes"
    with serving(models, limits=Limits(held_bytes=70_000)) as small:
        error(ask_packed(small, gzip.compress(bytes(70_001))), 429)


def test_a_bomb_is_not_unpacked_beyond_the_limit():
    bomb = gzip.compress(bytes(10**7))
    tracemalloc.start()
    with pytest.raises(ServingError, match="larger than 1000 bytes"):
        app_module._unpacked(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


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


@for_each("more_body", False, True)
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

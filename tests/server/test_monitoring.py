"""Request ids, traces, and the access log."""

import errno
import io
import json
import os
import time

import pytest
from credential_files import tokens_of
from rest_client import MODEL, ask, serving

from bert_tf.server import monitoring
from bert_tf.server.monitoring import AccessLog, Recorder, Tracer, request_id, trace_id

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_id_is_echoed_if_headers_and_logs_can_carry_it():
    assert request_id("a/b:7") == "a/b:7"
    for header in ("", "a b", "é", "a\n", "x" * 129, "x" * 10_000):
        number = request_id(header)
        assert len(number) == 32 and number != request_id(header)


@pytest.mark.parametrize(
    ("header", "is_valid"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"01-{TRACE}-{PARENT}-01-later", True),
        (f"00-{TRACE}-{PARENT}-01-later", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        ("none", False),
        ("", False),
    ],
)
def test_only_a_valid_traceparent_names_a_trace(header, is_valid):
    assert trace_id(header) == (TRACE if is_valid else None)


def test_ids_tokens_and_traces_are_logged_and_traced(models, tmp_path, caplog):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    log, spans = AccessLog(tmp_path / "log"), InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(spans))
    tokens = tokens_of(tmp_path, "web one\nbatch two\n")
    path, body = f"{MODEL}:predict", {"inputs": [1]}
    with serving(models, recorder=Recorder(log, tracer), tokens=tokens) as client:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "no state"}
        headers |= {"X-Request-ID": "order-7", "Authorization": "Bearer two"}
        answer = client.post(path, json=body, headers=headers)
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "order-7")
        headers = {"X-Request-ID": "x" * 10_000, "traceparent": "none" * 1000}
        refused = client.post(path, json=body, headers=headers)
        assert (refused.status_code, len(refused.headers["x-request-id"])) == (401, 32)
    log.close()
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (first["request_id"], first["trace_id"], first["token"]) == ("order-7", TRACE, "batch")
    assert second.keys().isdisjoint({"trace_id", "token"})
    span, other = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
    assert span.attributes["bert_tf.model"] == "half_plus_three"
    assert span.attributes["bert_tf.status"] == 200
    assert other.parent is None and other.attributes["bert_tf.status"] == 401
    for status in ("UNAVAILABLE", "NOT_FOUND"):  # of gRPC
        with tracer.span("Predict", {}, {"status": status}):
            pass
    codes = [span.status.status_code.name for span in spans.get_finished_spans()]
    assert codes == ["UNSET", "UNSET", "ERROR", "UNSET"]
    tracer.close()
    assert not caplog.messages  # what callers send is not repeated there


def test_the_access_log_has_who_what_and_how_long_but_no_text(models, tmp_path):
    file, secret = tmp_path / "access.jsonl", "my secret"
    log = AccessLog(file)
    with serving(models, recorder=Recorder(log)) as client:
        body = json.dumps({"signature_name": "lengths", "instances": [secret, "b"]})
        ask(client, body, model=f"{MODEL}/versions/123")
        ask(client, json.dumps({"instances": [secret], "signature_name": secret}))
        client.get(f"/v1/models/{'x' * 1000}?{secret}")
        wait_for(lambda: len(file.read_text().splitlines()) == 3)
        file.rename(tmp_path / "rotated.jsonl")
        client.get("/")
    log.close()
    text = (tmp_path / "rotated.jsonl").read_text()
    first, second, third = map(json.loads, text.splitlines())
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
    assert secret not in text
    assert json.loads(file.read_text())["status"] == 404


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
            super().write(data[:9])
            raise OSError(errno.ENOSPC, "No space left on device")

    log = AccessLog(file := tmp_path / "access.jsonl")
    monkeypatch.setattr(monitoring, "open", lambda path, *_, **__: Full(path, "a"), raising=False)
    log.write({"number": 1})
    wait_for(lambda: log._is_losing)
    monkeypatch.undo()
    log.write({"number": 2})
    log.close()
    cut, whole = file.read_text().splitlines()
    assert json.loads(whole)["number"] == 2 and cut.startswith('{"time": ')


def test_an_access_log_that_is_slow_blocks_nobody(tmp_path, caplog, monkeypatch):
    """A pipe that nobody reads takes 64 KiB."""
    monkeypatch.setattr(monitoring, "_CLOSE_SECONDS", 0.1)
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

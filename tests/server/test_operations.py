"""What operators rely on: probes, ids and traces, metrics, credentials that are renewed."""

import asyncio
import json
import shutil
import ssl
import subprocess

import pytest
from credential_files import tokens_of, write_certificate
from prometheus_client.parser import text_string_to_metric_families
from running_models import running
from starlette.testclient import TestClient

from bert_tf.commands.serve import translated
from bert_tf.errors import InputError
from bert_tf.server.app import make_app
from bert_tf.server.configuration import read_metrics_path
from bert_tf.server.credentials import Certificate
from bert_tf.server.models import Models
from bert_tf.server.records import AccessLog, Tracer, request_id, trace_id

PATH = "/v1/models/toy:predict"
BODY = {"inputs": {"text": ["ab", "c"]}}


def get(app, path: str, **options):
    return TestClient(app).get(path, **options)


async def test_probes_need_no_token_and_tell_what_is_ready(toys, tmp_path):
    models_folder = tmp_path / "models"
    shutil.copytree(toys, models_folder)
    models = Models(models_folder, poll_seconds=0.02)
    app = make_app(models, hosts={"localhost"}, tokens=tokens_of(tmp_path, "secret"))

    def ready() -> tuple[int, str]:
        found = get(app, "/readyz", headers={"Host": "10.1.2.3:8501"})
        return found.status_code, found.text

    assert (get(app, "/healthz").text, ready()[0]) == ("ok\n", 503)
    authorization = {"Authorization": "Bearer secret", "Host": "localhost"}
    loading = TestClient(app).post(PATH, json=BODY, headers=authorization)
    assert (loading.status_code, loading.json()) == (
        503,
        {"error": "The server is loading its models"},
    )
    async with running(models):
        assert ready() == (200, "1 of 1 models are ready\n")
        (models_folder / "toy" / "2").mkdir()  # which cannot be loaded: version 1 still answers
        (models_folder / "broken" / "1").mkdir(parents=True)
        async with asyncio.timeout(30):
            while ready() != (503, "1 of 2 models are ready\n"):
                await asyncio.sleep(0.01)
        shutil.copytree(toys / "toy" / "1", models_folder / "broken" / "1", dirs_exist_ok=True)
        async with asyncio.timeout(30):
            while ready() != (200, "2 of 2 models are ready\n"):
                await asyncio.sleep(0.01)
    assert ready()[0] == 503  # it is stopping
    assert TestClient(app).head("/readyz").text == ""
    assert TestClient(app).post("/readyz").status_code == 405


async def test_a_configured_model_without_a_folder_is_not_ready(toys, tmp_path):
    text = "\n".join(
        f'config {{ name: "{name}" base_path: "{toys}/{name}" }}' for name in ("toy", "gone")
    )
    (tmp_path / "models.config").write_text(f"model_config_list {{ {text} }}")
    async with running(models := Models(tmp_path / "models.config")):
        assert (models.readiness(), models.is_ready) == ({"gone": False, "toy": True}, False)


@pytest.fixture
def client(toys):
    models = Models(toys)
    with TestClient(make_app(models)) as client:
        client.portal.call(models.start)
        yield client
        client.portal.call(models.close)


def test_an_id_is_echoed_if_headers_and_logs_can_carry_it():
    assert request_id("a/b:7") == "a/b:7"
    for bad in ("", "a b", "é", "a\n", "x" * 129, "x" * 10_000):
        made = request_id(bad)
        assert len(made) == 32 and made != request_id(bad)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later", True),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-later", False),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", False),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", False),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", False),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01", False),
        ("none", False),
        ("", False),
    ],
)
def test_only_a_valid_traceparent_names_a_trace(given, found):
    assert trace_id(given) == ("4bf92f3577b34da6a3ce929d0e0e4736" if found else None)


def test_ids_tokens_and_traces_are_logged_and_traced(client, toys, tmp_path, caplog):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    log, spans = AccessLog(tmp_path / "log"), InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(spans))
    models = Models(toys)
    tokens = tokens_of(tmp_path, "web one\nbatch two\n")
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with TestClient(make_app(models, access_log=log, tracer=tracer, tokens=tokens)) as asked:
        asked.portal.call(models.start)
        headers = {
            "X-Request-ID": "order-7",
            "traceparent": f"00-{trace}-{parent}-01",
            "tracestate": "no state",
        }
        answer = asked.post(PATH, json=BODY, headers=headers | {"Authorization": "Bearer two"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "order-7")
        headers = {"X-Request-ID": "x" * 10_000, "traceparent": "none" * 1000}
        refused = asked.post(PATH, json=BODY, headers=headers)
        assert (refused.status_code, len(refused.headers["x-request-id"])) == (401, 32)
        asked.portal.call(models.close)
    log.close()
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert [first[key] for key in ("request_id", "trace_id", "token")] == [
        "order-7",
        trace,
        "batch",
    ]
    assert second.keys().isdisjoint({"trace_id", "token"})
    span, other = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == trace and f"{span.parent.span_id:016x}" == parent
    assert span.attributes["bert_tf.model"] == "toy" and span.attributes["bert_tf.status"] == 200
    assert other.parent is None and other.attributes["bert_tf.status"] == 401
    tracer.close()
    assert not caplog.messages  # what callers send is not repeated there


def metric(client, name: str, **labels: str) -> float | None:
    text = client.get("/monitoring/prometheus/metrics").text
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return next((s.value for s in samples if s.name == name and s.labels == labels), None)


def test_metrics_that_an_autoscaler_reads(client):
    client.post(PATH, json=BODY)
    client.post(PATH, content=b"{")
    client.post("/v1/models/foo:predict", json=BODY)
    assert metric(client, "bert_tf_batch_rows_sum", model_name="toy") == 2
    assert metric(client, "bert_tf_refusals_total", reason="invalid_argument") == 1
    assert metric(client, "bert_tf_refusals_total", reason="not_found") == 1
    assert metric(client, "bert_tf_rows_waiting", model_name="toy") == 0
    assert metric(client, "bert_tf_model_ready", model_name="toy") == 1
    assert metric(client, "bert_tf_requests_in_flight", entrypoint="REST") == 0
    assert metric(client, "process_resident_memory_bytes") > 10e6
    for stage, least in (("read", 3), ("parse", 1), ("wait", 1), ("compute", 1), ("write", 1)):
        assert metric(client, "bert_tf_stage_seconds_count", stage=stage) >= least


def test_large_answers_are_packed_for_clients_that_ask(client):
    body = {"inputs": {"text": ["ab" * 1000]}}
    packed = client.post(PATH, json=body, headers={"Accept-Encoding": "gzip"})
    plain = client.post(PATH, json=body, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers and packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < len(plain.content)


def test_tokens_are_read_again_and_a_bad_file_changes_nothing(tmp_path, caplog):
    tokens = tokens_of(tmp_path, "first\n\n# comment\napp  second\n")
    assert [tokens.name_of(f"Bearer {each}") for each in ("first", "second", "third")] == [
        "line 1",
        "app",
        None,
    ]
    for _ in range(2):
        (tmp_path / "tokens").write_text("a b c\n")
        tokens.refresh()
    assert tokens.name_of("Bearer second") == "app"
    (message,) = caplog.messages
    assert "line 1: write one token, or its name and it" in message
    (tmp_path / "tokens").unlink()
    tokens.refresh()
    assert tokens.name_of("Bearer second") == "app"
    (tmp_path / "tokens").write_text("third\n")
    tokens.refresh()
    assert [tokens.name_of(f"Bearer {each}") for each in ("second", "third")] == [None, "line 1"]


def test_a_certificate_is_read_again_and_a_bad_one_changes_nothing(tmp_path, caplog):
    def common_name() -> bytes:
        """What a client is shown now."""
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [client.wrap_bio(there, back), tls.context.wrap_bio(back, there, server_side=True)]
        for side in sides * 3:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return sides[0].getpeercert(binary_form=True)

    paths = write_certificate(tmp_path)
    tls = Certificate(*paths)
    first = common_name()
    write_certificate(tmp_path, days=3)
    old = tls.expiry
    tls.refresh()
    renewed = common_name()
    assert renewed != first and 86_000 < tls.expiry - old < 87_000
    write_certificate(tmp_path, days=-1)
    tls.refresh()
    paths[1].write_text("no key")
    tls.refresh()
    assert common_name() == renewed
    assert ["expired" in message for message in caplog.messages] == [True, False]


def test_a_certificate_that_has_expired_is_refused(tmp_path):
    with pytest.raises(InputError, match="certificate has expired: renew it"):
        Certificate(*write_certificate(tmp_path, days=-1))
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    with pytest.raises(InputError, match="are no certificate and its key"):
        Certificate(write_certificate(first)[0], write_certificate(second)[1])


def test_an_encrypted_key_is_refused_without_asking_for_its_password(tmp_path):
    certificate, key = write_certificate(tmp_path)
    subprocess.run(
        [
            "openssl",
            "pkey",
            "-in",
            key,
            "-aes256",
            "-passout",
            "pass:secret",
            "-out",
            tmp_path / "encrypted.pem",
        ],
        check=True,
    )
    with pytest.raises(InputError, match="is encrypted: give the key without"):
        Certificate(certificate, tmp_path / "encrypted.pem")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "--port=8500 --rest_api_port 8501 --model_name=m --model_base_path=/models/m",
            "--grpc_port=8500 --rest_port=8501 --model_name=m /models/m",
        ),
        ("--model_base_path=/models/m", "/models/m --model_name=default"),
        (
            "--model_config_file=/m/models.config --model_config_file_poll_wait_seconds=60 "
            "--allow_version_labels_for_unavailable_models=true --enable_batching "
            "--monitoring_config_file=/m/monitoring.config --batching_parameters_file=/m/b.config "
            "--enable_per_model_batching_parameters=true --rest_api_timeout_in_ms=1500",
            "/m/models.config --monitoring_config_file=/m/monitoring.config "
            "--batching_parameters_file=/m/b.config --enable_per_model_batching_parameters "
            "--deadline=1.5",
        ),
        ("saved_models --rest_port=1", "saved_models --rest_port=1"),
    ],
)
def test_flags_of_tensorflow_model_server(given, expected):
    assert translated(given.split()) == expected.split()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--enable_batching=false"], "--enable_batching cannot be switched off"),
        (["--port"], "--port needs a value"),
        (["--rest_api_timeout_in_ms=x"], "x is not a whole number"),
        (["--model_base_path=a", "--model_config_file=b"], "cannot be combined: give one"),
    ],
)
def test_flags_that_this_server_cannot_follow(given, message):
    with pytest.raises(InputError, match=message):
        translated(given)


def test_a_monitoring_config_moves_the_metrics_or_switches_them_off(tmp_path, toys):
    file = tmp_path / "monitoring.config"
    file.write_text('prometheus_config { enable: true path: "/metrics" }')
    assert read_metrics_path(file, "/default") == "/metrics"
    models = Models(toys)
    assert get(make_app(models, metrics_path="/metrics"), "/metrics").status_code == 200
    for text in ("", "prometheus_config { enable: false }"):
        file.write_text(text)
        assert read_metrics_path(file, "/default") is None
    app = make_app(models, metrics_path=None)
    assert get(app, "/monitoring/prometheus/metrics").status_code == 404
    for text in ("prometheus {", 'prometheus_config { enable: true path: "metrics" }'):
        file.write_text(text)
        with pytest.raises(InputError, match="configures no metrics"):
            read_metrics_path(file, "/default")


async def test_a_folder_of_one_model_is_served_under_a_name(toys):
    async with running(models := Models(toys / "toy", name="default")):
        assert models.names == ["default"]

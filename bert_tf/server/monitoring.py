"""What is recorded of requests: metrics, a line of JSON and a span of each; never texts or answers.

The metrics are those of tensorflow_serving/servables/tensorflow/util.cc, and `bert_tf_*` for
autoscalers and operators; `recipes/serving/grafana.json` shows them.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import prometheus_client as prometheus

from bert_tf.errors import InputError, pip_install
from bert_tf.server.errors import HTTP_STATUS

REQUEST_ID, TRACE_PARENT = "x-request-id", "traceparent"

# https://www.w3.org/TR/trace-context/#traceparent-header; versions after 00 may append fields.
_FIELDS = "(?!0+-)([0-9a-f]{32})-(?!0+-)[0-9a-f]{16}-[0-9a-f]{2}"
_TRACE = re.compile(f"00-{_FIELDS}|(?!00|ff)[0-9a-f]{{2}}-{_FIELDS}(-.*)?")

_LONGEST = 256  # characters of a path or a name
_MOST_LINES = 2**14  # that wait for a slow disk
_MOST_AT_ONCE = 2**10
_GATHER_SECONDS = 0.05  # lines of this time are written at once: waking the thread costs the most
_CLOSE_SECONDS = 5

_LOG = logging.getLogger(__name__)

# In microseconds, Exponential(10, 1.8, 33) of TensorFlow's monitoring: to about 20 minutes.
_LATENCIES = [round(10 * 1.8**power, 6) for power in range(33)]
_EXAMPLES = [2.0**power for power in range(15)]
_PREFIX = ":tensorflow:serving:"
_SECONDS = [1e-5 * 2.5**power for power in range(18)]  # 10 µs to 84 s
# Counters whose names do not end in _total, which the client library appends to all.
_WITHOUT_TOTAL = (f"{_PREFIX}request_count", ":tensorflow:cc:saved_model:load_attempt_count")


class Metrics:
    """All metrics of a server; those that need no more than a label are attributes."""

    def __init__(self) -> None:
        # Other names count as "": clients could make up any number of labels.
        self.models: set[str] = set()
        prometheus.disable_created_metrics()
        registry = self._registry = prometheus.CollectorRegistry()
        counter = functools.partial(prometheus.Counter, registry=registry)
        gauge = functools.partial(prometheus.Gauge, registry=registry, namespace="bert_tf")
        histogram = functools.partial(prometheus.Histogram, registry=registry, buckets=_LATENCIES)
        total, duration = "The total number of", "Distribution of wall time (in microseconds)"
        self._requests = counter(_WITHOUT_TOTAL[0], f"{total} requests.", ["model_name", "status"])
        loads = "The number of times a SavedModel was requested to be loaded."
        self.loads = counter(_WITHOUT_TOTAL[1], loads, ["model_path", "status"])
        self._latency = histogram(
            f"{_PREFIX}request_latency",
            f"{duration} for Tensorflow Serving request.",
            ["model_name", "API", "entrypoint"],
        )
        self.runtime = histogram(
            f"{_PREFIX}runtime_latency",
            f"{duration} for Tensorflow runtime.",
            ["model_name", "API", "runtime"],
        )
        self._queueing = histogram(
            f"{_PREFIX}batching_session:queuing_latency",
            "Distribution of wall time spent (in microseconds) in queuing",
            ["thread_pool_name"],
        ).labels("batch")
        self.warm_ups = histogram(
            f"{_PREFIX}model_warmup_latency",
            f"{duration} for warming up the model.",
            ["model_path", "status"],
        )
        self.in_flight = gauge("requests_in_flight", "Requests being answered.", ["entrypoint"])
        self._waiting = gauge("rows_waiting", "Rows that wait for a thread.", ["model_name"])
        ready = "1 if requests to the model are answered."
        self._ready = gauge("model_ready", ready, ["model_name"])
        self.refusals = counter("bert_tf_refusals", "Requests refused or failed.", ["reason"])
        self._batches = histogram(
            "bert_tf_batch_rows", "Rows of a batch.", ["model_name"], buckets=_EXAMPLES
        )
        self.stages = histogram(
            "bert_tf_stage_seconds", "Seconds of a request by stage.", ["stage"], buckets=_SECONDS
        )
        # Present at 0 from the start: a rate needs the value before the first request.
        for stage in ("read", "parse", "wait", "compute", "write"):  # compute has the batch
            self.stages.labels(stage)
        # Resident memory, processor seconds and open files, under the names that all servers use.
        prometheus.ProcessCollector(registry=registry)

    def request(
        self, model: str, api: str, entrypoint: str, code: grpc.StatusCode, seconds: float
    ) -> None:
        """Counts a request that has been answered: "Predict", over "REST" or "GRPC"."""
        model = model if model in self.models else ""
        self._requests.labels(model, code.name).inc()
        self._latency.labels(model, api, entrypoint).observe(seconds * 1e6)

    def batch(self, model: str, rows: int, waits: Sequence[float]) -> None:
        """Counts a batch that starts, and the seconds that each of its requests waited."""
        self._batches.labels(model).observe(rows)
        for seconds in waits:
            self._queueing.observe(seconds * 1e6)
            self.stages.labels("wait").observe(seconds)

    def forget(self, path: str) -> None:
        for code in grpc.StatusCode:
            for metric in (self.loads, self.warm_ups):
                with contextlib.suppress(KeyError):  # not counted
                    metric.remove(path, code.name)

    def render(
        self, waiting: Mapping[str, int] | None = None, ready: Mapping[str, bool] | None = None
    ) -> bytes:
        """The text that Prometheus reads, with rows that wait and readiness, by model."""
        for gauge, values in ((self._waiting, waiting), (self._ready, ready)):
            gauge.clear()
            for model, value in (values or {}).items():
                gauge.labels(model).set(value)
        text = prometheus.generate_latest(self._registry)
        for name in _WITHOUT_TOTAL:
            text = text.replace(f"{name}_total".encode(), name.encode())
        return text


def request_id(header: str) -> str:
    """The caller's id, if logs and headers can carry it, or a new one."""
    return header if re.fullmatch(r"[!-~]{1,128}", header) else uuid.uuid4().hex


def trace_id(traceparent: str) -> str | None:
    """The trace that a request belongs to; None without a valid one."""
    match = _TRACE.fullmatch(traceparent)
    return match and (match[1] or match[2])


class Tracer:
    """Sends spans to the collector in OpenTelemetry's environment; InputError without its SDK."""

    def __init__(self, processor: Any = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise InputError(f"--traces needs more packages: {pip_install('traces')}") from error
        # It would log what clients send: each invalid header, with its content.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        name = os.environ.get("OTEL_SERVICE_NAME", "bert-tf")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("bert_tf.serving")

    @contextlib.contextmanager
    def span(self, name: str, headers: Mapping[str, str], fields: Mapping[str, Any]) -> Iterator:
        """A span below the caller's; `fields`, read at its end, become its attributes."""
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(headers)
        with self._tracer.start_as_current_span(
            # A refusal is raised, too.
            name,
            context,
            SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            finally:
                for key, value in _shortened(fields).items():
                    span.set_attribute(f"bert_tf.{key}", value)
                status = fields.get("status", 0)
                # Codes of gRPC are the server's fault where those of HTTP are, too.
                if isinstance(status, str):
                    status = HTTP_STATUS[grpc.StatusCode[status]]
                if status >= 500:
                    span.set_status(StatusCode.ERROR)

    def close(self) -> None:
        """Sends the spans that wait."""
        self._provider.shutdown()


class AccessLog:
    """Appends lines to a file, or to standard output ("-"), in a thread; drops them if it fails."""

    def __init__(self, path: str | Path) -> None:
        self._file = sys.stdout.fileno() if str(path) == "-" else path
        self._lines: deque[str] = deque()
        self._closing = threading.Event()
        self._is_losing = False
        self._append("")
        self._thread = threading.Thread(target=self._write_lines, name="access log", daemon=True)
        self._thread.start()

    def write(self, fields: Mapping[str, Any]) -> None:
        """Writes one line, with the time in front; all of it is printable ASCII."""
        if len(self._lines) >= _MOST_LINES:
            return self._lose("it is too slow")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **_shortened(fields)})
        self._lines.append(line.replace("\x7f", "\\u007f") + "\n")

    def close(self) -> None:
        """Writes the lines that wait, unless that takes too long."""
        self._closing.set()
        self._thread.join(_CLOSE_SECONDS)

    def _write_lines(self) -> None:
        while not self._closing.wait(_GATHER_SECONDS) or self._lines:
            lines = [self._lines.popleft() for _ in range(min(len(self._lines), _MOST_AT_ONCE))]
            if lines:
                try:
                    self._append("".join(lines))
                    self._is_losing = False
                except OSError as error:
                    self._lose(str(error))

    def _append(self, lines: str) -> None:
        # Opened each time: a log rotation may have moved the file.
        with open(self._file, "ab", closefd=not isinstance(self._file, int)) as file:
            # After a failure the last line may be half written.
            file.write(("\n" * self._is_losing + lines).encode("ascii"))

    def _lose(self, reason: str) -> None:
        """Reports the first of several lines that are dropped."""
        if not self._is_losing:
            self._is_losing = True
            _LOG.error("the access log drops lines: %s", reason)


def _shortened(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: x[:_LONGEST] if isinstance(x, str) else x for key, x in fields.items()}


@dataclasses.dataclass(frozen=True)
class Recorder:
    """Writes requests into the access log and as spans, where there are these."""

    log: AccessLog | None = None
    tracer: Tracer | None = None

    @contextlib.contextmanager
    def record(
        self, name: str, headers: Mapping[str, str], fields: dict[str, Any]
    ) -> Iterator[None]:
        """Records a request, which the block answers, with the fields as they are at its end.

        Adds the fields `request_id` and, if the caller has one, `trace_id`.
        """
        start = time.perf_counter()
        fields["request_id"] = request_id(headers.get(REQUEST_ID, ""))
        if trace := trace_id(headers.get(TRACE_PARENT, "")):
            fields["trace_id"] = trace
        tracer, log = self.tracer, self.log
        try:
            with tracer.span(name, headers, fields) if tracer else contextlib.nullcontext():
                yield
        finally:
            if log:
                milliseconds = round(1000 * (time.perf_counter() - start), 3)
                log.write({**fields, "milliseconds": milliseconds})

    def close(self) -> None:
        if self.log:
            self.log.close()
        if self.tracer:
            self.tracer.close()

"""What is recorded of a request: id, trace, a line of JSON, a span; never its texts or answers."""

import contextlib
import datetime
import json
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc

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


@contextlib.contextmanager
def recorded(
    log: AccessLog | None,
    tracer: Tracer | None,
    name: str,
    headers: Mapping[str, str],
    fields: dict[str, Any],
) -> Iterator[None]:
    """Records a request, which the block answers, with the fields as they are at its end.

    Adds the fields `request_id` and, if the caller has one, `trace_id`.
    """
    start = time.perf_counter()
    fields["request_id"] = request_id(headers.get(REQUEST_ID, ""))
    if trace := trace_id(headers.get(TRACE_PARENT, "")):
        fields["trace_id"] = trace
    try:
        with tracer.span(name, headers, fields) if tracer else contextlib.nullcontext():
            yield
    finally:
        if log is not None:
            log.write({**fields, "milliseconds": round(1000 * (time.perf_counter() - start), 3)})

"""Identity of a request: its id, the caller's trace, and spans of OpenTelemetry."""

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from bert_tf.errors import InputError

REQUEST_ID, TRACE_PARENT = "x-request-id", "traceparent"

# https://www.w3.org/TR/trace-context/#traceparent-header; versions after 00 may append fields.
_FIELDS = "(?!0+-)([0-9a-f]{32})-(?!0+-)[0-9a-f]{16}-[0-9a-f]{2}"
_TRACE = re.compile(f"00-{_FIELDS}|(?!00|ff)[0-9a-f]{{2}}-{_FIELDS}(-.*)?")


def request_id(given: str) -> str:
    """The caller's id, if logs and headers can carry it, or a new one."""
    return given if re.fullmatch(r"[!-~]{1,128}", given) else uuid.uuid4().hex


def trace_id(traceparent: str) -> str | None:
    """The trace that a request belongs to; None without a valid one."""
    found = _TRACE.fullmatch(traceparent)
    return found and (found[1] or found[2])


def identity(headers: Mapping[str, str]) -> dict[str, str]:
    """`request_id` and, if the caller has one, `trace_id`: fields of the access log."""
    found = {"request_id": request_id(headers.get(REQUEST_ID, ""))}
    if trace := trace_id(headers.get(TRACE_PARENT, "")):
        found["trace_id"] = trace
    return found


class Tracer:
    """Sends a span for each request to the collector that OpenTelemetry's environment names.

    Raises InputError without the packages of the extra `traces`.
    """

    def __init__(self, processor: Any = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise InputError(
                "--traces needs more packages: pip install 'bert-tf[traces]'"
            ) from error
        # It would log what clients send: each invalid header, with its content.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        name = os.environ.get("OTEL_SERVICE_NAME", "bert-tf")
        self._provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer = self._provider.get_tracer("bert_tf.serving")

    def close(self) -> None:
        """Sends the spans that wait."""
        self._provider.shutdown()


# Codes of gRPC that are the server's fault, as OpenTelemetry's conventions list them.
_FAILURES = {
    "UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
}  # fmt: skip


@contextlib.contextmanager
def span(
    tracer: Tracer | None, name: str, headers: Mapping[str, str], fields: Mapping[str, Any]
) -> Iterator[None]:
    """A span below the caller's, if any is sent; `fields`, read at its end, are its attributes."""
    if tracer is None:
        yield
        return
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract(headers)
    with tracer.tracer.start_as_current_span(
        # A refusal is raised, too.
        name, context, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
    ) as found:  # fmt: skip
        try:
            yield
        finally:
            for key, value in fields.items():
                found.set_attribute(f"bert_tf.{key}", value)
            status = fields.get("status", 0)
            failed = status >= 500 if isinstance(status, int) else status in _FAILURES
            if failed:
                found.set_status(StatusCode.ERROR)

"""Metrics for Prometheus: TensorFlow Serving's, and `bert_tf_*` for autoscalers.

The names come from tensorflow_serving/servables/tensorflow/util.cc;
`recipes/serving/grafana.json` shows them.
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence

import grpc
import prometheus_client as prometheus

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
        engines = "Batches by the engine that computed them."
        self.engines = counter("bert_tf_engine_batches", engines, ["model_name", "engine"])
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

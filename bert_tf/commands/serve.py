"""Serve exported models over TensorFlow Serving's REST and gRPC.

  bert-tf serve saved_models/
  curl -d '{"instances": ["a raw string"]}' http://127.0.0.1:8501/v1/models/classifier:predict

Clients of TensorFlow Serving work unchanged, and so do command lines of tensorflow_model_server.
New versions of a model are picked up while requests run. http://127.0.0.1:8501/ is a page to try
the models; docs/serving.md is the guide, docs/server.md the reference.
"""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import ipaddress
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bert_tf.commands.function import CommandOptions, function
from bert_tf.commands.progress import console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError, pip_install
from bert_tf.files.cache import fetched
from bert_tf.files.storage import is_remote
from bert_tf.options import option
from bert_tf.serving.packed_weights import pack_weights, types_of
from bert_tf.startup import limit_threads

_LAST_SECONDS = 5  # after the last answers, for what still computes or loads
_PACKAGES = (
    "grpc",
    "grpc_health",
    "httptools",
    "orjson",
    "prometheus_client",
    "starlette",
    "tensorflow_serving",
    "uvicorn",
)
# Flags of tensorflow_model_server with a value, and our options; "" is MODELS, None no option.
_FLAGS = {
    "rest_api_port": "rest_port",
    "port": "grpc_port",
    "rest_api_timeout_in_ms": "deadline",
    "model_base_path": "",
    "model_config_file": "",
    "model_config_file_poll_wait_seconds": None,
    "file_system_poll_wait_seconds": None,
    "max_num_load_retries": None,
    "load_retry_interval_micros": None,
}
# Its switches, which take a value there: the first is ours, too; the others are always on here.
_SWITCHES = (
    "enable_per_model_batching_parameters",
    "enable_batching",
    "enable_model_warmup",
    "allow_version_labels_for_unavailable_models",
)

COMMON = (
    "models",
    "host",
    "rest_port",
    "grpc_port",
    "max_batch_size",
    "deadline",
    "token_file",
    "tls_certificate",
    "tls_key",
    "access_log",
)


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf serve`."""

    models: str = option("saved_models", positional=True)
    """folder of models, as `bert-tf export` writes it: saved_models/<name>/<version>; its URL, read
    once; or a models.config, which can also pin versions and give them labels."""
    model_name: str | None = None
    """name of the served model where MODELS is the folder of one; by default the folder's."""
    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 lets other machines connect."""
    rest_port: int | None = option(None, at_least=0, at_most=65535)
    """port of REST and the playground; 0 for any free one. By default $REST_PORT, or 8501."""
    grpc_port: int | None = option(None, at_least=0, at_most=65535)
    """port of gRPC; 0 for any free one. By default $GRPC_PORT, or 8500."""
    playground: bool = True
    """answer / with a page to try the models."""
    threads: int = option(0, at_least=0, at_most=1024)
    """batches that run at once; by default one per core."""
    batching_parameters_file: str | None = None
    """batching parameters of all models, in TensorFlow Serving's format, in place of each version's
    batching_params.pbtxt."""
    enable_per_model_batching_parameters: bool = False
    """prefer each version's batching_params.pbtxt to --batching_parameters_file, whose
    num_batch_threads alone counts."""
    max_batch_size: int | None = option(None, at_least=1, at_most=2**20)
    """maximum number of rows per request and per joined batch. This and the two below replace what
    the files say, and also batch models without a file."""
    batch_timeout_micros: int | None = option(None, at_least=0, at_most=10**7)
    """longest wait for requests to join, in microseconds; 0 joins those that wait anyway, which is
    best on CPUs."""
    max_enqueued_batches: int | None = option(None, at_least=1, at_most=2**20)
    """batches' worth of rows that may wait; further requests are refused."""
    max_request_mb: int = option(32, at_least=1, at_most=2047)
    """size limit of a request in MiB; larger ones are refused."""
    deadline: float = option(30.0, above=0, at_most=86400)
    """seconds within which a REST request must be answered; gRPC clients set their own."""
    refuse_truncated: bool = False
    """refuse a request with a text that the model cannot read whole, instead of truncating it."""
    allowed_hosts: list[str] = option(factory=list)
    """further names by which requests may call the server, such as models.example.org; "*" for any.
    By default its loopback names, or any name where --host is open to other machines."""
    tls_certificate: str | None = None
    """PEM file with the certificate chain; clients then use https and TLS. Changes are followed."""
    tls_key: str | None = None
    """PEM file with the private key, not encrypted."""
    token_file: str | None = None
    """file with a token per line, optionally after its name and a space; every request must show
    one as "Authorization: Bearer TOKEN" or as the password of a browser. Changes are followed."""
    cors_origins: list[str] = option(factory=list)
    """origins of web pages that may read answers, such as https://example.org; "*" for all."""
    access_log: str | None = None
    """file for one line of JSON per request; "-" for standard output."""
    monitoring_config_file: str | None = None
    """TensorFlow Serving's file that moves the metrics to another path, or switches them off."""
    traces: bool = False
    """send an OpenTelemetry span for each request to $OTEL_EXPORTER_OTLP_ENDPOINT."""


def translated(arguments: Sequence[str]) -> list[str]:
    """The arguments with ours for tensorflow_model_server's; InputError for unsupported values."""
    words, result, sources = iter(arguments), list[str](), list[str]()
    for word in words:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--") if flag.startswith("--") else ""
        if name in _SWITCHES:
            is_off = value.lower() in ("false", "0")
            if name == _SWITCHES[0]:
                result.append(f"--no_{name}" if is_off else flag)
            elif is_off:
                raise InputError(f"{flag} cannot be switched off in bert-tf serve: leave it out")
        elif name in _FLAGS:
            if not equals and not (value := next(words, "")):
                raise InputError(f"{flag} needs a value")
            if name == "rest_api_timeout_in_ms":
                if not value.isdecimal():
                    raise InputError(f"{flag} {value} is not a whole number: correct it")
                value = str(int(value) / 1000)
            if _FLAGS[name]:
                result.append(f"--{_FLAGS[name]}={value}")
            elif _FLAGS[name] == "":
                sources.append(flag)
                result.append(value)
        else:
            result.append(word)
    if len(sources) > 1:
        raise InputError(f"{' and '.join(sources)} cannot be combined: give one of them")
    is_named = any(word.partition("=")[0] == "--model_name" for word in result)
    if sources == ["--model_base_path"] and not is_named:
        result.append("--model_name=default")  # tensorflow_model_server's own
    return result


def prepare(options: Options) -> None:
    """Checks what needs no TensorFlow, and says what will be loaded."""
    if any(find_spec(package) is None for package in _PACKAGES):
        raise InputError(f"packages for serving are missing: {pip_install('serve')}")
    if bool(options.tls_certificate) != bool(options.tls_key):
        raise InputError("TLS needs both files: give --tls_certificate and --tls_key")
    if is_remote(options.models):
        options.models = str(fetched(options.models))
        console.print(f"Models: {options.models}")
    source = Path(options.models)
    if not source.exists():
        raise InputError(f"{source}: no such folder: give the one that bert-tf export writes to")
    _credentials(options)
    for name, default in (("rest_port", 8501), ("grpc_port", 8500)):
        if getattr(options, name) is None:
            setattr(options, name, _port(name, default))
    names = ", ".join(sorted({x.parent.name for x in source.glob("*/*") if x.name.isdecimal()}))
    # The models that are served, as far as is known before a models.config is read.
    folder = source.parent if source.is_file() else source
    folders = [folder, *folder.glob("*")]
    pack_weights(types_of([x for x in folders if any(x.glob("[0-9]*/saved_model.pb"))]))
    console.print(f"Loading TensorFlow, then the models of {source}{names and f': {names}'}")


def run(options: Options) -> Result:
    """Serves exported models over REST and gRPC until it is interrupted, as `bert-tf serve` does.

    Returns:
        A result without lines, once the server has stopped.
    """
    tls, tokens = _credentials(options)
    from bert_tf.server import configuration, playground
    from bert_tf.server.app import METRICS_PATH, Limits, make_app
    from bert_tf.server.grpc_service import start_grpc
    from bert_tf.server.models import Models
    from bert_tf.server.monitoring import AccessLog, Recorder, Tracer
    from bert_tf.server.server import bind, serve, take_descriptors

    rest_socket = bind(options.host, options.rest_port or 0, "--rest_port")
    # Found to be free now, before models are loaded.
    with bind(options.host, options.grpc_port or 0, "--grpc_port") as grpc_socket:
        ports = [x.getsockname()[1] for x in (rest_socket, grpc_socket)]
    batching = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches")
    overrides = {n: value for n in batching if (value := getattr(options, n)) is not None}
    limit_threads(None)
    threads = options.threads
    if options.batching_parameters_file:
        parameters = configuration.read_batching_parameters(options.batching_parameters_file)
        threads = threads or parameters.num_batch_threads
        if not options.enable_per_model_batching_parameters:
            overrides = dataclasses.asdict(parameters.overridden(overrides))
    file = options.monitoring_config_file
    metrics_path = configuration.read_metrics_path(file, METRICS_PATH) if file else METRICS_PATH
    models = Models(
        Path(options.models),
        name=options.model_name,
        batching=configuration.BatchingParameters(num_batch_threads=threads),
        overrides=overrides,
        refuses_truncated=options.refuse_truncated,
    )
    tracer = Tracer() if options.traces else None
    try:
        log = AccessLog(options.access_log) if options.access_log else None
    except OSError as error:
        raise InputError(
            f"--access_log {options.access_log} cannot be written ({error.strerror}): give a file "
            "in a folder that is there"
        ) from error
    recorder = Recorder(log, tracer)
    request_bytes = options.max_request_mb * 2**20
    held_bytes = max(8 * request_bytes, 2**28)
    app = make_app(
        models,
        routes=playground.routes(models) if options.playground else (),
        limits=Limits(body_bytes=request_bytes, held_bytes=held_bytes, seconds=options.deadline),
        hosts=_hosts(options),
        cors_origins=options.cors_origins,
        metrics_path=metrics_path,
        tokens=tokens,
        recorder=recorder,
    )

    loading, grace = contextlib.ExitStack(), 2 * options.deadline
    is_ready = False

    def ready() -> None:
        nonlocal is_ready
        is_ready = True
        loading.close()
        for line in _ready_lines(models, options, *ports):
            console.print(line)

    def stopping() -> None:
        loading.close()
        if not is_ready:  # nothing has been accepted, and loading cannot be interrupted
            os._exit(0)
        console.print("Stopping: answering what has been accepted")
        # A graph may run on, without a deadline or a loop to stop at.
        end = threading.Timer(grace + _LAST_SECONDS, os._exit, [0])
        end.daemon = True
        end.start()

    connections = take_descriptors()
    start = functools.partial(
        start_grpc,
        models,
        f"{_bracketed(options.host)}:{ports[1]}",
        max_request_bytes=request_bytes,
        max_held_bytes=held_bytes,
        most_connections=connections,
        tls=tls,
        tokens=tokens,
        recorder=recorder,
    )
    serving = serve(
        models,
        app,
        rest_socket,
        start,
        ready=ready,
        stopping=stopping,
        tls=tls,
        tokens=tokens,
        grace=grace,
        connections=connections,
    )
    gc.freeze()  # what is loaded by now stays; unloading a version need not look through it
    with contextlib.closing(recorder), loading:
        loading.enter_context(progress("loading and warming up the models"))
        asyncio.run(serving)
    return Result()


serve = function("serve", Options, run, prepare)


def _port(name: str, default: int) -> int:
    text = os.environ.get(name.upper()) or str(default)
    if not (text.isdecimal() and int(text) <= 65535):
        raise InputError(f"${name.upper()} is {text!r}: give a port, or --{name}")
    return int(text)


def _credentials(options: Options) -> tuple[Any, Any]:
    from bert_tf.server.credentials import Certificate, Tokens

    certificate, key = options.tls_certificate, options.tls_key
    tls = Certificate(certificate, key) if certificate and key else None
    return tls, Tokens(options.token_file) if options.token_file else None


def _hosts(options: Options) -> set[str]:
    """The names by which requests may call the server; empty for any."""
    is_open = not (options.allowed_hosts or _is_loopback(options.host))
    if is_open or "*" in options.allowed_hosts:
        return set()
    loopback = ("localhost", "127.0.0.1", "::1")
    return {host.lower() for host in (*loopback, options.host, *options.allowed_hosts)}


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _ready_lines(models: Any, options: Options, rest_port: int, grpc_port: int) -> list[str]:
    """Addresses, and a request that works."""
    from bert_tf.server.errors import ServingError

    lines = []
    if not _is_loopback(options.host):
        warning = f"Warning: {options.host} is open to other machines"
        if not options.token_file:
            warning += "; anyone who reaches it may ask: give --token_file"
        if not options.tls_key:
            warning += "; texts travel in the clear: give --tls_certificate and --tls_key"
        lines.append(warning)
    # A client of this machine cannot ask for all addresses.
    host = _bracketed({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host))
    address = f"{'https' if options.tls_key else 'http'}://{host}:{rest_port}"
    lines.append(f"Models: {', '.join(models.names) or 'none yet'}")
    lines += [f"REST: {address}/v1/models/NAME:predict", f"gRPC: {host}:{grpc_port}"]
    if options.playground:
        lines.append(f"Playground: {address}/")
    for name in models.names:
        with contextlib.suppress(ServingError), models.servable(name) as servable:
            body = json.dumps({"instances": [_example(servable.signature("serving_default"))]})
            header = ' -H "Authorization: Bearer $TOKEN"' if options.token_file else ""
            lines.append(f"Try: curl{header} -d '{body}' {address}/v1/models/{name}:predict")
            break
    lines.append("Ctrl-C stops it")
    return lines


def _example(signature: Any) -> Any:
    """A row for a signature, as in a warm-up request; numbers are ones."""
    import numpy as np
    import tensorflow as tf

    from bert_tf.serving.warmup_requests import example_texts

    values: dict[str, Any] = example_texts(signature.inputs, signature.outputs)
    for name, info in signature.inputs.items():
        dtype = tf.as_dtype(info.dtype)
        value = values[name] if dtype == tf.string else dtype.as_numpy_dtype(1)
        if not isinstance(value, list):
            sizes = [2 if dim.size < 0 else dim.size for dim in info.tensor_shape.dim[1:]]
            values[name] = np.full(sizes, value).tolist()
    return values if len(values) > 1 else next(iter(values.values()))

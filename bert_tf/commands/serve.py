"""Serve exported models over TensorFlow Serving's REST and gRPC.

  bert-tf serve saved_models/
  curl -d '{"instances": ["a raw string"]}' http://127.0.0.1:8501/v1/models/classifier:predict

Clients of TensorFlow Serving work unchanged. New versions of a model load without interrupting
requests. http://127.0.0.1:8501/ is a page to try the models; docs/serving.md is the guide,
docs/server.md the reference.
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
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError, pip_install
from bert_tf.files.cache import fetched
from bert_tf.files.storage import is_remote
from bert_tf.options import option
from bert_tf.startup import limit_threads, pack_weights

if TYPE_CHECKING:
    from bert_tf.server.models import Models

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
    """number of batches to run at once; by default one per core."""
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
    """maximum time that a batch waits for further requests, in microseconds; 0 only joins requests
    that are already waiting, which is best on CPUs."""
    max_enqueued_batches: int | None = option(None, at_least=1, at_most=2**20)
    """maximum number of waiting rows, in batches; further requests are refused."""
    max_request_mb: int = option(32, at_least=1, at_most=2047)
    """size limit of a request in MiB; larger ones are refused."""
    deadline: float = option(30.0, above=0, at_most=86400)
    """seconds within which a REST request must be answered; gRPC clients set their own."""
    engine: Literal["auto", "tensorflow", "openvino", "onnx"] = "auto"
    """what answers where an export has twins (bert-tf export --twin): auto measures once which is
    fastest for single texts, and which for batches."""
    refuse_truncated: bool = False
    """refuse a request with a text that the model cannot read whole, instead of truncating it."""
    allowed_hosts: list[str] = option(factory=list)
    """further host names that requests may use for the server, such as models.example.org; "*" for
    any. By default its loopback names, or any name if --host is open to other machines."""
    tls_certificate: str | None = None
    """PEM file with the certificate chain; clients then use https and TLS."""
    tls_key: str | None = None
    """PEM file with the private key, not encrypted."""
    token_file: str | None = None
    """file with a token per line; every request must show one as "Authorization: Bearer TOKEN" or
    as the password of a browser."""
    cors_origins: list[str] = option(factory=list)
    """origins of web pages that may read answers, such as https://example.org; "*" for all."""
    monitoring_config_file: str | None = None
    """TensorFlow Serving's file that moves the metrics to another path, or switches them off."""


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
    pack_weights()
    console.print(f"Loading TensorFlow, then the models of {source}{names and f': {names}'}")


def run(options: Options) -> Result:
    """Serves exported models over REST and gRPC until it is interrupted, as `bert-tf serve` does.

    Returns:
        A result without lines, once the server has stopped.
    """
    tls, tokens = _credentials(options)
    from bert_tf.server import playground
    from bert_tf.server.app import METRICS_PATH, Limits, make_app
    from bert_tf.server.configuration import read_metrics_path
    from bert_tf.server.grpc_service import start_grpc
    from bert_tf.server.server import bind, serve, take_descriptors

    rest_socket = bind(options.host, options.rest_port or 0, "--rest_port")
    # Found to be free now, before models are loaded.
    with bind(options.host, options.grpc_port or 0, "--grpc_port") as grpc_socket:
        ports = [x.getsockname()[1] for x in (rest_socket, grpc_socket)]
    limit_threads(None)
    file = options.monitoring_config_file
    metrics_path = METRICS_PATH if file is None else read_metrics_path(file, METRICS_PATH)
    models = _models(options)
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
    )

    grace = 2 * options.deadline
    shown = _Shown(grace, lambda: _ready_lines(models, options, *ports))
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
    )
    serving = serve(
        models,
        app,
        rest_socket,
        start,
        ready=shown.ready,
        stopping=shown.stopping,
        tls=tls,
        grace=grace,
        connections=connections,
    )
    gc.freeze()  # what is loaded by now stays; unloading a version need not look through it
    with shown.loading:
        models.step = shown.loading.enter_context(progress("starting", total=1)).step
        asyncio.run(serving)
    return Result()


COMMAND = Command(
    name="serve",
    help=__doc__,
    options=Options,
    run=run,
    prepare=prepare,
    common="models host rest_port grpc_port max_batch_size deadline token_file "
    "allowed_hosts tls_certificate tls_key",
)
serve = COMMAND.function("serve")


class _Shown:
    """What the server shows from its start to its end."""

    def __init__(self, grace: float, ready_lines: Callable[[], list[str]]) -> None:
        self.loading = contextlib.ExitStack()  # of the progress bar
        self._is_ready = False
        self._grace = grace
        self._ready_lines = ready_lines

    def ready(self) -> None:
        self._is_ready = True
        self.loading.close()
        for line in self._ready_lines():
            console.print(line)

    def stopping(self) -> None:
        """Ends the process if it is still loading, or else some time after the grace period."""
        self.loading.close()
        if not self._is_ready:  # nothing has been accepted, and loading cannot be interrupted
            os._exit(0)
        console.print("Stopping: answering what has been accepted")
        # A graph may run on, without a deadline or a loop to stop at.
        end = threading.Timer(self._grace + _LAST_SECONDS, os._exit, [0])
        end.daemon = True
        end.start()


def _models(options: Options) -> "Models":
    """The models, not yet loaded, with the batching that the options ask for."""
    from bert_tf.server.configuration import BatchingParameters, read_batching_parameters
    from bert_tf.server.models import Models

    names = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches")
    overrides = {n: value for n in names if (value := getattr(options, n)) is not None}
    threads = options.threads
    if options.batching_parameters_file:
        parameters = read_batching_parameters(options.batching_parameters_file)
        threads = threads or parameters.num_batch_threads
        if not options.enable_per_model_batching_parameters:
            overrides = dataclasses.asdict(parameters.overridden(overrides))
    return Models(
        Path(options.models),
        name=options.model_name,
        batching=BatchingParameters(num_batch_threads=threads),
        overrides=overrides,
        refuses_truncated=options.refuse_truncated,
        engine=options.engine,
    )


def _port(name: str, default: int) -> int:
    text = os.environ.get(name.upper()) or str(default)
    if not (text.isdecimal() and int(text) <= 65535):
        raise InputError(f"${name.upper()} is {text!r}: give a port, or --{name}")
    return int(text)


def _credentials(options: Options) -> tuple[Any, Any]:
    from bert_tf.server.credentials import Certificate, Tokens

    certificate = options.tls_certificate
    key = options.tls_key
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

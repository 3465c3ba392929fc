"""TensorFlow Serving's gRPC services, PredictionService and ModelService, and grpc.health.v1."""

import asyncio
import dataclasses
import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from grpc.aio import ServicerContext as Context
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    SignatureDefMap,
)
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse

from bert_tf.server.batching import LARGE_ANSWER, LARGE_BODY, in_thread_if
from bert_tf.server.connections import HEAD_BYTES
from bert_tf.server.credentials import Certificate, Tokens
from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.models import Models
from bert_tf.server.tensors import predict_inputs, to_proto
from bert_tf.tasks.signatures import DEFAULT

_LOG = logging.getLogger(__name__)
_LONGEST_MESSAGE = 1024  # characters of an error: gRPC limits the header that it is sent in
_MOST_CALLS = 1000
# Time limit for the message of a call. gRPC does not say how large it will be: once as many calls
# wait as could together exceed the bytes in work, new ones get the shorter limit. Clients send the
# message with the head of a call.
_MESSAGE_SECONDS = 30.0
_MOST_PATIENT = 64
_PROMPT_SECONDS = 2.0
# Health streams stay open, need no token, and count as calls.
_MOST_WATCHERS = 64
_WATCH_SECONDS = 0.1  # between checks of the models
_YEAR = 365 * 24 * 3600.0
# Answers a request, until a moment of `time.monotonic()`.
_Method = Callable[[Models, Any, float], Awaitable[Message]]
_Rpc = tuple[type[Message], _Method]  # the type of its requests, and what answers them


async def start_grpc(
    models: Models,
    address: str = "127.0.0.1:8500",
    *,
    max_request_bytes: int = 2**25,
    max_held_bytes: int = 2**28,
    most_connections: int = 1000,
    tls: Certificate | None = None,
    tokens: Tokens | None = None,
) -> tuple["GrpcServer", int]:
    """Starts a server of the services and returns it with its port; port 0 takes a free one.

    Requests beyond `max_request_bytes`, or beyond `max_held_bytes` in work, get RESOURCE_EXHAUSTED.
    """
    server = grpc.aio.server(
        maximum_concurrent_rpcs=_MOST_CALLS,
        options=[
            ("grpc.max_receive_message_length", max_request_bytes),
            ("grpc.max_send_message_length", -1),
            # By default calls of 8 to 16 KiB of metadata are refused by chance.
            ("grpc.max_metadata_size", HEAD_BYTES),
            ("grpc.absolute_max_metadata_size", HEAD_BYTES),
            # Two servers on one port would share its clients.
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", most_connections),
        ],
    )
    patient = min(_MOST_PATIENT, max_held_bytes // max_request_bytes)
    started = GrpcServer(server, models, max_held_bytes, patient, tokens)
    services = {
        service: {
            # The call reads its message itself: gRPC's own handlers would wait without a limit.
            api: grpc.stream_unary_rpc_method_handler(functools.partial(started.call, api, rpc))
            for api, rpc in rpcs.items()
        }
        for service, rpcs in _RPCS.items()
    }
    services[SERVICE_NAME] = {
        "Check": grpc.stream_unary_rpc_method_handler(started.check),
        "Watch": grpc.stream_stream_rpc_method_handler(started.watch),
    }
    for service, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    if tls:
        port = server.add_secure_port(address, grpc.ssl_server_credentials([tls.pair]))
    else:
        port = server.add_insecure_port(address)
    await server.start()
    return started, port


async def _predict(models: Models, request: PredictRequest, deadline: float) -> PredictResponse:
    with models.servable(*_target(request.model_spec)) as servable:
        name = request.model_spec.signature_name or DEFAULT
        outputs = servable.signature(name).outputs
        arrays = await in_thread_if(request.ByteSize() > LARGE_BODY, predict_inputs, request)
        chosen = list(request.output_filter) or list(outputs)
        for alias, count in Counter(chosen).items():
            if alias not in outputs:
                names = ", ".join(sorted(outputs))
                raise invalid(f"output_filter names {alias}: the signature has {names}")
            if count > 1:
                raise invalid(f"output_filter names {alias} twice: name it once")
        answer = await servable.predict(name, arrays, deadline)
        version = {"value": servable.version}
        spec = ModelSpec(name=servable.name, signature_name=name, version=version)
        response = PredictResponse(model_spec=spec)

        def write() -> None:
            for alias in chosen:
                response.outputs[alias].CopyFrom(to_proto(answer[alias]))

        values = sum(answer[alias].size for alias in chosen)
        await in_thread_if(values > LARGE_ANSWER, write)
        return response


async def _metadata(models: Models, request: Any, deadline: float) -> Message:
    if {*request.metadata_field} != {"signature_def"}:
        raise invalid("metadata_field must be signature_def")
    with models.servable(*_target(request.model_spec)) as servable:
        spec = ModelSpec(name=servable.name, version={"value": servable.version})
        response = GetModelMetadataResponse(model_spec=spec)
        signatures = SignatureDefMap(signature_def=servable.signatures)
        response.metadata["signature_def"].Pack(signatures)
        return response


async def _status(models: Models, request: GetModelStatusRequest, deadline: float) -> Message:
    return models.status(*_target(request.model_spec))


# Other calls are UNIMPLEMENTED: Classify, Regress and MultiInference, which TensorFlow Serving
# answers, and HandleReloadConfigRequest, by which clients change the models.
_RPCS: dict[str, dict[str, _Rpc]] = {
    "tensorflow.serving.PredictionService": {
        "Predict": (PredictRequest, _predict),
        "GetModelMetadata": (GetModelMetadataRequest, _metadata),
    },
    "tensorflow.serving.ModelService": {"GetModelStatus": (GetModelStatusRequest, _status)},
}


@dataclasses.dataclass
class GrpcServer:
    """What all calls share: tokens, limits, errors and metrics; and the health service.

    grpc.health.v1, which needs no token, reports whether all models are ready, and whether each is,
    under its name. The package's own service forgets watchers when one of several leaves.
    """

    server: grpc.aio.Server
    models: Models
    max_held_bytes: int
    most_patient: int  # calls that may wait long for their message
    tokens: Tokens | None
    arriving: int = 0  # calls that wait for their message
    held_bytes: int = 0
    watchers: int = 0
    is_stopping: bool = False

    async def call(self, api: str, rpc: _Rpc, messages: Any, context: Context) -> bytes:
        started = time.monotonic()
        code = grpc.StatusCode.OK
        metrics, models = self.models.metrics, [""]  # the last one is the request's
        with metrics.in_flight.labels("GRPC").track_inprogress():
            try:
                return await self._answer(rpc, models, context)
            except ServingError as error:
                metrics.refusals.labels(error.reason).inc()
                code = error.code
                await context.abort(code, error.message[:_LONGEST_MESSAGE])
            except asyncio.CancelledError:
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception:
                _LOG.exception("a request failed")
                code = grpc.StatusCode.INTERNAL
                await context.abort(code, "Internal error: see the server's log")
            finally:
                if api != "GetModelStatus":
                    metrics.request(models[-1], api, "GRPC", code, time.monotonic() - started)
        raise AssertionError("abort raises")

    async def _answer(self, rpc: _Rpc, models: list[str], context: Context) -> bytes:
        request_type, method = rpc
        if self.tokens and not self.tokens.admit(_authorization(context)):
            text = "send the metadata authorization: Bearer <token>"
            raise ServingError(grpc.StatusCode.UNAUTHENTICATED, text, "token")
        with self.models.metrics.stages.labels("read").time():
            message = await self.message(context)
        size = len(message)
        if self.held_bytes + size > self.max_held_bytes:
            text = f"More than {self.max_held_bytes} bytes of requests are in work"
            raise ServingError(grpc.StatusCode.RESOURCE_EXHAUSTED, text, "held_bytes")
        self.held_bytes += size
        try:
            with self.models.metrics.stages.labels("parse").time():
                request: Any = await in_thread_if(size > LARGE_BODY, _parsed, request_type, message)
            del message
            models.append(request.model_spec.name)
            if not request.HasField("model_spec"):
                raise invalid("The request does not name a model: set model_spec.name")
            remaining = context.time_remaining()  # centuries without a deadline
            is_endless = remaining is None or remaining > _YEAR
            deadline = math.inf if is_endless else time.monotonic() + remaining
            response = await method(self.models, request, deadline)
            with self.models.metrics.stages.labels("write").time():
                is_large = response.ByteSize() > LARGE_BODY
                return await in_thread_if(is_large, response.SerializeToString)
        finally:
            self.held_bytes -= size

    async def message(self, context: Context) -> bytes:
        """Reads the message of a call; raises ServingError if it does not arrive in time."""
        seconds = _MESSAGE_SECONDS if self.arriving < self.most_patient else _PROMPT_SECONDS
        self.arriving += 1
        try:
            async with asyncio.timeout(seconds):
                message = await context.read()
        except TimeoutError:
            text = f"No message arrived within {seconds:g} s"
            raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, text, "body_seconds") from None
        finally:
            self.arriving -= 1
        if message is grpc.aio.EOF:
            raise invalid("The call has no message")
        return message

    async def stop(self, grace: float | None) -> None:
        """Refuses new calls, gives those accepted so many seconds, and ends streams of health."""
        self.is_stopping = True
        await self.server.stop(grace)

    async def check(self, messages: Any, context: Context) -> bytes:
        status = self._status(await self._service(context))
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return HealthCheckResponse(status=status).SerializeToString()

    async def watch(self, messages: Any, context: Context) -> None:
        service = await self._service(context)
        last = None
        if self.watchers >= _MOST_WATCHERS:
            text = f"{_MOST_WATCHERS} clients watch already: call Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self.watchers += 1
        try:
            while True:
                is_last = self.is_stopping
                if (status := self._status(service)) != last:
                    await context.write(HealthCheckResponse(status=status).SerializeToString())
                if is_last:
                    return
                last = status
                await asyncio.sleep(_WATCH_SECONDS)
        finally:
            self.watchers -= 1

    async def _service(self, context: Context) -> str:
        try:
            return _parsed(HealthCheckRequest, await self.message(context)).service
        except ServingError as error:
            await context.abort(error.code, error.message)
            raise

    def _status(self, service: str) -> int:
        readiness = self.models.readiness()
        is_whole = service in ("", *_RPCS)
        if not is_whole and service not in readiness:
            return HealthCheckResponse.SERVICE_UNKNOWN
        is_ready = self.models.is_ready if is_whole else readiness[service]
        if is_ready and not self.is_stopping:
            return HealthCheckResponse.SERVING
        return HealthCheckResponse.NOT_SERVING


def _authorization(context: Context) -> str:
    """The call's `authorization` header, or ""."""
    return str(dict(context.invocation_metadata() or ()).get("authorization", ""))


def _parsed(request_type: type[Message], message: bytes) -> Any:
    try:
        return request_type.FromString(message)
    except DecodeError as error:
        raise invalid(f"The message is not a {request_type.DESCRIPTOR.name}: {error}") from error


def _target(spec: ModelSpec) -> tuple[str, int | None, str | None]:
    version = spec.version.value if spec.HasField("version") else None
    label = spec.version_label if spec.HasField("version_label") else None
    return spec.name, version, label

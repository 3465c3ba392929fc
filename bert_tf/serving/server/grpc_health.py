"""grpc.health.v1: whether all models are ready, and each under its name; without the token."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1.health import SERVICE_NAME
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from bert_tf.serving.server.errors import ServingError, invalid
from bert_tf.serving.server.models import Models

# Streams that stay open: anyone may ask for them, and they take the place of other calls.
_MOST_WATCHERS = 64
_SECONDS = 0.1  # between two looks at the models


class Health:
    """The service. Its package's own forgets watchers when one of several leaves.

    `services` are names under which the whole server is known; `read` reads the message of a call,
    within its time limit.
    """

    def __init__(
        self, models: Models, services: Iterable[str], read: Callable[[Any], Awaitable[bytes]]
    ) -> None:
        self._models = models
        self._services = {"", *services}
        self._read = read
        self._watchers = 0
        self._is_stopping = False

    def handlers(self) -> grpc.GenericRpcHandler:
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def stop(self) -> None:
        """Reports, for good, that nothing is served; ends the streams."""
        self._is_stopping = True

    def _status(self, service: str) -> int:
        found = self._models.readiness()
        if service not in self._services | found.keys():
            return HealthCheckResponse.SERVICE_UNKNOWN
        is_ready = self._models.is_ready if service in self._services else found[service]
        if is_ready and not self._is_stopping:
            return HealthCheckResponse.SERVING
        return HealthCheckResponse.NOT_SERVING

    async def _check(self, messages: Any, context: grpc.aio.ServicerContext) -> bytes:
        status = self._status(await self._service(context))
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return HealthCheckResponse(status=status).SerializeToString()

    async def _watch(self, messages: Any, context: grpc.aio.ServicerContext) -> None:
        service, last = await self._service(context), None
        if self._watchers >= _MOST_WATCHERS:
            text = f"{_MOST_WATCHERS} clients watch already: call Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._watchers += 1
        try:
            while True:
                is_last = self._is_stopping
                if (status := self._status(service)) != last:
                    await context.write(HealthCheckResponse(status=status).SerializeToString())
                if is_last:
                    return
                last = status
                await asyncio.sleep(_SECONDS)
        finally:
            self._watchers -= 1

    async def _service(self, context: grpc.aio.ServicerContext) -> str:
        try:
            message = await self._read(context)
            try:
                return HealthCheckRequest.FromString(message).service
            except DecodeError as error:
                raise invalid(f"The message is no HealthCheckRequest: {error}") from error
        except ServingError as error:
            await context.abort(error.code, error.message)
            raise

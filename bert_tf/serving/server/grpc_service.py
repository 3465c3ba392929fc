"""TensorFlow Serving's gRPC services: PredictionService and ModelService."""

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from tensorflow_serving.apis.classification_pb2 import (
    ClassificationRequest,
    ClassificationResponse,
)
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
)
from tensorflow_serving.apis.get_model_status_pb2 import (
    GetModelStatusRequest,
    GetModelStatusResponse,
)
from tensorflow_serving.apis.inference_pb2 import MultiInferenceRequest, MultiInferenceResponse
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.model_management_pb2 import (
    ReloadConfigRequest,
    ReloadConfigResponse,
)
from tensorflow_serving.apis.model_pb2 import ModelSpec
from tensorflow_serving.apis.model_service_pb2_grpc import (
    ModelServiceServicer,
    add_ModelServiceServicer_to_server,
)
from tensorflow_serving.apis.predict_pb2 import PredictRequest, PredictResponse
from tensorflow_serving.apis.prediction_service_pb2_grpc import (
    PredictionServiceServicer,
    add_PredictionServiceServicer_to_server,
)
from tensorflow_serving.apis.regression_pb2 import RegressionRequest, RegressionResponse

from bert_tf.serving.server.access_log import AccessLog
from bert_tf.serving.server.authorization import is_authorized
from bert_tf.serving.server.errors import ServingError, invalid
from bert_tf.serving.server.example_requests import classify, multi_inference, regress, serialized
from bert_tf.serving.server.models import Models
from bert_tf.serving.server.servable import Servable
from bert_tf.serving.server.tensors import predict_inputs, to_proto

_LOG = logging.getLogger(__name__)
_Response = TypeVar("_Response")
# Bytes of a message: gRPC sends it in a header, whose size is limited.
_LONGEST_MESSAGE = 1024
_LONGEST_NAME = 256
_LARGE_ANSWER = 2**14  # values
_MOST_CALLS = 1000
_YEAR = 365 * 24 * 3600.0


@dataclasses.dataclass(frozen=True)
class Tls:
    """Files of a server's certificate chain and private key, both PEM."""

    certificate: Path
    key: Path


async def start_grpc(
    models: Models,
    address: str = "127.0.0.1:8500",
    *,
    max_request_bytes: int = 2**26,
    tls: Tls | None = None,
    token: str | None = None,
    access_log: AccessLog | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Starts a server of both services; `await server.stop(grace)` ends it.

    Args:
        models: models that it serves.
        address: host and port; port 0 takes a free one.
        max_request_bytes: a larger request fails with RESOURCE_EXHAUSTED, as do more than 1000 at
            once.
        tls: encrypts the connections.
        token: password that clients send as metadata, `authorization: Bearer <token>`.
        access_log: where to log requests; None for nowhere.

    Returns:
        The server and its port.

    Raises:
        OSError: a file of `tls` cannot be read.
        RuntimeError: the address cannot be bound.
    """
    server = grpc.aio.server(
        maximum_concurrent_rpcs=_MOST_CALLS,
        interceptors=[_Authorization(token)] if token else [],
        options=[
            ("grpc.max_receive_message_length", max_request_bytes),
            ("grpc.max_send_message_length", -1),
            # Two servers on one port would share its clients.
            ("grpc.so_reuseport", 0),
        ],
    )
    add_PredictionServiceServicer_to_server(_PredictionService(models, access_log), server)
    add_ModelServiceServicer_to_server(_ModelService(models, access_log), server)
    if tls:
        pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
        port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port(address)
    await server.start()
    return server, port


class _Authorization(grpc.aio.ServerInterceptor):
    """Refuses calls without the token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(self, continuation, details):
        header = dict(details.invocation_metadata).get("authorization", "")
        if is_authorized(header, self._token):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(self._refuse)

    async def _refuse(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        message = "send the metadata authorization: Bearer <token>"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)


class _Service:
    def __init__(self, models: Models, access_log: AccessLog | None) -> None:
        self._models = models
        self._access_log = access_log

    def _note(
        self, api: str, request: Any, peer: str, code: grpc.StatusCode, seconds: float
    ) -> None:
        """Counts and logs a request that has been answered."""
        spec = _model_spec(request)
        if isinstance(self, _PredictionService):
            self._models.metrics.request(spec.name, api, "GRPC", code, seconds)
        if self._access_log:
            self._access_log.write(
                {
                    "client": peer,
                    "protocol": "gRPC",
                    "method": api,
                    "model": spec.name[:_LONGEST_NAME],
                    "signature": spec.signature_name[:_LONGEST_NAME],
                    "request_bytes": request.ByteSize(),
                    "status": code.name,
                    "milliseconds": round(1000 * seconds, 3),
                }
            )


def _answered(method: Callable[[Any, Any, float | None], Awaitable[_Response]]) -> Any:
    """Makes a method of a request and its deadline one of a service.

    The call is aborted where the method fails.
    """
    api = method.__name__

    @functools.wraps(method)
    async def answer(self: _Service, request: Any, context: grpc.aio.ServicerContext) -> _Response:
        started, code = time.monotonic(), grpc.StatusCode.OK
        try:
            return await method(self, request, _deadline(context))
        except ServingError as error:
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
            self._note(api, request, context.peer(), code, time.monotonic() - started)
        raise AssertionError("abort raises")

    return answer


class _PredictionService(_Service, PredictionServiceServicer):
    @_answered
    async def Predict(self, request: PredictRequest, deadline: float | None) -> PredictResponse:
        with self._servable(request) as servable:
            name, arrays = predict_inputs(servable.signatures, request)
            signature = servable.signatures[name]
            chosen = list(request.output_filter) or list(signature.outputs)
            for place, alias in enumerate(chosen):
                if alias not in signature.outputs:
                    listed = ",".join(sorted(signature.outputs))
                    raise invalid(
                        f"output tensor alias not found in signature: {alias} "
                        f"Outputs expected to be in the set {{{listed}}}."
                    )
                if alias in chosen[:place]:
                    raise invalid(f"duplicate output tensor alias: {alias}")
            outputs = await servable.predict(name, arrays, deadline)
            response = PredictResponse(model_spec=_spec(servable, request.model_spec))

            def write() -> None:
                for alias in chosen:
                    response.outputs[alias].CopyFrom(to_proto(outputs[alias]))

            if sum(outputs[alias].size for alias in chosen) > _LARGE_ANSWER:
                await asyncio.to_thread(write)  # other requests go on
            else:
                write()
            return response

    @_answered
    async def Classify(
        self, request: ClassificationRequest, deadline: float | None
    ) -> ClassificationResponse:
        return await self._of_examples(classify, ClassificationResponse, request, deadline)

    @_answered
    async def Regress(
        self, request: RegressionRequest, deadline: float | None
    ) -> RegressionResponse:
        return await self._of_examples(regress, RegressionResponse, request, deadline)

    @_answered
    async def MultiInference(
        self, request: MultiInferenceRequest, deadline: float | None
    ) -> MultiInferenceResponse:
        with self._models.servable(*_asked(_model_spec(request))) as servable:
            run = self._runs(servable, request.input, deadline)
            results = await multi_inference(run, servable.signatures, request)
            for result in results:
                result.model_spec.CopyFrom(_spec(servable, result.model_spec))
            return MultiInferenceResponse(results=results)

    @_answered
    async def GetModelMetadata(
        self, request: GetModelMetadataRequest, deadline: float | None
    ) -> GetModelMetadataResponse:
        _check_spec(request)
        if not request.metadata_field:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise invalid(f"Metadata field {field} is not supported")
        return self._models.metadata(*_asked(request.model_spec))

    async def _of_examples(
        self, call: Any, response: Callable[..., _Response], request: Any, deadline: float | None
    ) -> _Response:
        """Answers with `classify` or `regress`."""
        with self._servable(request) as servable:
            name = request.model_spec.signature_name
            run = self._runs(servable, request.input, deadline)
            result = await call(run, servable.signatures, name, request.input)
            return response(result=result, model_spec=_spec(servable, request.model_spec))

    def _servable(self, request: Any):
        _check_spec(request)
        return self._models.servable(*_asked(request.model_spec))

    def _runs(self, servable: Servable, examples: Input, deadline: float | None):
        """Runs signatures of a servable, and counts the examples."""
        self._models.metrics.examples(servable.name, len(serialized(examples)))

        async def run(name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return await servable.predict(name, inputs, deadline)

        return run


class _ModelService(_Service, ModelServiceServicer):
    @_answered
    async def GetModelStatus(
        self, request: GetModelStatusRequest, deadline: float | None
    ) -> GetModelStatusResponse:
        _check_spec(request)
        return self._models.status(*_asked(request.model_spec))

    @_answered
    async def HandleReloadConfigRequest(
        self, request: ReloadConfigRequest, deadline: float | None
    ) -> ReloadConfigResponse:
        await self._models.reload(request.config)
        response = ReloadConfigResponse()
        response.status.SetInParent()
        return response


def _model_spec(request: Any) -> ModelSpec:
    if isinstance(request, MultiInferenceRequest):
        return request.tasks[0].model_spec if request.tasks else ModelSpec()
    return ModelSpec() if isinstance(request, ReloadConfigRequest) else request.model_spec


def _check_spec(request: Any) -> None:
    if not request.HasField("model_spec"):
        raise invalid("Missing ModelSpec")


def _asked(spec: ModelSpec) -> tuple[str, int | None, str | None]:
    """Name, version and label of the model that a request is for."""
    choice = spec.WhichOneof("version_choice")
    version = spec.version.value if choice == "version" else None
    label = spec.version_label if choice == "version_label" else None
    return spec.name, version, label


def _spec(servable: Servable, asked: ModelSpec) -> ModelSpec:
    """The version and signature that have answered."""
    name = asked.signature_name or "serving_default"
    spec = ModelSpec(name=servable.name, signature_name=name)
    spec.version.value = servable.version
    return spec


def _deadline(context: grpc.aio.ServicerContext) -> float | None:
    remaining = context.time_remaining()
    # Without a deadline gRPC has centuries left.
    return None if remaining is None or remaining > _YEAR else time.monotonic() + remaining

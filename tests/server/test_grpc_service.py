"""gRPC through the official stubs, as their users call it."""

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
import tensorflow as tf
from credential_files import tokens_of, write_certificate
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from running_models import running, until
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow_serving.apis import model_management_pb2, model_service_pb2_grpc
from tensorflow_serving.apis.get_model_metadata_pb2 import GetModelMetadataRequest, SignatureDefMap
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest, ModelVersionStatus
from tensorflow_serving.apis.inference_pb2 import MultiInferenceRequest
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub

from bert_tf.server import grpc_service
from bert_tf.server.credentials import Certificate
from bert_tf.server.grpc_service import start_grpc
from bert_tf.server.models import Models

Code = grpc.StatusCode


@asynccontextmanager
async def served(folder: Path, credentials=None, overrides=None, **options):
    models = Models(folder, poll_seconds=0.05, overrides=overrides)
    async with running(models):
        server, port = await start_grpc(models, "127.0.0.1:0", **options)
        try:  # a server that is not stopped hangs the process
            async with channel_to(port, credentials) as channel:
                stubs = {"predictions": PredictionServiceStub(channel), "channel": channel}
                stubs["statuses"] = model_service_pb2_grpc.ModelServiceStub(channel)
                yield SimpleNamespace(models=models, server=server, port=port, **stubs)
        finally:
            await server.stop(None)


def channel_to(port: int, credentials=None) -> grpc.aio.Channel:
    address = f"127.0.0.1:{port}"
    if credentials:
        return grpc.aio.secure_channel(address, credentials)
    return grpc.aio.insecure_channel(address)


def predict_request(texts=("abc", "é"), output_filter=(), name="toy", **spec) -> PredictRequest:
    request = PredictRequest(model_spec={"name": name, **spec}, output_filter=output_filter)
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(list(texts)))
    return request


async def refusal(call, request, **arguments) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(request, **arguments)
    return refused.value.code(), refused.value.details()


async def test_predict_answers_and_filters(toys):
    async with served(toys) as client:
        response = await client.predictions.Predict(predict_request())
        assert response.model_spec.version.value == 1
        assert response.model_spec.signature_name == "serving_default"
        # In the fields of their types, as clients of TensorFlow Serving read them.
        assert list(response.outputs["length"].float_val) == [3, 1]
        letters = tf.make_ndarray(response.outputs["letters_text"]).tolist()
        assert letters == [[b"a", b"b", b"c"], ["é".encode(), b"", b""]]
        filtered = predict_request(output_filter=["length"], version={"value": 1})
        response = await client.predictions.Predict(filtered)
        assert list(response.outputs) == ["length"]
        requests = [predict_request(["x" * n]) for n in range(40)]
        answers = await asyncio.gather(*map(client.predictions.Predict, requests))
        assert [answer.outputs["length"].float_val[0] for answer in answers] == list(range(40))
        # As wide as alone, whatever ran beside it.
        widths = [tf.make_ndarray(answer.outputs["letters_text"]).shape[1] for answer in answers]
        assert widths == list(range(40))
        text = client.models.metrics.render().decode()
        assert ':tensorflow:serving:request_count{model_name="toy",status="OK"} 42.0' in text
        assert '_latency_bucket{API="Predict",entrypoint="GRPC",le="+Inf",model_name="t' in text


async def test_requests_that_cannot_be_answered_are_refused(toys):
    twice, absent = (predict_request(output_filter=x) for x in (["length", "length"], ["x"]))
    extra = predict_request()
    extra.inputs["b"].CopyFrom(tf.make_tensor_proto(1))
    async with served(toys) as client:
        for request, expected, message in [
            (PredictRequest(), Code.INVALID_ARGUMENT, "The request does not name a model"),
            (predict_request(name="foo"), Code.NOT_FOUND, "no model foo: the server has"),
            (predict_request(signature_name="x"), Code.FAILED_PRECONDITION, "no signature x"),
            (predict_request(version_label="x"), Code.INVALID_ARGUMENT, "the label x"),
            (twice, Code.INVALID_ARGUMENT, "output_filter names length twice"),
            (absent, Code.INVALID_ARGUMENT, "output_filter names x: the signature has length,"),
            (extra, Code.INVALID_ARGUMENT, "the inputs are b, text: the signature takes text"),
            (predict_request([b"\xff"]), Code.INVALID_ARGUMENT, ""),
        ]:
            code, details = await refusal(client.predictions.Predict, request)
            assert code == expected and message in details
            assert "{{" not in details and "\n" not in details
        text = client.models.metrics.render().decode()
        assert 'model_name="",status="NOT_FOUND"} 1.0' in text and "foo" not in text


def shaped(*sizes: int, values=(b"a",), dtype=tf.string, **fields) -> TensorProto:
    proto = TensorProto(dtype=dtype.as_datatype_enum, string_val=values, **fields)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    return proto


HOSTILE = {
    "many values in few bytes": shaped(2**40),
    "more equal values than TensorFlow's clients leave out": shaped(2**20),
    "no values in a huge shape": shaped(0, 2**40),
    "content that ends early": shaped(2, values=(), tensor_content=b"\1\1a"),
    "content of lengths alone": shaped(2, values=(), tensor_content=b"\x81"),
    "a length without end": shaped(1, values=(), tensor_content=b"\xff" * 9 + b"\0"),
    "more content than the shape": shaped(1, values=(), tensor_content=b"\1ab"),
    "a product that overflows": shaped(2**62, 2**62),
    "a negative size": shaped(-1),
    "more values than the shape": shaped(1, values=[b"a", b"b"]),
    "another type": tf.make_tensor_proto([1.0]),
    "no type": TensorProto(),
    "a resource": shaped(1, dtype=tf.resource),
    "an unknown type": TensorProto(dtype=9999),
    "another rank": shaped(1, 1),
    "a scalar": shaped(),
}


async def test_hostile_tensors_are_refused(toys):
    async with served(toys) as client:
        unknown = shaped(1)
        unknown.tensor_shape.unknown_rank = True
        for name, proto in {**HOSTILE, "an unknown rank": unknown}.items():
            request = predict_request()
            request.inputs["text"].CopyFrom(proto)
            code, message = await refusal(client.predictions.Predict, request)
            assert code == Code.INVALID_ARGUMENT, (name, message)
            assert 'input "text"' in message, (name, message)
        request.inputs["text"].CopyFrom(shaped(3))  # the value repeats: TensorFlow's rule
        response = await client.predictions.Predict(request)
        assert list(response.outputs["text"].string_val) == [b"a"] * 3


async def test_metadata_and_status_and_no_client_changes_the_models(toys):
    async with served(toys) as client:
        request = GetModelMetadataRequest(model_spec={"name": "toy"})
        _, details = await refusal(client.predictions.GetModelMetadata, request)
        assert details == "metadata_field must be signature_def"
        request.metadata_field.append("signature_def")
        response = await client.predictions.GetModelMetadata(request)
        assert (response.model_spec.name, response.model_spec.version.value) == ("toy", 1)
        signatures = SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        assert set(signatures.signature_def) == {"serving_default"}

        reload = model_management_pb2.ReloadConfigRequest()
        config = reload.config.model_config_list.config.add(name="other")
        config.base_path = str(toys / "toy")
        calls = client.statuses.HandleReloadConfigRequest, client.predictions.MultiInference
        for call, request in zip(calls, (reload, MultiInferenceRequest()), strict=True):
            assert (await refusal(call, request))[0] == Code.UNIMPLEMENTED
        assert client.models.names == ["toy"]

        status = GetModelStatusRequest(model_spec={"name": "toy"})
        (version,) = (await client.statuses.GetModelStatus(status)).model_version_status
        assert version.state == ModelVersionStatus.AVAILABLE


async def test_limits_deadlines_and_the_token(toys, tmp_path):
    # Nothing runs before the deadline.
    slow = {"batch_timeout_micros": 60_000_000}
    options = {"tokens": tokens_of(tmp_path, "secret"), "max_request_bytes": 10_000}
    async with served(toys, overrides=slow, **options) as client:
        call, metadata = client.predictions.Predict, [("authorization", "Bearer secret")]
        for wrong in (None, [("authorization", "Bearer secre")]):
            code, _ = await refusal(call, predict_request(), metadata=wrong)
            assert code == Code.UNAUTHENTICATED
        large = predict_request(["x" * 20_000])
        assert (await refusal(call, large, metadata=metadata))[0] == Code.RESOURCE_EXHAUSTED
        code, _ = await refusal(call, predict_request(), metadata=metadata, timeout=0.2)
        assert code == Code.DEADLINE_EXCEEDED
        with client.models.servable("toy") as servable:
            queue = servable._queue
        abandoned = call(predict_request(), metadata=metadata)
        await until(lambda: queue.rows)
        abandoned.cancel()
        await until(lambda: not queue.rows)
        assert queue.running == 0


async def test_a_call_without_a_message_is_refused(toys, monkeypatch, tmp_path):
    # At once without the token, and in time with it.
    monkeypatch.setattr(grpc_service, "_MESSAGE_SECONDS", 0.3)
    monkeypatch.setattr(grpc_service, "_PROMPT_SECONDS", 0.1)
    # Together with what waits, a message of any size might exceed the bytes in work.
    options = {"max_request_bytes": 2**20, "max_held_bytes": 2**20}
    async with served(toys, tokens=tokens_of(tmp_path, "secret"), **options) as client:
        open_call = client.channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        stranger = open_call(timeout=60)
        assert await stranger.code() == Code.UNAUTHENTICATED
        metadata = [("authorization", "Bearer secret")]
        calls = [open_call(metadata=metadata, timeout=60) for _ in range(3)]
        assert {await call.code() for call in calls} == {Code.DEADLINE_EXCEEDED}
        waits = [(await call.details()).removeprefix("No message arrived") for call in calls]
        assert sorted(waits) == [" within 0.1 s", " within 0.1 s", " within 0.3 s"]
        ended = open_call(metadata=metadata, timeout=60)
        await ended.done_writing()
        assert await ended.code() == Code.INVALID_ARGUMENT
        await client.predictions.Predict(predict_request(), metadata=metadata)


async def test_requests_of_too_many_bytes_at_once_are_refused(toys):
    slow = {"batch_timeout_micros": 300_000}
    async with served(toys, overrides=slow, max_held_bytes=1500) as client:
        calls = [client.predictions.Predict(predict_request(["x" * 1000])) for _ in range(3)]
        codes = sorted([(await call.code()).name for call in calls])
        assert codes == ["OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
        await client.predictions.Predict(predict_request(["x" * 1000]))


async def test_tls(toys, tmp_path):
    tls = Certificate(*write_certificate(tmp_path))
    credentials = grpc.ssl_channel_credentials(tls.pair[1])
    async with served(toys, credentials, tls=tls) as client:
        response = await client.predictions.Predict(predict_request(["ab"]))
        assert list(response.outputs["length"].float_val) == [2]
        async with channel_to(client.port) as channel:
            call = PredictionServiceStub(channel).Predict
            code, _ = await refusal(call, predict_request(["ab"]), timeout=30)
            assert code == Code.UNAVAILABLE


async def test_a_stop_finishes_what_was_accepted(toys):
    slow = {"batch_timeout_micros": 300_000}
    async with served(toys, overrides=slow) as client:
        call = client.predictions.Predict(predict_request(["abcd"]))
        with client.models.servable("toy") as servable:
            await until(lambda: servable._queue.rows)
        await asyncio.gather(client.server.stop(30), client.models.close())
        assert list((await call).outputs["length"].float_val) == [4]


async def test_a_health_client_follows_the_models_without_the_token(toys, tmp_path):
    shutil.copytree(toys, tmp_path / "models")
    (tmp_path / "models" / "broken" / "1").mkdir(parents=True)
    async with served(tmp_path / "models", tokens=tokens_of(tmp_path, "secret")) as client:
        stub = health_pb2_grpc.HealthStub(client.channel)
        number = HealthCheckResponse.ServingStatus.Value
        serving, not_serving, unknown = map(number, ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"))

        async def status(service: str) -> int:
            return (await stub.Check(HealthCheckRequest(service=service), timeout=30)).status

        predictions = "tensorflow.serving.PredictionService"
        assert await status("toy") == serving
        assert {await status(name) for name in ("broken", "", predictions)} == {not_serving}
        assert (await refusal(stub.Check, HealthCheckRequest(service="foo")))[0] == Code.NOT_FOUND
        watching = stub.Watch(HealthCheckRequest(service=""), timeout=60)
        assert (await watching.read()).status == not_serving
        assert (await stub.Watch(HealthCheckRequest(service="foo")).read()).status == unknown
        shutil.copytree(toys / "toy", tmp_path / "models" / "broken", dirs_exist_ok=True)
        assert (await watching.read()).status == serving
        assert await status(predictions) == serving
        # It ends the stream, and does not wait for it.
        stopping = asyncio.create_task(client.server.stop(60))
        assert (await watching.read()).status == not_serving
        assert await watching.read() is grpc.aio.EOF
        await asyncio.wait_for(stopping, 30)


async def test_health_takes_no_more_calls_than_it_should(toys, monkeypatch):
    monkeypatch.setattr(grpc_service, "_MESSAGE_SECONDS", 0.1)
    monkeypatch.setattr(grpc_service, "_MOST_WATCHERS", 2)
    async with served(toys) as client:
        silent = client.channel.stream_unary("/grpc.health.v1.Health/Check")(timeout=60)
        assert await silent.code() == Code.DEADLINE_EXCEEDED
        stub = health_pb2_grpc.HealthStub(client.channel)
        watching = [stub.Watch(HealthCheckRequest()) for _ in range(2)]
        for call in watching:
            await call.read()
        assert await stub.Watch(HealthCheckRequest()).code() == Code.RESOURCE_EXHAUSTED
        watching.pop().cancel()
        async with asyncio.timeout(30):
            while not await watches(stub):  # the server learns of the end of a call a little later
                await asyncio.sleep(0.01)


async def watches(stub: health_pb2_grpc.HealthStub) -> bool:
    """Whether the server takes one client more. A refusal is an end, or comes as an error."""
    call = stub.Watch(HealthCheckRequest())
    try:
        return await call.read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError as error:
        assert error.code() == Code.RESOURCE_EXHAUSTED
        return False
    finally:
        call.cancel()

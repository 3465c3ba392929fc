"""Replays the requests that a SavedModel brings along, so that no client waits for a cold model."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf.serving.saved_model import LoadedModel
from bert_tf.serving.server.errors import ServingError, from_tensorflow, invalid
from bert_tf.serving.server.example_requests import classify, regress
from bert_tf.serving.server.tensors import check_inputs, predict_inputs
from bert_tf.serving.warmup_requests import WARMUP_FILE

REQUESTS = Path("assets.extra", WARMUP_FILE)
_MOST = 1000


def warm_up(model: LoadedModel, directory: Path) -> int:
    """Runs the requests in the version's warm-up file and returns their number.

    Raises:
        ServingError: a record cannot be read or fails, or there are more than 1000 of them.
    """
    path = directory / REQUESTS
    return asyncio.run(_replay(model, path)) if path.exists() else 0


async def _replay(model: LoadedModel, path: Path) -> int:
    number = 0
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            number += 1
            if number > _MOST:
                raise invalid(f"Number of warmup records exceeeds the maximum ({_MOST}) at {path}")
            await _run(model, PredictionLog.FromString(record))
    except tf.errors.DataLossError as damage:
        message = f"{damage.message}. Please verify your warmup data is in TFRecord format."
        raise ServingError(grpc.StatusCode.DATA_LOSS, message) from damage
    except (tf.errors.OpError, ServingError) as failure:
        error = failure if isinstance(failure, ServingError) else from_tensorflow(failure)
        message = f"warm-up request {number} of {path} failed: {error.message}"
        raise ServingError(error.code, message) from failure
    return number


async def _run(model: LoadedModel, log: PredictionLog) -> None:
    async def predict(name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        name = name or "serving_default"
        check_inputs(model.signatures[name], inputs)
        return model.run(name, inputs)

    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
        await predict(*predict_inputs(model.signatures, log.predict_log.request))
    elif kind in ("classify_log", "regress_log"):
        call, request = classify if kind == "classify_log" else regress, getattr(log, kind).request
        await call(predict, model.signatures, request.model_spec.signature_name, request.input)
    elif kind not in (None, "multi_inference_log"):  # which no client can ask here
        message = f"Unsupported log_type for warmup: {kind}"
        raise ServingError(grpc.StatusCode.UNIMPLEMENTED, message)

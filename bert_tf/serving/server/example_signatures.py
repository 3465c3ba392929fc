"""Classify and Regress: signatures that take serialized tf.train.Example messages.

Rules and messages: tensorflow_serving/servables/tensorflow/{classifier,regressor}.cc.
"""

from collections.abc import Mapping

import grpc
import numpy as np

from bert_tf.serving.server.errors import ServingError
from bert_tf.serving.server.models import Servable


async def classify(
    servable: Servable, signature_name: str, examples: np.ndarray, deadline: float | None = None
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Asks a signature of the method tensorflow/serving/classify.

    Args:
        servable: version of a model.
        signature_name: name of the signature; an empty one means `serving_default`.
        examples: serialized examples, bytes in an array [B] of objects.
        deadline: moment of `time.monotonic()` by which the answer is wanted.

    Returns:
        Labels [B, C], bytes, and their scores [B, C]; None for what the signature does not have.

    Raises:
        ServingError: as `Servable.predict`, or the signature does not classify.
    """
    outputs = await _ask(servable, signature_name, "classify", examples, deadline)
    classes, scores = outputs.get("classes"), outputs.get("scores")
    if classes is None and scores is None:
        raise _error(
            "Expected classification signature outputs to contain at least one of classes, scores"
        )
    for values in (classes, scores):
        if values is not None and (values.ndim != 2 or len(values) != len(examples)):
            raise _error(f"Expected Tensor shape: [{len(examples)} num_classes]")
    return classes, scores


async def regress(
    servable: Servable, signature_name: str, examples: np.ndarray, deadline: float | None = None
) -> np.ndarray:
    """Asks a signature of the method tensorflow/serving/regress; as `classify`.

    Returns:
        Values [B].
    """
    outputs = await _ask(servable, signature_name, "regress", examples, deadline)
    values = outputs.get("outputs")
    if values is None:
        raise _error("No regression outputs found in SignatureDef")
    if values.shape not in ((len(examples),), (len(examples), 1)):
        raise _error(f"Expected output Tensor shape: [{len(examples)}] or [{len(examples)},1]")
    return values.reshape(-1)


async def _ask(
    servable: Servable,
    signature_name: str,
    verb: str,
    examples: np.ndarray,
    deadline: float | None,
) -> Mapping[str, np.ndarray]:
    signature = servable.signature(signature_name)
    method = f"tensorflow/serving/{verb}"
    if signature.method_name != method:
        task = {"classify": "classification", "regress": "regression"}[verb]
        raise _error(
            f"Expected {task} signature method_name to be {method}. Was: {signature.method_name}"
        )
    if set(signature.inputs) != {"inputs"}:
        raise _error("Expected one input Tensor.")
    return await servable.predict(signature_name, {"inputs": examples}, deadline)


def _error(message: str) -> ServingError:
    return ServingError(grpc.StatusCode.INVALID_ARGUMENT, message)

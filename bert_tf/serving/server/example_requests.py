"""Classify, Regress and MultiInference: signatures that take serialized tf.Examples.

The rules and messages are those of `classifier.cc`, `regressor.cc` and `multi_inference.cc` in
tensorflow_serving/servables/tensorflow.
"""

from collections.abc import Awaitable, Callable, Mapping

import grpc
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.classification_pb2 import ClassificationResult
from tensorflow_serving.apis.inference_pb2 import InferenceResult, MultiInferenceRequest
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.regression_pb2 import RegressionResult

from bert_tf.serving.server.conversion import LARGE_ANSWER, in_thread_if
from bert_tf.serving.server.errors import ServingError, invalid

CLASSIFY = tf.saved_model.CLASSIFY_METHOD_NAME
REGRESS = tf.saved_model.REGRESS_METHOD_NAME

_MANY_EXAMPLES = 2**8
# Runs a signature by its name.
Predict = Callable[[str, Mapping[str, np.ndarray]], Awaitable[dict[str, np.ndarray]]]
Signatures = Mapping[str, SignatureDef]


async def classify(
    predict: Predict, signatures: Signatures, signature_name: str, examples: Input
) -> ClassificationResult:
    """Runs a signature of the method classify.

    Args:
        predict: runs a signature.
        signatures: those of the model.
        signature_name: the signature; an empty name means `serving_default`.
        examples: tf.Examples, with or without a context that is merged into each.

    Raises:
        ServingError: INVALID_ARGUMENT without examples, or for a signature of another method;
            whatever `predict` raises.
    """
    signature = _signature(signatures, signature_name, CLASSIFY, "classification")
    if not {"classes", "scores"} & set(signature.outputs):
        raise ServingError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "Expected classification signature outputs to contain at least one of "
            f'"classes" or "scores". Signature was: {signature_name}',
        )
    rows = await _rows(examples)
    outputs = await predict(signature_name, {"inputs": rows})
    classes, scores = outputs.get("classes"), outputs.get("scores")
    for values in (classes, scores):
        if values is not None and (values.ndim != 2 or len(values) != len(rows)):
            raise invalid(
                f"Expected Tensor shape: [batch_size num_classes] but got {list(values.shape)}"
            )
    is_large = any(
        values is not None and values.size > LARGE_ANSWER for values in (classes, scores)
    )
    return await in_thread_if(is_large, _classifications, len(rows), classes, scores)


def _classifications(
    rows: int, classes: np.ndarray | None, scores: np.ndarray | None
) -> ClassificationResult:
    result = ClassificationResult()
    width = max(values.shape[1] for values in (classes, scores) if values is not None)
    for number in range(rows):
        listed = result.classifications.add().classes
        for place in range(width):
            found = listed.add()
            if classes is not None:
                found.label = classes[number, place]
            if scores is not None:
                found.score = scores[number, place]
    return result


async def regress(
    predict: Predict, signatures: Signatures, signature_name: str, examples: Input
) -> RegressionResult:
    """Runs a signature of the method regress; arguments and errors as of `classify`."""
    signature = _signature(signatures, signature_name, REGRESS, "regression")
    if list(signature.outputs) != ["outputs"]:
        raise invalid("Expected one output Tensor.")
    rows = await _rows(examples)
    values = (await predict(signature_name, {"inputs": rows}))["outputs"]
    if values.shape not in ((len(rows),), (len(rows), 1)):
        raise invalid(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
            f"{list(values.shape)}"
        )
    result = RegressionResult()
    for value in values.ravel():
        result.regressions.add(value=value)
    return result


async def multi_inference(
    predict: Predict, signatures: Signatures, request: MultiInferenceRequest
) -> list[InferenceResult]:
    """Runs several signatures of one model on the same examples, one after the other.

    TensorFlow Serving refuses signatures with input tensors of their own, which all exports of
    TensorFlow 2 have; they are answered here.

    Raises:
        ServingError: INVALID_ARGUMENT for several models or a signature that is named twice,
            UNIMPLEMENTED for another method; else as `classify`.
    """
    tasks = request.tasks
    if any(not task.model_spec.name for task in tasks):
        raise invalid("Found ModelSpec with an empty model name.")
    if len({task.model_spec.name for task in tasks}) > 1:
        raise invalid("All ModelSpecs in a MultiInferenceRequest must access the same model name.")
    names = [task.model_spec.signature_name or "serving_default" for task in tasks]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise invalid(f"Duplicate evaluation of signature: {name}")
        if name not in signatures:
            raise invalid(f"Requested signature not found in model graph: {name}")
        if tasks[place].method_name not in (
            CLASSIFY,
            REGRESS,
        ):
            raise ServingError(
                grpc.StatusCode.UNIMPLEMENTED,
                f"Unsupported signature method_name: {tasks[place].method_name}",
            )
    results = []
    for name, task in zip(names, tasks, strict=True):
        result = InferenceResult(model_spec=task.model_spec)
        if task.method_name == CLASSIFY:
            answer = await classify(predict, signatures, name, request.input)
            result.classification_result.CopyFrom(answer)
        else:
            answer = await regress(predict, signatures, name, request.input)
            result.regression_result.CopyFrom(answer)
        results.append(result)
    return results


async def _rows(examples: Input) -> np.ndarray:
    listed = (examples.example_list, examples.example_list_with_context)
    is_large = max(len(each.examples) for each in listed) > _MANY_EXAMPLES
    return await in_thread_if(is_large, serialized, examples)


def serialized(examples: Input) -> np.ndarray:
    """Returns the examples [B], each serialized, with the context merged in.

    Raises:
        ServingError: INVALID_ARGUMENT without examples.
    """
    if examples.WhichOneof("kind") == "example_list_with_context":
        context = examples.example_list_with_context.context.SerializeToString()
        listed = examples.example_list_with_context.examples
    else:
        context, listed = b"", examples.example_list.examples
    if not listed:
        raise invalid("Input is empty.")
    rows = np.empty(len(listed), object)
    # Protobuf merges messages that follow each other.
    rows[:] = [context + example.SerializeToString() for example in listed]
    return rows


def _signature(signatures: Signatures, name: str, method: str, kind: str) -> SignatureDef:
    name = name or "serving_default"
    if name not in signatures:
        raise invalid(f"No signature was found with the name: {name}")
    signature = signatures[name]
    if signature.method_name != method:
        raise invalid(
            f"Expected {kind} signature method_name to be {method}. Was: {signature.method_name}"
        )
    if list(signature.inputs) != ["inputs"]:
        raise invalid("Expected one input Tensor.")
    return signature

"""Classify and Regress, by the rules of TensorFlow Serving's `classifier.cc`, `regressor.cc`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np
from grpc import StatusCode
from tensorflow.core.example.example_pb2 import Example
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.classification_pb2 import ClassificationResult
from tensorflow_serving.apis.input_pb2 import Input
from tensorflow_serving.apis.regression_pb2 import Regression, RegressionResult

from bert_tf.server.conversion import LARGE_ANSWER, in_thread_if
from bert_tf.server.errors import ServingError, invalid
from bert_tf.serving.signatures import CLASSIFY, REGRESS

_MANY_EXAMPLES = 2**8
# Runs a signature by its name.
Predict = Callable[[str, Mapping[str, np.ndarray]], Awaitable[dict[str, np.ndarray]]]
Signatures = Mapping[str, SignatureDef]


async def classify(
    predict: Predict, signatures: Signatures, signature_name: str, examples: Input
) -> ClassificationResult:
    """Runs a classify signature on tf.Examples; an empty name means `serving_default`."""
    signature = _signature(signatures, signature_name, CLASSIFY, "classification")
    if not {"classes", "scores"} & set(signature.outputs):
        expected = 'outputs to contain at least one of "classes" or "scores"'
        message = f"Expected classification signature {expected}. Signature was: {signature_name}"
        raise ServingError(StatusCode.FAILED_PRECONDITION, message)
    rows = await _rows(examples)
    outputs = await predict(signature_name, {"inputs": rows})
    found = {name: outputs[name] for name in ("classes", "scores") if name in outputs}
    for values in found.values():
        if values.ndim != 2 or len(values) != len(rows):
            shape = list(values.shape)
            raise invalid(f"Expected Tensor shape: [batch_size num_classes] but got {shape}")
    is_large = any(values.size > LARGE_ANSWER for values in found.values())
    return await in_thread_if(is_large, _classifications, len(rows), found)


def _classifications(rows: int, outputs: Mapping[str, np.ndarray]) -> ClassificationResult:
    result = ClassificationResult()
    width = max(values.shape[1] for values in outputs.values())
    for number in range(rows):
        listed = result.classifications.add().classes
        for place in range(width):
            found = listed.add()
            if "classes" in outputs:
                found.label = outputs["classes"][number, place]
            if "scores" in outputs:
                found.score = outputs["scores"][number, place]
    return result


async def regress(
    predict: Predict, signatures: Signatures, signature_name: str, examples: Input
) -> RegressionResult:
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
    return RegressionResult(regressions=[Regression(value=value) for value in values.ravel()])


def listed_examples(examples: Input) -> Sequence[Example]:
    """The examples of a request, without their context."""
    return getattr(examples, examples.WhichOneof("kind") or "example_list").examples


async def _rows(examples: Input) -> np.ndarray:
    """The examples [B], each serialized, with the context merged in."""
    listed = listed_examples(examples)
    if not listed:
        raise invalid("Input is empty.")
    # Empty without a context. Protobuf merges messages that follow each other.
    context = examples.example_list_with_context.context.SerializeToString()

    def serialized() -> np.ndarray:
        return np.array([context + example.SerializeToString() for example in listed], object)

    return await in_thread_if(len(listed) > _MANY_EXAMPLES, serialized)


def _signature(signatures: Signatures, name: str, method: str, kind: str) -> SignatureDef:
    name = name or "serving_default"
    if name not in signatures:
        raise invalid(f"No signature was found with the name: {name}")
    signature = signatures[name]
    if (was := signature.method_name) != method:
        raise invalid(f"Expected {kind} signature method_name to be {method}. Was: {was}")
    if list(signature.inputs) != ["inputs"]:
        raise invalid("Expected one input Tensor.")
    return signature

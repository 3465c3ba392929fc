"""Errors with TensorFlow Serving's status codes, over REST and gRPC."""

import grpc
import tensorflow as tf

_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
# From tensorflow_serving/model_servers/http_server.cc.
_CODES = {
    200: "OK",
    400: "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "UNKNOWN INTERNAL DATA_LOSS",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
HTTP_STATUS = {grpc.StatusCode[x]: key for key, codes in _CODES.items() for x in codes.split()}


class ServingError(Exception):
    """A request that is refused or has failed."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        reason: str = "",
        status: int | None = None,
        allow: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.reason = reason or code.name.lower()  # label of the metric bert_tf_refusals
        self.status = status  # HTTP status that no code stands for; closes the connection
        self.allow = allow  # HTTP methods of the path


def invalid(message: str, reason: str = "", status: int | None = None) -> ServingError:
    """A request that can never be answered."""
    return ServingError(grpc.StatusCode.INVALID_ARGUMENT, message, reason, status)


def from_tensorflow(error: tf.errors.OpError) -> ServingError:
    message = error.message.removeprefix("Graph execution error:\n\n").split("\n\t [[")[0]
    return ServingError(_BY_NUMBER[error.error_code], message.strip())

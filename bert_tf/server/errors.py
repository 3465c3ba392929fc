"""Errors with TensorFlow Serving's status codes, over REST and gRPC."""

import grpc
import tensorflow as tf

_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


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


def not_allowed(method: str, allow: str) -> ServingError:
    """A request with a method that the path does not have (405)."""
    message = f"The method {method} is not allowed here: use {allow}"
    return ServingError(grpc.StatusCode.UNIMPLEMENTED, message, "method", 405, allow)


def from_tensorflow(error: tf.errors.OpError) -> ServingError:
    message = error.message.removeprefix("Graph execution error:\n\n").split("\n\t [[")[0]
    return ServingError(_BY_NUMBER[error.error_code], message.strip())

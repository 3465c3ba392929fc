"""Errors as TensorFlow Serving reports them, over REST and gRPC."""

import grpc


class ServingError(Exception):
    """A request that is refused or has failed.

    Args:
        code: status; REST maps it to an HTTP status (`HTTP status codes` of the REST server).
        message: one line for the client, in TensorFlow Serving's words where it has any.
    """

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

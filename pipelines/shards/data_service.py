"""Batches made by the workers of a tf.data service, elsewhere than the training."""

import re
import socket

import tensorflow as tf

from bert_tf.errors import InputError

_ANSWER_SECONDS = 10


def from_data_service(batches: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """The same batches, made by the workers of a tf.data service.

    The windows of the data are handed out to the workers, each to one of them. One worker yields
    the batches in the order of `batches`; several yield batches of windows of their own, in
    the order in which they are ready.

    Args:
        batches: TensorFlow's own ops alone, from files under paths that the workers can read.
        address: `grpc://host:port` of the dispatcher.

    Raises:
        InputError: the address is of another form, or nothing answers there.
    """
    match = re.fullmatch(r"grpc://(\[?[^/\s]+?\]?):(\d+)", address)
    if not match:
        raise InputError(
            f"{address}: is no address of a tf.data service; give it as grpc://host:port"
        )
    try:
        place = match[1].strip("[]"), int(match[2])
        socket.create_connection(place, timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"{address}: no tf.data service answers ({error}); start its dispatcher and workers "
            "(docs/reading-shards.md shows how), or leave --data_service out"
        ) from error
    return batches.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC, address
        )
    )

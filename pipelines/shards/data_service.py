"""Batches made by the workers of a tf.data service, on other machines than the training."""

import re
import socket

import tensorflow as tf

from bert_tf.errors import InputError

_ANSWER_SECONDS = 10


def from_data_service(batches: tf.data.Dataset, address: str) -> tf.data.Dataset:
    """Lets the workers of a tf.data service make batches.

    Each window of the data goes to one worker. One worker yields the batches in the order of
    `batches`; several yield batches of their own windows, in the order in which they are ready.

    Args:
        batches: dataset of TensorFlow ops alone; the workers read its files under the same paths.
        address: `grpc://host:port` of the dispatcher.

    Raises:
        InputError: the address has another form, or nothing answers there.
    """
    match = re.fullmatch(r"grpc://(\[?[^/\s]+?\]?):(\d+)", address)
    if not match:
        raise InputError(
            f"{address}: not the address of a tf.data service: give it as grpc://host:port"
        )
    try:
        place = match[1].strip("[]"), int(match[2])
        socket.create_connection(place, timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"{address}: no tf.data service answers ({error}): start its dispatcher and workers "
            "(see docs/reading-shards.md), or remove --data_service"
        ) from error
    return batches.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC, address
        )
    )

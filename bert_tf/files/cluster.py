"""The processes of one run, as TensorFlow's environment variable TF_CONFIG names them."""

import itertools
import json
import os
import re

from bert_tf.errors import InputError

_EXAMPLE = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


def is_chief_of_cluster() -> bool:
    """Whether this process is the chief of the workers in TF_CONFIG.

    Raises InputError if there is none, or one with which workers would wait for each other.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise InputError(
            "--strategy multi_worker needs the environment variable TF_CONFIG: set it on every "
            f"worker, each with an index of its own, such as {_EXAMPLE}"
        )
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kind, index = task["type"], task["index"]
        if not set(cluster) <= {"chief", "worker"}:
            raise ValueError("a cluster here has workers and at most a chief")
        for address in itertools.chain.from_iterable(cluster.values()):
            if not re.fullmatch(r".+:\d+", address):
                raise ValueError(f"{address!r} is not host:port")
        count = len(cluster[kind])
        if index not in range(count):
            raise ValueError(f"the task is {kind} {index!r}, of {count} in the cluster")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        cause = f"it has no {error}" if isinstance(error, KeyError) else error
        raise InputError(
            f"TF_CONFIG cannot be used ({cause}): write it as in {_EXAMPLE}"
        ) from error
    return (kind, index) == ("chief" if "chief" in cluster else "worker", 0)

"""Whether products read packed weights, which TensorFlow is told before it is imported.

oneDNN arranges a product's weights for the processor: with TF_ONEDNN_ASSUME_FROZEN_WEIGHTS once,
not in every call, for processes whose weights never change. It pays on most processors, not on all,
nor in every type: so it is measured once and remembered.
"""

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bert_tf.processor import best_seconds, fastest, processor
from bert_tf.serving.precisions import same_in_other_types, type_of, versions

VARIABLE = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
# Tokens: of a short text, of a long one, of a batch.
_ROWS = (9, 119, 1024)
_WIDTH, _INNER, _LAYERS = 768, 3072, 6
_ROUNDS = 7
_GAIN = 1.03
_PATIENCE = 120  # seconds, for a process that imports TensorFlow on a busy machine


def pack_weights(types: Iterable[str]) -> None:
    """Has TensorFlow pack weights if that pays for these types; a user's own setting stays.

    Call it before TensorFlow is imported; afterwards it does nothing.
    """
    dtypes = sorted(set(types) - {"int8"})  # int8's are packed by themselves
    if VARIABLE in os.environ or "tensorflow" in sys.modules or not dtypes:
        return

    def measured() -> dict[str, float]:
        command = [sys.executable, "-m", "bert_tf.serving.packed_weights", *dtypes]
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            done = subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=_PATIENCE
            )
            return json.loads(done.stdout)
        return {}

    key = " ".join([*dtypes, processor()])
    names = ("packed", "plain")
    fast, _ = fastest("packed_weights.json", key, names, measured, usual="plain", gain=_GAIN)
    if fast == "packed":
        os.environ[VARIABLE] = "1"


def types_of(models: Iterable[str | Path]) -> set[str]:
    """What models compute in: folders of versions or of one version, or model directories."""
    types = set()
    for model in models:
        newest = [Path(model), *versions(model).values()][-1]
        types |= set(same_in_other_types(newest)) or {type_of(newest)}
    return types


def measure(dtypes: Sequence[str]) -> dict[str, float]:
    """Seconds of products with packed weights and with others, means over types and batches."""
    seconds = [best for dtype in dtypes for best in _measure(dtype)]
    return {
        name: statistics.geometric_mean(best[name] for best in seconds)
        for name in ("packed", "plain")
    }


def _measure(dtype: str) -> Iterator[dict[str, float]]:
    import tensorflow as tf

    shapes = [(_WIDTH, _INNER), (_INNER, _WIDTH)] * (_LAYERS // 2)
    weights = [
        tuple(tf.cast(tf.random.normal(size), dtype).numpy() for size in (shape, shape[1:]))
        for shape in shapes
    ]
    variables = [tuple(map(tf.Variable, pair)) for pair in weights]

    # Constants of the graph are packed at all times, variables where the process was told to.
    @tf.function(autograph=False)
    def run(x: tf.Tensor, is_packed: bool) -> tf.Tensor:
        constants = [tuple(map(tf.constant, pair)) for pair in weights] if is_packed else []
        for kernel, bias in constants or variables:
            x = tf.nn.bias_add(tf.matmul(x, kernel), bias) * tf.cast(1e-2, dtype)
        return tf.reduce_max(x)

    for rows in _ROWS:
        x = tf.cast(tf.random.normal([rows, _WIDTH]), dtype)
        works = {
            name: functools.partial(lambda x, is_packed: run(x, is_packed).numpy(), x, is_packed)
            for name, is_packed in (("packed", True), ("plain", False))
        }
        yield best_seconds(works, rounds=_ROUNDS)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:])))

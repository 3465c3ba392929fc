"""Measures how fast this machine multiplies matrices."""

import functools
import math
import time
from collections.abc import Callable, Iterable

import tensorflow as tf

# Rows, width and inner width of a feed-forward layer: large enough for arithmetic to dominate,
# small enough to be quick.
_SHAPES = {"CPU": (1024, 512, 1024), "GPU": (8192, 8192, 8192)}
_AT_ONCE = 2  # halves of a batch, as a core may have each to itself (`share_cores`)
_LEAST_ROUNDS = 2  # however long they take, as on a busy machine
_SECONDS = 0.2
_PAUSE = 300  # times as long as a measurement takes: they cost a third of a percent


def product_rates(dtypes: Iterable[str], seconds: float = 0.0) -> dict[str, float]:
    """The FLOP/s that this machine's device reaches in matrix products of each dtype.

    Each rate is the best of some rounds, which take `seconds`, or what two rounds need. The dtypes
    take turns, so that a machine whose speed changes treats them alike.
    """
    until = time.perf_counter() + seconds
    device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    rows, width, inner = _SHAPES[device]
    with tf.device(device):
        factors = {dtype: _factors(rows, width, inner, dtype) for dtype in dtypes}
        for each in factors.values():
            _multiply(*each).numpy()  # traces it, and waits for what the device still does
        best = dict.fromkeys(factors, math.inf)
        rounds = 0
        while rounds < _LEAST_ROUNDS or time.perf_counter() < until:
            for dtype, each in factors.items():
                begun = time.perf_counter()
                _multiply(*each).numpy()
                best[dtype] = min(best[dtype], time.perf_counter() - begun)
            rounds += 1
    operations = _AT_ONCE * 2 * 2 * rows * width * inner
    return {dtype: operations / taken for dtype, taken in best.items()}


def _factors(rows: int, width: int, inner: int, dtype: str) -> list[tf.Tensor]:
    """The rows of both halves, and the two kernels of a layer that keep their size."""
    shapes = {(_AT_ONCE, rows, width): 1.0, (width, inner): width, (inner, width): inner}
    return [
        tf.cast(tf.random.stateless_uniform(shape, [1, 2], -1, 1) * (3 / fan_in) ** 0.5, dtype)
        for shape, fan_in in shapes.items()
    ]


@tf.function(autograph=False)
def _multiply(halves: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    products = [tf.matmul(tf.matmul(half, first), second) for half in tf.unstack(halves)]
    return tf.add_n([tf.reduce_max(product) for product in products])


def strategy_peak(strategy: tf.distribute.Strategy, dtype: str) -> Callable[[], float] | None:
    """A function that gives the FLOP/s of all devices of a strategy together; None for TPUs.

    The logical CPU devices of a machine share its cores and count as one.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return None
    devices = strategy.num_replicas_in_sync
    if not tf.config.list_logical_devices("GPU"):
        devices = max(1, devices // len(tf.config.list_logical_devices("CPU")))
    peak = _peak(dtype)
    return lambda: devices * peak.now()


class _Peak:
    """The rate of this machine's device in products of a dtype.

    Processors are measured again now and then, as others may use the machine.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        # The speed of a GPU hardly changes, and one that trains may lack the memory.
        self._changes = not tf.config.list_logical_devices("GPU")
        self._measure(_SECONDS)

    def now(self) -> float:
        if self._changes and time.monotonic() > self._due:
            self._measure(0.0)
        return self._rate

    def _measure(self, seconds: float) -> None:
        begun = time.monotonic()
        self._rate = product_rates([self._dtype], seconds)[self._dtype]
        self._due = time.monotonic() + _PAUSE * (time.monotonic() - begun)


_peak = functools.cache(_Peak)  # once per process and dtype

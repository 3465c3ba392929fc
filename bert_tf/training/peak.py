"""The fastest arithmetic of this machine."""

import functools
import time

import tensorflow as tf

# Rows and columns: large enough for arithmetic to dominate, small enough to be quick.
_PEAK_WIDTHS = {"CPU": 1024, "GPU": 8192}
_PEAK_SECONDS = 1.0
_AT_ONCE = 2  # products, as a core may have each to itself (`share_cores`)
_PEAK_RUNS = 3  # however long they take, as on a busy machine


def strategy_peak(strategy: tf.distribute.Strategy, dtype: str = "float32") -> float | None:
    """The peak of all devices of a strategy together, FLOP/s; None for TPUs.

    `measured_peak` of this machine's device times the number of devices; the logical CPU devices of
    a machine share its cores and count as one.
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return None
    devices = strategy.num_replicas_in_sync
    if not tf.config.list_logical_devices("GPU"):
        devices = max(1, devices // len(tf.config.list_logical_devices("CPU")))
    return devices * measured_peak(dtype)


@functools.cache
def measured_peak(dtype: str = "float32") -> float:
    """The peak that this machine's device reaches in matrix products of a dtype, FLOP/s.

    Takes a second, once per process.
    """
    device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    width = _PEAK_WIDTHS[device]
    with tf.device(device):
        # Powers of them neither vanish nor grow.
        drawn = tf.random.stateless_normal([_AT_ONCE, width, width], [1, 2], stddev=width**-0.5)
        factors = tf.unstack(tf.cast(drawn, dtype))

        @tf.function
        def multiply() -> tf.Tensor:
            products = factors
            for _ in range(4):
                products = [tf.matmul(x, y) for x, y in zip(products, factors, strict=True)]
            return tf.add_n([tf.reduce_sum(x) for x in products])

        multiply().numpy()
        seconds: list[float] = []
        until = time.perf_counter() + _PEAK_SECONDS
        while len(seconds) < _PEAK_RUNS or time.perf_counter() < until:
            begun = time.perf_counter()
            multiply().numpy()
            seconds.append(time.perf_counter() - begun)
    return _AT_ONCE * 4 * 2 * width**3 / min(seconds)

"""How fast this machine multiplies matrices, and in which precision fastest."""

import functools
import time
from collections.abc import Callable, Iterable

import tensorflow as tf

from bert_tf.processor import best_seconds, fastest, processor, processor_flags

# Rows, width and inner width of a feed-forward layer: enough for arithmetic to dominate.
_SHAPES = {"CPU": (1024, 512, 1024), "GPU": (8192, 8192, 8192)}
_AT_ONCE = 2  # halves of a batch, as a core may have each to itself (`share_cores`)
_SECONDS = 0.25  # of the first measurement
_PAUSE = 300  # times as long as a measurement takes: they cost a third of a percent
_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}
_MARGIN = 1.1  # by which bfloat16 must be faster: it rounds more, and a measurement has noise


def product_rates(dtypes: Iterable[str], seconds: float = 0.0) -> dict[str, float]:
    """The best FLOP/s in matrix products of each dtype, in `seconds` or what two rounds need."""
    device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    rows, width, inner = _SHAPES[device]
    with tf.device(device):
        factors = {dtype: _factors(rows, width, inner, dtype) for dtype in dtypes}
        works = {
            dtype: functools.partial(lambda operands: _multiply(*operands).numpy(), operands)
            for dtype, operands in factors.items()
        }
        best = best_seconds(works, seconds)
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
    """A function that gives the FLOP/s of all devices of a strategy together; None for TPUs."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return None
    devices = strategy.num_replicas_in_sync
    if not tf.config.list_logical_devices("GPU"):
        # The logical CPU devices of a machine share its cores and count as one.
        devices = max(1, devices // len(tf.config.list_logical_devices("CPU")))
    peak = _peak(dtype)
    return lambda: devices * peak.now()


class _Peak:
    """The rate of this machine's device in products of a dtype."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        # Others may use a processor, which is measured again now and then. The speed of a GPU
        # hardly changes, and one that trains may lack the memory.
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


def fast_precision(strategy: tf.distribute.Strategy) -> tuple[str, str]:
    """The fastest Keras dtype policy on the devices of a strategy, and what was measured, if any.

    mixed_bfloat16 on TPUs, on GPUs from Ampere on, and on processors with bfloat16 whose matrix
    products are measured to be clearly faster in it ("products 397 GFLOP/s, float32 203").
    """
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "mixed_bfloat16", ""
    if gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        is_new = details.get("compute_capability", (0, 0)) >= (8, 0)
        return ("mixed_bfloat16" if is_new else "float32"), ""
    if not _BFLOAT16 & set(processor_flags()):
        return "float32", ""
    dtypes = ("float32", "bfloat16")

    def measure() -> dict[str, float]:  # seconds of an operation
        return {dtype: 1 / rate for dtype, rate in product_rates(dtypes, _SECONDS).items()}

    fast, times = fastest(
        "product_times.json", processor(), dtypes, measure, usual="float32", gain=_MARGIN
    )
    slow = next(dtype for dtype in dtypes if dtype != fast)
    rates = {dtype: f"{1e-9 / times[dtype]:.0f}" for dtype in dtypes}
    policy = "mixed_bfloat16" if fast == "bfloat16" else fast
    return policy, f"products {rates[fast]} GFLOP/s, {slow} {rates[slow]}"

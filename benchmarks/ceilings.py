"""Ceilings of this machine's processor: matrix products and memory copies.

    python benchmarks/ceilings.py [--threads 2] [--output ceilings.json]

Products of large square matrices, in TensorFlow, by type, in GFLOP/s and per processor second;
copies of blocks larger than any cache, in GB/s, each byte counted once. Medians over the turns. A
model's speed is a share of these; on a shared machine compare processor seconds.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import turns  # benchmarks/turns.py

SIZE = 3072  # rows and columns
BLOCK = 2**28  # bytes


def seconds(work: Callable[[], object], rounds: int) -> np.ndarray:
    """Median times of a call, by the clock and of the processors; the first call does not count."""
    work()
    return np.median([turns.timed(work) for _ in range(rounds)], axis=0)


def ceilings(rounds: int = 9) -> dict[str, float]:
    """GFLOP/s of products in float32 and bfloat16, and GB/s of copies."""
    import tensorflow as tf

    draw = np.random.default_rng(0)
    speeds = {}
    for dtype in ("float32", "bfloat16"):
        a, b = (tf.constant(draw.normal(size=[SIZE, SIZE]), dtype) for _ in range(2))
        product = tf.function(tf.matmul, jit_compile=False)
        took = seconds(lambda a=a, b=b, product=product: product(a, b).numpy(), rounds)
        for unit, of_unit in zip(("s", "processor s"), took, strict=True):
            speeds[f"{dtype} GFLOP/{unit}"] = 2e-9 * SIZE**3 / of_unit
    source, target = np.ones(BLOCK, np.uint8), np.zeros(BLOCK, np.uint8)
    speeds["copy GB/s"] = 1e-9 * BLOCK / seconds(lambda: np.copyto(target, source), rounds)[0]
    return speeds


def instructions() -> str:
    """The processor's name, and those of its instructions that matter here."""
    text = Path("/proc/cpuinfo").read_text()
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    wanted = {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}
    known = [flag for flag in fields.get("flags", "").split() if flag in wanted]
    return f"{fields.get('model name', 'unknown processor')}: {', '.join(known)}"


def main() -> None:
    parser = turns.parser(__doc__, 9)
    parser.add_argument("--threads", type=int, help="threads of a product; else all cores")
    options = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(options.threads or 0)
    speeds = ceilings(options.turns)
    turns.write(speeds, options.output)
    print(f"{instructions()}; {options.threads or os.cpu_count()} threads")
    for name, value in speeds.items():
        print(f"{name:26} {value:7.1f}")


if __name__ == "__main__":
    main()

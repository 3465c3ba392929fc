r"""Pre-training steps of BERT on a GPU: JAX, PyTorch and TensorFlow, each if it is installed.

    python benchmarks/gpu.py [--minutes 30] [--output gpu.json]

benchmarks/gpu.sh runs it on a machine that has JAX and PyTorch, and no network.

The step of benchmarks/training_step.py in bfloat16: BERT-base at lengths 128 and 512 and on rows of
512 that hold four instances of 128, BERT-large at 128. Each side is a process of its own on the
same shapes, one after the other. A side whose library is missing or sees no GPU is left out.

- jax: bert-tf on Keras' JAX backend, in the step of recipes/training_on_jax.py.
- jax_fused: the same with attention in one kernel, which drops no attention probabilities.
- torch: Hugging Face's `BertForPreTraining` with scaled-dot-product attention and fused AdamW. It
  computes the vocabulary's scores at every token, and has no rows of several instances.
- tensorflow, tensorflow_xla: bert-tf, as `bert-tf pretrain` trains on GPUs, without and with
  --jit_compile.

Sequences are instances. The share of the peak is that of useful operations: the matrix products of
each instance alone, in proportion to what large products reach here. Memory is the most that the
side's arrays took on the GPU; without one, of the process. The largest batch is searched for after
all steps are timed: doubled while it fits, then bisected to an eighth, until time is up.

References, BERT-large in 16 bits: NVIDIA's TensorFlow on one A100, 486 sequences/s at 128 and 97 at
512, 37% and 32% of its peak; MLPerf, 8 H100, 7,531 packed sequences/s at 512.
"""

import argparse
import gc
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns  # benchmarks/turns.py
from training_step import LEARNING_RATE, Size, batch_of, hugging_face, ours  # beside this file

SIZES = {
    "tiny": Size(1, 64, 2, 500, 4, 32, 5),
    "tiny-packed": Size(1, 64, 2, 500, 4, 32, 8, instances=2),
    "base-128": Size(12, 768, 12, 30522, 128, 128, 20),
    "base-512": Size(12, 768, 12, 30522, 32, 512, 77),
    "base-packed": Size(12, 768, 12, 30522, 32, 512, 80, instances=4),
    "large-128": Size(24, 1024, 16, 30522, 64, 128, 20),
}
SIDES = {  # what a side needs beside bert-tf
    "jax": ("jax",),
    "jax_fused": ("jax",),
    "torch": ("torch", "transformers"),
    "tensorflow": ("tensorflow",),
    "tensorflow_xla": ("tensorflow",),
}
WARM_UP = 3  # steps that trace, compile and fill the memory
PRODUCTS = 10  # at once, to measure the peak
BACKENDS = ("jax", "torch", "tensorflow")
OUT_OF_MEMORY = ("out of memory", "resource_exhausted", "resourceexhausted")


def on_jax(size: Size, precision: str, *, fused: bool) -> Callable[[], Any]:
    """The step of the recipe for JAX."""
    import jax
    import keras

    sys.path.append(str(Path(__file__).parents[1] / "recipes"))
    from training_on_jax import training_step

    from bert_tf import AdamWeightDecay, BertPreTrainer, WarmupLinearDecay
    from bert_tf.networks.kernels import FusedAttention

    keras.config.set_dtype_policy(precision)
    model = BertPreTrainer(size.config(**{"attention_probs_dropout_prob": 0.0} if fused else {}))
    if fused:
        model.encoder.kernels = FusedAttention
    optimizer = AdamWeightDecay(WarmupLinearDecay(LEARNING_RATE, 100, 10_000))
    state, update = training_step(model, optimizer)
    batch = jax.tree.map(jax.numpy.asarray, batch_of(size))

    def step() -> float:
        nonlocal state
        state, losses = update(state, batch)
        return float(sum(losses.values()))

    return step


def make_step(side: str, size: Size, precision: str) -> Callable[[], Any]:
    if side.startswith("jax"):
        return on_jax(size, precision, fused=side == "jax_fused")
    if side == "torch":
        return hugging_face("", size, precision)
    return ours("xla" if side.endswith("xla") else "layers", size, precision)


def device_and_memory(side: str) -> tuple[str, float]:
    """The kind of device that a side computes on, and the most bytes it held there."""
    if side == "torch":
        import torch

        if torch.cuda.is_available():
            return "GPU", torch.cuda.max_memory_allocated()
    elif side.startswith("jax"):
        import jax

        if jax.default_backend() == "gpu":
            return "GPU", jax.devices()[0].memory_stats()["peak_bytes_in_use"]
    else:
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            return "GPU", tf.config.experimental.get_memory_info("GPU:0")["peak"]
    return "CPU", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def time_steps(side: str, size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each step, device and bytes."""
    step, seconds = make_step(side, size, options.precision), []
    for _ in range(WARM_UP + options.steps):
        begun = time.perf_counter()
        step()  # returns when its loss is known
        seconds.append(time.perf_counter() - begun)
    device, memory = device_and_memory(side)
    return {"seconds": seconds[WARM_UP:], "device": device, "bytes": memory}


def fits(side: str, size: Size, options: argparse.Namespace) -> bool:
    """Whether a step has enough memory."""
    if options.most and size.batch > options.most:
        return False
    try:
        make_step(side, size, options.precision)()
    except Exception as error:  # each library has an exception of its own
        if not any(text in f"{type(error)} {error}".lower() for text in OUT_OF_MEMORY):
            raise
        return False
    return True


def bisect(side: str, size: Size, options: argparse.Namespace) -> None:
    """Prints the largest batch that fits so far and the smallest that does not, as they change."""
    low, high = size.batch, None
    while high is None or high - low > max(1, low // 8):
        batch = 2 * low if high is None else (low + high) // 2
        low, high = (
            (batch, high) if fits(side, size._replace(batch=batch), options) else (low, batch)
        )
        print(json.dumps({"largest batch": low, "too large": high}), flush=True)
        gc.collect()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


def machine(sizes: dict[str, Size], precision: str) -> dict[str, Any]:
    """The device, the FLOP/s of its large matrix products, and the operations of each step."""
    import keras

    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    kind, _ = device_and_memory(keras.backend.backend())
    name = subprocess.check_output(query, text=True).splitlines()[0] if kind == "GPU" else kind
    width, dtype = 8192 if kind == "GPU" else 1024, precision.removeprefix("mixed_")
    x, best = keras.ops.cast(keras.random.normal((width, width)), dtype), float("inf")
    until = time.perf_counter() + 2
    while time.perf_counter() < until:
        begun = time.perf_counter()
        products = [keras.ops.matmul(x, x) for _ in range(PRODUCTS)]  # one after the other
        keras.ops.convert_to_numpy(products[-1][0, 0])
        best = min(best, time.perf_counter() - begun)
    flops = {name: size.flops for name, size in sizes.items()}
    peak = PRODUCTS * 2 * width**3 / best
    return {"name": name, "device": kind, "peak": peak, "flops": flops}


def in_a_process(work: str, seconds: float, *arguments: str) -> Any:
    """The last JSON that `work` prints, within a time; or {"skipped": why}."""
    command = [sys.executable, *sys.argv, "--work", work, *arguments]
    backend = next(name for name in BACKENDS if name in f"{arguments}")
    environment = {
        "KERAS_BACKEND": backend,
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",  # 0.75 by default
    }
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    )
    try:
        output, _ = process.communicate(timeout=max(1, seconds))
        ended = f"failed with exit code {process.returncode}; its message is above"
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        ended = "time is up"
    lines = output.splitlines()
    return json.loads(lines[-1]) if lines else {"skipped": ended}


def sizes_of(options: argparse.Namespace) -> dict[str, Size]:
    batch = {"batch": options.batch} if options.batch else {}
    return {name: SIZES[name]._replace(**batch) for name in options.size}


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The machine, and a row for each size and side."""
    end = time.monotonic() + 60 * options.minutes
    by = next(name for name in BACKENDS if importlib.util.find_spec(name))
    here, rows = in_a_process("machine", 60, "--side", by), []
    for name, size in sizes_of(options).items():
        for side in options.sides:
            missing = [x for x in SIDES[side] if not importlib.util.find_spec(x)]
            row: dict[str, Any] = {"size": name, "side": side}
            rows.append(row)
            if missing:
                row["skipped"] = f"{' and '.join(missing)} not installed"
            elif side == "torch" and size.instances > 1:
                row["skipped"] = "has no rows of several instances"
            else:
                row |= in_a_process("steps", end - time.monotonic(), "--size", name, "--side", side)
            if row.get("device", here["device"]) != here["device"]:
                row["skipped"] = f"computes on the {row['device']}"
            elif "seconds" in row:
                seconds = statistics.median(row["seconds"])
                row["sequences/s"] = size.batch * size.instances / seconds
                row["share of peak"] = here["flops"][name] / seconds / here["peak"]
    timed = [row for row in rows if "sequences/s" in row]
    for number, row in enumerate(timed if here["device"] == "GPU" or options.most else ()):
        share = (end - time.monotonic()) / (len(timed) - number)
        row |= in_a_process("batch", share, "--size", row["size"], "--side", row["side"])
        row.pop("skipped", None)  # no time for it
    return here, rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, and below it what was left out."""
    lines = [
        "| | | ms a step | sequences/s | share of peak | MB | largest batch |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "sequences/s" in row:
            lines.append(
                f"| {row['size']} | {row['side']} | {1e3 * statistics.median(row['seconds']):.1f} "
                f"| {row['sequences/s']:,.0f} | {row['share of peak']:.0%} "
                f"| {row['bytes'] / 1e6:,.0f} | {largest(row)} |"
            )
    lines += [
        f"left out: {row['side']} at {row['size']}: {row['skipped']}"
        for row in rows
        if "skipped" in row
    ]
    return "\n".join(lines)


def largest(row: dict[str, Any]) -> str:
    """The largest batch that fits, with the smallest that does not."""
    if "largest batch" not in row:
        return ""
    return f"{row['largest batch']}, not {row['too large'] or 'known'}"


def main() -> None:
    """Measures and prints."""
    parser = turns.parser(__doc__)
    sizes = ["base-128", "base-512", "base-packed", "large-128"]
    parser.add_argument("--size", nargs="+", choices=SIZES, default=sizes)
    parser.add_argument("--batch", type=int, help="rows; by default 128 of 128, 32 of 512")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", default="mixed_bfloat16", help="Keras dtype policy")
    parser.add_argument("--minutes", type=float, default=30, help="time for everything")
    parser.add_argument("--most", type=int, help="largest batch to try; needed without a GPU")
    parser.add_argument("--work", choices=("machine", "steps", "batch"), help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work == "machine":
        print(json.dumps(machine(sizes_of(options), options.precision)))
        return
    if options.work:
        ((_, size),) = sizes_of(options).items()
        if options.work == "steps":
            print(json.dumps(time_steps(options.side, size, options)))
        else:
            bisect(options.side, size, options)
        return
    here, rows = measure(options)
    turns.write({"machine": here, "rows": rows}, options.output)
    print(f"{here['name']}, large products {here['peak'] / 1e12:.2f} TFLOP/s, {options.precision}")
    print(table(rows))


if __name__ == "__main__":
    main()

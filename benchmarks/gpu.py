r"""Pre-training steps of BERT-base on a GPU: TensorFlow, JAX and PyTorch.

    python benchmarks/gpu.py [--peers peer/bin/python] [--output gpu.json]

The step of benchmarks/training_step.py in bfloat16, at lengths 128 and 512 and on rows of 512 that
hold four instances of 128. Each side is a process of its own on the same shapes, one after the
other. A side whose library is missing or sees no GPU is reported and skipped.

- tensorflow, tensorflow_xla: bert-tf, as `bert-tf pretrain` trains on GPUs, without and with
  --jit_compile.
- jax: bert-tf's layers on Keras' JAX backend (pip install "jax[cuda13]") with Keras' AdamW.
- jax_flash: the same with attention in one fused kernel, which drops no attention probabilities.
- hugging_face: `BertForPreTraining` with scaled-dot-product attention and fused AdamW, in the
  Python that --peers names (pip install torch transformers). It
  computes the vocabulary's scores at every token, and has no rows of several instances.

Sequences are instances. The share of the peak is that of useful operations: the matrix products of
each instance alone, in proportion to what large products reach here (`bert-tf pretrain` logs the
same). Memory is the most that the side's arrays took on the GPU; without one, of the process.

References, BERT-large in 16 bits: NVIDIA's TensorFlow on one A100, 486 sequences/s at 128 and 97 at
512, 37% and 32% of its peak; MLPerf, 8 H100, 7,531 packed sequences/s at 512.
"""

import argparse
import functools
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

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from training_step import (  # benchmarks/training_step.py
    CLIP_NORM,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Size,
    batch_of,
    hugging_face,
    ours,
)

SIZES = {
    "tiny": Size(1, 64, 2, 500, 4, 32, 5),
    "tiny-packed": Size(1, 64, 2, 500, 4, 32, 8, instances=2),
    "base-128": Size(12, 768, 12, 30522, 128, 128, 20),
    "base-512": Size(12, 768, 12, 30522, 32, 512, 77),
    "base-packed": Size(12, 768, 12, 30522, 32, 512, 80, instances=4),
}
# What a side needs beside bert-tf.
SIDES = {
    "tensorflow": ("tensorflow",),
    "tensorflow_xla": ("tensorflow",),
    "jax": ("jax",),
    "jax_flash": ("jax",),
    "hugging_face": ("torch", "transformers"),
}
WARM_UP = 3  # steps that trace, compile and fill the memory


def on_jax(size: Size, precision: str, *, flash: bool) -> Callable[[], Any]:
    """bert-tf's layers in a training step of JAX."""
    import jax
    import keras

    from bert_tf import BertPreTrainer
    from bert_tf.networks.kernels import FusedAttention

    keras.config.set_dtype_policy(precision)
    model = BertPreTrainer(size.config(**{"attention_probs_dropout_prob": 0.0} if flash else {}))
    if flash:
        model.encoder.kernels = FusedAttention
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.PolynomialDecay(LEARNING_RATE, 10_000, 0.0),
        weight_decay=WEIGHT_DECAY, global_clipnorm=CLIP_NORM,
    )  # fmt: skip
    optimizer.build(model.trainable_variables)
    inputs, labels, _ = jax.tree.map(jax.numpy.asarray, batch_of(size))
    parts = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state = [[variable.value for variable in part] for part in parts]

    def loss(trainable: Any, others: Any, inputs: Any, labels: Any) -> Any:
        outputs, others = model.stateless_call(trainable, others, inputs, training=True)
        entropies = [
            keras.ops.sparse_categorical_crossentropy(labels[name], logits, from_logits=True)
            for name, logits in outputs.items()
        ]
        return sum(keras.ops.mean(each) for each in entropies), others

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, inputs: Any, labels: Any) -> Any:
        trainable, others, moments = state
        differentiate = jax.value_and_grad(loss, has_aux=True)
        (value, others), gradients = differentiate(trainable, others, inputs, labels)
        trainable, moments = optimizer.stateless_apply(moments, gradients, trainable)
        return [trainable, others, moments], value

    def step() -> float:
        nonlocal state
        state, value = update(state, inputs, labels)
        return float(value)

    return step


def device_and_memory(side: str) -> tuple[str, float]:
    """The kind of device that a side computes on, and the most bytes it held there."""
    memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if side == "hugging_face":
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
    return "CPU", memory


def work(options: argparse.Namespace) -> dict[str, Any]:
    """What a side measures: seconds of each step, device and bytes; or why it cannot."""
    missing = [name for name in SIDES[options.side] if not importlib.util.find_spec(name)]
    if missing:
        return {"skipped": f"{' and '.join(missing)} not installed"}
    size = SIZES[options.size[0]]
    if options.side == "hugging_face" and size.instances > 1:
        return {"skipped": "has no rows of several instances"}
    if options.batch:
        size = size._replace(batch=options.batch)
    if options.side.startswith("tensorflow"):
        step = ours("xla" if options.side.endswith("xla") else "layers", size, options.precision)
    elif options.side.startswith("jax"):
        step = on_jax(size, options.precision, flash=options.side == "jax_flash")
    else:
        step = hugging_face("", size, options.precision)
    seconds = []
    for _ in range(WARM_UP + options.steps):
        begun = time.perf_counter()
        step()  # returns when its loss is known
        seconds.append(time.perf_counter() - begun)
    device, memory = device_and_memory(options.side)
    return {"seconds": seconds[WARM_UP:], "device": device, "bytes": memory}


def machine(precision: str) -> dict[str, Any]:
    """The device, and the FLOP/s that its large matrix products reach."""
    import tensorflow as tf

    from bert_tf.training.device_speed import product_rates

    gpus = tf.config.list_physical_devices("GPU")
    name = tf.config.experimental.get_device_details(gpus[0])["device_name"] if gpus else "CPU"
    dtype = precision.removeprefix("mixed_")
    peak = product_rates([dtype], seconds=1.0)[dtype]
    return {"name": name, "device": "GPU" if gpus else "CPU", "peak": peak}


def in_a_process(python: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON that this script writes as its last line, run with more arguments."""
    done = subprocess.run(
        [python, *sys.argv, *arguments], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        return {"skipped": f"failed with exit code {done.returncode}; its message is above"}
    return json.loads(done.stdout.splitlines()[-1])


def measure(options: argparse.Namespace, here: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each size and side."""
    rows = []
    for name in options.size:
        size = SIZES[name]
        size = size._replace(batch=options.batch or size.batch)
        for side in options.sides:
            python = options.peers if side == "hugging_face" else sys.executable
            backend = {"KERAS_BACKEND": "jax"} if side.startswith("jax") else {}
            found = in_a_process(python, "--size", name, "--side", side, **backend)
            if found.get("device", here["device"]) != here["device"]:
                found = {"skipped": f"computes on the {found['device']}"}
            if "seconds" in found:
                seconds = statistics.median(found["seconds"])
                found |= {
                    "sequences/s": size.batch * size.instances / seconds,
                    "share of peak": size.flops / seconds / here["peak"],
                }
            rows.append({"size": name, "side": side, **found})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, and below it what was left out."""
    lines = ["| | | ms a step | sequences/s | share of peak | MB |", "|---|---|---|---|---|---|"]
    for row in rows:
        if "seconds" in row:
            lines.append(
                f"| {row['size']} | {row['side']} | {1e3 * statistics.median(row['seconds']):.1f} "
                f"| {row['sequences/s']:,.0f} | {row['share of peak']:.0%} "
                f"| {row['bytes'] / 1e6:,.0f} |"
            )
    lines += [f"left out: {row['side']} at {row['size']}: {row['skipped']}"
              for row in rows if "skipped" in row]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs="+", choices=SIZES,
                        default=["base-128", "base-512", "base-packed"])  # fmt: skip
    parser.add_argument(
        "--batch", type=int, help="rows of a batch; by default 128 of 128, 32 of 512"
    )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", default="mixed_bfloat16", help="Keras dtype policy")
    parser.add_argument(
        "--peers", default=sys.executable, help="Python with torch and transformers"
    )
    parser.add_argument("--output", help="JSON file of the results")
    parser.add_argument("--side", choices=("machine", *SIDES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        found = machine(options.precision) if options.side == "machine" else work(options)
        print(json.dumps(found))
        return
    here = in_a_process(sys.executable, "--side", "machine")
    rows = measure(options, here)
    if options.output:
        Path(options.output).write_text(json.dumps({"machine": here, "rows": rows}, indent=1))
    print(f"{here['name']}, large products {here['peak'] / 1e12:.2f} TFLOP/s, {options.precision}")
    print(table(rows))


if __name__ == "__main__":
    main()

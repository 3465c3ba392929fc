"""Time of a pre-training step on a CPU, with `bert-tf pretrain`'s allocator settings and glibc's.

    python benchmarks/training_step.py --size tiny --pairs 3

The peer is the same step under the allocator's defaults: freed memory returns to the system and is
allocated again, page by page, in the next step. Each run is a separate process, the two run in
turns, and the median step times are printed.
"""

import argparse
import os
import statistics
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

VOCABULARY = 8192


def step_seconds(size: str, batch_size: int, length: int, steps: int) -> float:
    """Median step time of `BertPreTrainer` on a fixed batch, without dropout, in seconds."""
    import time

    import keras
    import numpy as np

    from bert_tf.config import BertConfig
    from bert_tf.models.pretrainer import BertPreTrainer
    from bert_tf.training.optimizer import AdamWeightDecay

    config = BertConfig.named(
        size, vocab_size=VOCABULARY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = BertPreTrainer(config, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        AdamWeightDecay(1e-4), {"mlm_logits": loss, "nsp_logits": loss}, jit_compile=False
    )
    draw = np.random.default_rng(0)
    predictions = round(0.15 * length)
    inputs = {
        "token_ids": draw.integers(0, VOCABULARY, (batch_size, length)),
        "segment_ids": draw.integers(0, 2, (batch_size, length)),
        "padding_mask": np.ones((batch_size, length), int),
        "mask_positions": draw.integers(0, length, (batch_size, predictions)),
    }
    labels = {
        "mlm_logits": draw.integers(0, VOCABULARY, (batch_size, predictions)),
        "nsp_logits": draw.integers(0, 2, batch_size),
    }
    seconds = []
    for _ in range(steps + 3):
        start = time.perf_counter()
        model.train_on_batch(inputs, labels)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[3:])  # the first ones trace the graph


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="tiny", help="model size, by name")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64, help="tokens per example")
    parser.add_argument("--steps", type=int, default=30, help="steps per run")
    parser.add_argument("--pairs", type=int, default=3, help="runs per setting")
    parser.add_argument("--allocator", choices=("ours", "default"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = (options.size, options.batch_size, options.length, options.steps)
    if options.allocator:
        if options.allocator == "ours":
            from bert_tf.startup import keep_freed_memory

            keep_freed_memory()
        print(step_seconds(*shape))
        return
    medians: dict[str, list[float]] = {"ours": [], "default": []}
    for _ in range(options.pairs):
        for allocator, found in medians.items():
            command = [sys.executable, *sys.argv, "--allocator", allocator]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.append(float(done.stdout))
    print(f"{options.size}, batch {options.batch_size} x {options.length}, {os.cpu_count()} cores")
    for allocator, found in medians.items():
        times = ", ".join(f"{seconds * 1000:.0f}" for seconds in found)
        print(f"{allocator:8} {statistics.median(found) * 1000:6.0f} ms a step  (runs: {times})")
    ratios = [a / b for a, b in zip(medians["default"], medians["ours"], strict=True)]
    print(f"default / ours: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()

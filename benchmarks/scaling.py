"""How the cost of a training step grows with length, layers, width, batch, cores and more.

    python benchmarks/scaling.py [--plot docs/scaling.svg] [--output scaling.json]

From one small model on, each quantity in turn takes several values. All but padding: the step of
`bert-tf pretrain` (benchmarks/training_step.py). Padding: the step of a classifier, as in
`bert-tf finetune`, on rows of 128 tokens of which a share is padding. Each point is a process of
its own; the figures are medians over the steps, by the clock, or in processor seconds with
--processor, which is more reliable on a shared machine.

The last column compares the growth of the cost with that of the work: the matrix products' FLOPs
for the model's shape, the number of tokens for padding, 1 / cores for cores, whose processor time
should not grow. Above 1, the cost grows faster than the work.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import turns  # benchmarks/turns.py
from training_step import Size, ours  # benchmarks/training_step.py

START = Size(layers=2, width=256, heads=4, vocabulary=8192, batch=16, length=128, predictions=20)
POINTS: dict[str, list[float]] = {
    "length": [64, 128, 256, 512],
    "layers": [1, 2, 4, 8],
    "width": [128, 256, 512],
    "batch": [4, 8, 16, 32, 64],
    "vocabulary": [2048, 8192, 30522],
    "cores": [1, 2, 4, 8],
    "padding": [0, 0.25, 0.5, 0.75],
}


def size_at(quantity: str, value: float) -> Size:
    """The shapes of a point."""
    changed: dict[str, int] = {} if quantity in ("cores", "padding") else {quantity: int(value)}
    if quantity == "length":
        changed["predictions"] = round(0.15 * value)
    if quantity == "width":
        changed["heads"] = int(value) // 64
    return START._replace(**changed)


def work_at(quantity: str, value: float, processor: bool) -> float:
    """What the cost, by the clock or in processor time, should be proportional to."""
    if quantity == "cores":
        return 1 if processor else 1 / value
    if quantity == "padding":
        return 1 - value
    return size_at(quantity, value).flops


def classifier(share: float, precision: str) -> Callable[[], Any]:
    """A fine-tuning step on rows of which a share is padding."""
    import keras
    import tensorflow as tf

    from bert_tf import AdamWeightDecay, BertClassifier
    from bert_tf.networks.tensorflow.losses import cross_entropy
    from bert_tf.startup import keep_freed_memory, share_cores
    from bert_tf.training.strategy import without_autotuning
    from bert_tf.training.trainer import Trainer

    keep_freed_memory()
    share_cores()
    keras.config.set_dtype_policy(precision)
    model = BertClassifier(START.config(), labels=["no", "yes"], seed=0)
    trainer = Trainer(model, AdamWeightDecay(1e-4), loss=cross_entropy)
    draw = np.random.default_rng(0)
    shape = (START.batch, START.length)
    mask = np.arange(START.length) < round((1 - share) * START.length)
    inputs = {
        "token_ids": draw.integers(0, START.vocabulary, shape) * mask,
        "segment_ids": np.zeros(shape, int),
        "padding_mask": np.broadcast_to(mask, shape),
    }
    inputs = {name: values.astype(np.int32) for name, values in inputs.items()}
    batch = (inputs, draw.integers(0, 2, START.batch).astype(np.int32))
    # Of lengths that are not known when the step is traced, as in fine-tuning.
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec([None] * x.ndim, x.dtype), batch)
    batches = tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=spec)
    steps = iter(without_autotuning(batches.cache().repeat()))
    return lambda: float(trainer.train(steps)["loss"])


def measure(quantity: str, value: float, options: argparse.Namespace) -> float:
    """Seconds of a step; runs in a process of its own."""
    if quantity == "cores":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(value)])
    if quantity == "padding":
        step = classifier(value, options.precision)
    else:
        step = ours("ours", size_at(quantity, value), options.precision)
    clock = time.process_time if options.processor else time.perf_counter
    found = []
    for _ in range(options.steps + 3):
        begun = clock()
        step()
        found.append(clock() - begun)
    return statistics.median(found[3:])  # the first ones trace and compile


def plot(seconds: dict[str, dict[float, float]], file: str, processor: bool) -> None:
    """A panel for each quantity: the cost, and what it would be in proportion to the work."""
    from matplotlib.figure import Figure
    from pictures import save_svg  # benchmarks/pictures.py

    figure = Figure(figsize=(12, 6), layout="constrained")
    panels = figure.subplots(2, 4).flat
    for (quantity, of_value), axes in zip(seconds.items(), panels, strict=False):
        values, first = list(of_value), next(iter(of_value))
        works = [work_at(quantity, each, processor) for each in values]
        proportional = [of_value[first] * work / works[0] for work in works]
        axes.plot(values, [1e3 * each for each in of_value.values()], "o-", label="a step")
        axes.plot(values, [1e3 * each for each in proportional], ":", label="as the work grows")
        axes.set(xlabel=quantity, xticks=values, ylim=(0, None))
        axes.set_ylabel("processor ms" if processor else "ms")
        axes.legend()
    for axes in panels:
        axes.axis("off")
    save_svg(figure, file)


def main() -> None:
    parser = turns.parser(__doc__)
    parser.add_argument("--precision", default="float32", help="Keras dtype policy")
    parser.add_argument("--steps", type=int, default=10, help="steps of a point")
    parser.add_argument("--processor", action="store_true", help="processor seconds")
    parser.add_argument("--quantities", nargs="+", choices=POINTS, default=list(POINTS))
    parser.add_argument("--plot", metavar="SVG", help="picture file of the curves")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        quantity, value = options.point
        print(measure(quantity, float(value), options))
        return
    seconds: dict[str, dict[float, float]] = {}
    print("| | value | ms a step | growth / growth of the work |\n|---|---|---|---|")
    for quantity in options.quantities:
        for value in POINTS[quantity]:
            if quantity == "cores" and value > len(os.sched_getaffinity(0)):
                continue
            command = [sys.executable, *sys.argv, "--point", quantity, str(value)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            of_value = seconds.setdefault(quantity, {})
            of_value[value] = float(done.stdout.split()[-1])
            first = next(iter(of_value))
            work = work_at(quantity, value, options.processor)
            work /= work_at(quantity, first, options.processor)
            grown = of_value[value] / of_value[first] / work
            print(f"| {quantity} | {value:g} | {1e3 * of_value[value]:.1f} | {grown:.2f} |")
    turns.write(seconds, options.output)
    if options.plot:
        plot(seconds, options.plot, options.processor)


if __name__ == "__main__":
    main()

"""Reading pre-training shards: speed, and time to the first batch.

    python benchmarks/reading.py --runs 5
    python benchmarks/reading.py --devices 8

The peer is the plain tf.data recipe of TensorFlow's BERT pipelines (the original's `input_fn`, and
Model Garden's pre-training loader): files in random order, interleaved, a shuffle buffer, records
parsed one by one, batched, with autotuning. It reads the masked form with a buffer as large as our
window. The benchmark makes shards of both forms, alternates the runs and prints medians.

With --devices, measures instead how many sequences a second one process delivers to so many
devices, here logical ones of the processor, without training: batches of 32 rows for each, as
`bert-tf pretrain` reads them under a MirroredStrategy. The last column is the number of cores that
feed 8 H100, which train BERT-large on 7,531 sequences/s (MLPerf, packed rows of 512).
"""

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances.schemas import masked_features
from bert_tf.pipelines.shards import pretraining_batches as batches_module
from bert_tf.pipelines.shards.manifest import BLOCK_RECORDS, Manifest
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.pipelines.shards.run import write_shards
from bert_tf.startup import keep_freed_memory
from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary
from bert_tf.training.strategy import distribute_batches

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "data" / "corpus" / "books"
LENGTH = 128
OPEN_FILES = 8
ROWS_PER_DEVICE = 32
H100S = 7531  # sequences/s of 8 H100


def records_by_recipe(folder: Path, buffer: int, seed: int) -> tf.data.Dataset:
    """Endless stream of records by the recipe."""
    files = [str(folder / shard.file) for shard in Manifest.load(folder).shards["train"]]
    dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed).repeat()
    dataset = dataset.interleave(
        tf.data.TFRecordDataset, cycle_length=OPEN_FILES, num_parallel_calls=tf.data.AUTOTUNE
    )
    return dataset.shuffle(buffer, seed)


def batches_by_recipe(
    folder: Path, batch_size: int, buffer: int, parse_batches: bool = False
) -> tf.data.Dataset:
    """Batches of the masked form by the recipe; `parse_batches` is its usual improvement."""
    options = Manifest.load(folder).options
    features = masked_features(LENGTH, options["max_predictions_per_seq"])

    def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
        read = tf.io.parse_example if parse_batches else tf.io.parse_single_example
        return {
            name: tf.cast(values, tf.int32) if values.dtype == tf.int64 else values
            for name, values in read(record, features).items()
        }

    dataset = records_by_recipe(folder, buffer, seed=1)
    if parse_batches:
        dataset = dataset.batch(batch_size, drop_remainder=True).map(parse, tf.data.AUTOTUNE)
    else:
        dataset = dataset.map(parse, tf.data.AUTOTUNE).batch(batch_size, drop_remainder=True)
    return dataset.prefetch(tf.data.AUTOTUNE)


def first_batch_seconds(make: Callable[[], tf.data.Dataset]) -> float:
    """Seconds from the creation of the dataset to its first batch."""
    start = time.perf_counter()
    next(iter(make()))
    return time.perf_counter() - start


def rate(make: Callable[[], tf.data.Dataset], batch_size: int, sequences: int) -> float:
    """Sequences per second, from the first batch on."""
    batches = iter(make())
    next(batches)
    start = time.perf_counter()
    for _ in range(sequences // batch_size):
        next(batches)
    return sequences // batch_size * batch_size / (time.perf_counter() - start)


def take_turns(
    contestants: dict[str, Callable[[], float]], runs: int
) -> dict[str, tuple[float, float, float]]:
    """Median, minimum and maximum of what each returns."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(runs):
        for name, run in contestants.items():
            found[name].append(run())
    return {name: (statistics.median(f), min(f), max(f)) for name, f in found.items()}


class Delivery(NamedTuple):
    """Sequences that devices were given."""

    per_second: float
    per_processor_second: float


def delivery(folder: Path, strategy: tf.distribute.Strategy, sequences: int) -> Delivery:
    """Delivers `sequences` instances, and as many first, to a strategy's devices."""
    size = ROWS_PER_DEVICE * strategy.num_replicas_in_sync
    stream = distribute_batches(
        lambda size, *_: pretraining_batches(folder, size, seed=1), strategy, size
    )
    batches = iter(strategy.experimental_distribute_dataset(stream))

    def read() -> int:
        found = 0
        while found < sequences:
            *_, weights = next(batches)
            for of_device in strategy.experimental_local_results(weights["nsp_logits"]):
                found += np.count_nonzero(of_device)
        return found

    read()
    clock, processor = time.perf_counter(), time.process_time()
    found = read()
    return Delivery(
        found / (time.perf_counter() - clock), found / (time.process_time() - processor)
    )


def report_devices(
    corpus: list[Path], tokenizer: BertTokenizer, arguments: argparse.Namespace
) -> None:
    """Prints the sequences a second that devices are given."""
    devices = [f"CPU:{number}" for number in range(arguments.devices)]
    strategy = tf.distribute.MirroredStrategy(devices)
    forms: dict[str, dict[str, Any]] = {
        "128": {"max_seq_length": 128},
        "512": {"max_seq_length": 512},
        "512, lengths 2 to 512": {"max_seq_length": 512, "short_seq_prob": 1.0},
        "512, lengths 2 to 512, packed": {
            "max_seq_length": 512,
            "short_seq_prob": 1.0,
            "instances_per_row": 8,
        },
    }
    makers = {}
    with tempfile.TemporaryDirectory() as temporary:
        for form, options in forms.items():
            for masking in ("static", "dynamic"):
                folder = Path(temporary) / f"{form} {masking}"
                write_shards(
                    corpus,
                    folder,
                    tokenizer,
                    PretrainingDataOptions(masking=masking, corpus_format="text", **options),
                )
                makers[f"{form}, {masking}"] = functools.partial(
                    delivery, folder, strategy, arguments.sequences
                )
        found: dict[str, list[Delivery]] = {name: [] for name in makers}
        for _ in range(arguments.runs):
            for name, make in makers.items():
                found[name].append(make())
    print(
        f"\n| {len(devices)} devices, {os.cpu_count()} cores | sequences/s | per processor second "
        f"| cores for {H100S:,}/s |\n|---|---|---|---|"
    )
    for name, of_name in found.items():
        clock, processor = np.median(of_name, axis=0)
        print(f"| {name} | {clock:,.0f} | {processor:,.0f} | {H100S / processor:.2f} |")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, default=CORPUS, help="folder of .txt and .txt.gz files"
    )
    parser.add_argument("--vocab", type=Path, help="vocab.txt; by default learned from the text")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=300_000, help="sequences per run")
    parser.add_argument("--late-epochs", type=int, default=2, help="epochs before the late start")
    parser.add_argument("--devices", type=int, help="measure the delivery to so many devices")
    arguments = parser.parse_args()

    keep_freed_memory()
    if arguments.devices:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * arguments.devices,
        )
    corpus = sorted(arguments.corpus.glob("*.txt*"))
    if not corpus:
        parser.error(f"no .txt files in {arguments.corpus}: name a folder of text by --corpus")
    lines = tf.data.TextLineDataset(
        [str(path) for path in corpus],
        compression_type="GZIP" if corpus[0].suffix == ".gz" else None,
    )
    tokenizer = BertTokenizer(
        arguments.vocab or learn_vocabulary(count_words(lines.batch(4096)), 30_522)
    )
    if arguments.devices:
        report_devices(corpus, tokenizer, arguments)
        return
    with tempfile.TemporaryDirectory() as temporary:
        static, dynamic = Path(temporary) / "static", Path(temporary) / "dynamic"
        for folder in (static, dynamic):
            options = PretrainingDataOptions(masking=folder.name, corpus_format="text")
            write_shards(corpus, folder, tokenizer, options)
        instances = Manifest.load(static).instances()
        print(f"{instances:,} sequences of {LENGTH}, {os.cpu_count()} cores")
        for folder in (static, dynamic):
            size = sum(shard.bytes for shard in Manifest.load(folder).shards["train"])
            print(f"{folder.name:8} {size / 1e6:8.1f} MB, {size / instances:.0f} bytes a record")
        report_rates(static, dynamic, arguments.runs, arguments.sequences)
        report_first_batches(static, dynamic, arguments.runs, arguments.late_epochs * instances)


def report_rates(static: Path, dynamic: Path, runs: int, sequences: int) -> None:
    """Sequences per second of every method."""
    buffer = batches_module.WINDOW_BLOCKS * BLOCK_RECORDS
    for batch_size in (256, 32):
        ways: dict[str, Callable[[], tf.data.Dataset]] = {
            "ours, dynamic": lambda b=batch_size: pretraining_batches(dynamic, b),
            "ours, static": lambda b=batch_size: pretraining_batches(static, b),
            "recipe, static": lambda b=batch_size: batches_by_recipe(static, b, buffer),
            "recipe, static, parsed in batches": lambda b=batch_size: batches_by_recipe(
                static, b, buffer, parse_batches=True
            ),
        }
        measured = take_turns(
            {
                name: lambda make=make, b=batch_size: rate(make, b, sequences)
                for name, make in ways.items()
            },
            runs,
        )
        print(f"\nsequences a second, batches of {batch_size}, median of {runs}")
        recipe = measured["recipe, static"][0]
        for name, (median, least, most) in measured.items():
            print(
                f"{name:34} {median:9,.0f}  ({least:,.0f} to {most:,.0f})  "
                f"{median / recipe:.2f} of the recipe's"
            )


def report_first_batches(static: Path, dynamic: Path, runs: int, late: int) -> None:
    """Time to the first batch of a new run and of a run continued late."""
    buffer = batches_module.WINDOW_BLOCKS * BLOCK_RECORDS
    for step in (0, late // 32):
        measured = take_turns(
            {
                "ours, dynamic": lambda s=step: first_batch_seconds(
                    lambda: pretraining_batches(dynamic, 32, start_step=s)
                ),
                "ours, static": lambda s=step: first_batch_seconds(
                    lambda: pretraining_batches(static, 32, start_step=s)
                ),
                "recipe, static": lambda s=step: first_batch_seconds(
                    lambda: batches_by_recipe(static, 32, buffer).skip(s)
                ),
            },
            runs,
        )
        print(f"\nseconds to the first batch of 32 from step {step:,}, median of {runs}")
        for name, (median, least, most) in measured.items():
            print(f"{name:34} {median:9.2f}  ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main()

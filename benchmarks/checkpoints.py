"""Cost of saving the training state, compared with Keras' BackupAndRestore.

    python benchmarks/checkpoints.py --size tiny --saves 5

One process trains on a fixed batch and saves after every few steps, with each of the two in turn.
For each: how long a save blocks the training thread; how long it takes until the file is on disk,
the most that training can lose; and that as a share of the training time at `--save_every 1000`,
the default of the commands. BackupAndRestore does all of it in the training
thread, and keeps one file without a checksum.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from training_step import Size, batch_of  # benchmarks/training_step.py

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

VOCABULARY = 30522
SAVE_EVERY = 1000


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="tiny", help="model size, by name")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=128, help="tokens per example")
    parser.add_argument("--saves", type=int, default=5, help="saves per method")
    parser.add_argument("--between", type=int, default=3, help="steps between saves")
    options = parser.parse_args()

    from bert_tf.startup import keep_freed_memory

    keep_freed_memory()
    import keras

    from bert_tf.config import BertConfig
    from bert_tf.models.language_model import BertPreTrainer
    from bert_tf.training.optimizer import AdamWeightDecay
    from bert_tf.training.resuming import TrainingState
    from bert_tf.training.trainer import Trainer

    model = BertPreTrainer(BertConfig.named(options.size, vocab_size=VOCABULARY), seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        AdamWeightDecay(1e-4), {"mlm_logits": loss, "nsp_logits": loss}, jit_compile=False
    )
    model.optimizer.build(model.trainable_variables)
    predictions = round(0.15 * options.length)
    shape = Size(0, 0, 0, VOCABULARY, options.batch_size, options.length, predictions)
    inputs, labels, _ = batch_of(shape)

    def step() -> float:
        began = time.perf_counter()
        model.train_on_batch(inputs, labels)
        return time.perf_counter() - began

    for _ in range(3):  # the first ones trace the graph
        step()

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, model.optimizer, loss={})
        state = TrainingState(trainer, Path(folder) / "ours", settings={})
        state.save()

        backup = keras.callbacks.BackupAndRestore(str(Path(folder) / "peer"), save_freq=1)
        backup.set_model(model)
        backup.on_epoch_begin(0)
        held: dict[str, list[float]] = {"TrainingState": [], "BackupAndRestore": []}
        written: dict[str, list[float]] = {"TrainingState": [], "BackupAndRestore": []}
        steps = []
        for _ in range(options.saves):
            steps += [step() for _ in range(options.between)]
            state.step += 1
            began = time.perf_counter()
            state.save(wait=False)
            held["TrainingState"].append(time.perf_counter() - began)
            state.wait()
            written["TrainingState"].append(time.perf_counter() - began)
            steps += [step() for _ in range(options.between)]
            began = time.perf_counter()
            backup.on_train_batch_end(0)
            held["BackupAndRestore"].append(time.perf_counter() - began)
            written["BackupAndRestore"].append(held["BackupAndRestore"][-1])
        size = max(path.stat().st_size for path in state.directory.iterdir())
    print(
        f"{options.size}, batch {options.batch_size} x {options.length}, {os.cpu_count()} cores, "
        f"{size / 1e6:.0f} MB a checkpoint, {options.saves} saves each"
    )
    seconds = statistics.median(steps)
    print(f"a step takes {seconds * 1000:.0f} ms")
    for name, times in held.items():
        until_written = statistics.median(written[name])
        print(
            f"{name:16} holds the training {statistics.median(times) * 1000:5.0f} ms (largest "
            f"{max(times) * 1000:.0f}), on disk after {until_written * 1000:5.0f} ms: "
            f"{until_written / (SAVE_EVERY * seconds):.3%} of the time at most, "
            f"{statistics.median(times) / (SAVE_EVERY * seconds):.3%} held"
        )


if __name__ == "__main__":
    main()

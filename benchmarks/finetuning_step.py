r"""Speed of fine-tuning steps beside Hugging Face's: same weights and examples, in turns.

    python benchmarks/finetuning_step.py --model MODEL --data glue/MRPC \
      --hugging-face peer/bin/python

Three sides take turns, a few steps each: bert-tf, with tokenization in the step and batches of
examples of like length; Hugging Face's model in a plain PyTorch loop (float32, fused AdamW) on
random batches of tokenized examples padded to the longest of the batch, as its Trainer makes them;
and the same on our batches. Reported are medians over the turns, by the clock and in processor
seconds; on a machine that others use only the latter can be compared. Hugging Face may live in any
environment (pip install torch transformers), named by --hugging-face or BERT_TF_HUGGING_FACE.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Keeps PyTorch's waiting threads from spinning while another side has its turn.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM, SEED = 5e-5, 0.01, 1.0, 1
SIDES = {
    "here": "bert-tf",
    "chance": "Hugging Face, random batches",
    "same": "Hugging Face, our batches",
}


def read_data(options: argparse.Namespace) -> Any:
    """The training examples."""
    from bert_tf.tasks.finetuning_data import FinetuningData
    from bert_tf.tasks.table import find_task

    return FinetuningData.read(
        find_task(options.task), options.model, options.data, validation=None,
        validation_share=0.1, seed=SEED, class_weights=False,
    )  # fmt: skip


def prepare(options: argparse.Namespace) -> None:
    """Writes the batches that Hugging Face gets: ours, and random ones."""
    from pipelines.examples.batches import example_batches

    data = read_data(options)
    kind, length, size = data.task.kind, data.task.max_length, options.batch_size
    chance = example_batches(
        data.columns,
        lambda strings, arrays: kind.batch(strings, arrays, data.tokenizer, length),
        size,
        targets=data.arrays,
        seed=SEED,
    )
    for side, batches in (("same", data.batches(size, seed=SEED)), ("chance", chance)):
        kept = {}
        for i, (inputs, labels) in enumerate(batches.take(count(options)).as_numpy_iterator()):
            kept |= {f"{i}/{name}": values for name, values in inputs.items()}
            kept[f"{i}/labels"] = labels
        np.savez(Path(options.work) / f"{side}.npz", **kept)


def count(options: argparse.Namespace) -> int:
    """Batches that a side needs, the first turn included, which counts for nothing."""
    return (options.turns + 1) * options.steps


def steps_here(options: argparse.Namespace) -> Callable[[int], None]:
    """The training step of `bert-tf finetune`."""
    import keras

    from bert_tf.checkpoints.model_directory import load_model
    from bert_tf.fused.training import fuse
    from bert_tf.startup import keep_freed_memory
    from bert_tf.training.optimizer import AdamWeightDecay
    from bert_tf.training.trainer import Trainer

    keep_freed_memory()
    keras.config.set_dtype_policy(options.precision)
    data = read_data(options)
    kind = data.task.kind
    model = load_model(
        options.model, kind.model_class, allow_new_head=True, seed=SEED, **kind.head(data.labels)
    )
    fuse(model)
    optimizer = AdamWeightDecay(LEARNING_RATE, weight_decay_rate=WEIGHT_DECAY, clip_norm=CLIP_NORM)
    trainer = Trainer(model, optimizer, loss=kind.loss(), metrics=kind.metrics)
    trainer.make_train_function()
    batches = iter(data.batches(options.batch_size, seed=SEED))

    def step(number: int) -> None:
        float(trainer.train_function(batches)["loss"])

    return step


def steps_there(options: argparse.Namespace) -> Callable[[int], None]:
    """Hugging Face's training step; runs in its Python."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with np.load(Path(options.work) / f"{options.part}.npz") as kept:
        arrays = {name: torch.from_numpy(values).long() for name, values in kept.items()}
    labels = 1 + max(int(v.max()) for name, v in arrays.items() if name.endswith("labels"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=labels
    ).train()
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if "LayerNorm" in name or "bias" in name else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=LEARNING_RATE,
        fused=True,  # the default of Hugging Face's Trainer
    )

    def step(number: int) -> None:
        loss = model(
            input_ids=arrays[f"{number}/token_ids"],
            token_type_ids=arrays[f"{number}/segment_ids"],
            attention_mask=arrays[f"{number}/padding_mask"],
            labels=arrays[f"{number}/labels"],
        ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def take_turns(options: argparse.Namespace) -> None:
    """One side: runs some steps for each line on standard input, and writes what they took."""
    step = (steps_here if options.part == "here" else steps_there)(options)
    number = 0
    for _ in sys.stdin:
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(options.steps):
            step(number)
            number += 1
        spent = time.perf_counter() - wall, time.process_time() - processor
        print(json.dumps(spent), flush=True)


def compare(options: argparse.Namespace) -> None:
    """Lets the sides take turns, and prints the medians and the ratios."""
    processes = {
        side: subprocess.Popen(
            [sys.executable if side == "here" else options.hugging_face, *sys.argv,
             "--part", side, "--work", options.work],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for side in SIDES
    }  # fmt: skip
    examples = options.steps * options.batch_size
    rates: dict[str, list[tuple[float, ...]]] = {side: [] for side in SIDES}
    for turn in range(options.turns + 1):
        for side, process in processes.items():
            assert process.stdin and process.stdout
            print("go", file=process.stdin, flush=True)
            seconds = json.loads(process.stdout.readline())
            if turn:  # the first one traces the graph
                rates[side].append(tuple(examples / each for each in seconds))
    for process in processes.values():
        assert process.stdin
        process.stdin.close()
        process.wait()
    print(
        f"{options.task}, batches of {options.batch_size}, bert-tf in {options.precision}: "
        f"{options.turns} turns of {options.steps} steps"
    )
    for side, name in SIDES.items():
        here, there = (np.array(rates[s]) for s in ("here", side))
        wall, processor = np.median(here / there, axis=0)
        per_second = statistics.median(rate for rate, _ in rates[side])
        per_processor = statistics.median(rate for _, rate in rates[side])
        print(
            f"{name:28} {per_second:6.1f} examples/s, {per_processor:6.1f} per processor second; "
            f"bert-tf / it: {wall:.2f}, {processor:.2f}"
        )


def main() -> None:
    """Prepares the batches and compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="model directory to start from")
    parser.add_argument("--task", default="mrpc", help="a task of classification")
    parser.add_argument("--data", required=True, help="training data")
    parser.add_argument("--precision", default="float32", help="compute precision of bert-tf")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    parser.add_argument("--turns", type=int, default=7, help="turns of each side")
    parser.add_argument("--hugging-face", help="Python with torch and transformers")
    parser.add_argument("--part", choices=("prepare", *SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        (prepare if options.part == "prepare" else take_turns)(options)
        return
    from learning_curves import hugging_face_python

    options.hugging_face = hugging_face_python(options.hugging_face)
    with tempfile.TemporaryDirectory() as options.work:
        parts = [*sys.argv, "--part", "prepare", "--work", options.work]
        subprocess.run([sys.executable, *parts], check=True)
        compare(options)


if __name__ == "__main__":
    main()

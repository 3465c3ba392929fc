r"""Speed of fine-tuning steps beside Hugging Face's: same weights and examples, in turns.

    python benchmarks/finetuning_step.py --model MODEL --data glue/MRPC [--peers peer/bin/python]

Four sides take turns, a few steps each: the step of `bert-tf finetune`, with tokenization in it and
batches of examples of similar length; `BertClassifier.fit` on the same texts, in the same batches;
Hugging Face's model in a plain PyTorch loop (fused AdamW, bfloat16 by torch.autocast) on random
batches of tokenized examples padded to the longest of the batch, as its Trainer makes them; and the
same on our batches. With --lora-rank all train adapters, the pooler and the head; Hugging Face's
are PEFT's. Reported are medians over the turns, by the clock and in processor time; on a shared
machine only the latter can be compared. `--sides here fit` needs no PyTorch.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import turns  # benchmarks/turns.py
from peers import add_option, peer_python  # benchmarks/peers.py
from training_step import CLIP_NORM, WEIGHT_DECAY, adamw  # benchmarks/training_step.py

LEARNING_RATE = 5e-5
SEED = 0  # that of `fit`: all sides get the same batches, but one
SIDES = {
    "here": "bert-tf",
    "fit": "bert-tf, fit",
    "chance": "Hugging Face, random batches",
    "same": "Hugging Face, our batches",
}


def read_data(options: argparse.Namespace) -> Any:
    """The training examples."""
    from bert_tf.commands.finetune import Options as FinetuningOptions
    from bert_tf.commands.finetuning_data import FinetuningData
    from bert_tf.tasks.task_table import find_task

    settings = FinetuningOptions(model=options.model, data=options.data, output="run", seed=SEED)
    return FinetuningData.read(find_task(options.task), settings)


def prepare(options: argparse.Namespace) -> None:
    """Writes the batches that Hugging Face gets: ours, and random ones."""
    from bert_tf.pipelines.examples.batches import example_batches

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
        arrays = {}
        for i, (inputs, labels) in enumerate(batches.take(count(options)).as_numpy_iterator()):
            arrays |= {f"{i}/{name}": values for name, values in inputs.items()}
            arrays[f"{i}/labels"] = labels
        np.savez(Path(options.work) / f"{side}.npz", **arrays)


def count(options: argparse.Namespace) -> int:
    """Batches that a side needs, the first turn included, which counts for nothing."""
    return (options.turns + 1) * options.steps


def steps_here(options: argparse.Namespace) -> Callable[[int], Any]:
    """The training step of `bert-tf finetune`."""
    import keras

    from bert_tf.models.loading import class_of_kind, load_model
    from bert_tf.startup import keep_freed_memory, share_cores
    from bert_tf.training.optimizer import AdamWeightDecay
    from bert_tf.training.trainer import Trainer

    keep_freed_memory()
    share_cores()
    keras.config.set_dtype_policy(options.precision)
    data = read_data(options)
    kind = data.task.kind
    head = kind.head(data.labels)
    cls = class_of_kind(kind)
    model = load_model(options.model, cls, allow_new_head=True, seed=SEED, **head)
    if options.lora_rank:
        model.encoder.add_adapters(options.lora_rank)
    optimizer = AdamWeightDecay(LEARNING_RATE, weight_decay_rate=WEIGHT_DECAY, clip_norm=CLIP_NORM)
    trainer = Trainer(model, optimizer, loss=kind.losses.loss, metrics=kind.losses.metrics)
    batches = iter(data.batches(options.batch_size, seed=SEED))

    return lambda number: float(trainer.train(batches)["loss"])


def fit_here(options: argparse.Namespace) -> Callable[[list[Any]], Any]:
    """What a script does: `fit` on lists of strings."""
    import bert_tf

    data = read_data(options)
    model = bert_tf.BertClassifier.from_preset(
        options.model, task=options.task, labels=data.labels, seed=SEED, dtype=options.precision
    )
    if options.lora_rank:
        model.encoder.add_adapters(options.lora_rank)
    (numbers,) = data.arrays
    epochs = 1 + count(options) * options.batch_size // len(numbers)
    return lambda callbacks: model.fit(
        dict(data.columns), numbers, options.batch_size, epochs, callbacks=callbacks, verbose=0
    )


def steps_there(options: argparse.Namespace) -> Callable[[int], Any]:
    """Hugging Face's training step; runs in its Python."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with np.load(Path(options.work) / f"{options.part}.npz") as file:
        arrays = {name: torch.from_numpy(values).long() for name, values in file.items()}
    labels = 1 + max(int(v.max()) for name, v in arrays.items() if name.endswith("labels"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=labels
    ).train()
    if options.lora_rank:
        import peft

        model = peft.get_peft_model(
            model,
            peft.LoraConfig(
                r=options.lora_rank,
                target_modules=["query", "value"],
                modules_to_save=["pooler", "classifier"],
            ),
        )
    optimizer = adamw(model, LEARNING_RATE)

    def step(number: int) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.peer_precision != "float32"):
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


def answer(options: argparse.Namespace) -> None:
    """One side: some steps, on the next batches, for each line."""
    if options.part == "fit":
        turns.answer_in_fit(fit_here(options), options.steps)
        return
    step = (steps_here if options.part == "here" else steps_there)(options)
    numbers = itertools.count()
    turns.answer(lambda _: turns.timed(lambda: step(next(numbers)), options.steps))


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Times of the sides in turns."""
    from bert_tf.config import BertConfig
    from bert_tf.models.cost import classification_flops

    here = {"here", "fit"}
    peer = peer_python(options.peers) if set(options.sides) - here else ""
    commands = {
        SIDES[side]: [
            sys.executable if side in here else peer,
            *sys.argv,
            "--part",
            side,
            "--work",
            options.work,
        ]
        for side in options.sides
    }
    times = turns.take_turns(commands, options.turns)
    config = BertConfig.from_json(Path(options.model) / "config.json")
    with np.load(Path(options.work) / "same.npz") as batches:
        lengths = [batches[f"{i}/padding_mask"].sum(1) for i in range(count(options))]
    flops = sum(
        classification_flops(config, length=float(length), classes=2)
        for length in np.concatenate(lengths)
    ) / len(lengths)
    precisions = [
        options.precision if side in here else options.peer_precision for side in options.sides
    ]
    types = [precision.removeprefix("mixed_") for precision in precisions]
    return turns.summary(
        {side: of_side[:, 0] for side, of_side in times.items()},
        options.batch_size,
        "examples",
        {side: (flops, dtype) for side, dtype in zip(times, types, strict=True)},
    )


def main() -> None:
    """Prepares the batches and compares."""
    parser = turns.parser(__doc__, 7)
    parser.add_argument("--model", required=True, help="model directory to start from")
    parser.add_argument("--task", default="mrpc", help="a task of classification")
    parser.add_argument("--data", required=True, help="training data")
    parser.add_argument("--precision", default="float32", help="compute precision of bert-tf")
    parser.add_argument("--peer-precision", default="float32", help="that of the peer")
    parser.add_argument(
        "--lora-rank", type=int, help="train adapters of this rank, the peer PEFT's"
    )
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=SIDES,
        default=list(SIDES),
        help="the first is what the others are compared with",
    )
    add_option(parser)
    parser.add_argument("--part", choices=("prepare", *SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        (prepare if options.part == "prepare" else answer)(options)
        return
    with tempfile.TemporaryDirectory() as options.work:
        parts = [*sys.argv, "--part", "prepare", "--work", options.work]
        subprocess.run([sys.executable, *parts], check=True)
        rows = measure(options)
    work = f"fine-tuning, {options.task}, {options.precision.removeprefix('mixed_')}"
    turns.write({work: rows}, options.output)
    print(f"{work}, batches of {options.batch_size}\n")
    print(turns.table(rows))


if __name__ == "__main__":
    main()

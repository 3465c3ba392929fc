r"""Sentence vectors trained here and with sentence-transformers: same weights, data, recipe, seeds.

    python benchmarks/sentence_vectors.py --model MODEL --sts glue/STS --text wiki.txt.gz \
      --peers peer/bin/python --results runs/vectors.jsonl

Three tasks, one epoch each from MODEL:

- `sts`: 4,000 scored pairs, CoSENT, batches of 32; Spearman's correlation on dev.tsv.
- `simcse`: 4,000 sentences of --text, two dropouts, batches of 64; the same correlation.
- `next`: 4,000 sentences and those behind them, in-batch negatives in both directions, batches of
  64; how often the right one of held-out documents' is among the ten nearest (recall at 10).

A text file has a sentence a line and empty lines between documents; the last fifth of its documents
is held out. Both sides: AdamW, 10% warm-up, linear decay, weight decay 0.01, clip norm 1, 64 tokens
at most, float32; the last model is scored, by the same functions on its vectors, and MODEL before.
Results are kept as in finetuning_scores.py: the same command goes on after the last run.
"""

import argparse
import gzip
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from finetuning_scores import (  # benchmarks/finetuning_scores.py
    EPSILON,
    LEARNING_RATE,
    WARMUP_SHARE,
    WEIGHT_DECAY,
    Stopwatch,
    resumed,
    timed_steps,
)
from peers import add_option, peer_python  # benchmarks/peers.py

MAX_LENGTH, SCALE, HELD_OUT, EXAMPLES = 64, 20.0, 5, 4000
TASKS = {"sts": ("cosent", 32), "simcse": ("simcse", 64), "next": ("infonce", 64)}  # loss, batch
SIDES = {"here": "bert-tf", "there": "sentence-transformers"}


def read_sts(path: Path) -> dict[str, list[Any]]:
    """The pairs of a file of STS-B, with their scores, evenly spaced."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = rows[:: max(1, len(rows) // EXAMPLES)][:EXAMPLES]
    scores, first, second = zip(*(row[:3] for row in rows), strict=True)
    return {"text": [*first], "text_pair": [*second], "label": [float(score) for score in scores]}


def read_data(options: argparse.Namespace, task: str) -> dict[str, dict[str, list[Any]]]:
    """Columns of a task's training and validation examples."""
    sts = {name: read_sts(Path(options.sts) / f"{name}.tsv") for name in ("train", "dev")}
    if task == "sts":
        return sts
    opened = gzip.open if options.text.endswith(".gz") else open
    with opened(options.text, "rt", encoding="utf-8") as file:
        documents = [block.splitlines() for block in file.read().split("\n\n")]
    cut = len(documents) - len(documents) // HELD_OUT
    if task == "simcse":
        texts = sorted({line for document in documents for line in document})
        return {"train": {"text": texts[:: len(texts) // EXAMPLES][:EXAMPLES]}, "dev": sts["dev"]}

    def pairs(documents: list[list[str]]) -> dict[str, list[Any]]:
        rows = [two for each in documents for two in zip(each[::2], each[1::2], strict=False)]
        rows = rows[:EXAMPLES]
        return {"text": [a for a, _ in rows], "text_pair": [b for _, b in rows]}

    return {"train": pairs(documents[:cut]), "dev": pairs(documents[cut:])}


def score(dev: dict[str, list[Any]], vectors: dict[str, np.ndarray]) -> float:
    """Spearman's correlation of cosines with scores, or recall at 10, of normalized vectors."""
    first, second = vectors["text"], vectors["text_pair"]
    if "label" in dev:
        from scipy.stats import spearmanr

        return float(spearmanr((first * second).sum(1), dev["label"]).statistic)
    cosines = first @ second.T  # [N, N]
    better = (cosines > np.diag(cosines)[:, None]).sum(1)
    return float((better < 10).mean())


def vectors_of(embed: Any, dev: dict[str, list[Any]]) -> dict[str, np.ndarray]:
    """Normalized vectors [N, W] of both columns."""
    found = {name: np.asarray(embed(dev[name]), np.float32) for name in ("text", "text_pair")}
    return {name: v / np.linalg.norm(v, axis=1, keepdims=True) for name, v in found.items()}


def run_here(
    options: argparse.Namespace, task: str, seed: int, data: dict[str, Any], work: Path
) -> dict[str, Any]:
    """Trains with bert-tf."""
    from bert_tf import BertSentenceEncoder
    from bert_tf.commands.finetune import Options as FinetuningOptions
    from bert_tf.commands.finetuning_run import run_finetuning
    from bert_tf.startup import keep_freed_memory

    keep_freed_memory()

    def scored(model: str | Path) -> float:
        model = BertSentenceEncoder.from_preset(model)
        answers = vectors_of(lambda x: [row["vector"] for row in model.embed(x)], data["dev"])
        return score(data["dev"], answers)

    loss, batch_size = TASKS[task]
    for name, columns in data.items():
        rows = zip(*columns.values(), strict=True)
        lines = [
            "\t".join(columns),
            *("\t".join(str(c).replace('"', "'") for c in r) for r in rows),
        ]
        (work / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    watch, spent = timed_steps()
    run_finetuning(
        FinetuningOptions(
            model=options.model,
            output=str(work / "run"),
            task="embedding",
            embedding_loss=loss,
            train=str(work / "train.tsv"),
            validation=str(work / "dev.tsv"),
            seed=seed,
            batch_size=batch_size,
            epochs=1,
            max_length=MAX_LENGTH,
            scale=SCALE,
            # As in finetuning_scores.py: the original counts the decay from step 0.
            learning_rate=LEARNING_RATE / (1 - WARMUP_SHARE),
            warmup_share=WARMUP_SHARE,
            weight_decay=WEIGHT_DECAY,
            epsilon=EPSILON,
            bias_correction=True,
            evaluate_every=10**9,
            precision="float32",
        ),
        watch,
    )
    return {
        "before": scored(options.model),
        "score": scored(work / "run" / "best"),
        **spent(),
    }


def run_there(
    options: argparse.Namespace, task: str, seed: int, data: dict[str, Any], work: Path
) -> dict[str, Any]:
    """Trains with sentence-transformers; runs in the peers' Python."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )

    loss, batch_size = TASKS[task]
    torch.manual_seed(seed)
    model = SentenceTransformer(options.model, device="cpu")
    model.max_seq_length = MAX_LENGTH
    rows = dict(data["train"])
    if task == "simcse":  # the same text twice, under two dropouts
        rows["text_pair"] = rows["text"]
    chosen = (
        losses.CoSENTLoss(model, scale=SCALE)
        if loss == "cosent"
        else losses.MultipleNegativesRankingLoss(
            model,
            scale=SCALE,
            directions=("query_to_doc", "doc_to_query"),
            partition_mode="per_direction",
        )
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(work / "run"),
            per_device_train_batch_size=batch_size,
            num_train_epochs=1,
            learning_rate=LEARNING_RATE,
            warmup_steps=WARMUP_SHARE,
            weight_decay=WEIGHT_DECAY,
            adam_epsilon=EPSILON,
            seed=seed,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            batch_sampler="no_duplicates" if task == "next" else "batch_sampler",
        ),
        train_dataset=Dataset.from_dict(rows),
        loss=chosen,
    )
    watch = Stopwatch()
    trainer.train()
    spent = watch.read()
    return {
        "score": score(data["dev"], vectors_of(model.encode, data["dev"])),
        "steps": trainer.state.global_step,
        **spent,
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Mean and deviation of each task's score on both sides, and their processor times."""
    lines = [
        "| task | before | bert-tf | sentence-transformers | seeds | CPU seconds | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(run["task"] for run in runs):
        sides = [[r for r in runs if (r["task"], r["side"]) == (task, side)] for side in SIDES]
        cells = [f"{sides[0][0]['before']:.4f}" if sides[0] else ""]
        for side in sides:
            values = [run["score"] for run in side]
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.fmean(values):.4f} ± {deviation:.4f}" if values else "")
        times = [statistics.fmean(run["cpu_seconds"] for run in side) for side in sides if side]
        ratio = f"{times[1] / times[0]:.2f}" if all(sides) else ""
        seeds, spent = (
            ", ".join(str(len(side)) for side in sides),
            ", ".join(map("{:.0f}".format, times)),
        )
        lines.append(f"| {task} | {' | '.join([*cells, seeds, spent, ratio])} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is not in the results yet, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="model directory to start from")
    parser.add_argument("--sts", required=True, help="folder with STS-B's train.tsv and dev.tsv")
    parser.add_argument("--text", required=True, help="a sentence a line, documents apart")
    parser.add_argument("--task", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add_option(parser)
    parser.add_argument("--results", default="runs/sentence_vectors/results.jsonl")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        side, task, seed, work = options.part
        run = run_here if side == "here" else run_there
        result = run(options, task, int(seed), read_data(options, task), Path(work))
        (Path(work) / "result.json").write_text(json.dumps(result))
        return
    pythons = {"here": sys.executable, "there": peer_python(options.peers)}
    results = Path(options.results)
    keys = (
        {"task": task, "side": side, "seed": seed, "model": options.model}
        for task in options.task
        for seed in options.seeds
        for side in pythons
    )

    def run_one(key: dict[str, Any]) -> dict[str, Any]:
        task, side, seed = key["task"], key["side"], str(key["seed"])
        work = results.parent / f"{task}-{side}-{seed}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        command = [pythons[side], *sys.argv, "--part", side, task, seed, str(work)]
        subprocess.run(command, check=True)
        result = json.loads((work / "result.json").read_text())
        shutil.rmtree(work)
        return result

    print(table(resumed(results, keys, run_one)))


if __name__ == "__main__":
    main()

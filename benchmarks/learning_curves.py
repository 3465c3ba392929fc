"""Losses of the same pre-training here and in Hugging Face, step by step.

    python benchmarks/learning_curves.py --hugging-face its/bin/python
    python benchmarks/learning_curves.py --corpus text/ --corpus-format text

One small model starts from the same weights on both sides and sees the same batches in the same
order, the masks drawn once for both, without dropout. Here it is `bert-tf pretrain` that trains;
there the original's optimizer (optimization.py) is written out in PyTorch. By default the text
is the documentation inside this Python installation. Hugging Face may live in any environment
(pip install torch transformers), named by --hugging-face or BERT_TF_HUGGING_FACE.

Writes learning-curves.tsv and learning-curves.svg into --output, and fails if a logged loss
differs by 1% or more.
"""

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Keeps PyTorch's waiting threads from spinning: other programs may need the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

VOCABULARY = 8192
LENGTH = 128
LARGEST_DIFFERENCE = 0.01
CLIP_NORM, WEIGHT_DECAY, BETA_1, BETA_2, EPSILON = 1.0, 0.01, 0.9, 0.999, 1e-6


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then linear decay, both counted from step 0, as in the original."""
    if step < options.warmup_steps:
        return options.learning_rate * step / options.warmup_steps
    return options.learning_rate * (1 - step / options.steps)


def make_shards(options: argparse.Namespace, work: Path) -> Path:
    """Makes vocabulary and shards with the commands."""
    from bert_tf.cli.main import main as bert_tf

    corpus, corpus_format = options.corpus, options.corpus_format
    if not corpus:
        from pipelines.corpus.installed_documentation import installed_documentation
        from pipelines.examples.passages import LabelledDocument, write_corpus

        modules = installed_documentation()
        documents = (LabelledDocument(m.package, m.docstrings) for m in modules)
        write_corpus(work / "corpus.txt", documents)
        corpus, corpus_format = [str(work / "corpus.txt")], "sentences"
    common = ["--corpus", *corpus, "--corpus_format", corpus_format]
    for command in (
        ["vocab", *common, "--size", str(VOCABULARY), "--output", str(work / "vocab")],
        ["shards", *common, "--tokenizer", str(work / "vocab"), "--output", str(work / "shards"),
         "--max_seq_length", str(LENGTH), "--dupe_factor", "1"],
    ):  # fmt: skip
        if not Path(command[command.index("--output") + 1]).exists() and bert_tf(command):
            raise SystemExit(f"bert-tf {command[0]} failed")
    return work / "shards"


def prepare(options: argparse.Namespace, work: Path) -> None:
    """Writes the initial weights and the batches of every step."""
    from bert_tf import BertConfig, BertTokenizer
    from bert_tf.checkpoints.model_directory import save_model
    from bert_tf.models.pretrainer import BertPreTrainer
    from pipelines.shards.pretraining_batches import pretraining_batches

    shards = make_shards(options, work)
    tokenizer = BertTokenizer.from_directory(work / "vocab")
    config = BertConfig.named(
        "mini",  # 4 layers, 256 wide, 4 heads
        vocab_size=tokenizer.vocabulary_size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=options.initializer_range,
    )
    save_model(BertPreTrainer(config, seed=options.seed), work / "start", tokenizer)
    kept: dict[str, list[np.ndarray]] = {}
    batches = pretraining_batches(shards, options.batch_size, seed=options.seed)
    for inputs, labels, weights in batches.take(options.steps).as_numpy_iterator():
        batch = {
            **inputs,
            "mlm_labels": labels["mlm_logits"],
            "mlm_weights": weights["mlm_logits"],
            "nsp_labels": labels["nsp_logits"],
        }
        for name, values in batch.items():
            kept.setdefault(name, []).append(values)
    np.savez(work / "batches.npz", **{name: np.stack(values) for name, values in kept.items()})


def train_here(options: argparse.Namespace, work: Path) -> None:
    """Trains with `bert-tf pretrain`; writes the loss of every step, before its update."""
    from bert_tf.cli.main import main as bert_tf

    output = work / "run"
    shutil.rmtree(output, ignore_errors=True)
    command = [
        "pretrain", "--shards", str(work / "shards"), "--model", str(work / "start"),
        "--output", str(output), "--dropout", "0", "--seed", str(options.seed),
        "--batch_size", str(options.batch_size), "--steps", str(options.steps),
        "--learning_rate", str(options.learning_rate),
        "--warmup_steps", str(options.warmup_steps), "--clip_norm", str(CLIP_NORM),
        "--weight_decay", str(WEIGHT_DECAY), "--log_every", "1",
        "--evaluate_every", str(options.steps),
    ]  # fmt: skip
    if bert_tf(command):
        raise SystemExit("bert-tf pretrain failed")
    lines = [json.loads(line) for line in (output / "logs/scalars.jsonl").open(encoding="utf-8")]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    rates = [line["examples_per_second"] for line in lines if "examples_per_second" in line]
    write(losses, options.batch_size / statistics.median(rates), work / "here.json")


def train_there(options: argparse.Namespace, work: Path) -> None:
    """Trains Hugging Face's BertForPreTraining likewise; runs in its environment."""
    import torch
    from transformers import BertForPreTraining

    torch.set_num_threads(os.cpu_count() or 1)
    model = BertForPreTraining.from_pretrained(work / "start").train()
    parameters = dict(model.named_parameters())  # the decoder is the word embedding table
    means = {name: torch.zeros_like(p) for name, p in parameters.items()}
    squares = {name: torch.zeros_like(p) for name, p in parameters.items()}
    batches = {name: torch.from_numpy(v) for name, v in np.load(work / "batches.npz").items()}

    def step(number: int) -> float:
        batch = {name: values[number].long() for name, values in batches.items()}
        labels = torch.full_like(batch["token_ids"], -100)  # no label
        rows, slots = torch.nonzero(batch["mlm_weights"], as_tuple=True)
        labels[rows, batch["mask_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
        loss = model(
            input_ids=batch["token_ids"],
            token_type_ids=batch["segment_ids"],
            attention_mask=batch["padding_mask"],
            labels=labels,
            next_sentence_label=batch["nsp_labels"],
        ).loss
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters.values()))
            rate = learning_rate(number, options)
            for name, parameter in parameters.items():
                gradient = parameter.grad * (CLIP_NORM / torch.clamp(norm, min=CLIP_NORM))
                means[name] = BETA_1 * means[name] + (1 - BETA_1) * gradient
                squares[name] = BETA_2 * squares[name] + (1 - BETA_2) * gradient**2
                update = means[name] / (torch.sqrt(squares[name]) + EPSILON)
                if "LayerNorm" not in name and "bias" not in name:
                    update += WEIGHT_DECAY * parameter
                parameter -= rate * update
        return loss.item()

    losses, seconds = [], []
    for number in range(options.steps):
        started = time.perf_counter()
        losses.append(float(step(number)))
        seconds.append(time.perf_counter() - started)
        if number % 100 == 99:
            print(f"  step {number + 1}: loss {losses[-1]:.4f}", flush=True)
    write(losses, statistics.median(seconds), work / "there.json")


def write(losses: list[float], seconds: float, path: Path) -> None:
    """Writes the losses of all steps and the median step time."""
    path.write_text(json.dumps({"losses": losses, "seconds": seconds}))


def plot(steps: list[int], curves: dict[str, list[float]], title: str) -> str:
    """Draws two curves over steps as SVG, one solid and one dashed."""
    width, height, left, top, right, bottom = 720, 400, 60, 40, 20, 50
    low, high = (
        bound(value for curve in curves.values() for value in curve) for bound in (min, max)
    )
    low, high = np.floor(low * 2) / 2, np.ceil(high * 2) / 2

    def x(step: float) -> float:
        return left + (width - left - right) * step / steps[-1]

    def y(loss: float) -> float:
        return top + (height - top - bottom) * (high - loss) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="24" font-size="15">{title}</text>',
        f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">step'
        "</text>",
        f'<text x="16" y="{(top + height - bottom) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(top + height - bottom) / 2})">loss</text>',
    ]
    for loss in np.arange(low, high + 0.01, 0.5):
        parts.append(
            f'<path d="M{left} {y(loss):.1f}H{width - right}" stroke="#ddd"/>'
            f'<text x="{left - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.1f}</text>'
        )
    for step in np.linspace(0, steps[-1], 6):
        parts.append(
            f'<text x="{x(step):.1f}" y="{height - bottom + 18}" text-anchor="middle">'
            f"{step:.0f}</text>"
        )
    styles = (('stroke="#1f77b4" stroke-width="4" stroke-opacity="0.5"', 1),
              ('stroke="#d62728" stroke-width="1.5" stroke-dasharray="5 4"', 2))  # fmt: skip
    for (name, curve), (style, line) in zip(curves.items(), styles, strict=True):
        points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in zip(steps, curve, strict=True))
        at = top + 20 * line
        parts.append(f'<polyline points="{points}" fill="none" {style}/>')
        parts.append(f'<path d="M{width - 210} {at - 4}h40" fill="none" {style}/>')
        parts.append(f'<text x="{width - 160}" y="{at}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def compare(options: argparse.Namespace, work: Path) -> float:
    """Writes table and plot; returns the largest relative difference of a logged loss."""
    here, there = (json.loads((work / f"{side}.json").read_text()) for side in ("here", "there"))
    logged = [0, *range(9, options.steps, 10)]  # the first step, then every tenth
    rows = [(n + 1, here["losses"][n], there["losses"][n]) for n in logged]
    differences = [abs(ours / theirs - 1) for _, ours, theirs in rows]
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    lines = ["step\tbert-tf\tHugging Face\trelative difference"]
    for (step, ours, theirs), difference in zip(rows, differences, strict=True):
        lines.append(f"{step}\t{ours:.6f}\t{theirs:.6f}\t{difference:.1e}")
    (output / "learning-curves.tsv").write_text("\n".join(lines) + "\n")
    curves = {"bert-tf": [row[1] for row in rows], "Hugging Face": [row[2] for row in rows]}
    svg = plot([row[0] for row in rows], curves, "Pre-training loss, masked words + next sentence")
    (output / "learning-curves.svg").write_text(svg)
    worst = max(range(len(rows)), key=differences.__getitem__)
    for step, ours, theirs in rows[:: max(1, len(rows) // 10)]:
        print(f"step {step:4}: bert-tf {ours:.4f}  Hugging Face {theirs:.4f}")
    print(
        f"largest relative difference of {len(rows)} logged losses: {differences[worst]:.1e}, "
        f"at step {rows[worst][0]}\n"
        f"median step: bert-tf {here['seconds']:.2f} s, Hugging Face {there['seconds']:.2f} s"
    )
    return differences[worst]


def hugging_face_python(given: str | None) -> str:
    """Finds a Python with PyTorch and transformers."""
    here = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    found = given or os.environ.get("BERT_TF_HUGGING_FACE") or (sys.executable if here else None)
    if found is None:
        raise SystemExit(
            "Hugging Face is not installed here: python -m venv peer && peer/bin/pip install "
            "torch transformers, and give --hugging-face peer/bin/python"
        )
    return found


def main() -> None:
    """Prepares the data, trains on both sides and compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", nargs="*", help="text files, folders or globs")
    parser.add_argument(
        "--corpus-format", default="sentences", help="format of the corpus, as in bert-tf vocab"
    )
    parser.add_argument("--work", default="runs/learning_curves", help="folder for data and models")
    parser.add_argument("--output", default="docs", help="folder for table and plot")
    parser.add_argument("--hugging-face", help="Python with torch and transformers")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--initializer-range", type=float, default=0.06)
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=("prepare", "here", "there"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = Path(options.work)
    if options.part:
        {"prepare": prepare, "here": train_here, "there": train_there}[options.part](options, work)
        return
    peer = hugging_face_python(options.hugging_face)
    work.mkdir(parents=True, exist_ok=True)
    for part, python in (("prepare", sys.executable), ("here", sys.executable), ("there", peer)):
        print(f"{part}:", flush=True)
        subprocess.run([python, *sys.argv, "--part", part], check=True)
    if compare(options, work) >= LARGEST_DIFFERENCE:
        raise SystemExit(f"a loss differs by {LARGEST_DIFFERENCE:.0%} or more")


if __name__ == "__main__":
    main()

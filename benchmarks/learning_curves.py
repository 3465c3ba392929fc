"""Losses of the same pre-training here and in Hugging Face, step by step.

    python benchmarks/learning_curves.py
    python benchmarks/learning_curves.py --corpus text/ --corpus-format text --threads 2 1

One small model starts from the same weights on both sides and sees the same batches in the same
order, with the same masks and without dropout. Our side is `bert-tf pretrain`; the other side has
the original's optimizer (optimization.py), written in PyTorch. By default the text
is the documentation inside this Python installation, and the run is long enough for the model to
guess 30% of the masked words. Hugging Face runs in the environment of `make peers`, or in the
Python that --hugging-face names (pip install torch transformers), once for each number of threads:
sums in another order drift apart over time, and its own runs show by how much.

The same command resumes stopped runs; --compare compares the steps that all runs have. Writes
learning-curves.tsv and learning-curves.svg into --output. Fails if a logged loss differs by 1% or
more, and by more than twice as much as between two runs of Hugging Face.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peers import peer_python  # benchmarks/peers.py

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Keeps PyTorch's waiting threads from spinning: other programs may need the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

VOCABULARY = 8192
LARGEST_DIFFERENCE = 0.01
SAVE_EVERY = 100
CLIP_NORM, WEIGHT_DECAY, BETA_1, BETA_2, EPSILON = 1.0, 0.01, 0.9, 0.999, 1e-6


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then linear decay, both counted from step 0, as in the original."""
    if step < options.warmup_steps:
        return options.learning_rate * step / options.warmup_steps
    return options.learning_rate * (1 - step / options.steps)


def make_shards(options: argparse.Namespace, work: Path) -> Path:
    """Makes vocabulary and shards with the commands."""
    from bert_tf.cli import main as bert_tf

    corpus, corpus_format = options.corpus, options.corpus_format
    if not corpus:
        from bert_tf.pipelines.corpus.installed_documentation import installed_documentation
        from bert_tf.pipelines.examples.passages import write_corpus

        write_corpus(work / "corpus.txt", installed_documentation())
        corpus, corpus_format = [str(work / "corpus.txt")], "sentences"
    common = ["--corpus", *corpus, "--corpus_format", corpus_format]
    for command in (
        ["vocab", *common, "--size", str(VOCABULARY), "--output", str(work / "vocab")],
        [
            "shards",
            *common,
            "--tokenizer",
            str(work / "vocab"),
            "--output",
            str(work / "shards"),
            "--max_seq_length",
            str(options.length),
            "--dupe_factor",
            "2",
            "--held_out_share",
            "0.02",
        ],
    ):
        if not Path(command[command.index("--output") + 1]).exists() and bert_tf(command):
            raise SystemExit(f"bert-tf {command[0]} failed")
    return work / "shards"


def prepare(options: argparse.Namespace, work: Path) -> None:
    """Writes the initial weights and the batches of every step."""
    from bert_tf import BertConfig, BertTokenizer
    from bert_tf.models.language_model import BertPreTrainer
    from bert_tf.models.saving import save_model
    from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches

    shards = make_shards(options, work)
    tokenizer = BertTokenizer.from_directory(work / "vocab")
    config = BertConfig.named(
        options.size,
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
    with (work / "batches.tmp").open("wb") as file:
        np.savez(file, **{name: np.stack(values) for name, values in kept.items()})
    (work / "batches.tmp").rename(work / "batches.npz")


def train_here(options: argparse.Namespace, work: Path) -> None:
    """Trains with `bert-tf pretrain`, which resumes by itself."""
    from bert_tf.cli import main as bert_tf

    command = [
        "pretrain",
        "--shards",
        str(work / "shards"),
        "--model",
        str(work / "start"),
        "--output",
        str(work / "run"),
        "--dropout",
        "0",
        "--seed",
        str(options.seed),
        "--batch_size",
        str(options.batch_size),
        "--steps",
        str(options.steps),
        "--learning_rate",
        str(options.learning_rate),
        "--warmup_steps",
        str(options.warmup_steps),
        "--clip_norm",
        str(CLIP_NORM),
        "--weight_decay",
        str(WEIGHT_DECAY),
        "--log_every",
        "1",
        "--save_every",
        str(SAVE_EVERY),
        "--evaluate_every",
        str(max(1, options.steps // 8)),
        "--evaluation_batches",
        "30",
    ]
    if bert_tf(command):
        raise SystemExit("bert-tf pretrain failed")


def train_there(options: argparse.Namespace, work: Path) -> None:
    """Trains Hugging Face's BertForPreTraining likewise; runs in its environment."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from torch.nn.functional import cross_entropy
    from transformers import BertForPreTraining

    (threads,) = options.threads
    torch.set_num_threads(threads)
    model = BertForPreTraining.from_pretrained(work / "start").train()
    parameters = dict(model.named_parameters())  # the decoder is the word embedding table
    means = {name: torch.zeros_like(p) for name, p in parameters.items()}
    squares = {name: torch.zeros_like(p) for name, p in parameters.items()}
    state = {
        f"{kind}/{name}": tensor
        for kind, tensors in (("value", parameters), ("mean", means), ("square", squares))
        for name, tensor in tensors.items()
    }
    batches = dict(np.load(work / "batches.npz"))

    def batch_of(number: int) -> dict[str, Any]:
        return {name: torch.from_numpy(v[number]).long() for name, v in batches.items()}

    def loss_and_accuracy(batch: dict[str, Any]) -> tuple[Any, float]:
        """The loss of `BertForPreTraining`, whose head here sees the masked positions alone."""
        states, pooled = model.bert(
            input_ids=batch["token_ids"],
            token_type_ids=batch["segment_ids"],
            attention_mask=batch["padding_mask"],
            return_dict=False,
        )[:2]
        rows, slots = torch.nonzero(batch["mlm_weights"], as_tuple=True)
        labels = batch["mlm_labels"][rows, slots]
        logits = model.cls.predictions(states[rows, batch["mask_positions"][rows, slots]])
        loss = cross_entropy(logits, labels)
        loss = loss + cross_entropy(model.cls.seq_relationship(pooled), batch["nsp_labels"])
        return loss, (logits.argmax(-1) == labels).float().mean().item()

    def check_loss() -> None:
        """Compares with the loss as Hugging Face computes it, over all positions."""
        batch = batch_of(0)
        labels = torch.full_like(batch["token_ids"], -100)  # no label
        rows, slots = torch.nonzero(batch["mlm_weights"], as_tuple=True)
        labels[rows, batch["mask_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
        with torch.no_grad():
            whole = model(
                input_ids=batch["token_ids"],
                token_type_ids=batch["segment_ids"],
                attention_mask=batch["padding_mask"],
                labels=labels,
                next_sentence_label=batch["nsp_labels"],
            ).loss
            torch.testing.assert_close(loss_and_accuracy(batch)[0], whole, rtol=1e-5, atol=0)

    def step(number: int) -> tuple[float, float]:
        loss, accuracy = loss_and_accuracy(batch_of(number))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            norm = torch.sqrt(sum((p.grad**2).sum() for p in parameters.values()))
            rate = learning_rate(number, options)
            for name, parameter in parameters.items():
                gradient = parameter.grad * (CLIP_NORM / torch.clamp(norm, min=CLIP_NORM))
                means[name].mul_(BETA_1).add_((1 - BETA_1) * gradient)
                squares[name].mul_(BETA_2).add_((1 - BETA_2) * gradient**2)
                update = means[name] / (torch.sqrt(squares[name]) + EPSILON)
                if "LayerNorm" not in name and "bias" not in name:
                    update += WEIGHT_DECAY * parameter
                parameter -= rate * update
        return loss.item(), accuracy

    check_loss()
    log, checkpoint = work / f"there-{threads}.json", work / f"there-{threads}.safetensors"
    done: dict[str, list[float]] = {"losses": [], "accuracies": [], "seconds": []}
    if checkpoint.exists():
        with safe_open(checkpoint, "pt") as saved, torch.no_grad():
            for name, tensor in state.items():
                tensor.copy_(saved.get_tensor(name))
            steps = int(saved.metadata()["steps"])
        done = {name: values[:steps] for name, values in json.loads(log.read_text()).items()}
    for number in range(len(done["losses"]), options.steps):
        started = time.perf_counter()
        for name, value in zip(done, step(number), strict=False):
            done[name].append(float(value))
        done["seconds"].append(time.perf_counter() - started)
        if (number + 1) % SAVE_EVERY == 0 or number + 1 == options.steps:
            print(f"  step {number + 1}: loss {done['losses'][-1]:.4f}", flush=True)
            write_whole(log, json.dumps(done))  # first: it may have more steps than the checkpoint
            temporary = checkpoint.with_suffix(".tmp")
            save_file(state, temporary, {"steps": str(number + 1)})
            temporary.rename(checkpoint)


def write_whole(path: Path, text: str) -> None:
    """Writes a file that a reader never sees half of."""
    path.with_suffix(".tmp").write_text(text)
    path.with_suffix(".tmp").rename(path)


def losses_here(options: argparse.Namespace, work: Path) -> dict[str, list[float]]:
    """Loss, accuracy and seconds of the steps that `train_here` has taken so far."""
    path = work / "run/logs/scalars.jsonl"
    lines = [json.loads(line) for line in path.open(encoding="utf-8")] if path.exists() else []
    train = [line for line in lines if line["kind"] == "train"]
    rates = [line["examples_per_second"] for line in train if "examples_per_second" in line]
    return {
        "losses": [line["loss"] for line in train],
        "accuracies": [line["mlm_accuracy"] for line in train],
        "seconds": [options.batch_size / rate for rate in rates],
        "held_out": [line["mlm_accuracy"] for line in lines if line["kind"] == "held_out"],
    }


def losses_there(work: Path, threads: int) -> dict[str, list[float]]:
    """The same of Hugging Face with so many threads."""
    path = work / f"there-{threads}.json"
    return json.loads(path.read_text()) if path.exists() else {"losses": []}


def draw(steps: Sequence[int], curves: dict[str, Any], differences: dict[str, Any], to: Path):
    """Draws every second of the losses, and below them the relative differences."""
    from matplotlib.figure import Figure
    from pictures import save_svg  # benchmarks/pictures.py

    figure = Figure(figsize=(8, 7), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for (name, losses), style in zip(curves.items(), ("-", "--", ":"), strict=False):
        width = 2.5 if style == "-" else 1.2
        above.plot(steps[::2], losses[::2], style, label=name, linewidth=width)
    for name, values in differences.items():
        shown = np.where(values > 0, values, np.nan)[::2]
        below.semilogy(steps[::2], shown, label=name, linewidth=1)
    above.set(title="Pre-training loss, masked words + next sentence", ylabel="loss")
    below.set(xlabel="step", ylabel="relative difference")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend()
    save_svg(figure, to)


def compare(options: argparse.Namespace, work: Path) -> None:
    """Writes table and plot of the steps that all runs have taken; see the module's docstring."""
    runs = {"bert-tf": losses_here(options, work)}
    runs |= {
        f"Hugging Face, {threads} thread{'s' * (threads > 1)}": run
        for threads in options.threads
        if (run := losses_there(work, threads))["losses"]
    }
    taken = min(len(run["losses"]) for run in runs.values())
    if not taken or len(runs) == 1:
        raise SystemExit("nothing to compare yet: run without --compare")
    logged = [0, *range(9, taken, 10)]  # the first step, then every tenth
    curves = {name: np.array(run["losses"])[logged] for name, run in runs.items()}
    ours, theirs, *others = curves
    pairs = [(ours, theirs), *((theirs, other) for other in others)]
    differences = {f"{a} / {b}": abs(curves[a] / curves[b] - 1) for a, b in pairs}
    steps = [n + 1 for n in logged]
    output = Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(["step", *curves, *differences])]
    for row, step in enumerate(steps):
        losses = [f"{curve[row]:.6f}" for curve in curves.values()]
        lines.append(
            "\t".join([str(step), *losses, *(f"{d[row]:.1e}" for d in differences.values())])
        )
    write_whole(output / "learning-curves.tsv", "\n".join(lines) + "\n")
    draw(steps, curves, differences, output / "learning-curves.svg")

    print(f"{taken} steps")
    for name, run in runs.items():
        accuracy = np.mean(run["accuracies"][max(0, taken - 100) : taken])
        print(
            f"{name}: last loss {run['losses'][taken - 1]:.4f}, masked words {accuracy:.1%} in the "
            f"last 100 steps, median step {statistics.median(run['seconds']):.2f} s"
        )
    held_out = runs[ours]["held_out"]
    print(f"held-out masked words, {ours}: {', '.join(f'{value:.1%}' for value in held_out)}")
    for name, values in differences.items():
        last = values[len(values) * 9 // 10 :]
        print(
            f"{name}: largest difference of {len(values)} logged losses {values.max():.1e}, at "
            f"step {steps[int(values.argmax())]}; median of the last tenth {np.median(last):.1e}"
        )
    with_us, *own = (values.max() for values in differences.values())
    if with_us >= max(LARGEST_DIFFERENCE, *(2 * value for value in own)):
        raise SystemExit(f"a loss differs by {with_us:.1%}")


def check_settings(options: argparse.Namespace, work: Path) -> None:
    """Refuses to go on in a folder with other settings."""
    others = ("work", "output", "hugging_face", "threads", "part", "compare")
    settings = {name: value for name, value in vars(options).items() if name not in others}
    path = work / "settings.json"
    if path.exists() and json.loads(path.read_text()) != settings:
        raise SystemExit(f"{path} has other settings: give those again, or another --work")
    work.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(settings))


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
    parser.add_argument(
        "--threads",
        nargs="+",
        type=int,
        default=[os.cpu_count() or 1],
        help="threads of PyTorch; a run of Hugging Face for each number",
    )
    parser.add_argument("--size", default="tiny", help="size of the model, as in bert-tf pretrain")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--initializer-range", type=float, default=0.06)
    parser.add_argument("--warmup-steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", action="store_true", help="train nothing, compare what is")
    parser.add_argument("--part", choices=("prepare", "here", "there"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = Path(options.work)
    if options.part:
        {"prepare": prepare, "here": train_here, "there": train_there}[options.part](options, work)
        return
    check_settings(options, work)
    if not options.compare:
        peer = peer_python(options.hugging_face)

        def run(part: str, python: str, *arguments: str) -> None:
            print(f"{' '.join([part, *arguments])}:", flush=True)
            if subprocess.run([python, *sys.argv, "--part", part, *arguments]).returncode:
                raise SystemExit(f"{part} failed: once mended, the same command goes on from there")

        if not (work / "batches.npz").exists():
            run("prepare", sys.executable)
        if len(losses_here(options, work)["losses"]) < options.steps:
            run("here", sys.executable)
        for threads in options.threads:
            if len(losses_there(work, threads)["losses"]) < options.steps:
                run("there", peer, "--threads", str(threads))
    compare(options, work)


if __name__ == "__main__":
    main()

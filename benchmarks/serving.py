r"""Time from strings to answers, in one process, of bert-tf and other inference engines.

    python benchmarks/serving.py [--turns 15] [--output serving.json] [--picture serving.svg]
    python benchmarks/serving.py --read serving.json --picture serving.svg

A classifier of BERT-base's size, with the same random weights for all engines
(benchmarks/engines.py), answers one text of 9 tokens, one of 119, and 32 of 15 to 137. Each side is
a process of its own with the same number of threads; they take turns. bert-tf is a SavedModel in a
session, as servers run it; "packed" is with TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1, and "twin" has the
export's twins beside it, chosen as `bert-tf serve` does. "REST" is the time of a client of
`bert-tf serve`, and its memory is the client's; these sides run if they are named. The peers' texts
are tokenized by `tokenizers`.

Reported are medians over the turns, by the clock. In brackets: the median ratio, within a turn, to
the fastest peer of the same type. "Apart": how far a probability is from bert-tf's in float32, at
most. A side that cannot be installed or run is left out, with the reason.
"""

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import turns  # benchmarks/turns.py
from engines import SIDES, Engine, Side, served, write_weights  # benchmarks/engines.py
from peers import THERE, add_option, peer_python, versions  # benchmarks/peers.py

MIXED = (
    65,
    56,
    89,
    64,
    44,
    75,
    132,
    107,
    40,
    28,
    42,
    62,
    15,
    53,
    29,
    39,
    44,
    50,
    77,
    113,
    56,
    137,
    40,
    75,
    104,
    64,
    39,
    35,
    46,
    69,
    33,
    53,
)
# Lengths in tokens, and calls of a turn: about as long for each.
WORKS = {"9 tokens": ((9,), 30), "119 tokens": ((119,), 3), "32 of 15 to 137": (MIXED, 1)}
LONGEST = 256

# Every word is a word piece, so that all tokenizers agree.
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [f"{a}{b}{c}o" for a in LETTERS for b in "aeiouy" for c in LETTERS]


def texts(lengths: Sequence[int]) -> list[str]:
    """Texts of these lengths in tokens, two of which are [CLS] and [SEP]."""
    return [
        " ".join(WORDS[(31 * i + j) * 7 % len(WORDS)] for j in range(length - 2))
        for i, length in enumerate(lengths)
    ]


def vocabulary() -> list[str]:
    """As many entries as BERT's."""
    known = [*SPECIALS, *WORDS]
    return [*known, *(f"[unused{i}]" for i in range(30522 - len(known)))]


def on_texts(engine: Engine, folder: Path) -> Callable[[list[str]], np.ndarray]:
    """An engine of rows behind a tokenizer of `tokenizers`."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(str(folder / "model" / "vocab.txt"), lowercase=True)
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()

    def answer(strings: list[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch(strings)
        ids, mask = (
            np.array([getattr(encoding, name) for encoding in encodings])
            for name in ("ids", "attention_mask")
        )
        return engine(ids, mask)

    return answer


def work_as(side: Side, folder: Path, threads: int) -> None:
    """A side's process: for each line, the name of a work, seconds, memory and a probability."""

    @functools.cache
    def engine() -> Callable[[list[str]], np.ndarray]:  # made in its turn, not all at once
        instance = side.make(side, folder, threads)
        return instance if side.runs_here else on_texts(instance, folder)

    def reply(work: str) -> list[float]:
        lengths, calls = WORKS[work]
        strings, answer = texts(lengths), engine()
        answer(strings)  # whatever another side's turn has thrown out of the caches
        answers: list[np.ndarray] = []
        spent = turns.timed(lambda: answers.append(answer(strings)), calls)
        with Path("/proc/self/statm").open() as statm:
            memory = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return [*spent, memory, float(answers[-1][-1])]

    turns.answer(reply)


def in_process(options: argparse.Namespace) -> None:
    """A part of the benchmark that has a process of its own."""
    folder, part = Path(options.work), options.part
    if part == "weights":
        return write_weights(folder / "model", vocabulary(), LONGEST, texts(2 * MIXED))
    answers = os.dup(1)
    with (folder / f"{options.side}.log").open("a") as log:
        os.dup2(log.fileno(), 1)  # engines print, too
        os.dup2(log.fileno(), 2)
    try:
        if part == "prepare":
            return SIDES[options.side].prepare(SIDES[options.side], folder)
        sys.stdout = os.fdopen(answers, "w")
        return work_as(SIDES[options.side], folder, options.threads)
    except Exception as error:  # any of an engine's
        traceback.print_exc()
        line = next(iter(str(error).strip().splitlines()), "")
        (folder / f"{options.side}.failed").write_text(f"{type(error).__name__}: {line}")
        raise SystemExit(1) from error


def reason(name: str, folder: Path) -> str:
    """Why a side failed."""
    file = folder / f"{name}.failed"
    return file.read_text() if file.exists() else "its process was killed; was memory short?"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Rows by work, then by title; reasons by the title of a side left out; versions."""
    # ONNX Runtime, if it is there, is what the others are compared with.
    names = sorted((name for name in SIDES if name in options.sides), key="onnx".__ne__)
    is_here = all(SIDES[name].runs_here for name in names)
    peers = None if is_here else peer_python(options.peers)
    words = ["--work", str(folder), "--threads", str(options.threads)]

    def command(name: str, part: str) -> list[str]:
        python = sys.executable if SIDES[name].runs_here else str(peers)
        return [python, __file__, *words, "--side", name, "--part", part]

    left_out = {}
    if not (folder / "model").is_dir():
        subprocess.run(command("float32", "weights"), check=True, stdout=subprocess.DEVNULL)
    for name in names:
        (folder / f"{name}.failed").unlink(missing_ok=True)
        if SIDES[name].prepare and subprocess.run(command(name, "prepare")).returncode:
            left_out[name] = reason(name, folder)
    failed: set[str] = set()
    times = turns.take_turns(
        {name: command(name, "answer") for name in names if name not in left_out},
        options.turns,
        [*WORKS],
        left_out=failed,
    )
    left_out |= {name: reason(name, folder) for name in failed}
    return {
        "works": {f"serving, {work}": summarize(work, times) for work in WORKS if times},
        "left out": {SIDES[name].title: why for name, why in left_out.items()},
        "versions": versions() | (versions(peers, THERE) if peers else {}),
    }


def summarize(work: str, times: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Rows by title. `times`: by side, [turns, works, 4]."""
    from bert_tf.config import BertConfig
    from bert_tf.models.cost import classification_flops

    place, (lengths, _) = list(WORKS).index(work), WORKS[work]
    flops = sum(classification_flops(BertConfig(), length=n, classes=2) for n in lengths) / 3
    clock = {name: values[:, place, 0] for name, values in times.items()}
    rows = turns.summary(
        {SIDES[name].title: times[name][:, place] for name in times},
        len(lengths),
        "texts",
        {SIDES[name].title: (flops, SIDES[name].dtype) for name in times},
    )
    for name in times:
        row, same = rows[SIDES[name].title], SIDES[name].dtype
        peers = [
            other for other in times if SIDES[other].dtype == same and not SIDES[other].runs_here
        ]
        if peers:
            best = min(peers, key=lambda peer: np.median(clock[peer]))
            row["to the best"] = float(np.median(clock[name] / clock[best]))
        row["MB"] = 1e-6 * float(times[name][:, :, 2].max())
        if "float32" in times:
            apart = times[name][:, :, 3] - times["float32"][:, :, 3]
            row["apart"] = float(np.abs(apart).max())
    return rows


def table(works: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The times as Markdown."""
    lines = [["from strings", *(f"{work}, ms" for work in WORKS), "MB", "apart"]]
    lines.append(["---"] * len(lines[0]))
    for side in by_type(next(iter(works.values()))):
        cells = [side]
        for rows in works.values():
            row = rows[side]
            cells.append(number(row["ms"]))
            cells[-1] += f" ({row['to the best']:.2f})" if "to the best" in row else ""
        cells += [f"{row['MB']:,.0f}", f"{row['apart']:.0e}" if "apart" in row else ""]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(milliseconds: float) -> str:
    return f"{milliseconds:,.{1 if milliseconds < 100 else 0}f}"


def by_type(rows: dict[str, dict[str, Any]]) -> list[str]:
    """Sides, those of a type together."""
    types = ["float32", "bfloat16", "int8"]
    return sorted(rows, key=lambda side: types.index(rows[side]["type"]))


def plot(works: dict[str, dict[str, dict[str, Any]]], file: str) -> None:
    """A panel of bars for each work: milliseconds by side."""
    from matplotlib.figure import Figure
    from pictures import save_svg  # benchmarks/pictures.py

    most = max(len(rows) for rows in works.values())
    figure = Figure(figsize=(12, 0.8 + 0.24 * most), layout="constrained")
    panels = figure.subplots(1, len(works), squeeze=False, sharey="row")[0]
    for (work, rows), axes in zip(works.items(), panels, strict=True):
        sides = by_type(rows)
        times = [rows[side]["ms"] for side in sides]
        colors = ["tab:blue" if side.startswith("bert-tf") else "lightgray" for side in sides]
        bars = axes.barh(sides, times, color=colors)
        axes.bar_label(bars, [number(milliseconds) for milliseconds in times], padding=2)
        axes.set_title(f"{work}, ms", loc="left", fontsize="medium")
        axes.set(xticks=[], xlim=(0, 1.2 * max(times)))
        axes.tick_params(left=False)
        axes.spines[:].set_visible(False)
    panels[0].invert_yaxis()
    save_svg(figure, file)


def main() -> None:
    parser = turns.parser(__doc__, 15)
    add_option(parser)
    parser.add_argument("--work", help="folder for the models, kept; else temporary")
    parser.add_argument("--picture", help="picture file of all times, such as serving.svg")
    parser.add_argument("--read", help="JSON file of earlier results, instead of measuring")
    parser.add_argument("--threads", type=int, default=2)
    usual = [name for name, side in SIDES.items() if side.make is not served]
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=usual)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return in_process(options)
    if options.read:
        result = {"works": json.loads(Path(options.read).read_text())}
    else:
        with contextlib.ExitStack() as stack:
            work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory()))
            work.mkdir(parents=True, exist_ok=True)
            result = measure(options, work.resolve())
    turns.write(result["works"], options.output)
    print(table(result["works"]))
    for title, why in result.get("left out", {}).items():
        print(f"\nleft out: {title} ({why})")
    if "versions" in result:
        named = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        print(f"\n{options.turns} turns, {options.threads} threads; {named}")
    if options.picture:
        plot(result["works"], options.picture)


if __name__ == "__main__":
    main()

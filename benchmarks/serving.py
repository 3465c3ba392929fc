r"""Time to answer, in one process, of bert-tf and other inference engines.

    python benchmarks/serving.py [--turns 15] [--output serving.json] [--picture serving.svg]
    python benchmarks/serving.py --read serving.json --picture serving.svg

A classifier of BERT-base's size, with the same random weights for all engines
(benchmarks/engines.py), answers one text of 9 tokens, one of 119, and 32 of 15 to 137: first from
token ids, then, in other processes, from strings. Each side is a process of its own with the same
number of threads; they take turns. bert-tf is a SavedModel in a session, as servers run it;
"packed" is with TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1. The peers' texts are tokenized by `tokenizers`.

Reported are medians over the turns, by the clock. In brackets: the median ratio, within a turn, to
the fastest peer of the same type. "Share of the ceiling": the time of the encoder's products with
weights alone, each of its own shape, packed, in a process that takes turns with the others, as a
share of the side's. "First": the first call with a text of a length that the process has not seen.
"Apart": how far a probability is from bert-tf's in float32, at most. A side that cannot be
installed or run is left out, with the reason.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import turns  # benchmarks/turns.py
from engines import (  # benchmarks/engines.py
    PRODUCTS,
    SIDES,
    Engine,
    Side,
    ours,
    ours_on_texts,
    prototype,
    write_weights,
)
from peers import THERE, add_option, peer_python, versions  # benchmarks/peers.py

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Keeps PyTorch's waiting threads from spinning while another side has its turn.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

MIXED = (65, 56, 89, 64, 44, 75, 132, 107, 40, 28, 42, 62, 15, 53, 29, 39, 44, 50, 77, 113, 56, 137,
         40, 75, 104, 64, 39, 35, 46, 69, 33, 53)  # fmt: skip
# Lengths in tokens, and calls of a turn: about as long for each.
WORKS = {"9 tokens": ((9,), 10), "119 tokens": ((119,), 3), "32 of 15 to 137": (MIXED, 1)}
FIRST = "first call of a length"
UNSEEN = [length for length in range(60, 119) if length not in MIXED]
LONGEST = 256
TABLES = {"inference": "from token ids", "serving": "from strings"}

# Every word is a word piece, so that all tokenizers agree.
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [f"{a}{b}{c}o" for a in LETTERS for b in "aeiouy" for c in LETTERS]


def words_of(lengths: Sequence[int]) -> list[list[int]]:
    """Places in WORDS of each text's words; [CLS] and [SEP] are two of its tokens."""
    return [[(31 * i + j) * 7 % len(WORDS) for j in range(length - 2)]
            for i, length in enumerate(lengths)]  # fmt: skip


def texts(lengths: Sequence[int]) -> list[str]:
    """Texts of these lengths in tokens."""
    return [" ".join(WORDS[place] for place in words) for words in words_of(lengths)]


def rows(lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Their token ids and padding mask, int64 [B, T]."""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids, first = np.zeros(mask.shape, np.int64), len(SPECIALS)
    every = [[2, *(first + place for place in words), 3] for words in words_of(lengths)]
    ids[mask] = list(itertools.chain(*every))
    return ids, mask.astype(np.int64)


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
        found = tokenizer.encode_batch(strings)
        ids, mask = (np.array([getattr(each, name) for each in found])
                     for name in ("ids", "attention_mask"))  # fmt: skip
        return engine(ids, mask)

    return answer


def work_as(side: Side, table: str, folder: Path, threads: int) -> None:
    """A side's process: for each line, the name of a work, seconds, memory and a probability."""

    @functools.cache
    def engine() -> Callable[..., np.ndarray]:  # made in its turn, not all at once
        if table == "inference":
            return side.make(side, folder, threads)
        if side.make is ours:
            return ours_on_texts(side, folder, threads)
        return on_texts(side.make(side, folder, threads), folder)

    unseen = iter(UNSEEN)

    def reply(work: str) -> list[float]:
        lengths, calls = ((next(unseen),), 1) if work == FIRST else WORKS[work]
        inputs = rows(lengths) if table == "inference" else [texts(lengths)]
        answer = engine()
        if work != FIRST:
            answer(*inputs)  # whatever another side's turn has thrown out of the caches
        found: list[np.ndarray] = []
        spent = turns.timed(lambda: found.append(answer(*inputs)), calls)
        with Path("/proc/self/statm").open() as statm:
            memory = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return [*spent, memory, float(found[-1][-1])]

    turns.answer(reply)


def in_process(options: argparse.Namespace, sides: dict[str, Side]) -> None:
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
            return sides[options.side].prepare(sides[options.side], folder)
        sys.stdout = os.fdopen(answers, "w")
        return work_as(sides[options.side], part, folder, options.threads)
    except Exception as error:  # any of an engine's
        traceback.print_exc()
        line = next(iter(str(error).strip().splitlines()), "")
        (folder / f"{options.side}.failed").write_text(f"{type(error).__name__}: {line}")
        raise SystemExit(1) from error


def reason(name: str, folder: Path) -> str:
    """Why a side failed."""
    file = folder / f"{name}.failed"
    return file.read_text() if file.exists() else "its process was killed; was memory short?"


def measure(options: argparse.Namespace, sides: dict[str, Side], folder: Path) -> dict[str, Any]:
    """Rows by work, then by title; reasons by the title of a side left out; versions."""
    names = [name for name in sides if name in options.sides]
    types = {sides[name].dtype for name in names if sides[name].make is ours}
    names += [name for name in PRODUCTS if sides[name].dtype in types]
    # ONNX Runtime, if it is there, is what the others are compared with.
    names.sort(key=lambda name: name != "onnx")
    is_here = all(sides[name].runs_here for name in names)
    peers = None if is_here else peer_python(options.peers)
    words = ["--work", str(folder), "--threads", str(options.threads)]
    words += ["--prototype", options.prototype] if options.prototype else []

    def command(name: str, part: str) -> list[str]:
        python = sys.executable if sides[name].runs_here else str(peers)
        return [python, __file__, *words, "--side", name, "--part", part]

    left_out = {}
    if not (folder / "model").is_dir():
        subprocess.run(command("float32", "weights"), check=True, stdout=subprocess.DEVNULL)
    for name in names:
        (folder / f"{name}.failed").unlink(missing_ok=True)
        if sides[name].prepare and subprocess.run(command(name, "prepare")).returncode:
            left_out[name] = reason(name, folder)
    works = {}
    for table in TABLES:
        kept = [name for name in names if name not in left_out]
        kept = [name for name in kept if table == "inference" or name not in PRODUCTS]
        failed: set[str] = set()
        found = turns.take_turns(
            {name: command(name, table) for name in kept}, options.turns, [*WORKS, FIRST],
            left_out=failed,
        )  # fmt: skip
        left_out |= {name: reason(name, folder) for name in failed}
        works |= {f"{table}, {work}": summarize(work, found, sides) for work in WORKS if found}
    return {
        "works": works,
        "left out": {sides[name].title: why for name, why in left_out.items()},
        "versions": versions() | (versions(peers, THERE) if peers else {}),
    }


def summarize(
    work: str, found: dict[str, np.ndarray], sides: dict[str, Side]
) -> dict[str, dict[str, Any]]:
    """Rows by title. `found`: by side, [turns, works and the first call, 4]."""
    from bert_tf.config import BertConfig
    from bert_tf.models.cost import classification_flops

    number, (lengths, _) = list(WORKS).index(work), WORKS[work]
    flops = sum(classification_flops(BertConfig(), length=n, classes=2) for n in lengths) / 3
    clock = {name: times[:, number, 0] for name, times in found.items()}
    shown = [name for name in found if name not in PRODUCTS]
    rows = turns.summary(
        {sides[name].title: found[name][:, number] for name in shown}, len(lengths), "texts",
        {sides[name].title: (flops, sides[name].dtype) for name in shown},
    )  # fmt: skip
    for name in shown:
        side, row = sides[name], rows[sides[name].title]
        same = [each for each in found if sides[each].dtype == side.dtype]
        peers = [each for each in same if not sides[each].runs_here]
        compared = {f"prototype_{side.dtype}": "to the prototype"}
        if peers:
            compared[min(peers, key=lambda each: np.median(clock[each]))] = "to the best"
        for other, title in compared.items():
            if other in found:
                row[title] = float(np.median(clock[name] / clock[other]))
        if side.make is ours and f"products_{side.dtype}" in found:
            share = clock[f"products_{side.dtype}"] / clock[name]
            row["share of the ceiling"] = float(np.median(share))
        row["first ms"] = 1e3 * float(np.median(found[name][:, -1, 0]))
        row["MB"] = 1e-6 * float(found[name][:, :, 2].max())
        if "float32" in found and not name.startswith("prototype"):
            apart = found[name][:, : len(WORKS), 3] - found["float32"][:, : len(WORKS), 3]
            row["apart"] = float(np.abs(apart).max())
    return rows


def tables(works: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    """Markdown: times of each table, then shares of the ceiling and ratios to the prototype."""
    for table, title in TABLES.items():
        of_table = {work: works.get(f"{table}, {work}", {}) for work in WORKS}
        if not all(of_table.values()):
            continue
        sides = by_type(next(iter(of_table.values())))
        heads = [title, *(f"{work}, ms" for work in of_table), "first, ms", "MB", "apart"]
        lines = []
        for side in sides:
            cells = [side]
            for found in of_table.values():
                row = found[side]
                cells.append(number(row["ms"]))
                cells[-1] += f" ({row['to the best']:.2f})" if "to the best" in row else ""
            cells += [number(row["first ms"]), f"{row['MB']:,.0f}"]
            cells.append(f"{row['apart']:.0e}" if "apart" in row else "")
            lines.append(cells)
        yield markdown(heads, lines)
        for column in ("share of the ceiling", "to the prototype"):
            cells = [[side, *(f"{found[side][column]:.2f}" for found in of_table.values())]
                     for side in sides if column in row_of(of_table, side)]  # fmt: skip
            if cells:
                yield markdown([f"{title}: {column}", *of_table], cells)


def row_of(of_table: dict[str, dict[str, Any]], side: str) -> dict[str, Any]:
    return next(iter(of_table.values()))[side]


def number(milliseconds: float) -> str:
    return f"{milliseconds:,.{1 if milliseconds < 100 else 0}f}"


def markdown(heads: list[str], lines: list[list[str]]) -> str:
    every = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def by_type(found: dict[str, dict[str, Any]]) -> list[str]:
    """Sides, those of a type together."""
    types = ["float32", "bfloat16", "int8"]
    return sorted(found, key=lambda side: types.index(found[side]["type"]))


def plot(works: dict[str, dict[str, dict[str, Any]]], file: str) -> None:
    """A panel of bars for each work: milliseconds by side."""
    from matplotlib.figure import Figure
    from pictures import save_svg  # benchmarks/pictures.py

    shown = [table for table in TABLES if any(work.startswith(table) for work in works)]
    most = max(len(found) for found in works.values())
    figure = Figure(figsize=(12, len(shown) * (0.8 + 0.24 * most)), layout="constrained")
    grid = figure.subplots(len(shown), len(WORKS), squeeze=False, sharey="row")
    for table, panels in zip(shown, grid, strict=True):
        for work, axes in zip(WORKS, panels, strict=True):
            found = works[f"{table}, {work}"]
            sides = by_type(found)
            times = [found[side]["ms"] for side in sides]
            kinds = {"bert-tf": "tab:blue", "prototype": "tab:orange"}
            colors = [kinds.get(side.split()[0], "lightgray") for side in sides]
            bars = axes.barh(sides, times, color=colors)
            axes.bar_label(bars, [number(each) for each in times], padding=2)
            axes.set_title(f"{work}, {TABLES[table]}, ms", loc="left", fontsize="medium")
            axes.set(xticks=[], xlim=(0, 1.2 * max(times)))
            axes.tick_params(left=False)
            axes.spines[:].set_visible(False)
        panels[0].invert_yaxis()
    save_svg(figure, file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_option(parser)
    parser.add_argument("--work", help="folder for the models, kept; else temporary")
    parser.add_argument("--output", help="JSON file of all results")
    parser.add_argument("--picture", help="picture file of all times, such as serving.svg")
    parser.add_argument("--read", help="JSON file of earlier results, instead of measuring")
    parser.add_argument("--turns", type=int, default=15, help=f"at most {len(UNSEEN) - 1}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prototype", help="script whose three types take part")
    parser.add_argument("--sides", nargs="+", help=f"of {', '.join(SIDES)}; by default all")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sides = SIDES | (prototype(options.prototype) if options.prototype else {})
    options.sides = options.sides or list(sides)
    if unknown := set(options.sides) - set(sides):
        parser.error(f"unknown sides: {', '.join(sorted(unknown))}; give some of {list(sides)}")
    if not 0 < options.turns < len(UNSEEN):
        parser.error(f"--turns: give 1 to {len(UNSEEN) - 1}; each needs a length of its own")
    sides |= PRODUCTS
    if options.part:
        return in_process(options, sides)
    if options.read:
        result = {"works": json.loads(Path(options.read).read_text())}
    else:
        with contextlib.ExitStack() as stack:
            work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory()))
            work.mkdir(parents=True, exist_ok=True)
            result = measure(options, sides, work.resolve())
    if options.output:
        Path(options.output).write_text(json.dumps(result["works"], indent=1))
    print("\n\n".join(tables(result["works"])))
    for title, why in result.get("left out", {}).items():
        print(f"\nleft out: {title} ({why})")
    if "versions" in result:
        named = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        print(f"\n{options.turns} turns, {options.threads} threads; {named}")
    if options.picture:
        plot(result["works"], options.picture)


if __name__ == "__main__":
    main()

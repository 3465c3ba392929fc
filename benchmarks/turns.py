"""Runs the sides of a benchmark in turns, each in its own process, and compares their times.

A side answers each line on its standard input with a JSON list, [seconds by the clock, processor
seconds, ...] of one piece of work. On a shared machine the ratios of processor time within a turn
are the most reliable.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Keeps PyTorch's waiting threads from spinning while another side has its turn.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def parser(documentation: str | None, turns: int | None = None) -> argparse.ArgumentParser:
    """A parser with the options that benchmarks share: --output and, with a default, --turns."""
    options = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--output", help="JSON file of the results")
    if turns is not None:
        options.add_argument("--turns", type=int, default=turns, help="turns of each side")
    return options


def write(results: Any, output: str | None) -> None:
    """Writes the results to --output, if it is given."""
    if output:
        Path(output).write_text(json.dumps(results, indent=1))


def timed(work: Callable[[], Any], repetitions: int = 1) -> list[float]:
    """Seconds of one of some calls, by the clock and of the processors."""
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(repetitions):
        work()
    spent = time.perf_counter() - clock, time.process_time() - processor
    return [seconds / repetitions for seconds in spent]


def answer(reply: Callable[[str], list[float]]) -> None:
    """A side's process: answers until its input ends."""
    for line in sys.stdin:
        print(json.dumps(reply(line.rstrip("\n"))), flush=True)


def answer_in_fit(fit: Callable[[list[Any]], Any], steps: int) -> None:
    """A side's process that trains with Keras: `fit` takes callbacks, a line stands for some steps.

    Between two lines `fit` waits before its next step, so that what it does once is in no time.
    """
    import keras

    class InTurns(keras.callbacks.Callback):
        done = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.done % steps == 0:
                if not sys.stdin.readline():
                    raise SystemExit
                self.started = time.perf_counter(), time.process_time()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.done += 1
            if self.done % steps == 0:
                now = time.perf_counter(), time.process_time()
                spent = [(b - a) / steps for a, b in zip(self.started, now, strict=True)]
                print(json.dumps(spent), flush=True)

    fit([InTurns()])


def _close(process: subprocess.Popen) -> None:
    with contextlib.suppress(BrokenPipeError):  # it ended with a request unread
        process.stdin.close()


def take_turns(
    commands: dict[str, list[str]],
    turns: int,
    lines: Sequence[str] = ("",),
    *,
    warm_up: int = 1,
    left_out: set[str] | None = None,
) -> dict[str, np.ndarray]:
    """Starts all sides and lets them answer each line in turn.

    Args:
        commands: command lines by side.
        turns: how many turns count.
        lines: requests of one turn, the same for each side.
        warm_up: turns before them, which trace graphs and fill caches.
        left_out: takes the sides that end before their time; without it, one ends the benchmark.

    Returns:
        By side, float64 [turns, lines, values].
    """
    times: dict[str, list[list[list[float]]]] = {side: [] for side in commands}
    with contextlib.ExitStack() as stack:
        processes = {}
        for side, command in commands.items():
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            processes[side] = stack.enter_context(process)
            stack.callback(_close, process)
        order = list(commands)
        for turn in range(warm_up + turns):
            answers: dict[str, list[list[float]]] = {side: [] for side in commands}
            for line in lines:
                for side in order:
                    with contextlib.suppress(BrokenPipeError):
                        print(line, file=processes[side].stdin, flush=True)
                    if reply := processes[side].stdout.readline():
                        answers[side].append(json.loads(reply))
                    elif left_out is None:
                        raise SystemExit(f"{side} failed; its message is above")
                    else:
                        left_out.add(side)
                order = [side for side in order if side not in (left_out or ())]
            if turn >= warm_up:
                for side in order:
                    times[side].append(answers[side])
            order = [*order[1:], *order[:1]]
            print(f"turn {max(0, turn + 1 - warm_up)} of {turns}", end="\r", file=sys.stderr)
    return {side: np.array(times[side]) for side in commands if side in order}


def summary(
    times: dict[str, np.ndarray],
    items: float,
    unit: str,
    flops: dict[str, tuple[float, str]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Medians by side, and of the ratios to the first side within a turn.

    Args:
        times: by side, [turns, 2 or more]: seconds by the clock, of the processors, others.
        items: how many of `unit` one piece of work is.
        unit: plural.
        flops: by side, useful floating-point operations of a piece of work, and their type.
    """
    first = next(iter(times.values()))[:, :2]
    rows: dict[str, dict[str, Any]] = {}
    for side, of_side in times.items():
        clock, processor = np.median(of_side[:, :2], axis=0)
        ratios = np.median(of_side[:, :2] / first, axis=0)
        rows[side] = {
            "ms": 1e3 * clock,
            "processor ms": 1e3 * processor,
            f"{unit}/s": items / clock,
            f"{unit}/processor s": items / processor,
            "time": ratios[0],
            "processor time": ratios[1],
        }
        if flops:
            operations, dtype = flops[side]
            rows[side] |= {
                "GFLOP/s": 1e-9 * operations / clock,
                "GFLOP/processor s": 1e-9 * operations / processor,
                "type": dtype,
            }
    return rows


def table(rows: dict[str, dict[str, Any]], ceilings: dict[str, float] | None = None) -> str:
    """A summary as Markdown; given benchmarks/ceilings.py's results, with shares of them."""
    first, columns = next(iter(rows.items()))
    names = list(columns)
    if ceilings and "type" in columns:
        shares = {"share of ceiling": "GFLOP/s", "share by processor": "GFLOP/processor s"}
        names += shares
        rows = {
            side: row
            | {
                name: row[unit] / ceilings[ceiling]
                for name, unit in shares.items()
                if (ceiling := f"{row['type']} {unit}") in ceilings
            }
            for side, row in rows.items()
        }
    heads = [f"{name}, {first} = 1" if name.endswith("time") else name for name in names]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(names)) + "|"]
    for side, row in rows.items():
        cells = []
        for name in names:
            value = row.get(name, "")
            is_number = not isinstance(value, str)
            cells.append(f"{value:,.{2 if value < 10 else 1}f}" if is_number else value)
        lines.append(f"| {side} | {' | '.join(cells)} |")
    return "\n".join(lines)

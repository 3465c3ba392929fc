"""What a run has left: checkpoints, lines of scalars, and TensorBoard's events."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

_TIMED = ("second", "share_of_peak", "minutes_left")


def without_times(scalars: dict[str, Any]) -> dict[str, Any]:
    """The scalars that do not differ between two runs of the same."""
    return {k: x for k, x in scalars.items() if not any(timed in k for timed in _TIMED)}


def newest_checkpoint(run: Path) -> int:
    names = [path.stem for path in (run / "checkpoints").glob("step-*.safetensors")]
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def logged(run: Path, kind: str | None = None, *, times: bool = False) -> list[dict[str, Any]]:
    """The lines of scalars.jsonl; those of one kind do not name it."""
    text = (run / "logs" / "scalars.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    if kind is not None:
        lines = [line for line in lines if line.pop("kind") == kind]
    return lines if times else [without_times(line) for line in lines]


def events(folder: Path) -> Iterator[tuple[Path, int, Any]]:
    """The file, the step and the summary of each event in a folder."""
    for path in sorted(folder.rglob("*.tfevents.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                yield path, event.step, value


def scalar_events(run: Path) -> list[tuple[str, int, str, float]]:
    """(folder, step, tag, value) of the scalars in a run's logs, without times."""
    return sorted(
        (path.parent.name, step, value.tag, float(tf.make_ndarray(value.tensor)))
        for path, step, value in events(run / "logs")
        if path.parent.name in ("train", "held_out") and without_times({value.tag: 0})
    )

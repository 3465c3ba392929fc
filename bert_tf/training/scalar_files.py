"""The logs of a run: TensorBoard events, and the same scalars as lines of JSON.

A resumed run removes from both what was logged after its checkpoint, as those steps come again.
"""

import json
import math
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import replace_file, write_text
from bert_tf.training.event_folder import EventFolder
from bert_tf.training.state import TrainingState

SCALARS = "scalars.jsonl"


class ScalarFiles:
    """Writes scalars into `train`, `held_out` and `scalars.jsonl` of a log folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._folders = {kind: EventFolder(directory / kind) for kind in ("train", "held_out")}

    def write(self, step: int, kind: str, scalars: dict[str, float]) -> None:
        """Writes and flushes "train" or "held_out" scalars; in JSON non-finite ones are null.

        Raises:
            OSError: the line cannot be written.
        """
        line = {"step": step, "kind": kind}
        line |= {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / SCALARS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        with self._folders[kind].at(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)


def forget_later_scalars(directory: Path, state: TrainingState) -> None:
    """Removes from a log folder what was logged after the checkpoint that a run resumes from.

    That is what is later than `state.logged` for its kind (its folder, for events), or later than
    `state.step` for an unknown kind. An open TensorBoard shows the old events until restarted.
    """
    for path in sorted(directory.rglob("*.tfevents.*")):
        _forget_later_events(path, state.logged.get(path.parent.name, state.step))
    path = directory / SCALARS
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        kept = [line for line in lines if _is_kept(line, state)]
    write_text(path, "".join(kept))


def _is_kept(line: str, state: TrainingState) -> bool:
    try:
        values = json.loads(line)
    except ValueError:
        return False
    # Without its end the process was killed while writing it.
    return line.endswith("\n") and values["step"] <= state.logged.get(values["kind"], state.step)


def _forget_later_events(path: Path, last: int) -> None:
    """Rewrites an event file without the events after step `last`, if it has any."""
    kept = []
    is_altered = False
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            if tf.compat.v1.Event.FromString(record).step <= last:
                kept.append(record)
            else:
                is_altered = True
    except tf.errors.DataLossError:  # truncated in its last event
        is_altered = True
    if is_altered:
        with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
            for record in kept:
                writer.write(record)

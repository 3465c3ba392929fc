"""The logs of a run: TensorBoard events, and the same scalars as lines of JSON.

A resumed run removes from both what was logged after its checkpoint, as those steps come again.
"""

import json
import math
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import replace_file
from bert_tf.training.event_folder import EventFolder
from bert_tf.training.state import TrainingState

SCALARS = "scalars.jsonl"


class ScalarFiles:
    """Writes scalars into the folders `train` and `held_out` and into `scalars.jsonl`.

    Args:
        directory: log folder.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._folders: dict[str, EventFolder] = {}

    def write(self, step: int, kind: str, scalars: dict[str, float]) -> None:
        """Writes a line and flushes it to the operating system.

        In the JSON a non-finite number is null.

        Args:
            step: training steps done.
            kind: "train" or "held_out".
            scalars: scalars by name.

        Raises:
            OSError: the line cannot be written.
        """
        line = {"step": step, "kind": kind}
        line |= {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / SCALARS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if kind not in self._folders:
            self._folders[kind] = EventFolder(self._directory / kind)
        with self._folders[kind].at(step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)


def forget_later_scalars(directory: str | Path, state: TrainingState) -> None:
    """Removes what the run logged after the checkpoint that it resumes from.

    That is what is later than `state.logged` for its kind (its folder, for events), or later than
    `state.step` for an unknown kind. An open TensorBoard shows the old events until restarted.

    Args:
        directory: log folder; need not exist.
        state: restored, or at step 0.
    """
    directory = Path(directory)
    for path in sorted(directory.rglob("*.tfevents.*")):
        _forget_later_events(path, state.logged.get(path.parent.name, state.step))
    path = directory / SCALARS
    if not path.exists():
        return
    with path.open(encoding="utf-8") as lines:
        kept = [line for line in lines if _is_kept(line, state)]
    with replace_file(path) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")


def _is_kept(line: str, state: TrainingState) -> bool:
    if not line.endswith("\n"):  # the process was killed while writing it
        return False
    try:
        values = json.loads(line)
    except ValueError:
        return False
    return values["step"] <= state.logged.get(values["kind"], state.step)


def _forget_later_events(path: Path, last: int) -> None:
    """Rewrites an event file without the events after step `last`, if it has any."""
    altered = False
    kept = []
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            if tf.compat.v1.Event.FromString(record).step > last:
                altered = True
            else:
                kept.append(record)
    except tf.errors.DataLossError:  # truncated in its last event
        altered = True
    if altered:
        with replace_file(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
            for record in kept:
                writer.write(record)

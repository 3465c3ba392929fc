import shutil
from pathlib import Path

from preloaded import wait_until
from run_logs import without_times

from bert_tf.training.watcher import Watcher


class Lines(Watcher):
    """Keeps the lines that a run logs, as (step, kind, scalars), and its notices."""

    def __init__(self, at_line=None) -> None:
        self.lines, self.notices, self._at_line = [], [], at_line

    def notice(self, line) -> None:
        self.notices.append(line)

    def logged(self, step, kind, scalars) -> None:
        self.lines.append((step, kind, scalars))
        if self._at_line is not None:
            self._at_line(step, kind)

    @property
    def timeless(self) -> list[tuple[int, str, dict[str, float]]]:
        return [(step, kind, without_times(scalars)) for step, kind, scalars in self.lines]


class Copied(Lines):
    """Copies a run's folder at a step, as a kill there leaves it after the checkpoint `saved`.

    A thread of the run writes that checkpoint and then removes older ones: the copy waits for it
    and has no other.
    """

    def __init__(self, run: Path, step: int, saved: int, copy: Path) -> None:
        super().__init__()
        self._run, self._step, self._saved, self._copy = Path(run), step, saved, copy

    def after_step(self, step) -> None:
        if step == self._step:
            checkpoint = self._run / "checkpoints" / f"step-{self._saved:08d}.safetensors"
            wait_until(checkpoint.exists)
            shutil.copytree(self._run, self._copy, ignore=shutil.ignore_patterns("checkpoints"))
            (self._copy / "checkpoints").mkdir()
            shutil.copy(checkpoint, self._copy / "checkpoints")

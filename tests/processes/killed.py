"""What a kill leaves of a run."""

import shutil
import time
from pathlib import Path


def newest_checkpoint(run: Path) -> int:
    """The step of a run's newest checkpoint, or -1."""
    names = [path.stem for path in (run / "checkpoints").glob("step-*.safetensors")]
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def copy_when_saved(run: Path, step: int, copy: Path) -> None:
    """Copies the folder of a run that is under way, as a kill after `step` was saved leaves it.

    A thread of the run writes the checkpoint of `step` and then removes older ones: the copy waits
    for that checkpoint and has no other.

    Raises:
        TimeoutError: there is no such checkpoint within a minute.
    """
    checkpoint = run / "checkpoints" / f"step-{step:08d}.safetensors"
    deadline = time.monotonic() + 60
    while not checkpoint.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {checkpoint}")
        time.sleep(0.01)
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    (copy / "checkpoints").mkdir()
    shutil.copy(checkpoint, copy / "checkpoints")

"""The training state on disk, from which a stopped run resumes.

A checkpoint is one safetensors file, `step-00001000.safetensors`: every variable of the model
(dropout generators included), of the optimizer and of the metrics; the progress and settings of
the run as metadata; a SHA-256 of everything. No pickle is read or written.
"""

import contextlib
import json
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.training.checkpoint_file import (
    DamagedCheckpointError,
    read_checkpoint,
    read_metadata,
    write_checkpoint,
)
from bert_tf.training.workers import is_chief


class _Slot(NamedTuple):
    """A variable on one device, its shape, and a function that assigns to it and its mirrors."""

    variable: tf.Variable
    shape: tuple[int, ...]
    assign: Callable[[np.ndarray], object]


@dataclass(eq=False)
class Progress:
    """How far a run has come; a checkpoint holds it as JSON.

    Attributes:
        step: training steps done.
        best: best score so far, None before the first evaluation.
        best_step: step of the best score.
        evaluations_since_best: number of evaluations after it.
        ended_early: whether the run has ended for lack of better scores.
        evaluation_due: whether the evaluation that follows `step` is still to be done.
        nonfinite_steps: number of steps with a non-finite loss or gradient.
        logged: kind of log -> last step logged.
    """

    step: int = 0
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    ended_early: bool = False
    evaluation_due: bool = False
    nonfinite_steps: int = 0
    logged: dict[str, int] = field(default_factory=lambda: {"train": 0, "held_out": 0})


class TrainingState(Progress):
    """Saves and restores a compiled model, and the progress of its run, in a folder.

    With several workers each one calls every method and the chief writes; the folder must be on a
    file system that all of them share.

    Args:
        model: a compiled and built `keras.Model`.
        directory: folder of the checkpoints, made when needed.
        settings: JSON values that must be the same when the run is resumed.
        compared_if_known: names of settings, with dots for nested ones, that are compared only
            where both the checkpoint and `settings` have them: older runs did not record them.
        keep: number of newest checkpoints to keep.
        keep_every: keep checkpoints at multiples of this step for good.
        notice: called with lines for the user: damaged checkpoints, overridden settings.
    """

    def __init__(
        self,
        model: keras.Model,
        directory: str | Path,
        *,
        settings: dict,
        compared_if_known: Collection[str] = (),
        keep: int = 2,
        keep_every: int | None = None,
        notice: Callable[[str], object] = warnings.warn,
    ) -> None:
        super().__init__()
        if keep < 1:
            raise InputError(f"--keep is {keep}: give at least 1")
        if keep_every is not None and keep_every < 1:
            raise InputError(f"--keep_every is {keep_every}: give at least 1, or leave it out")
        self.model = model
        self.directory = Path(directory)
        self.settings = json.loads(json.dumps(settings))  # as it will be read again
        self._compared_if_known = frozenset(compared_if_known)
        self.keep = keep
        self.keep_every = keep_every
        self.notice = notice
        self._previous_step = 0
        # The metrics count towards the next line, except after the end of a stretch.
        self._in_stretch = True
        self._metrics: dict[str, np.ndarray] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future | None = None

    def advance(self, steps: int, *, ends_stretch: bool) -> None:
        """Counts the steps of an execution; an evaluation follows if it `ends_stretch`."""
        self._previous_step = self.step
        self.step += steps
        self.evaluation_due = ends_stretch
        self._in_stretch = not ends_stretch

    def passed(self, every: int | None) -> bool:
        """Whether the last execution reached a multiple of `every` steps; False for None."""
        return every is not None and self.step // every > self._previous_step // every

    def save(self, *, wait: bool = True) -> Path:
        """Writes a checkpoint and removes older ones; returns its path.

        The variables are copied to host memory here; a thread of its own makes the checksum and
        the file, one checkpoint at a time. With `wait` the file is on disk at the end.

        Raises:
            OSError: this checkpoint or the one before cannot be written (`errno.ENOSPC` on a full
                disk); those on disk stay unchanged.
        """
        self.wait()
        slots = self._variables()
        if self._in_stretch:
            slots |= self._metric_variables()
        tensors = {name: np.asarray(slot.variable.numpy()) for name, slot in slots.items()}
        metadata = {
            "progress": json.dumps(asdict(self)),
            "settings": json.dumps(self.settings, sort_keys=True),
        }
        path = self.directory / f"step-{self.step:08d}.safetensors"
        if is_chief(self.model.distribute_strategy):
            self._writing = self._thread.submit(self._write, path, tensors, metadata, self.step)
        if wait:
            self.wait()
        return path

    def wait(self) -> None:
        """Waits for the checkpoint being written; raises its OSError."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def raise_failure(self) -> None:
        """Raises the OSError of the last checkpoint without waiting for it."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def _write(self, path: Path, tensors: dict, metadata: dict[str, str], step: int) -> None:
        write_checkpoint(path, tensors, metadata)
        # Those of later steps, if any, were damaged when the run was resumed.
        files = [(number, file) for number, file in _files(self.directory) if number <= step]
        for number, file in files[self.keep :]:
            if not self.keep_every or number % self.keep_every:
                file.unlink(missing_ok=True)

    def restore(self, *, override: bool = False) -> bool:
        """Restores the newest sound checkpoint; returns whether there is one.

        `restore_metrics` restores the metrics later, once they are built. With `override` a run
        may be resumed with changed settings.

        Raises:
            InputError: the checkpoint has other settings or another model; or no checkpoint, or not
                even their folder, can be read.
        """
        damaged = []
        for _, path in _files(self.directory):
            try:
                tensors, metadata = read_checkpoint(path)
                break
            except DamagedCheckpointError as error:
                damaged.append(f"{path} ({error})")
        else:
            if damaged:
                raise InputError(
                    f"no checkpoint can be read: {'; '.join(damaged)}; delete "
                    f"{self.directory} to start again from step 0"
                )
            return False
        changed = self._changed_settings(json.loads(metadata["settings"]))
        if changed and not override:
            raise InputError(
                f"{path} is of a run with other settings ({changed}): give the same ones to "
                "resume it, another --output for a new run, or --override to use the new ones"
            )
        self._assign(path, tensors)
        for name, value in json.loads(metadata["progress"]).items():
            setattr(self, name, value)
        self._previous_step = self.step
        self._in_stretch = not self.evaluation_due
        if damaged:
            self.notice(f"damaged: {'; '.join(damaged)}: resuming from {path}")
        if changed:
            self.notice(f"resuming {path} with other settings: {changed}")
        return True

    def restore_metrics(self) -> None:
        """Restores the metrics of the checkpoint; does nothing when called again.

        Call it at the beginning of the first epoch, when Keras has built and reset the metrics.
        """
        if self.lacks_metrics:
            self.notice(
                "the checkpoint has other metrics or another number of devices: the next line of "
                "scalars covers the steps since then alone"
            )
        else:
            slots = self._metric_variables()
            for name, tensor in self._metrics.items():
                slots[name].assign(tensor)
        self._metrics = {}

    @property
    def lacks_metrics(self) -> bool:
        """Whether `restore_metrics` needs metrics that are not built yet."""
        return bool(self._metrics) and _shapes(self._metrics) != _shapes(self._metric_variables())

    def _changed_settings(self, saved: dict) -> str:
        """The settings that differ from the saved ones, "seed was 0, is now 1; ..."."""
        before, now = _flattened(saved), _flattened(self.settings)
        unknown = self._compared_if_known & (before.keys() ^ now.keys())
        return "; ".join(
            f"{name} was {before.get(name)!r}, is now {now.get(name)!r}"
            for name in sorted((before.keys() | now.keys()) - unknown)
            if before.get(name) != now.get(name)
        )

    def _assign(self, path: Path, tensors: dict[str, np.ndarray]) -> None:
        slots = self._variables()
        metrics = [name for name in tensors if name.startswith("metric/")]
        self._metrics = {name: tensors.pop(name) for name in metrics}
        if _shapes(tensors) != _shapes(slots):
            differing = _shapes(tensors).items() ^ _shapes(slots).items()
            raise InputError(
                f"{path} holds another model, or an earlier version wrote it (it differs in "
                f"{min(name for name, _ in differing)}): give another --output"
            )
        for name, slot in slots.items():
            slot.assign(tensors[name])

    def _variables(self) -> dict[str, _Slot]:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        return self._by_name("", [*self.model.variables, *optimizer.variables])

    def _metric_variables(self) -> dict[str, _Slot]:
        return self._by_name("metric/", self.model.metrics_variables)

    def _by_name(self, prefix: str, variables: Sequence[keras.Variable]) -> dict[str, _Slot]:
        """The variables by the names they are saved under.

        Replicas that mirror one another are one variable. What each replica sums up for itself, as
        metrics do, is saved for each: their sum, spread over the replicas again, would round
        differently.
        """
        found: dict[str, _Slot] = {}
        for path, variable in zip(_names([v.path for v in variables]), variables, strict=True):
            value, shape = variable.value, tuple(variable.shape)
            replicas = self.model.distribute_strategy.experimental_local_results(value)
            on_read = tf.VariableSynchronization.ON_READ
            if replicas[0] is not value and value.synchronization is on_read:
                for number, own in enumerate(replicas):
                    found[f"{prefix}{path}.{number}"] = _Slot(own, shape, own.assign)
            else:
                found[prefix + path] = _Slot(replicas[0], shape, variable.assign)
        return found


def _files(directory: Path) -> list[tuple[int, Path]]:
    """Steps and files of the checkpoints in a folder, the newest first."""
    try:
        # Path.glob would take an unreadable folder for an empty one.
        names = [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            f"the checkpoints cannot be read ({error}): fix that, or give another --output"
        ) from error
    found = [re.fullmatch(r"step-(\d+)\.safetensors", name) for name in names]
    return sorted(((int(m[1]), directory / m[0]) for m in found if m), reverse=True)


def stored_settings(directory: Path) -> dict[str, Any]:
    """The settings of the run whose checkpoints a folder holds; empty if there are none to read.

    Raises:
        InputError: the folder cannot be read.
    """
    for _, path in _files(directory):
        with contextlib.suppress(DamagedCheckpointError, ValueError, KeyError):
            return json.loads(read_metadata(path)["settings"])
    return {}


def load_weights(model: keras.Model, checkpoint: Path) -> None:
    """Gives a model the weights of its trainer's checkpoint.

    Args:
        model: a built model, as the one that was trained.
        checkpoint: file that `TrainingState` wrote.

    Raises:
        InputError: the checkpoint is damaged, or is another model's.
    """
    try:
        tensors, _ = read_checkpoint(checkpoint)
    except DamagedCheckpointError as error:
        raise InputError(f"{checkpoint} cannot be read ({error}): repeat its run") from error
    for name, weight in zip(_names([w.path for w in model.weights]), model.weights, strict=True):
        if name not in tensors or tensors[name].shape != tuple(weight.shape):
            raise InputError(f"{checkpoint} is of another model: it differs in {name}")
        weight.assign(tensors[name])


# A word of a path, its number, and what separates it from the next one.
_WORD = re.compile(r"(?=.)([^/_]*)(?:_(\d+)(?=[/_]|$))?([/_]?)")


def _names(paths: list[str]) -> list[str]:
    """Names for variables by their paths, the same in every process.

    Keras numbers what has no name of its own through the whole process: "dense_7", "dense_8".
    Here the numbers of words that stand after the same text count from 0. Equal paths, if any, are
    told apart by their order.
    """
    numbers = defaultdict(set)  # text up to a word -> the word's numbers
    for path in paths:
        for word in _WORD.finditer(path):
            numbers[path[: word.end(1)]].add(int(word[2] or 0))

    def counted_from_0(word: re.Match) -> str:
        rank = sorted(numbers[word.string[: word.end(1)]]).index(int(word[2] or 0))
        return word[1] + (f"_{rank}" if rank else "") + word[3]

    names = []
    seen: Counter[str] = Counter()
    for path in paths:
        name = _WORD.sub(counted_from_0, path)
        names.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def _flattened(settings: dict, prefix: str = "") -> dict[str, Any]:
    """Nested settings with dots in their names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}

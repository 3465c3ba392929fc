"""The training state on disk, from which a stopped run resumes.

A checkpoint is one safetensors file, `step-00001000.safetensors`: every variable of the model
(dropout generators included), of the optimizer and of the means since the last line of scalars; the
progress and settings of the run as metadata; a SHA-256 of everything. `Run.open` restores it, and
the loop reads batches from its step on: they are a function of the seed and the step, in
`pipelines.examples.batches` and `pipelines.shards.pretraining_batches`.
"""

import contextlib
import hashlib
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError, safe_open

from bert_tf.checkpoints.weights_files import write_tensors
from bert_tf.errors import InputError
from bert_tf.files.mirror import is_mirrored, push
from bert_tf.files.owners import Mark
from bert_tf.options import differing
from bert_tf.training.trainer import Trainer
from bert_tf.training.workers import is_chief

_MEANS = "metric/means"
_CHECKSUM = "sha256"


@dataclass(eq=False)
class Progress:
    """How far a run has come; a checkpoint holds it as JSON."""

    step: int = 0  # training steps done
    best: float | None = None  # best score so far, None before the first evaluation
    best_loss: float | None = None  # validation loss of the best model; None if it is unknown
    best_step: int | None = None
    tied_steps: list[int] = field(default_factory=list)  # of all models with the best score
    evaluations_since_best: int = 0
    ended_early: bool = False  # for lack of better models
    evaluation_due: bool = False  # whether the evaluation that follows `step` is still to be done
    nonfinite_steps: int = 0
    logged: dict[str, int] = field(default_factory=lambda: {"train": 0, "held_out": 0})  # last step


class TrainingState(Progress):
    """Saves and restores a trainer, and the progress of its run, in a folder.

    Several workers share the folder: each one calls every method, and the chief writes. `settings`
    are JSON values that must be the same when the run is resumed; `implied` are the values that
    None stands for.
    """

    def __init__(
        self,
        trainer: Trainer,
        directory: str | Path,
        *,
        settings: dict,
        implied: Mapping[str, Any] | None = None,
        keep: int = 2,
        keep_every: int | None = None,
        notice: Callable[[str], object] = warnings.warn,
    ) -> None:
        super().__init__()
        self.trainer = trainer
        self.directory = Path(directory)
        self.settings = json.loads(json.dumps(settings))  # as it will be read again
        self._implied = dict(implied or {})
        self.keep = keep
        self.keep_every = keep_every
        self.notice = notice
        self._previous_step = 0
        self.is_dropped = False  # whether the checkpoint restored from holds no variables
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future | None = None

    def advance(self, steps: int, *, ends_stretch: bool) -> None:
        """Counts the steps of an execution; an evaluation follows if it `ends_stretch`."""
        self._previous_step = self.step
        self.step += steps
        self.evaluation_due = ends_stretch

    def passed(self, every: int | None) -> bool:
        """Whether the last execution reached a multiple of `every` steps; False for None."""
        return every is not None and self.step // every > self._previous_step // every

    def save(self, *, wait: bool = True) -> Path:
        """Writes a checkpoint, in a thread of its own, and removes older ones; returns its path.

        With `wait` it is on disk at the end. Raises OSError if it or the one before fails.
        """
        self.wait()
        local = self.trainer.strategy.experimental_local_results  # the same in all replicas
        variables = self._variables().items()
        tensors = {name: np.asarray(local(x.value)[0].numpy()) for name, x in variables}
        settings = json.dumps(self.settings, sort_keys=True)
        metadata = {"progress": json.dumps(asdict(self)), "settings": settings}
        path = self.directory / f"step-{self.step:08d}.safetensors"
        if is_chief(self.trainer.strategy):
            self._writing = self._thread.submit(self._write, path, tensors, metadata, self.step)
        if wait or is_mirrored(self.directory):
            self.wait()
        return path

    def wait(self) -> None:
        """Waits for the checkpoint being written, and uploads a run at a URL; both may fail."""
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()
            push(self.directory)

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

    def drop(self) -> None:
        """Replaces the checkpoints of a complete run with one of its progress and settings alone.

        A command that is repeated then finds the run complete. Those of `keep_every` stay.
        """
        self.wait()
        settings = json.dumps(self.settings, sort_keys=True)
        metadata = {"progress": json.dumps(asdict(self)), "settings": settings}
        path = self.directory / f"step-{self.step:08d}.safetensors"
        self._write(path, {}, metadata, self.step)
        for step, file in _files(self.directory):
            if file != path and not (self.keep_every and step % self.keep_every == 0):
                file.unlink(missing_ok=True)

    def restore(self, *, override: bool = False) -> bool:
        """Restores the newest sound checkpoint; returns whether there is one.

        Raises InputError if none can be read, or for another model or other settings.
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
        self.is_dropped = not tensors
        if changed and self.is_dropped:
            run = self.directory.parent
            raise InputError(
                f"{run} is complete, with other settings ({changed}), and its optimizer's state "
                f"was deleted: train on from its model, --model {run / 'last'}, with another "
                "--output; a run with --keep_states keeps the state"
            )
        if changed and not override:
            raise InputError(
                f"{path} is of a run with other settings ({changed}): give the same ones to "
                "resume it, another --output for a new run, or --override to use the new ones"
            )
        if not self.is_dropped:
            self._assign(path, tensors)
        vars(self).update(json.loads(metadata["progress"]))
        self._previous_step = self.step
        if damaged:
            self.notice(f"damaged: {'; '.join(damaged)}: resuming from {path}")
        if changed:
            self.notice(f"resuming {path} with other settings: {changed}")
        return True

    def check_models(self, mark: Mark, *, override: bool) -> None:
        """Raises InputError if a run without checkpoints has models of other settings."""
        changed = self._changed_settings(mark.settings) if mark.settings else ""
        if changed and not override and any((mark.folder / x).exists() for x in ("best", "last")):
            raise InputError(
                f"{mark.folder} holds models of other settings ({changed}): give the same ones, "
                "another --output, or --override to replace them"
            )

    def _changed_settings(self, saved: dict) -> str:
        """The settings that differ from the saved ones, "seed was 0, is now 1; ..."."""
        before = _flattened(saved)
        now = _flattened(self.settings)
        return "; ".join(
            f"{name} was {before.get(name)!r}, is now {now.get(name)!r}"
            for name in sorted(differing(before, now, self._implied))
        )

    def _assign(self, path: Path, tensors: dict[str, np.ndarray]) -> None:
        variables = self._variables()
        shapes = [{(n, tuple(x.shape)) for n, x in group.items()} for group in (tensors, variables)]
        if differing := shapes[0] ^ shapes[1]:
            raise InputError(
                f"{path} holds another model (it differs in {min(differing)[0]}): give another "
                "--output"
            )
        for name, variable in variables.items():
            variable.assign(tensors[name])

    def _variables(self) -> dict[str, keras.Variable]:
        return {**_by_name(self.trainer.variables), _MEANS: self.trainer.means}


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
    matches = [re.fullmatch(r"step-(\d+)\.safetensors", name) for name in names]
    return sorted(((int(m[1]), directory / m[0]) for m in matches if m), reverse=True)


def stored_settings(directory: Path) -> dict[str, Any]:
    """The settings of the run whose checkpoints a folder holds; empty if there are none to read."""
    for _, path in _files(directory):
        with (
            contextlib.suppress(DamagedCheckpointError, ValueError, KeyError),
            _opened(path) as file,
        ):
            return json.loads((file.metadata() or {})["settings"])
    return {}


def load_weights(model: keras.Model, checkpoint: Path) -> None:
    """Gives a built model the weights of a checkpoint; InputError if it is damaged or another's."""
    try:
        tensors, _ = read_checkpoint(checkpoint)
    except DamagedCheckpointError as error:
        raise InputError(f"{checkpoint} cannot be read ({error}): repeat its run") from error
    for name, weight in _by_name(model.weights).items():
        if name not in tensors or tensors[name].shape != tuple(weight.shape):
            raise InputError(f"{checkpoint} is of another model: it differs in {name}")
        weight.assign(tensors[name])


# A word of a path, its number, and what separates it from the next one.
_WORD = re.compile(r"(?=.)([^/_]*)(?:_(\d+)(?=[/_]|$))?([/_]?)")


def _by_name(variables: Sequence[keras.Variable]) -> dict[str, keras.Variable]:
    """Variables by their paths, in which numbers after the same text count from 0.

    Keras numbers what has no name, such as dropout generators, through the whole process.
    """
    numbers = defaultdict(set)  # text up to a word -> the word's numbers
    for variable in variables:
        for word in _WORD.finditer(variable.path):
            numbers[variable.path[: word.end(1)]].add(int(word[2] or 0))

    def counted_from_0(word: re.Match) -> str:
        rank = sorted(numbers[word.string[: word.end(1)]]).index(int(word[2] or 0))
        return word[1] + (f"_{rank}" if rank else "") + word[3]

    by_name = {_WORD.sub(counted_from_0, variable.path): variable for variable in variables}
    if len(by_name) < len(variables):
        raise ValueError("two variables have one path: give each layer a name of its own")
    return by_name


def _flattened(settings: dict, prefix: str = "") -> dict[str, Any]:
    """Nested settings with dots in their names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        is_nested = isinstance(value, dict)
        flat |= _flattened(value, f"{prefix}{name}.") if is_nested else {prefix + name: value}
    return flat


class DamagedCheckpointError(Exception):
    """A file cannot be read, is no checkpoint, or is not as it was written."""


def write_checkpoint(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """Writes tensors and texts by name, under one checksum."""
    write_tensors(path, tensors, {**metadata, _CHECKSUM: _checksum(tensors, metadata)})


def read_checkpoint(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a checkpoint, checked against its checksum."""
    with _opened(path) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    checksum = metadata.pop(_CHECKSUM, None)
    if checksum != _checksum(tensors, metadata):
        raise DamagedCheckpointError("checksum mismatch" if checksum else "no checksum")
    return tensors, metadata


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(str(error)) from error


def _checksum(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> str:
    """SHA-256 of the metadata and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.name, tensor.shape]).encode())
        digest.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()

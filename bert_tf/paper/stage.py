"""A stage of an experiment, and the folder that remembers its outcome.

The folder is named by a hash of the stage's options and inputs, so tables share stages.
"""

import functools
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import write_json
from bert_tf.options import CheckedOptions, default_of
from bert_tf.paper.step_speed import StepSpeed
from bert_tf.version import TRAJECTORY

# Options that do not change what a stage makes, or that name its inputs, which count by content.
_NOT_IN_IDENTITY = {
    "output",
    "shards",
    "long_shards",
    "model",
    "data",
    "train",
    "validation",
    "seeds",
    "keep_every",
    "keep",
    "save_every",
    "log_every",
}
FOLDER = "(folder)"  # in declared options, for what the plan fills in
Show = Callable[..., None]  # called with the work done and the total, None if unknown


@dataclass(frozen=True)
class Cache:
    folder: Path  # of all stages

    def of(self, stage: "Stage") -> Path:
        return self.folder / stage.name

    def outcome(self, stage: "Stage") -> dict[str, Any] | None:
        """The outcome of a finished stage, else None."""
        path = self._record(stage)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            outcome = record["outcome"]
            before = dict(record.get("made_with", {}))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} cannot be read ({error}): delete it to repeat the run"
            ) from error
        # Earlier versions recorded none of them, or not all.
        for name, value in stage.made_with.items():
            if before.get(name, value) != value:
                raise InputError(
                    f"{path} was made with {name} {before[name]}, not {value} as now: "
                    f"delete it and {self.of(stage)} to repeat the run, or give another --output"
                )
        return outcome

    def make(self, stage: "Stage", show: Show) -> None:
        """Makes or resumes a stage whose inputs are finished, and writes its outcome."""
        started = time.perf_counter()
        outcome = stage.make(self, show)
        record = {
            "run": stage.title,
            "options": stage.identity,
            "made_with": stage.made_with,
            "inputs": [one.name for one in stage.inputs],
            "seconds": round(time.perf_counter() - started, 1),
            "outcome": outcome,
        }
        write_json(self._record(stage), record)
        stage.tidy(self)

    def _record(self, stage: "Stage") -> Path:
        return self.folder / f"{stage.record}.json"


@dataclass(frozen=True, eq=False, kw_only=True)
class Stage(ABC):
    """One stage: its inputs, how it is made, and its estimated cost."""

    title: str  # shown to the user

    @property
    def steps(self) -> int:
        """Steps of training."""
        return 0

    @property
    def bytes(self) -> float:
        """Largest space on the disk, estimated."""
        return 0.0

    @property
    def inputs(self) -> "tuple[Stage, ...]":
        """The stages that it needs: fields that are stages, or that have one."""
        values = (getattr(value, "stage", value) for value in vars(self).values())
        return tuple(value for value in values if isinstance(value, Stage))

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Its settings, beside its inputs, as JSON values."""

    @abstractmethod
    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Makes or resumes the stage's folder, as the command of its kind; returns the outcome."""

    def tidy(self, cache: Cache) -> None:  # noqa: B027
        """Deletes files that nobody needs once the outcome is written."""

    @abstractmethod
    def seconds(self, speed: StepSpeed) -> float:
        """Estimated time to make it on this machine."""

    @functools.cached_property
    def made_with(self) -> dict[str, Any]:
        """What decides its numbers and is not in its name: the version, and values by default."""
        values: dict[str, Any] = {"version": TRAJECTORY}
        options = getattr(self, "options", ())
        for part in options if isinstance(options, Sequence) else [options]:
            for name, value in vars(part).items():
                if name not in _NOT_IN_IDENTITY:
                    values.setdefault(name, []).append(value)
        return json.loads(json.dumps(values))

    @functools.cached_property
    def name(self) -> str:
        made_from = [self.identity, [one.name for one in self.inputs]]
        content = json.dumps(made_from, sort_keys=True).encode()
        return f"{type(self).__name__.lower()}-{hashlib.sha256(content).hexdigest()[:12]}"

    @property
    def record(self) -> str:
        """Name of the file of its outcome."""
        return self.name

    def in_order(self) -> "list[Stage]":
        """The stages that it needs, each behind its own, and itself."""
        return [*(stage for needed in self.inputs for stage in needed.in_order()), self]


def chosen_options(options: CheckedOptions) -> dict[str, Any]:
    """The options that differ from their defaults and change the result."""
    values = {
        field.name: (getattr(options, field.name), default_of(field)) for field in fields(options)
    }
    return {
        name: value
        for name, (value, default) in values.items()
        if name not in _NOT_IN_IDENTITY and value != default
    }

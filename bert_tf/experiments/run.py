"""A run of an experiment, and where it stands.

A run's folder is named by a hash of its options and of what it is made from, so that tables share
the runs that they have in common, and a finished run is never repeated. When a run has ended, a
file beside its folder says so and holds its outcome.
"""

import functools
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from bert_tf.atomic import write_json
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions
from bert_tf.version import TRAJECTORY

# Options that do not change what a run makes, or that name its inputs, which count by content.
_NOT_IN_IDENTITY = {
    "output", "shards", "long_shards", "model", "data", "train", "validation", "seeds",
    "keep_every", "keep", "save_every", "log_every",
}  # fmt: skip
FOLDER = "(folder)"  # in declared options, for what the plan fills in


class Show(Protocol):
    """What the user sees of a run."""

    def update(self, completed: int, total: int | None = None) -> None:
        """Moves the bar."""


@dataclass(frozen=True)
class Cache:
    """The folder of all runs."""

    folder: Path

    def of(self, run: "Run") -> Path:
        """The folder of a run."""
        return self.folder / run.name

    def outcome(self, run: "Run") -> dict[str, Any] | None:
        """The outcome of a finished run, else None."""
        try:
            record = json.loads(self._record(run).read_text(encoding="utf-8"))
            outcome, before = record["outcome"], dict(record.get("made_with", {}))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._record(run)} cannot be read ({error}): delete it to repeat the run"
            ) from error
        # Earlier versions recorded none of them, or not all.
        for name, value in run.made_with.items():
            if before.get(name, value) != value:
                raise InputError(
                    f"{self._record(run)} was made with {name} {before[name]}, not {value} as now: "
                    f"delete it and {self.of(run)} to repeat the run, or give another --output"
                )
        return outcome

    def make(self, run: "Run", show: Show) -> None:
        """Makes a run whose inputs are finished, or goes on with it, and writes its outcome."""
        started = time.perf_counter()
        outcome = run.make(self, show)
        write_json(
            self._record(run),
            {
                "run": run.title,
                "options": run.identity,
                "made_with": run.made_with,
                "inputs": [one.name for one in run.inputs],
                "seconds": round(time.perf_counter() - started, 1),
                "outcome": outcome,
            },
        )
        run.tidy(self)

    def _record(self, run: "Run") -> Path:
        return self.folder / f"{run.record}.json"


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(ABC):
    """One run.

    Attributes:
        title: name shown to the user.
    """

    title: str

    @property
    @abstractmethod
    def inputs(self) -> "tuple[Run, ...]":
        """The runs that it needs."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What it is made from, beside its inputs, as JSON values."""

    @abstractmethod
    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Makes the run's folder, or goes on with it; returns the outcome.

        Raises:
            InputError: the data cannot be used.
            Preempted: the run was stopped; it goes on where it was.
        """

    @property
    def all_options(self) -> Sequence[CheckedOptions]:
        """The options that it is made with."""
        return ()

    @functools.cached_property
    def made_with(self) -> dict[str, Any]:
        """What decides its numbers and is not in its name: the version, and values by default."""
        found: dict[str, Any] = {"version": TRAJECTORY}
        for options in self.all_options:
            for name, value in vars(options).items():
                if name not in _NOT_IN_IDENTITY:
                    found.setdefault(name, []).append(value)
        return json.loads(json.dumps(found))

    @functools.cached_property
    def name(self) -> str:
        """Name of its folder."""
        made_from = [self.identity, [one.name for one in self.inputs]]
        content = json.dumps(made_from, sort_keys=True).encode()
        return f"{type(self).__name__.lower()}-{hashlib.sha256(content).hexdigest()[:12]}"

    @property
    def record(self) -> str:
        """Name of the file of its outcome."""
        return self.name

    def tidy(self, cache: Cache) -> None:  # noqa: B027
        """Deletes what nobody needs once the outcome is written."""

    def with_inputs(self) -> "list[Run]":
        """The run after the runs that it needs, directly or not."""
        found = {each.name: each for one in self.inputs for each in one.with_inputs()}
        return [*found.values(), self]


def chosen_options(options: CheckedOptions) -> dict[str, Any]:
    """The options that differ from their defaults, without those that leave the result as it is."""
    chosen = {}
    for field in fields(options):
        made = field.default_factory
        default = field.default if made is MISSING else made()
        value = getattr(options, field.name)
        if field.name not in _NOT_IN_IDENTITY and value != default:
            chosen[field.name] = value
    return chosen

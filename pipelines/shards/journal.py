"""The journal of a folder of shards: which groups of batches are finished, and by which plan.

An entry is written when all shards of its group are in place. Such a group is not made again.
"""

import fcntl
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.atomic import TEMPORARY_NAMES, remove, write_text
from bert_tf.errors import InputError
from pipelines.corpus.documents import DocumentPlan
from pipelines.instances.records import InstanceCounts
from pipelines.shards.manifest import Shard

JOURNAL = ".journal"
_PLAN, _DOCUMENTS = "plan.json", "documents.json"
_ENTRIES = "*-*.json"


@dataclass
class FinishedGroup:
    unit: int
    group: int  # number in the unit
    ends_unit: bool = False  # whether it is the last group of the unit
    bytes_read: int = 0  # bytes on disk of the unit, up to the end of the group
    text: Counter[str] = field(default_factory=Counter)  # counts of the text, by name
    # paths of the unit's files that could not be read so far
    unreadable: list[str] = field(default_factory=list)
    # by length, number of documents with fewer tokens than an instance
    short_documents: list[int] = field(default_factory=list)
    shards: list[dict[str, list[Shard]]] = field(default_factory=list)  # by length and split
    counts: list[dict[str, InstanceCounts]] = field(default_factory=list)  # by length and split

    @property
    def instances(self) -> int:
        of_splits = [shards for splits in self.shards for shards in splits.values()]
        return sum(shard.instances for shards in of_splits for shard in shards)


class Journal:
    """The journal of a working folder, for a corpus of so many units; `names` as in `ShardsJob`."""

    def __init__(self, folder: Path, names: Sequence[str], units: int):
        self.folder, self._names, self._units = folder, names, units
        self._place = folder / JOURNAL

    def groups(self, units: Iterable[int] | None = None) -> list[FinishedGroup]:
        """The finished groups of all or some units, in order of the corpus."""
        patterns = [_ENTRIES] if units is None else [f"{unit:05d}-*.json" for unit in units]
        paths = sorted(path for pattern in patterns for path in self._place.glob(pattern))
        return [_load(path) for path in paths]

    def missing(self, units: Sequence[int] | None = None) -> list[int]:
        """The units, of all or of some, that have groups to make."""
        groups = self.groups(units)
        made = Counter(group.unit for group in groups)
        complete = {one.unit for one in groups if one.ends_unit and made[one.unit] > one.group}
        return [u for u in (range(self._units) if units is None else units) if u not in complete]

    def add(self, group: FinishedGroup) -> None:
        """Enters a group whose shards are in place."""

        def plain(value: Any) -> Any:
            return vars(value) if isinstance(value, Shard) else value.tolist()

        write_text(self._entry(group), json.dumps(vars(group), default=plain))

    def forget(self, units: Sequence[int]) -> None:
        """Removes the groups of some units, and their shards."""
        for group in self.groups(units):
            remove(self._entry(group), *self._files(group))

    def check_files(self) -> None:
        """Forgets entries whose shards are gone and deletes shards that no entry names."""
        kept: set[Path] = set()
        for group in self.groups():
            sizes = self._files(group)
            if all(file.is_file() and file.stat().st_size == size for file, size in sizes.items()):
                kept.update(sizes)
            else:
                self._entry(group).unlink()
        remove(*self.folder.rglob(TEMPORARY_NAMES))
        remove(*(file for file in self.folder.rglob("*.tfrecord") if file not in kept))

    def finish(self) -> list[FinishedGroup]:
        """All groups; refuses incomplete units."""
        self.check_files()
        if missing := self.missing():
            raise InputError(
                f"{self.folder}: shards of {len(missing)} of {self._units} units of the corpus are "
                "missing: give the same command again to make them (all workers of Beam must see "
                "this folder under this path)"
            )
        return self.groups()

    @property
    def plan(self) -> dict[str, Any] | None:
        path = self._place / _PLAN
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    @property
    def documents(self) -> DocumentPlan | None:
        path = self._place / _DOCUMENTS
        return DocumentPlan.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None

    @documents.setter
    def documents(self, plan: DocumentPlan) -> None:
        write_text(self._place / _DOCUMENTS, json.dumps(plan))

    @contextmanager
    def begun(self, plan: dict[str, Any]) -> Iterator[None]:
        """Locks the folder for a run by this plan; an error removes it if nothing is finished."""
        self._place.mkdir(parents=True, exist_ok=True)
        with (self._place / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"{self.folder}: another process is writing there: wait for it, or name "
                    "another output"
                ) from error
            old = self.plan
            units = [int(path.name.partition("-")[0]) for path in self._place.glob(_ENTRIES)]
            if old is not None and (difference := _difference(old, plan, max(units, default=-1))):
                raise InputError(
                    f"{self.folder}: holds an unfinished run that differs in {difference}: give "
                    "its settings to continue it, or remove the folder to start over"
                )
            if old != plan:
                write_text(self._place / _PLAN, json.dumps(plan))
            try:
                yield
            except BaseException:
                if self.folder.is_dir():
                    remove(*self.folder.rglob(TEMPORARY_NAMES))
                    if not any(self._place.glob(_ENTRIES)):
                        shutil.rmtree(self.folder)  # nothing to continue
                raise

    def remove(self) -> None:
        """Removes the journal, the plan last: while it exists, the same call knows its run."""
        remove(*(path for path in self._place.iterdir() if path.name != _PLAN))
        shutil.rmtree(self._place)

    def _entry(self, group: FinishedGroup) -> Path:
        return self._place / f"{group.unit:05d}-{group.group:05d}.json"

    def _files(self, group: FinishedGroup) -> dict[Path, int]:
        """The paths of a group's shards, and their sizes."""
        return {
            self.folder / name / shard.file: shard.bytes
            for name, splits in zip(self._names, group.shards, strict=True)
            for shards in splits.values()
            for shard in shards
        }


def _load(path: Path) -> FinishedGroup:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["shards"] = [
        {split: [Shard(**shard) for shard in shards] for split, shards in splits.items()}
        for splits in content["shards"]
    ]
    content["counts"] = [
        {split: InstanceCounts(*map(np.asarray, counts)) for split, counts in splits.items()}
        for splits in content["counts"]
    ]
    return FinishedGroup(**content)


def _difference(begun: dict[str, Any], plan: dict[str, Any], last_unit: int) -> str | None:
    """The first difference that keeps a run from being continued by another plan, if any.

    Text after `last_unit` may change, so that a file that stopped the run can be fixed.
    """
    if any(begun.get(name) != plan[name] for name in ("format", "bert_tf_version")):
        return "the version of bert-tf, which makes other shards now"
    if len(begun["options"]) != len(plan["options"]):
        return "its sequence lengths"
    for one, other in zip(begun["options"], plan["options"], strict=True):
        for name in one:
            if one[name] != other.get(name):
                return f"{name} ({one[name]} there, {other.get(name)} now)"
    if begun["vocabulary"] != plan["vocabulary"]:
        return "the vocabulary"
    reached = last_unit + 1
    for unit, other_unit in zip(begun["units"][:reached], plan["units"], strict=False):
        if unit != other_unit:
            changed = [slice_ for slice_ in unit if slice_ not in other_unit] or other_unit
            return f"the corpus ({changed[0][0]} is new, changed or gone)"
    return None if len(plan["units"]) >= reached else "the corpus (files are gone)"

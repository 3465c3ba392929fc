"""The journal of a folder of shards: which groups of batches are finished, and by which plan.

Whoever makes a unit writes its shards under their final names, then its entries here. Any process
may make any unit, in any order, twice: the bytes are the same. A shard counts if an entry names it,
its size and its checksum; all else is dead, and only a run that holds the folder alone removes it.
"""

import contextlib
import fnmatch
import itertools
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_tf.errors import InputError
from bert_tf.files.atomic import TEMPORARY_NAMES
from bert_tf.files.lease import Lease
from bert_tf.files.lock import locked
from bert_tf.files.storage import Folder, sha256
from bert_tf.pipelines.corpus.documents import DocumentPlan
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances.record_batches import InstanceCounts
from bert_tf.pipelines.shards.manifest import JOURNAL, SHARD_NAMES, Shard

_PLAN = "plan.json"
_DOCUMENTS = "documents.json"
_LOCK = "lock"
_ENTRY = re.compile(r"(\d+)-(\d+)(?:-last)?\.json")
TOKENIZER = "tokenizer"  # subfolder, for workers
_SKIPPING = ("skip_unreadable", "skip_bad_lines")
_log = logging.getLogger(__name__)


@dataclass
class FinishedGroup:
    unit: int
    group: int  # number in the unit
    ends_unit: bool = False  # whether it is the last group of the unit
    bytes_read: int = 0  # bytes on disk of the unit, up to the end of the group
    text: Counter[str] = field(default_factory=Counter)  # counts of the text, by name
    unreadable: list[str] = field(default_factory=list)  # paths of the unit's skipped files
    short_documents: list[int] = field(default_factory=list)  # by length, as in `Records`
    shards: list[dict[str, list[Shard]]] = field(default_factory=list)  # by length and split
    counts: list[dict[str, InstanceCounts]] = field(default_factory=list)  # by length and split

    @property
    def entry(self) -> str:
        """The name of its entry: unit, group, and whether it ends the unit."""
        return f"{self.unit:05d}-{self.group:05d}{'-last' if self.ends_unit else ''}.json"

    def all_shards(self) -> Iterator[tuple[int, Shard]]:
        """The shards of all lengths and splits, each after the index of its length."""
        for index, splits in enumerate(self.shards):
            for shard in itertools.chain.from_iterable(splits.values()):
                yield index, shard


class Journal:
    """The journal of an output folder, which has a subfolder for each of several lengths."""

    def __init__(self, folder: Folder, lengths: Sequence[int]):
        self.folder = folder
        self.folders = [folder / str(x) for x in lengths] if len(lengths) > 1 else [folder]
        self._files = folder / JOURNAL

    def entries(self) -> defaultdict[int, dict[int, str]]:
        """The names of the entries, by unit and group."""
        entries: defaultdict[int, dict[int, str]] = defaultdict(dict)
        for name in self._files.sizes():
            if match := _ENTRY.fullmatch(name):
                entries[int(match[1])][int(match[2])] = name
        return entries

    def missing(self, units: Iterable[int]) -> list[int]:
        """Those of some units that have groups to make."""
        entries = self.entries()
        return [n for n in units if "-last" not in entries[n].get(len(entries[n]) - 1, "")]

    def groups(self, units: Iterable[int] | None = None) -> Iterator[FinishedGroup]:
        """The finished groups of all or some units, in order of the corpus, one by one."""
        entries = self.entries()
        for unit in sorted(entries) if units is None else units:
            for _, name in sorted(entries[unit].items()):
                if (content := self._files.read(name)) is not None:
                    yield _load(content)

    def add(self, group: FinishedGroup) -> None:
        """Enters a group whose shards are in place."""

        def plain(value: Any) -> Any:
            if isinstance(value, Shard):
                return vars(value) | {"block_bytes": value.block_bytes.tolist()}
            return value.tolist()

        self._files.write(group.entry, json.dumps(vars(group), default=plain).encode())

    def forget(self, units: Iterable[int]) -> None:
        """Removes the entries of some units; their shards are dead then."""
        entries = self.entries()
        self._files.remove(name for unit in units for name in entries[unit].values())

    def check(self, units: Iterable[int] | None = None, *, checksums: bool = False) -> int:
        """Forgets entries whose shards are gone or differ; returns how many instances remain."""
        sizes = [folder.sizes() for folder in self.folders]

        def is_whole(indexed: tuple[int, Shard]) -> bool:
            index, shard = indexed
            folder = self.folders[index]
            name = shard.file
            is_same_size = shard.bytes == (sizes[index].get(name) or folder.size(name))
            return is_same_size and (not checksums or sha256(f"{folder}/{name}") == shard.sha256)

        instances = 0
        with ThreadPoolExecutor() as threads:
            compare = threads.map if checksums else map
            for group in self.groups(units):
                if all(compare(is_whole, group.all_shards())):
                    instances += sum(shard.instances for _, shard in group.all_shards())
                else:
                    self._files.remove([group.entry])
        return instances

    def remove_dead(self) -> None:
        """Removes shards that no entry names. No other process may be at work in the folder."""
        alive = {(i, shard.file) for group in self.groups() for i, shard in group.all_shards()}
        for index, folder in enumerate(self.folders):
            names = folder.sizes()
            ours = (fnmatch.filter(names, x) for x in (*SHARD_NAMES, TEMPORARY_NAMES))
            made = itertools.chain.from_iterable(ours)
            folder.remove([name for name in made if (index, name) not in alive])

    @property
    def plan(self) -> dict[str, Any] | None:
        content = self._files.read(_PLAN)
        return None if content is None else json.loads(content)

    @property
    def documents(self) -> DocumentPlan | None:
        content = self._files.read(_DOCUMENTS)
        return None if content is None else DocumentPlan.from_json(content)

    @documents.setter
    def documents(self, plan: DocumentPlan) -> None:
        self._files.write(_DOCUMENTS, json.dumps(plan).encode())

    @property
    def tokenizer(self) -> Folder:
        return self._files / TOKENIZER

    @contextmanager
    def begun(
        self, plan: dict[str, Any], sources: Sequence[str], *, is_shared: bool
    ) -> Iterator[None]:
        """Locks the folder for a run by this plan; an error with nothing finished removes it.

        `sources` names the first source of each unit. Processes that share the folder each make
        units of their own by the same plan, and remove nothing.
        """
        with self._locked(is_shared):
            old = self.plan
            begun = self.entries()
            if old is not None and old != plan:
                last = 2**62 if is_shared else max(begun, default=-1)
                if difference := _difference(old, plan, sources, last):
                    raise InputError(
                        f"{self.folder}: holds an unfinished run that differs in {difference}: "
                        "give its settings to continue it, or remove the folder to start over"
                    )
                if not begun:
                    self._files.remove([_DOCUMENTS])
            if old != plan:
                self._files.write(_PLAN, json.dumps(plan).encode())
            try:
                yield
            except BaseException:
                if not (is_shared or begun or self.entries()):
                    self.remove_dead()  # nothing to continue
                    self.remove()
                    self.folder.clear(())  # if no other file came since
                raise

    @contextmanager
    def _locked(self, is_shared: bool) -> Iterator[None]:
        if self._files.local is None:  # an object store has no locks
            self._files.write(_LOCK, b"")
            with contextlib.nullcontext() if is_shared else Lease(self._files):
                yield
            return
        self._files.local.mkdir(parents=True, exist_ok=True)
        lock = self._files.local / _LOCK
        lock.touch()
        with locked(lock, is_shared=is_shared) as is_held:
            if is_held is False:
                raise InputError(
                    f"{self.folder}: another process is writing there: wait for it, or name "
                    "another output"
                )
            yield

    def remove(self) -> None:
        """Removes the journal, the plan last: while it exists, the same call knows its run.

        A bucket's policy may deny it; the shards are whole all the same.
        """
        try:
            self.tokenizer.clear()
            self._files.remove(name for name in self._files.sizes() if name != _PLAN)
            self._files.clear()
        except InputError as error:
            _log.warning("what is no longer needed stays there: %s", error)


def _load(content: bytes) -> FinishedGroup:
    values = json.loads(content)
    values["shards"] = [Shard.of_splits(splits) for splits in values["shards"]]
    values["counts"] = [
        {split: InstanceCounts(*map(np.asarray, counts)) for split, counts in splits.items()}
        for splits in values["counts"]
    ]
    return FinishedGroup(**values)


def _difference(
    begun: dict[str, Any], plan: dict[str, Any], sources: Sequence[str], last_unit: int
) -> str | None:
    """The first difference that keeps a run from being continued by another plan, if any.

    Text after `last_unit` may change, so that a file that stopped the run can be fixed.
    """
    if any(begun.get(name) != plan[name] for name in ("format", "bert_tf_version")):
        return "the version of bert-tf, which makes other shards now"
    if len(begun["options"]) != len(plan["options"]):
        return "its sequence lengths"
    for options in zip(begun["options"], plan["options"], strict=True):
        before, now = (vars(PretrainingDataOptions(**settings)) for settings in options)
        for name, value in before.items():
            may_begin = name in _SKIPPING and now[name]  # what is finished had nothing to skip
            if value != now[name] and not may_begin:
                return f"{name} ({value} there, {now[name]} now)"
    if begun["vocabulary"] != plan["vocabulary"]:
        return "the vocabulary"
    hashes = (run["units"][: last_unit + 1] for run in (begun, plan))
    for number, (before, now) in enumerate(itertools.zip_longest(*hashes)):
        if before != now:
            near = sources[min(number, len(sources) - 1)]
            return f"the corpus ({near}, or a file beside it, is new, changed or gone)"
    return None

"""Makes shards group by group, with a journal of finished groups.

The shards of a group are written under temporary names, renamed when the group is complete, and
then entered in the journal. A group in the journal is not made again.
"""

import contextlib
import errno
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.atomic import TEMPORARY_NAMES, remove, sync, temporary_name, write_text
from pipelines.corpus.documents import COUNTED, GROUP_BYTES, DocumentBatch, UnitReader
from pipelines.corpus.formats import input_errors
from pipelines.corpus.sources import Corpus
from pipelines.instances.records import RecordBatch, record_batches
from pipelines.instances.statistics import InstanceCounts
from pipelines.options import PretrainingDataOptions
from pipelines.shards.manifest import BLOCK_RECORDS, Shard, sha256
from pipelines.shards.record_blocks import FRAME_BYTES

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer

JOURNAL = ".journal"


class ShardsProgress(NamedTuple):
    """Bytes of the corpus on disk that are done, and of all; instances written in all splits."""

    bytes_read: int
    total_bytes: int
    instances: int


@dataclass
class ShardsJob:
    """What a process needs to write the shards of some units.

    Args:
        folder: working folder, `OUTPUT.unfinished`, which every process must see.
        corpus: corpus to read.
        options: one per sequence length, in order of length.
        names: per length, the subfolder for its shards; "" for `folder` itself.
    """

    folder: Path
    corpus: Corpus
    options: list[PretrainingDataOptions]
    names: list[str]

    @property
    def parts(self) -> int:
        """Number of shards per group and round: more than one if the corpus has few groups."""
        groups = max(1, round(self.corpus.text_bytes / GROUP_BYTES))
        return -(-self.options[0].num_shards // (groups * self.options[0].dupe_factor))


@dataclass
class FinishedGroup:
    """A journal entry: the shards of a group of batches.

    Args:
        unit: number of the unit.
        group: number of the group in the unit.
        ends_unit: whether it is the last group of the unit.
        bytes_read: bytes on disk of the unit, up to the end of the group.
        text: counts of the text, by name.
        unreadable: paths of the unit's files that could not be read so far.
        short_documents: by length, number of documents with fewer tokens than an instance.
        shards: by length and split.
        counts: by length and split.
    """

    unit: int
    group: int
    ends_unit: bool
    bytes_read: int
    text: Counter[str]
    unreadable: list[str]
    short_documents: list[int]
    shards: list[dict[str, list[Shard]]]
    counts: list[dict[str, InstanceCounts]]

    @property
    def instances(self) -> int:
        """Instances of all splits and lengths."""
        return sum(
            shard.instances
            for splits in self.shards
            for shards in splits.values()
            for shard in shards
        )

    def path(self, folder: Path) -> Path:
        """The entry's file in the journal of `folder`."""
        return folder / JOURNAL / f"{self.unit:05d}-{self.group:05d}.json"

    def files(self, job: ShardsJob) -> dict[Path, int]:
        """The paths of the shards, and their sizes."""
        return {
            job.folder / name / shard.file: shard.bytes
            for name, splits in zip(job.names, self.shards, strict=True)
            for shards in splits.values()
            for shard in shards
        }

    def save(self, folder: Path) -> None:
        """Writes the entry into the journal of `folder`."""

        def plain(value: Any) -> Any:
            return vars(value) if isinstance(value, Shard) else value.tolist()

        write_text(self.path(folder), json.dumps(vars(self), default=plain))

    @classmethod
    def load(cls, path: Path) -> "FinishedGroup":
        """Reads a journal entry."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content["shards"] = [
            {split: [Shard(**shard) for shard in shards] for split, shards in splits.items()}
            for splits in content["shards"]
        ]
        content["counts"] = [
            {split: InstanceCounts(*map(np.asarray, counts)) for split, counts in splits.items()}
            for splits in content["counts"]
        ]
        return cls(**content)


def finished_groups(job: ShardsJob, units: Sequence[int] | None = None) -> list[FinishedGroup]:
    """The journal of all or some units, in order of the corpus."""
    patterns = ["*-*.json"] if units is None else [f"{unit:05d}-*.json" for unit in units]
    paths = [path for pattern in patterns for path in (job.folder / JOURNAL).glob(pattern)]
    return [FinishedGroup.load(path) for path in sorted(paths)]


def complete_units(groups: Collection[FinishedGroup]) -> set[int]:
    """The units whose groups are all in the journal, up to the last one."""
    made = Counter(group.unit for group in groups)
    return {group.unit for group in groups if group.ends_unit and made[group.unit] > group.group}


def forget_incomplete_groups(job: ShardsJob) -> None:
    """Forgets journal entries whose shards are gone and deletes shards that no entry names."""
    kept: set[Path] = set()
    for group in finished_groups(job):
        sizes = group.files(job)
        if all(file.is_file() and file.stat().st_size == size for file, size in sizes.items()):
            kept.update(sizes)
        else:
            group.path(job.folder).unlink()
    remove(*job.folder.rglob(TEMPORARY_NAMES))
    remove(*(file for file in job.folder.rglob("*.tfrecord") if file not in kept))


def write_units(
    job: ShardsJob,
    tokenizer: "BertTokenizer",
    progress: Callable[[ShardsProgress], None] = lambda progress: None,
    units: Sequence[int] | None = None,
) -> None:
    """Writes the unfinished shards of some units of a job, by default of all.

    Raises:
        InputError: the corpus cannot be used.
        OSError: the shards cannot be written, for example because the disk is full.
    """
    corpus, options = job.corpus, job.options[0]
    done = finished_groups(job, units)
    units = range(len(corpus.units)) if units is None else units
    complete = complete_units(done)
    if options.skip_unreadable:  # what could be read then may not be what can be read now
        for begun in done:
            if begun.unit not in complete:
                begun.path(job.folder).unlink()
                remove(*begun.files(job))
        done = [group for group in done if group.unit in complete]
    sizes = [sum(slice_.size for slice_ in unit) for unit in corpus.units]
    instances = sum(group.instances for group in done)
    readers: dict[int, UnitReader] = {}

    def batches() -> Iterator[DocumentBatch]:
        for unit in units:
            if unit not in complete:
                readers[unit] = UnitReader(
                    corpus,
                    unit,
                    buffer_bytes=options.buffer_bytes,
                    held_out_share=options.held_out_share,
                    seed=options.seed,
                    for_pairs=options.instances == "sentence_pairs",
                    finished={group.group for group in done if group.unit == unit},
                )
                yield from readers[unit]

    with input_errors(), _full_disk_as_os_error(), ThreadPoolExecutor(max_workers=1) as threads:
        made = record_batches(
            batches(), tokenizer, job.options, split_paragraphs=corpus.split_sentences
        )
        finishing = None
        for (unit, number), in_group in itertools.groupby(
            made, lambda records: (int(records.batch.unit), int(records.batch.group))
        ):
            bytes_before = sum(sizes[each] for each in units if each < unit or each in complete)
            with _OpenGroup(job, unit, number) as group:
                for records in in_group:
                    instances += group.write(records, readers[unit].unreadable)
                    bytes_read = bytes_before + int(records.batch.bytes_read)
                    progress(ShardsProgress(bytes_read, sum(sizes), instances))
                if finishing is not None:
                    finishing.result()
            finishing = threads.submit(group.finish)  # while the next group is made
        if finishing is not None:
            finishing.result()


@contextmanager
def _full_disk_as_os_error() -> Iterator[None]:
    """Raises OSError for the error of TensorFlow's writers on a full disk."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if "No space left" in error.message or "quota" in error.message:
            raise OSError(errno.ENOSPC, error.message.split(";")[0]) from error
        raise


class _OpenGroup:
    """The shards of a group under construction; an error removes them."""

    def __init__(self, job: ShardsJob, unit: int, number: int):
        self._job = job
        self._shards: list[dict[tuple[str, int, int], _OpenShard]] = [{} for _ in job.options]
        self._made = FinishedGroup(
            unit=unit,
            group=number,
            ends_unit=False,
            bytes_read=0,
            text=Counter(),
            unreadable=[],
            short_documents=[0 for _ in job.options],
            shards=[{} for _ in job.options],
            counts=[{} for _ in job.options],
        )

    def write(self, records: RecordBatch, unreadable: Collection[str]) -> int:
        """Writes a round of a batch, and what was unreadable so far; returns its instances."""
        batch, group = records.batch, self._made
        split = "held_out" if batch.held_out else "train"
        group.ends_unit, group.bytes_read = bool(batch.ends_unit), int(batch.bytes_read)
        group.unreadable = sorted(unreadable)
        if records.round == 0:
            group.text.update(dict(zip(COUNTED, batch.counts.tolist(), strict=True)))
            group.text["sentences"] += int(records.sentences)
            group.text["sentences_without_tokens"] += int(records.without_tokens)
        for index, made in enumerate(records.lengths):
            counts = group.counts[index]
            counts[split] = counts[split] + made.counts if split in counts else made.counts
            if records.round == 0:
                group.short_documents[index] += int(made.short_documents)
            if len(made.records):
                self._write(index, split, int(records.round), made.records)
        return sum(len(made.records) for made in records.lengths)

    def _write(self, index: int, split: str, round_: int, records: np.ndarray) -> None:
        """Deals records out to the shards of a round in turn, continuing after the last batch."""
        parts = self._job.parts
        if split == "held_out":
            round_, parts = 0, 1
        shards = [self._shard(index, split, round_, part) for part in range(parts)]
        written = sum(shard.made.instances for shard in shards)
        for part, shard in enumerate(shards):
            shard.write(records[(part - written) % parts :: parts].tolist())

    def _shard(self, index: int, split: str, round_: int, part: int) -> "_OpenShard":
        shards = self._shards[index]
        if (split, round_, part) not in shards:
            place = f"{self._made.unit:05d}-{self._made.group:05d}-{round_:02d}-{part:02d}"
            folder = self._job.folder / self._job.names[index]
            shards[split, round_, part] = _OpenShard(folder / f"{split}-{place}.tfrecord")
        return shards[split, round_, part]

    def finish(self) -> None:
        """Renames the shards and enters the group in the journal."""
        with _full_disk_as_os_error():
            for finished, shards in zip(self._made.shards, self._shards, strict=True):
                for key in sorted(shards):
                    finished.setdefault(key[0], []).append(shards[key].finish())
            for name in self._job.names:
                sync(self._job.folder / name)
            self._made.save(self._job.folder)

    def __enter__(self) -> "_OpenGroup":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        for shard in [shard for shards in self._shards for shard in shards.values() if kind]:
            shard.abandon()


class _OpenShard:
    """A shard under a temporary name."""

    def __init__(self, path: Path):
        self.made = Shard(path.name, instances=0, bytes=0, sha256="", block_offsets=[])
        self._path = path
        self._temporary = temporary_name(path)
        self._writer = tf.io.TFRecordWriter(str(self._temporary))

    def write(self, records: list[bytes]) -> None:
        shard, write = self.made, self._writer.write
        for record in records:
            if shard.instances % BLOCK_RECORDS == 0:
                shard.block_offsets.append(shard.bytes)
            write(record)
            shard.instances += 1
            shard.bytes += len(record) + FRAME_BYTES

    def finish(self) -> Shard:
        self._writer.close()
        sync(self._temporary)
        self.made.sha256 = sha256(self._temporary)
        self._temporary.replace(self._path)
        return self.made

    def abandon(self) -> None:
        with contextlib.suppress(tf.errors.OpError):  # a full disk, which is reported already
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

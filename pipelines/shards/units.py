"""Makes units of a corpus: reads their text, and writes it as shards of a folder."""

import contextlib
import itertools
import resource
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.device_errors import full_disk_errors
from bert_tf.files.storage import Folder, is_remote, open_folder, sha256
from bert_tf.pipelines.corpus.documents import DocumentPlan, UnitReader
from bert_tf.pipelines.corpus.formats import input_errors
from bert_tf.pipelines.corpus.sources import Slice
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.instances.record_batches import RecordBatch, record_batches
from bert_tf.pipelines.shards.journal import FinishedGroup, Journal
from bert_tf.pipelines.shards.manifest import BLOCK_RECORDS, FRAME_BYTES, Shard
from bert_tf.tokenization import BertTokenizer

_OPEN_FILES = 4096


@dataclass
class ShardsJob:
    """What all units of a run share; small, because every unit carries it to its worker."""

    folder: str  # output, which every process must see
    options: list[PretrainingDataOptions]  # one per sequence length, in order of length
    split_sentences: bool  # whether lines are paragraphs to split into sentences
    group_bytes: int  # text in a group of batches
    parts: int  # shards per group and round: more than one if the corpus has few groups
    plan_hash: str  # identity of the run
    threads: int | None = None  # per process; None for all cores

    @property
    def disk(self) -> str:
        """A folder on the disk that shards are written to first."""
        return tempfile.gettempdir() if is_remote(self.folder) else self.folder

    def open_journal(self) -> Journal:
        lengths = [variant.max_seq_length for variant in self.options]
        return Journal(open_folder(self.folder), lengths)


class Unit(NamedTuple):
    number: int
    slices: list[Slice]  # its text
    finished: frozenset[int]  # groups that need not be made

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(slice_.size for slice_ in self.slices)


Report = Callable[[int, int, int], None]  # a unit's number, its bytes read so far, new instances


def write_units(
    job: ShardsJob,
    units: Sequence[Unit],
    tokenizer: BertTokenizer,
    documents: DocumentPlan,
    report: Report = lambda unit, read, instances: None,
) -> None:
    """Writes the unfinished groups of some units, and enters each in the journal.

    Raises InputError for text that cannot be used, OSError for a full disk.
    """
    _allow_open_files()
    options = job.options[0]
    journal = job.open_journal()
    batches = itertools.chain.from_iterable(
        UnitReader(x.number, x.slices, options, documents, job.group_bytes, x.finished)
        for x in units
    )
    with input_errors(), full_disk_errors(job.disk), ThreadPoolExecutor(max_workers=1) as threads:
        outputs = record_batches(batches, tokenizer, job.options, job.split_sentences, job.threads)
        finishing = threads.submit(lambda: None)  # the group before the first
        by_group = itertools.groupby(outputs, lambda x: (x.batch.unit, x.batch.group))
        for (unit, number), in_group in by_group:
            with _OpenGroup(job, journal, unit, number) as group:
                for records in in_group:
                    report(unit, records.batch.bytes_read, group.write(records))
                finishing.result()
            finishing = threads.submit(group.finish)  # while the next group is made
        finishing.result()


def _allow_open_files() -> None:
    """Raises the limit of open files: a group has two for each round, part and length."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


class _OpenGroup(contextlib.ExitStack):
    """The shards of a group under construction; an error removes them."""

    def __init__(self, job: ShardsJob, journal: Journal, unit: int, number: int):
        super().__init__()
        self._job = job
        self._journal = journal
        self._shards: list[dict[tuple[str, int, int], _OpenShard]] = [{} for _ in job.options]
        self._made = FinishedGroup(unit, number, short_documents=[0] * len(job.options))
        self._made.shards = [{} for _ in job.options]
        self._made.counts = [{} for _ in job.options]

    def write(self, records: RecordBatch) -> int:
        """Writes a round of a batch; returns its instances."""
        batch = records.batch
        group = self._made
        split = "held_out" if batch.held_out else "train"
        group.ends_unit = batch.ends_unit
        group.bytes_read = batch.bytes_read
        group.unreadable = batch.unreadable
        if records.round == 0:
            group.text.update(batch.counts)
            group.text["sentences"] += int(records.sentences)
            group.text["sentences_without_tokens"] += int(records.without_tokens)
        for index, instances in enumerate(records.lengths):
            counts = group.counts[index]
            counts[split] = counts.get(split, 0) + instances.counts
            if records.round == 0:
                group.short_documents[index] += int(instances.short_documents)
            if len(instances.records):
                self._write(index, split, records.round, instances.records)
        return sum(len(instances.records) for instances in records.lengths)

    def _write(self, index: int, split: str, round_: int, records: np.ndarray) -> None:
        """Deals records out to the shards of a round in turn, continuing after the last batch."""
        parts = self._job.parts
        group = self._made
        if split == "held_out":
            round_ = 0
            parts = 1
        opened = self._shards[index]
        folder = self._journal.folders[index]
        keys = [(split, round_, part) for part in range(parts)]
        for key in keys:
            if key not in opened:
                name = f"{split}-{group.unit:05d}-{group.group:05d}-{round_:02d}-{key[2]:02d}"
                opened[key] = _OpenShard(folder, f"{name}.tfrecord")
                self.push(opened[key].abandon)
        shards = [opened[key] for key in keys]
        written = sum(shard.made.instances for shard in shards)
        for part, shard in enumerate(shards):
            shard.write(records[(part - written) % parts :: parts].tolist())

    def finish(self) -> None:
        """Completes the shards, then enters the group in the journal."""
        with full_disk_errors(self._job.disk):
            for finished, shards in zip(self._made.shards, self._shards, strict=True):
                for key in sorted(shards):
                    finished.setdefault(key[0], []).append(shards[key].finish())
            for folder in self._journal.folders:
                folder.sync()
            self._journal.add(self._made)


class _OpenShard:
    def __init__(self, folder: Folder, name: str):
        self.made = Shard(name, instances=0, bytes=0, sha256="")
        self._file = contextlib.ExitStack()
        self._path = self._file.enter_context(folder.new_file(name))
        self._writer = tf.io.TFRecordWriter(str(self._path))

    def write(self, records: list[bytes]) -> None:
        shard = self.made
        write = self._writer.write
        for record in records:
            if shard.instances % BLOCK_RECORDS == 0:
                shard.block_bytes.append(0)
            write(record)
            shard.instances += 1
            shard.bytes += len(record) + FRAME_BYTES
            shard.block_bytes[-1] += len(record) + FRAME_BYTES

    def finish(self) -> Shard:
        with self._file:
            self._writer.close()
            self.made.sha256 = sha256(self._path)
        return self.made

    def abandon(self, kind: Any, *error: Any) -> None:
        """Removes the file if there is an error, given as to `__exit__`."""
        if kind is not None:
            with contextlib.suppress(tf.errors.OpError):  # a full disk, which is reported already
                self._writer.close()
            self._file.__exit__(kind, *error)

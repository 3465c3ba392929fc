"""Makes shards group by group, and enters finished groups in the journal.

The shards of a group are written under temporary names and renamed when the group is complete.
"""

import contextlib
import errno
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.atomic import sync, temporary_name
from pipelines.corpus.documents import GROUP_BYTES, UnitReader
from pipelines.corpus.formats import input_errors
from pipelines.corpus.sources import Corpus
from pipelines.instances.records import RecordBatch, record_batches
from pipelines.options import PretrainingDataOptions
from pipelines.shards.journal import FinishedGroup, Journal
from pipelines.shards.manifest import BLOCK_RECORDS, Shard, sha256
from pipelines.shards.record_blocks import FRAME_BYTES

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer


class ShardsProgress(NamedTuple):
    bytes_read: int  # of the corpus on disk
    total_bytes: int
    instances: int  # written so far


@dataclass
class ShardsJob:
    folder: Path  # working folder, `OUTPUT.unfinished`, which every process must see
    corpus: Corpus  # corpus to read
    options: list[PretrainingDataOptions]  # one per sequence length, in order of length
    names: list[str]  # per length, the subfolder for its shards; "" for `folder` itself

    @property
    def journal(self) -> Journal:
        return Journal(self.folder, self.names, len(self.corpus.units))

    @property
    def parts(self) -> int:
        """Number of shards per group and round: more than one if the corpus has few groups."""
        groups = max(1, round(self.corpus.text_bytes / GROUP_BYTES))
        return -(-self.options[0].num_shards // (groups * self.options[0].dupe_factor))


def write_units(
    job: ShardsJob,
    tokenizer: "BertTokenizer",
    progress: Callable[[ShardsProgress], None] = lambda progress: None,
    units: Sequence[int] | None = None,
) -> None:
    """Writes the unfinished shards of some units of a job, by default of all."""
    corpus, journal = job.corpus, job.journal
    plan = journal.documents
    assert plan is not None  # made before any unit
    units = range(len(corpus.units)) if units is None else units
    missing = journal.missing(units)
    if job.options[0].skip_unreadable:  # other files may be readable now
        journal.forget(missing)
    done = journal.groups(units)
    sizes = [sum(slice_.size for slice_ in unit) for unit in corpus.units]
    instances = sum(group.instances for group in done)
    finished = {unit: {group.group for group in done if group.unit == unit} for unit in missing}
    buffer_bytes = job.options[0].buffer_bytes
    batches = itertools.chain.from_iterable(
        UnitReader(corpus, unit, plan, buffer_bytes=buffer_bytes, finished=finished[unit])
        for unit in missing
    )
    with input_errors(), _full_disk_as_os_error(), ThreadPoolExecutor(max_workers=1) as threads:
        made = record_batches(batches, tokenizer, job.options, corpus.split_sentences)
        finishing = None
        for (unit, number), in_group in itertools.groupby(
            made, lambda records: (records.batch.unit, records.batch.group)
        ):
            before = sum(sizes[each] for each in units if each < unit or each not in missing)
            with _OpenGroup(job, unit, number) as group:
                for records in in_group:
                    instances += group.write(records)
                    read = before + records.batch.bytes_read
                    progress(ShardsProgress(read, sum(sizes), instances))
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
        self._job, self._parts = job, job.parts
        self._shards: list[dict[tuple[str, int, int], _OpenShard]] = [{} for _ in job.options]
        self._made = FinishedGroup(unit, number, short_documents=[0] * len(job.options))
        self._made.shards = [{} for _ in job.options]
        self._made.counts = [{} for _ in job.options]

    def write(self, records: RecordBatch) -> int:
        """Writes a round of a batch; returns its instances."""
        batch, group = records.batch, self._made
        split = "held_out" if batch.held_out else "train"
        group.ends_unit, group.bytes_read = batch.ends_unit, batch.bytes_read
        group.unreadable = batch.unreadable
        if records.round == 0:
            group.text.update(batch.counts)
            group.text["sentences"] += int(records.sentences)
            group.text["sentences_without_tokens"] += int(records.without_tokens)
        for index, made in enumerate(records.lengths):
            counts = group.counts[index]
            counts[split] = counts[split] + made.counts if split in counts else made.counts
            if records.round == 0:
                group.short_documents[index] += int(made.short_documents)
            if len(made.records):
                self._write(index, split, records.round, made.records)
        return sum(len(made.records) for made in records.lengths)

    def _write(self, index: int, split: str, round_: int, records: np.ndarray) -> None:
        """Deals records out to the shards of a round in turn, continuing after the last batch."""
        parts, made = self._parts, self._made
        if split == "held_out":
            round_, parts = 0, 1
        opened, folder = self._shards[index], self._job.folder / self._job.names[index]
        for part in range(parts):
            if (split, round_, part) not in opened:
                place = f"{made.unit:05d}-{made.group:05d}-{round_:02d}-{part:02d}"
                opened[split, round_, part] = _OpenShard(folder / f"{split}-{place}.tfrecord")
        shards = [opened[split, round_, part] for part in range(parts)]
        written = sum(shard.made.instances for shard in shards)
        for part, shard in enumerate(shards):
            shard.write(records[(part - written) % parts :: parts].tolist())

    def finish(self) -> None:
        """Renames the shards and enters the group in the journal."""
        with _full_disk_as_os_error():
            for finished, shards in zip(self._made.shards, self._shards, strict=True):
                for key in sorted(shards):
                    finished.setdefault(key[0], []).append(shards[key].finish())
            for name in self._job.names:
                sync(self._job.folder / name)
            self._job.journal.add(self._made)

    def __enter__(self) -> "_OpenGroup":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind:
            for shard in itertools.chain.from_iterable(map(dict.values, self._shards)):
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

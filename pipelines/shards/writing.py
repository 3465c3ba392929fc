"""Writes a corpus as TFRecord shards of pre-training instances, with a manifest, restartable.

A killed run continues with the first group that is missing in its journal, and ends with the bytes
of an undisturbed run. Units are independent: processes or machines can share them. All work is done
in `OUTPUT.unfinished`; `OUTPUT` appears whole. Instances are shuffled within a batch of documents;
training shuffles further while it reads.
"""

import contextlib
import errno
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.atomic import TEMPORARY_NAMES, move_directory, sync, temporary_name
from bert_tf.errors import InputError
from bert_tf.outputs import check_output_folder
from bert_tf.version import __version__
from pipelines.corpus.documents import COUNTED, GROUP_BYTES, UnitReader, plan_documents
from pipelines.corpus.formats import empty_corpus, input_errors
from pipelines.corpus.sources import TFDS, Corpus, CorpusInputs, open_corpus
from pipelines.instances.records import InstanceCounts, RecordBatch, record_batches, summarize
from pipelines.options import PretrainingDataOptions
from pipelines.shards.folder import FRAME_BYTES
from pipelines.shards.journal import JOURNAL, FinishedGroup, Journal
from pipelines.shards.manifest import BLOCK_RECORDS, FILE_NAME, UNFINISHED, Manifest, Shard, sha256

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer

# Version of the plan and the journal; a change in how instances are made is a new one, too.
PLAN_FORMAT = 3

# Files in a folder of shards, of one length or with a subfolder per length.
_IN_FOLDER = (FILE_NAME, "vocab.txt", "tokenizer_config.json", "*.tfrecord")
_IN_SUBFOLDERS = (f"[0-9]*/{name}" for name in _IN_FOLDER)
_FILES = (*_IN_FOLDER, *_IN_SUBFOLDERS, f"{JOURNAL}/*", f"{JOURNAL}/*/*")
_UNFINISHED_FILES = (*_FILES, TEMPORARY_NAMES, f"*/{TEMPORARY_NAMES}")


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


# Writes the shards of all unfinished units of a job.
Runner = Callable[[ShardsJob, "BertTokenizer", Callable[[ShardsProgress], None]], None]


def write_shards(
    inputs: CorpusInputs,
    output_directory: str | os.PathLike,
    tokenizer: "BertTokenizer",
    options: PretrainingDataOptions | None = None,
    **named: Any,
) -> Manifest:
    """Writes shards of one sequence length."""
    lengths = [options or PretrainingDataOptions()]
    return write_shards_of_lengths(inputs, output_directory, tokenizer, lengths, **named)[0]


def write_shards_of_lengths(
    inputs: CorpusInputs,
    output_directory: str | os.PathLike,
    tokenizer: "BertTokenizer",
    options: Sequence[PretrainingDataOptions],
    *,
    overwrite: bool = False,
    progress: Callable[[ShardsProgress], None] = lambda progress: None,
    runner: Runner | None = None,
) -> list[Manifest]:
    """Makes pre-training instances of a corpus and writes them as TFRecord shards.

    Several `options`, which may differ in max_seq_length and max_predictions_per_seq, have a
    subfolder each. `progress` is called after each batch of documents; `runner` writes the units,
    by default in this process. The same call continues a run that was killed or failed.

    Returns the manifests, in order of length. Raises InputError for an unfinished folder of a run
    with other inputs or options, or of one that is still running; OSError for a full disk.
    """
    options = sorted(options, key=lambda one: one.max_seq_length)
    names = [str(one.max_seq_length) for one in options] if len(options) > 1 else [""]
    if len({one.max_seq_length for one in options}) < len(options):
        raise InputError("a max_seq_length is given twice: give each once")
    for name in (field.name for field in fields(PretrainingDataOptions)):
        is_shared = name not in ("max_seq_length", "max_predictions_per_seq")
        if is_shared and len({getattr(one, name) for one in options}) > 1:
            raise InputError(
                f"{name} differs between sequence lengths: give one value, or write each length "
                "separately"
            )
    corpus = open_corpus(inputs, options[0])
    output = check_output_folder(output_directory, corpus.files)
    plan = {
        "options": [one.of_data() for one in options],
        "vocabulary": {
            "hash": tokenizer.vocabulary_hash,
            "size": tokenizer.vocabulary_size,
            "settings": tokenizer.settings,
        },
        "units": corpus.units,
        "bert_tf_version": __version__,
        "format": PLAN_FORMAT,
    }
    plan = json.loads(json.dumps(plan))  # with lists for tuples, as it is read back
    finished = Journal(output, names, len(corpus.units))
    if finished.plan == plan:  # an earlier run was killed just before its last step
        finished.remove()
        return [Manifest.load(output / name) for name in names]
    check_output_folder(output_directory, ours=_FILES, overwrite=overwrite)
    folder = output.with_name(output.name + UNFINISHED)
    check_output_folder(folder, corpus.files, ours=_UNFINISHED_FILES, overwrite=True)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / JOURNAL).is_dir():
        raise InputError(
            f"{folder}: bert-tf shards works in this folder, but did not make it: move it, or name "
            "another output"
        )
    job = ShardsJob(folder, corpus, options, names)
    journal = job.journal
    with journal.begun(plan):
        for name in names:
            (folder / name).mkdir(exist_ok=True)
        journal.check_files()
        if options[0].skip_unreadable:
            journal.forget(journal.missing())
        if not (journal.documents and journal.groups()):
            journal.documents = plan_documents(
                corpus,
                held_out_share=options[0].held_out_share,
                seed=options[0].seed,
                for_pairs=options[0].instances == "sentence_pairs",
            )
        (runner or write_units)(job, tokenizer, progress)
        groups = journal.finish()
        try:
            manifests = _finish(job, groups, tokenizer, plan)
        except InputError:
            shutil.rmtree(folder)  # the whole corpus is unusable: there is nothing to continue
            raise
        check_output_folder(output_directory, ours=_FILES, overwrite=overwrite)  # hours later
        move_directory(folder, output)
    finished.remove()
    return manifests


def _finish(
    job: ShardsJob, groups: list[FinishedGroup], tokenizer: "BertTokenizer", plan: dict[str, Any]
) -> list[Manifest]:
    """Writes the manifests, one per sequence length."""
    text: Counter[str] = Counter()
    unreadable = set(job.corpus.unreadable)
    for group in groups:
        text.update(group.text)
        unreadable.update(group.unreadable)
    if not text["documents"]:
        raise empty_corpus(job.corpus.name)
    folders = [str(Path(file).absolute().parent) for file in job.corpus.files]
    common = os.path.commonpath(folders or [""])
    corpus = [
        {"file": name if name.startswith(TFDS) else os.path.relpath(name, common), "bytes": size}
        for name, size in job.corpus.sources.items()
    ]
    manifests = []
    for index, (options, name) in enumerate(zip(job.options, job.names, strict=True)):
        shards: dict[str, list[Shard]] = {}
        counts: dict[str, InstanceCounts] = {}
        for group in groups:
            for split, made in group.shards[index].items():
                shards.setdefault(split, []).extend(made)
            for split, counted in group.counts[index].items():
                counts[split] = counts[split] + counted if split in counts else counted
        if "train" not in shards:
            raise InputError(
                f"{job.corpus.name}: no instances, because the text has no tokens: check that the "
                "vocabulary fits its language"
            )
        manifest = Manifest(
            options=options.of_data(),
            vocabulary=plan["vocabulary"],
            corpus=corpus,
            documents=text["documents"],
            sentences=text["sentences"],
            irregularities={
                "documents_shorter_than_an_instance": sum(g.short_documents[index] for g in groups),
                "sentences_without_tokens": text["sentences_without_tokens"],
                **{what: text[what] for what in COUNTED if what != "documents"},
                "unreadable_files": len(unreadable),
            },
            shards=shards,
            statistics={
                split: summarize(counts[split], options.instances == "sentence_pairs")
                for split in shards
            },
            bert_tf_version=__version__,
        )
        manifest.save(job.folder / name)
        tokenizer.save(job.folder / name)
        manifests.append(manifest)
    return manifests


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

"""Writes a corpus as TFRecord shards of pre-training instances, with a manifest, restartable.

The corpus is cut into units (`pipelines.corpus.sources`), the batches of a unit into groups of
about 32 MB of text. A killed run continues with the first group that is missing in its journal
(`pipelines.shards.groups`), and ends with the bytes of an undisturbed run. Units are independent,
so several processes or machines can share them (`pipelines.shards.beam`).

All work is done in `OUTPUT.unfinished`; `OUTPUT` appears whole.

The original shuffles all instances before it writes them. Here, instances are shuffled within a
batch of some megabytes of text, and training shuffles further while it reads.
"""

import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.atomic import TEMPORARY_NAMES, move_directory, remove, write_text
from bert_tf.errors import InputError
from bert_tf.outputs import check_output_folder
from bert_tf.version import __version__
from pipelines.corpus.documents import COUNTED
from pipelines.corpus.formats import empty_corpus
from pipelines.corpus.sources import TFDS, Corpus, CorpusInputs, open_corpus
from pipelines.instances.statistics import InstanceCounts, summarize
from pipelines.options import PretrainingDataOptions
from pipelines.shards.groups import (
    JOURNAL,
    FinishedGroup,
    ShardsJob,
    ShardsProgress,
    complete_units,
    finished_groups,
    forget_incomplete_groups,
    write_units,
)
from pipelines.shards.manifest import FILE_NAME, UNFINISHED, Manifest, Shard

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer

PLAN = "plan.json"
# Version of the plan and the journal; a change in how instances are made is a new one, too.
PLAN_FORMAT = 2

# Files in a folder of shards, of one length or with a subfolder per length.
_IN_FOLDER = (FILE_NAME, "vocab.txt", "tokenizer_config.json", "*.tfrecord")
_FILES = (
    *_IN_FOLDER,
    *(f"[0-9]*/{name}" for name in _IN_FOLDER),
    f"{JOURNAL}/*",
    f"{JOURNAL}/*/*",
)
_UNFINISHED_FILES = (*_FILES, TEMPORARY_NAMES, f"*/{TEMPORARY_NAMES}")

# Writes the shards of all unfinished units of a job.
Runner = Callable[[ShardsJob, "BertTokenizer", Callable[[ShardsProgress], None]], None]


def write_shards(
    inputs: CorpusInputs,
    output_directory: str | os.PathLike,
    tokenizer: "BertTokenizer",
    options: PretrainingDataOptions | None = None,
    **named: Any,
) -> Manifest:
    """Writes shards of one sequence length; see `write_shards_of_lengths`."""
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

    The features of the records are those of `pipelines.instances.schemas`: the original's, or the
    compact ones for dynamic masking. Beside the shards, each folder gets `manifest.json` and the
    tokenizer's files, so that training needs no other.

    The same call continues a run that was killed or ended in an error.

    Args:
        inputs: files, folders, globs or datasets, see `pipelines.corpus.sources`.
        output_directory: folder to make, with a subfolder per length if there are several. It
            appears when everything is written; until then, `output_directory` + ".unfinished"
            holds the work.
        tokenizer: turns sentences into ids; needs [CLS], [SEP] and [MASK].
        options: one per length; they may differ in max_seq_length and max_predictions_per_seq.
        overwrite: whether to replace an older folder of shards.
        progress: called after each batch of documents.
        runner: writes the units; by default this process.

    Returns:
        The manifests, in order of length.

    Raises:
        InputError: the corpus or the output cannot be used, or the unfinished folder belongs to a
            run with other inputs or options, or to one that is still running.
        OSError: the shards cannot be written, for example because the disk is full.
    """
    options = sorted(options, key=lambda one: one.max_seq_length)
    names = [str(one.max_seq_length) for one in options] if len(options) > 1 else [""]
    _check_agreement(options)
    corpus = open_corpus(inputs, options[0])
    output = check_output_folder(output_directory, corpus.files)
    plan = {
        "options": [one.of_data() for one in options],
        "vocabulary": _vocabulary(tokenizer),
        "units": corpus.units,
        "bert_tf_version": __version__,
        "format": PLAN_FORMAT,
    }
    plan = json.loads(json.dumps(plan))  # with lists for tuples, as it is read back
    if _plan(output) == plan:  # an earlier run was killed just before its last step
        _remove_journal(output)
        return [Manifest.load(output / name) for name in names]
    check_output_folder(output_directory, ours=_FILES, overwrite=overwrite)
    folder = output.with_name(output.name + UNFINISHED)
    check_output_folder(folder, corpus.files, ours=_UNFINISHED_FILES, overwrite=True)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / JOURNAL).is_dir():
        raise InputError(
            f"{folder}: bert-tf shards works in this folder, but did not make it: move it, or name "
            "another output"
        )
    with _work_folder(folder, plan):
        job = ShardsJob(folder, corpus, options, names)
        for name in names:
            (folder / name).mkdir(exist_ok=True)
        forget_incomplete_groups(job)
        (runner or write_units)(job, tokenizer, progress)
        forget_incomplete_groups(job)
        groups = finished_groups(job)
        if missing := set(range(len(corpus.units))) - complete_units(groups):
            raise InputError(
                f"{folder}: shards of {len(missing)} of {len(corpus.units)} units of the corpus "
                "are missing: give the same command again to make them (all workers of Beam must "
                "see this folder under this path)"
            )
        try:
            manifests = _finish(job, groups, tokenizer)
        except InputError:
            shutil.rmtree(folder)  # the whole corpus is unusable: there is nothing to continue
            raise
        check_output_folder(output_directory, ours=_FILES, overwrite=overwrite)  # hours later
        move_directory(folder, output)
    _remove_journal(output)
    return manifests


def _remove_journal(output: Path) -> None:
    """Removes the journal, the plan last: while it exists, the same call recognizes its run."""
    remove(*(path for path in (output / JOURNAL).iterdir() if path.name != PLAN))
    shutil.rmtree(output / JOURNAL)


def _check_agreement(options: list[PretrainingDataOptions]) -> None:
    if len({one.max_seq_length for one in options}) < len(options):
        raise InputError("a max_seq_length is given twice: give each once")
    for name in (field.name for field in fields(PretrainingDataOptions)):
        is_shared = name not in ("max_seq_length", "max_predictions_per_seq")
        if is_shared and len({getattr(one, name) for one in options}) > 1:
            raise InputError(
                f"{name} differs between sequence lengths: give one value, or write each length "
                "separately"
            )


def _vocabulary(tokenizer: "BertTokenizer") -> dict[str, Any]:
    return {
        "hash": tokenizer.vocabulary_hash,
        "size": tokenizer.vocabulary_size,
        "settings": tokenizer.settings,
    }


@contextmanager
def _work_folder(folder: Path, plan: dict[str, Any]) -> Iterator[None]:
    """Locks the folder for this run; it is new, or belongs to a run by the same plan."""
    journal = folder / JOURNAL
    journal.mkdir(parents=True, exist_ok=True)
    with (journal / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another process is writing there: wait for it, or name another output"
            ) from error
        entries = sorted(journal.glob("*-*.json"))
        begun = _plan(folder)
        if begun is not None and (difference := _difference(begun, plan, entries)):
            raise InputError(
                f"{folder}: holds an unfinished run that differs in {difference}: give its "
                "settings to continue it, or remove the folder to start over"
            )
        if begun != plan:
            write_text(journal / PLAN, json.dumps(plan))
        try:
            yield
        except BaseException:
            if folder.is_dir():
                remove(*folder.rglob(TEMPORARY_NAMES))
                if not any(journal.glob("*-*.json")):
                    shutil.rmtree(folder)  # nothing to continue
            raise


def _plan(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / JOURNAL / PLAN).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _difference(begun: dict[str, Any], plan: dict[str, Any], entries: list[Path]) -> str | None:
    """The first difference that keeps a run from being continued by another plan, if any.

    Text after the finished groups may change, so that a file that stopped the run can be fixed.
    """
    versions = ("format", "bert_tf_version")
    if any(begun.get(name) != plan[name] for name in versions):
        return "the version of bert-tf, which makes other shards now"
    if len(begun["options"]) != len(plan["options"]):
        return "its sequence lengths"
    for one, other in zip(begun["options"], plan["options"], strict=True):
        for name in one:
            if one[name] != other.get(name):
                return f"{name} ({one[name]} there, {other.get(name)} now)"
    for key in plan.keys() - {"units"}:
        if begun[key] != plan[key]:
            return f"the {key}"
    reached = 1 + max((int(path.name.partition("-")[0]) for path in entries), default=-1)
    for unit, other_unit in zip(begun["units"][:reached], plan["units"], strict=False):
        if unit != other_unit:
            changed = [slice_ for slice_ in unit if slice_ not in other_unit] or other_unit
            return f"the corpus ({changed[0][0]} is new, changed or gone)"
    return None if len(plan["units"]) >= reached else "the corpus (files are gone)"


def _finish(
    job: ShardsJob, groups: list[FinishedGroup], tokenizer: "BertTokenizer"
) -> list[Manifest]:
    """Writes the manifests, one per sequence length."""
    text: Counter[str] = Counter()
    unreadable = set(job.corpus.unreadable)
    for group in groups:
        text.update(group.text)
        unreadable.update(group.unreadable)
    if not text["documents"]:
        raise empty_corpus(job.corpus.name)
    manifests = []
    for index, (options, name) in enumerate(zip(job.options, job.names, strict=True)):
        shards: dict[str, list[Shard]] = {}
        counts: dict[str, InstanceCounts] = {}
        for group in groups:
            for split, made in group.shards[index].items():
                shards.setdefault(split, []).extend(made)
            for split, counted in group.counts[index].items():
                counts[split] = counts[split] + counted if split in counts else counted
        for split, made in shards.items():
            instances, records = np.sum(counts[split].lengths), sum(one.instances for one in made)
            assert records == instances or (records < instances and options.instances_per_row > 1)
        if "train" not in shards:
            raise InputError(
                f"{job.corpus.name}: no instances, because the text has no tokens: check that the "
                "vocabulary fits its language"
            )
        short = sum(group.short_documents[index] for group in groups)
        manifest = Manifest(
            options=options.of_data(),
            vocabulary=_vocabulary(tokenizer),
            corpus=_corpus_entries(job.corpus),
            documents=text["documents"],
            sentences=text["sentences"],
            irregularities={
                "documents_shorter_than_an_instance": short,
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


def _corpus_entries(corpus: Corpus) -> list[dict[str, Any]]:
    """`file` and `bytes` of each source, files relative to their common folder."""
    parents = [str(Path(file).absolute().parent) for file in corpus.files]
    folder = os.path.commonpath(parents or [""])
    entries = []
    for source, size in corpus.sources.items():
        file = source if source.startswith(TFDS) else os.path.relpath(source, folder)
        entries.append({"file": file, "bytes": size})
    return entries

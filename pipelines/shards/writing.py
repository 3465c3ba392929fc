"""Writes a corpus as TFRecord shards of pre-training instances, with a manifest, restartable.

The corpus is cut into units, the batches of a unit into groups. A killed run continues with the
first group that is missing in its journal, and ends with the bytes of an undisturbed run. Units are
independent, so several processes or machines can share them (`pipelines.shards.beam`). All work is
done in `OUTPUT.unfinished`; `OUTPUT` appears whole.

The original shuffles all instances before it writes them. Here, instances are shuffled within a
batch of documents, and training shuffles further while it reads.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.atomic import TEMPORARY_NAMES, move_directory
from bert_tf.errors import InputError
from bert_tf.outputs import check_output_folder
from bert_tf.version import __version__
from pipelines.corpus.documents import COUNTED, plan_documents
from pipelines.corpus.formats import empty_corpus
from pipelines.corpus.sources import TFDS, CorpusInputs, open_corpus
from pipelines.instances.statistics import InstanceCounts, summarize
from pipelines.options import PretrainingDataOptions
from pipelines.shards.groups import ShardsJob, ShardsProgress, write_units
from pipelines.shards.journal import JOURNAL, FinishedGroup, Journal
from pipelines.shards.manifest import FILE_NAME, UNFINISHED, Manifest, Shard

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer

# Version of the plan and the journal; a change in how instances are made is a new one, too.
PLAN_FORMAT = 3

# Files in a folder of shards, of one length or with a subfolder per length.
_IN_FOLDER = (FILE_NAME, "vocab.txt", "tokenizer_config.json", "*.tfrecord")
_IN_SUBFOLDERS = (f"[0-9]*/{name}" for name in _IN_FOLDER)
_FILES = (*_IN_FOLDER, *_IN_SUBFOLDERS, f"{JOURNAL}/*", f"{JOURNAL}/*/*")
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

    The output is a folder with a subfolder per length, if there are several `options`, which may
    differ in max_seq_length and max_predictions_per_seq. Beside the shards, each folder gets
    `manifest.json` and the tokenizer's files. `progress` is called after each batch of documents;
    `runner` writes the units, by default in this process. The same call continues a run that was
    killed or ended in an error.

    Returns the manifests, in order of length. Raises InputError for an unfinished folder of a run
    with other inputs or options, or of one that is still running; OSError for a full disk.
    """
    options = sorted(options, key=lambda one: one.max_seq_length)
    names = [str(one.max_seq_length) for one in options] if len(options) > 1 else [""]
    _check_agreement(options)
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
